"""Approval of the CLI's own tools: hooks that keep the calls that wait for a person from running.

The CLI ends its turn when a hook says so, after it has run the other calls of the turn and before it calls the model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import claude_agent_sdk as sdk

from weakincentives.adapters.claude_agent_sdk.wire import PREFIX, Turn
from weakincentives.errors import PromptEvaluationError
from weakincentives.runtime import ToolCall

logger = logging.getLogger("weakincentives.adapters")

WAITS = "This call waits for a person's decision."
_FREE = ""


class Gate:
    """Decides once for each call of the CLI's own tools if it may run; `wake` is called when it has decided.

    While `stopping`, the CLI also ends its turn after any call of our tools.
    """

    def __init__(
        self, names: frozenset[str], waits: Callable[[str, dict[str, Any]], bool], wake: Callable[[], None]
    ) -> None:
        self._names = names
        self._waits = waits
        self._wake = wake
        self._verdicts: dict[str, str] = {}
        self.stopping = False

    def hooks(self, given: Mapping[Any, Sequence[Any]]) -> dict[Any, list[Any]]:
        """The user's hooks with ours; one that fails blocks the call."""
        found = {event: list(matchers) for event, matchers in given.items()}
        if self._names:
            before = sdk.HookMatcher(hooks=[self._before], on_failure="block")
            found["PreToolUse"] = [before, *found.get("PreToolUse", ())]
        after = sdk.HookMatcher(matcher=f"{PREFIX}.*", hooks=[self._after])
        found["PostToolUse"] = [*found.get("PostToolUse", ()), after]
        return found

    def check(self, tools: Iterable[str]) -> None:
        """Raise if the CLI lists no tool of a name with a rule: the rule would never apply."""
        if unknown := sorted(self._names - set(tools)):
            raise PromptEvaluationError(
                f"cli_tool_approval has a rule for {unknown[0]!r}, but Claude Code lists no tool of this name; its "
                f"tools are {', '.join(sorted(tool for tool in tools if not tool.startswith(PREFIX))) or 'none'}.",
                phase="request",
            )

    def waiting(self, turn: Turn) -> list[ToolCall] | None:
        """The calls of the CLI's own tools that wait for a person; None if the CLI has not come to all of them yet.

        It comes to those behind a call of ours only when that is answered, so these are decided here.
        """
        order = [block["id"] for block, _ in turn.blocks() if block["type"] == "tool_use"]
        ours = min((order.index(call.id) for call in turn.tool_calls), default=len(order))
        ruled = [call for call in turn.cli_calls if call.name in self._names]
        for call in ruled:
            if call.id not in self._verdicts and order.index(call.id) > ours:
                self._judge(call.id, call.name, _arguments(call))
        if any(call.id not in self._verdicts for call in ruled):
            return None
        return [call for call in ruled if self._verdicts[call.id] == WAITS]

    def ended(self, blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of calls that ran, or that the CLI refused before it asked."""
        for block in blocks:
            self._verdicts.setdefault(block.get("tool_use_id", ""), _FREE)
        return [block for block in blocks if self._verdicts[block.get("tool_use_id", "")] != WAITS]

    def _judge(self, call_id: str, name: str, given: dict[str, Any], *, inside: bool = False) -> str:
        """The reason why a call may not run, or ''."""
        if call_id not in self._verdicts:
            try:
                verdict = WAITS if self._waits(name, given) else _FREE
            except (Exception, SystemExit) as error:
                logger.warning("The approval rule of tool '%s' failed.", name, exc_info=error)
                verdict = f"Tool '{name}' was not run, because its approval rule failed: {error}"
            if verdict == WAITS and inside:
                verdict = f"Tool '{name}' was not run: a person must approve it, which a subagent cannot ask for."
            self._verdicts[call_id] = verdict
        return self._verdicts[call_id]

    async def _before(self, data: Any, call_id: str | None, context: Any) -> Any:
        name = data["tool_name"]
        if name not in self._names:
            return {}
        inside = bool(data.get("agent_id"))
        verdict = self._judge(call_id or data["tool_use_id"], name, data["tool_input"], inside=inside)
        self._wake()
        if verdict == _FREE:
            return {}
        decision = {"permissionDecision": "deny", "permissionDecisionReason": verdict}
        stops = {"continue_": False, "stopReason": WAITS} if verdict == WAITS else {}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}, **stops}

    async def _after(self, data: Any, call_id: str | None, context: Any) -> Any:
        return {"continue_": False, "stopReason": WAITS} if self.stopping else {}


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
