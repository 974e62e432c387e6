"""`ClaudeAgentSDKAdapter` evaluates prompts on the Claude Code CLI."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary

from weakincentives._base.imports import require_extra
from weakincentives.adapters.anthropic.models import media_support
from weakincentives.adapters.claude_agent_sdk.cli import (
    MIN_VERSION,
    Cli,
    approval_rules,
    check_options,
    compaction_variables,
    credentials,
    find_cli,
    hooks_for_cli_tools,
    permissions,
    require_names,
)
from weakincentives.adapters.claude_agent_sdk.wire import PROVIDER, TOOLS, CliRunEnded
from weakincentives.errors import PromptEvaluationError
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import (
    AnyTool,
    ApprovalRule,
    Tokenizer,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.runtime import Compaction, LiveRun, MediaSupport, Message, ProviderAdapter, Settings, ToolCall
from weakincentives.runtime.spi import GuardedCall, Workers, call_async, finish, rule_steps, waiting_calls
from weakincentives.session import Session

if TYPE_CHECKING:
    from weakincentives.adapters.claude_agent_sdk.approval import Judgement
    from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel, Settings as RunSettings

SettingSource = Literal["user", "project", "local"]


class ClaudeAgentSDKAdapter(ProviderAdapter):
    """Runs prompts on the Claude Code CLI that the Claude Agent SDK bundles.

        adapter = ClaudeAgentSDKAdapter("claude-sonnet-5", allowed_cli_tools=("Read", "Edit"))

    Our tools reach the CLI over MCP and may appear while it runs. Each run has its own home directory and environment,
    which inherits only `PATH`, the service's credentials and proxies from ours, plus what `env` adds. The CLI's own
    tools are off except for `allowed_cli_tools`. If the prompt's resources include a `HostFilesystem`, those tools work
    on its files, and `rollback_on_failure` undoes the changes of a failed run. `setting_sources=("user",)` loads the
    user's own configuration and login; `sdk_options` sets any other field of the SDK's `ClaudeAgentOptions`.

    `cli_tool_approval={"Bash": "call"}` has a person decide about calls of the CLI's own tools; in place of "call", a
    function of the input, and of `session` if it takes that, decides by returning "call" or None.

    The CLI stays open between the turns of a `Conversation`, for the `keep_open` most recent conversations. If it is
    gone, because a turn was stopped or another process continues, a new CLI resumes the conversation.
    """

    name = PROVIDER

    def __init__(
        self,
        model: str | None = None,  #: by default the CLI's own choice
        *,
        api_key: str | None = None,  #: by default that of the environment
        base_url: str | None = None,  #: the address of another endpoint
        env: Mapping[str, str] | None = None,
        allowed_cli_tools: Iterable[str] = (),
        cli_tool_approval: Mapping[str, ApprovalRule] | None = None,
        rollback_on_failure: bool = False,
        setting_sources: Sequence[SettingSource] = (),
        hooks: Mapping[Any, Sequence[Any]] | None = None,  #: the SDK's hooks, by event
        sdk_options: Mapping[str, Any] | None = None,
        cli_path: str | os.PathLike[str] | None = None,  #: another CLI than the bundled one
        dynamic_tools: bool | None = None,  #: whether new tools may appear; by default measured
        keep_open: int = 2,
        settings: Settings | None = None,  #: settings that every provider has
        max_retries: int = 2,  #: how often the CLI sends a failed request again
        output_retries: int = 1,  #: how often an answer of the wrong type is returned to the model
        tokenizer: Tokenizer | None = None,  #: counts tokens for plans and ledgers
    ) -> None:
        super().__init__(model or "", output_retries=output_retries, tokenizer=tokenizer, settings=settings)
        require_extra("claude_agent_sdk", "claude", "ClaudeAgentSDKAdapter")
        require_extra("mcp", "claude", "ClaudeAgentSDKAdapter")
        check_options(sdk_options or {})
        for name, value in (env or {}).items():
            if not isinstance(value, str):
                raise ValueError(f"env values must be strings, got {value!r} for {name!r}")
        self._env = {**credentials(api_key, base_url), "CLAUDE_CODE_MAX_RETRIES": str(max_retries), **(env or {})}
        self._cli_tools = require_names(allowed_cli_tools, "allowed_cli_tools")
        self._approval = approval_rules(cli_tool_approval or {}, self._cli_tools)
        self._rollback_on_failure = rollback_on_failure
        self._setting_sources = require_names(setting_sources, "setting_sources", get_args(SettingSource))
        self._hooks = hooks
        self._sdk_options = dict(sdk_options or {})
        self._cli_path = None if cli_path is None else Path(cli_path)
        self._dynamic_tools = dynamic_tools
        self._keep_open = keep_open
        self._open: WeakKeyDictionary[Session, ClaudeChannel] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def identity(self) -> tuple[Any, ...]:
        # Which route the installed CLI has is not asked for: that starts a process.
        server, options = self._env.get("ANTHROPIC_BASE_URL"), (self._setting_sources, self._sdk_options)
        tools = self._dynamic_tools, self._cli_tools, self._approval
        return (self.name, self.model, self.settings, self.output_retries, server, *tools, *options)

    @property
    def compacts_itself(self) -> bool:
        """The CLI does it."""
        return True

    @property
    def supports_dynamic_tools(self) -> bool:
        """True if the installed CLI picks up new tools while it runs; unless given, measured once per process."""
        if self._dynamic_tools is not None:
            return self._dynamic_tools
        try:
            return follows_list_changes(self._cli)
        except PromptEvaluationError:
            return False

    @property
    def tool_route(self) -> str:
        return "mcp" if self.supports_dynamic_tools else "restart"

    def define_tool(self, tool: AnyTool) -> str:
        return TOOLS.text(tool) if isinstance(tool, Tool) else tool.definition

    @cached_property
    def own_tools(self) -> Mapping[str, Tool[Any, Any]]:  # type: ignore[override]
        """The CLI's own tools that are allowed; their calls reach our loop only to wait for a person."""
        names = dict.fromkeys(tool.partition("(")[0] for tool in self._cli_tools)
        return {name: self._own_tool(name) for name in names}

    @property
    def reserved_names(self) -> Collection[str]:  # type: ignore[override]
        return self.own_tools

    def _own_tool(self, name: str) -> Tool[Any, Any]:
        async def make(params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
            from weakincentives.adapters.claude_agent_sdk.replay import replay

            files = context.filesystem
            settings = self._run_settings(Path(files.root) if isinstance(files, HostFilesystem) else None)
            call = ToolCall(context.call_id, name, json.dumps(params))
            said = context.session[Message].all()
            return await replay(settings, call, said, context.prompt.name, context.deadline)

        schema = {"type": "object", "properties": {}}
        tool = Tool.from_schema(name=name, description=name, schema=schema, handler=make, approval="call")
        # What the CLI does to files is not ours to undo.
        tool.transactional, tool.reaches_outside, tool.acts_if_failed = False, True, True
        return tool

    @property
    def media(self) -> MediaSupport:
        return media_support(self.model)

    def with_call_ids(self, items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
        """Refuse the reply: the CLI waits for the results of its calls under the ids that it has."""
        taken: set[str] = set()
        repeated = ""
        for block in map(json.loads, items):
            if block["type"] == "tool_use":
                if block["id"] in taken or block["id"] not in ids:
                    repeated = block["id"]
                taken.add(block["id"])
        problem = f"Claude Code made a call with the id of another, so their results cannot be told apart: {repeated}"
        raise PromptEvaluationError(problem, prompt_name="", phase="response")

    def channel(self) -> ClaudeChannel:
        """A channel without a workspace; the caller closes it."""
        return self._channel(None)

    @contextmanager
    def open_channel(self, live: LiveRun) -> Iterator[ClaudeChannel]:
        with self._workspace(live) as root:
            channel, ended = self._take(live, root), False
            try:
                with self._recording_end(live, channel):
                    yield channel
                    if waiting_calls(live.session):
                        _keep_results(live.session, channel.finish_turn(live.meter.deadline))
                ended = True
            finally:
                self._put_back(live, channel, ended)

    @asynccontextmanager
    async def open_channel_async(self, live: LiveRun) -> AsyncIterator[ClaudeChannel]:
        with self._workspace(live) as root:
            # To the end, whatever is cancelled: a CLI that was started must be stopped.
            taking = _workers.call(partial(self._take, live, root))
            cancelled = await finish(taking)
            channel, ended = taking.result(), False
            try:
                if cancelled is not None:
                    raise cancelled
                with self._recording_end(live, channel):
                    yield channel
                    if waiting_calls(live.session):
                        _keep_results(live.session, await channel.finish_turn_async(live.meter.deadline))
                ended = True
            finally:
                putting_back = _workers.call(partial(self._put_back, live, channel, ended))
                cancelled = await finish(putting_back)
                putting_back.result()
                if cancelled is not None:
                    raise cancelled

    @contextmanager
    def open_spare_channel(self) -> Iterator[ClaudeChannel]:
        channel = self.channel()
        try:
            yield channel
        finally:
            channel.close()

    @asynccontextmanager
    async def open_spare_channel_async(self) -> AsyncIterator[ClaudeChannel]:
        # Its thread starts without blocking; the CLI starts with the request.
        channel = self.channel()
        try:
            yield channel
        finally:
            await channel.close_async()

    def close(self) -> None:
        """Stop the CLIs that stayed open between turns; the adapter may be used again."""
        with self._lock:
            channels = list(self._open.values())
            self._open.clear()
        for channel in channels:
            channel.close()

    def _take(self, live: LiveRun, workspace: Path | None) -> ClaudeChannel:
        with self._lock:
            channel = self._open.pop(live.session, None)
        guarded = frozenset(self.own_tools if live.guards_tools else ())
        if channel is not None and (channel.settings.workspace, channel.settings.guarded) != (workspace, guarded):
            channel.close()
            channel = None
        if channel is None:
            channel = self._channel(workspace, guarded, live.spec.compaction)
        channel.report = lambda used: live.session.dispatch(replace(used, run_id=live.run_id))
        channel.judge = partial(self._judge, live, [])
        live.interrupt = channel.interrupt
        return channel

    def _put_back(self, live: LiveRun, channel: ClaudeChannel, ended: bool) -> None:
        channel.report = channel.judge = None
        # The next run of the conversation may use the channel.
        live.interrupt = lambda: None
        # A CLI whose calls wait for a person is stopped, so that it cannot go on by itself.
        kept = ended and channel.idle and not waiting_calls(live.session) and not live.fence.closed
        kept = kept and live.in_conversation and not live.spec.depth
        if not kept or self._keep_open < 1:
            channel.close()
            return
        if channel.finalizer is None:
            # Once nothing refers to the conversation any more, stop its CLI.
            channel.finalizer = weakref.finalize(live.session, channel.abandon)
            channel.finalizer.atexit = False
        with self._lock:
            self._open[live.session] = channel
            over = [self._open.pop(session) for session in list(self._open)[: -self._keep_open]]
        for oldest in over:
            oldest.close()

    @contextmanager
    def _workspace(self, live: LiveRun) -> Iterator[Path | None]:
        """The files the CLI works on; undoes a failed run if configured to. A restart is not a failure."""
        files = live.resources.get_optional(Filesystem)
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

    @contextmanager
    def _recording_end(self, live: LiveRun, channel: ClaudeChannel) -> Iterator[None]:
        before = channel.cost_usd
        try:
            yield
        finally:
            total = channel.cost_usd
            cost = None if total is None or total == before else total - (before or 0.0)
            live.session.dispatch(CliRunEnded(live.run_id, self._cli.version, cost))

    async def _judge(
        self, live: LiveRun, running: list[GuardedCall], call_id: str, name: str, given: dict[str, Any]
    ) -> Judgement:
        """Decide about a call of the CLI's own tools: guards first, then its rule of approval.

        If it may run, it is added to those of the run that do.
        """
        from weakincentives.adapters.claude_agent_sdk.approval import WAITS, Judgement, ask_guards

        judged = await ask_guards(live, running, call_id, name, given)
        if judged.reason:
            return judged
        seen = given if judged.given is None else dict(judged.given)
        if name in self._approval:
            rule, deadline = self._approval[name], live.meter.deadline
            needs = await call_async(rule_steps(self.own_tools[name], seen, live.session, rule, deadline))
            if needs == "effects":
                raise ValueError("it returned 'effects', which tools of the CLI do not have; return 'call'")
            if needs is not None:
                return Judgement(WAITS)
        running.append(GuardedCall(call_id, name, json.dumps(seen), seen))
        return judged

    def _channel(
        self,
        workspace: Path | None,
        guarded: frozenset[str] = frozenset(),
        compaction: Compaction | None = None,
    ) -> ClaudeChannel:
        from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel

        return ClaudeChannel(replace(self._run_settings(workspace, compaction), guarded=guarded))

    def _run_settings(self, workspace: Path | None, compaction: Compaction | None = None) -> RunSettings:
        from weakincentives.adapters.claude_agent_sdk.channel import Settings as RunSettings

        cli = self._cli
        options = {**self._sdk_options, "hooks": hooks_for_cli_tools(self._hooks)} if self._hooks else self._sdk_options
        return RunSettings(
            cli=cli.path,
            model=self.model or None,
            env={**compaction_variables(compaction), **self._env},
            workspace=workspace,
            setting_sources=self._setting_sources,
            options={**permissions(self._cli_tools), **options},
            approval=frozenset(self._approval),
            unlisted=lambda: _restart(cli),
        )

    @cached_property
    def _cli(self) -> Cli:
        return find_cli(self._cli_path)


def _keep_results(session: Session, items: Sequence[str]) -> None:
    """Add results of the CLI's own calls to the message that made them: the next CLI knows them from the session."""
    if not items:
        return

    def added(messages: Sequence[Message]) -> list[Message]:
        index = max(index for index, message in enumerate(messages) if message.role == "assistant")
        said = replace(messages[index], items=(*messages[index].items, *items))
        return [*messages[:index], said, *messages[index + 1 :]]

    session[Message].update(added)


_workers = Workers("wink-claude-runs")
_follows: dict[Cli, bool] = {}


def follows_list_changes(cli: Cli) -> bool:
    """True if the CLI lists the tools again when notified of a change; measured once per process."""
    if cli not in _follows:
        _follows.setdefault(cli, cli.version == MIN_VERSION or _probe(cli))
    return _follows[cli]


def disprove(cli: Cli) -> None:
    """Remember that a CLI did not list the tools again."""
    _follows[cli] = False


def _probe(cli: Cli) -> bool:
    from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel, Settings as RunSettings

    channel = ClaudeChannel(RunSettings(cli=cli.path, options=permissions(())))
    try:
        return channel.follows_list_changes()
    finally:
        channel.close()


def _restart(cli: Cli) -> VisibilityExpansionRequired:
    """The error that restarts an evaluation; the session has the sections open already, so it shows their tools."""
    disprove(cli)
    return VisibilityExpansionRequired(
        f"Claude Code {cli.version} did not pick up the new tools.",
        requested_overrides={},
        reason="The CLI did not list the tools again.",
    )
