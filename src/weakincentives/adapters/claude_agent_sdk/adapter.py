"""`ClaudeAgentSDKAdapter`: prompts on the Claude Code CLI."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from weakincentives._imports import require_extra
from weakincentives.adapters.claude_agent_sdk.cli import Cli, disprove, find_cli, follows_list_changes
from weakincentives.adapters.claude_agent_sdk.home import credentials
from weakincentives.adapters.claude_agent_sdk.permissions import (
    check_options,
    hooks_for_cli_tools,
    permissions,
    require_names,
)
from weakincentives.adapters.claude_agent_sdk.wire import PROVIDER, TOOLS, CliRunEnded, CliToolUse
from weakincentives.errors import PromptEvaluationError
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import AnyTool, Tokenizer, Tool, ToolResult, VisibilityExpansionRequired
from weakincentives.runtime import InnerLoop, ProviderAdapter, ToolInvoked

if TYPE_CHECKING:
    from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel

SettingSource = Literal["user", "project", "local"]


class ClaudeAgentSDKAdapter(ProviderAdapter):
    """Runs prompts on the Claude Code CLI that the Claude Agent SDK bundles.

        adapter = ClaudeAgentSDKAdapter("claude-sonnet-5", allowed_cli_tools=("Read", "Edit"))

    Our tools reach the CLI over MCP and may appear while it runs. Each run has its own home directory and environment;
    from ours it inherits `PATH`, the service's credentials and proxies, and it gets what `env` adds. The CLI's own
    tools are off except for `allowed_cli_tools`. If the prompt's resources have a `HostFilesystem`, they work on those
    files, and `rollback_on_failure` undoes what a failed run did to them. `setting_sources=("user",)` admits the
    user's own configuration and login, `sdk_options` sets any other field of the SDK's `ClaudeAgentOptions`.
    """

    name = PROVIDER

    def __init__(
        self,
        model: str | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        env: Mapping[str, str] | None = None,
        allowed_cli_tools: Iterable[str] = (),
        rollback_on_failure: bool = False,
        setting_sources: Sequence[SettingSource] = (),
        hooks: Mapping[Any, Sequence[Any]] | None = None,
        sdk_options: Mapping[str, Any] | None = None,
        cli_path: str | os.PathLike[str] | None = None,
        dynamic_tools: bool | None = None,
        max_retries: int = 2,
        output_retries: int = 1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(model or "", output_retries=output_retries, tokenizer=tokenizer)
        require_extra("claude_agent_sdk", "claude", "ClaudeAgentSDKAdapter")
        require_extra("mcp", "claude", "ClaudeAgentSDKAdapter")
        check_options(sdk_options or {})
        for name, value in (env or {}).items():
            if not isinstance(value, str):
                raise ValueError(f"env values must be strings, got {value!r} for {name!r}")
        self._env = {**credentials(api_key, base_url), "CLAUDE_CODE_MAX_RETRIES": str(max_retries), **(env or {})}
        self._cli_tools = require_names(allowed_cli_tools, "allowed_cli_tools")
        self._rollback_on_failure = rollback_on_failure
        self._setting_sources = require_names(setting_sources, "setting_sources", get_args(SettingSource))
        self._hooks = hooks
        self._sdk_options = dict(sdk_options or {})
        self._cli_path = None if cli_path is None else Path(cli_path)
        self._dynamic_tools = dynamic_tools
        self._found: Cli | None = None

    @property
    def supports_dynamic_tools(self) -> bool:
        """Whether the installed CLI picks up tools that appear; unless given, measured once per process."""
        if self._dynamic_tools is not None:
            return self._dynamic_tools
        try:
            return follows_list_changes(self._cli())
        except PromptEvaluationError:
            return False

    @property
    def tool_route(self) -> str:
        return "mcp" if self.supports_dynamic_tools else "restart"

    def define_tool(self, tool: AnyTool) -> str:
        return TOOLS.text(tool) if isinstance(tool, Tool) else tool.definition

    def channel(self) -> ClaudeChannel:
        """A channel without a workspace; the caller closes it."""
        return self._channel(None, None)

    @contextmanager
    def open_channel(self, loop: InnerLoop) -> Iterator[ClaudeChannel]:
        with self._workspace(loop) as root:
            channel = self._channel(root, loop)
            try:
                yield channel
            finally:
                channel.close()
                self._record_end(loop, channel)

    @asynccontextmanager
    async def open_channel_async(self, loop: InnerLoop) -> AsyncIterator[ClaudeChannel]:
        with self._workspace(loop) as root:
            channel = await asyncio.to_thread(self._channel, root, loop)
            try:
                yield channel
            finally:
                await asyncio.to_thread(channel.close)
                self._record_end(loop, channel)

    @contextmanager
    def _workspace(self, loop: InnerLoop) -> Iterator[Path | None]:
        """The files the CLI works on; undoes a failed run if so configured. A restart is not a failure."""
        files = loop.prompt.resources.get_optional(Filesystem)  # type: ignore[type-abstract]
        if not isinstance(files, HostFilesystem):
            yield None
            return
        if not self._rollback_on_failure:
            yield Path(files.root)
            return
        tracked = HostFilesystem(files.root, track_external=True)
        before = tracked.snapshot()
        try:
            yield Path(files.root)
        except VisibilityExpansionRequired:
            raise
        except BaseException:
            tracked.restore(before)
            raise
        finally:
            tracked.close()

    def _record_end(self, loop: InnerLoop, channel: ClaudeChannel) -> None:
        loop.session.dispatch(CliRunEnded(loop.scope.run_id, self._cli().version, channel.cost_usd))

    def _channel(self, workspace: Path | None, loop: InnerLoop | None) -> ClaudeChannel:
        from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel
        from weakincentives.adapters.claude_agent_sdk.conversation import Settings

        cli = self._cli()
        options = {**self._sdk_options, "hooks": hooks_for_cli_tools(self._hooks)} if self._hooks else self._sdk_options
        return ClaudeChannel(
            Settings(
                cli=cli.path,
                model=self.model or None,
                env=self._env,
                workspace=workspace,
                setting_sources=self._setting_sources,
                options={**permissions(self._cli_tools), **options},
                unlisted=lambda: _restart(cli),
                on_cli_tool=None if loop is None else functools.partial(_record, loop),
            )
        )

    def _cli(self) -> Cli:
        if self._found is None:
            self._found = find_cli(self._cli_path)
        return self._found


def _record(loop: InnerLoop, use: CliToolUse) -> None:
    loop.session.dispatch(
        ToolInvoked(
            name=use.name,
            params=json.loads(use.arguments),
            result=ToolResult(use.output, success=use.success),
            call_id=use.call_id,
            run_id=loop.scope.run_id,
            arguments=use.arguments,
            duration=use.duration,
        )
    )


def _restart(cli: Cli) -> VisibilityExpansionRequired:
    """The sections are already open in the session, so a new evaluation shows them with their tools."""
    disprove(cli)
    return VisibilityExpansionRequired(
        f"Claude Code {cli.version} did not pick up the new tools.",
        requested_overrides={},
        reason="The CLI did not list the tools again.",
    )
