"""Guards and approval of the CLI's own tools: hooks that keep calls from running, or change them.

The CLI ends its turn when a hook says so, after it has run the other calls of the turn and before it calls the model.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import claude_agent_sdk as sdk

from weakincentives.adapters.claude_agent_sdk.wire import PREFIX, Turn
from weakincentives.errors import GuardRefusedError, PromptEvaluationError
from weakincentives.runtime import LiveRun, ToolCall, ToolInvoked
from weakincentives.runtime.spi import GuardedCall, Inquiry, call_async, held_guards

logger = logging.getLogger("weakincentives.adapters")

WAITS = "This call waits for a person's decision."
_FREE = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The reason why a call of the CLI's own tools may not run, or ""; else its input, if guards have replaced that.

    `error` ends the run.
    """

    reason: str = _FREE
    given: Mapping[str, Any] | None = None
    error: GuardRefusedError | None = None


Judge = Callable[[str, str, dict[str, Any]], Awaitable[Judgement]]


async def ask_guards(
    live: LiveRun, running: Iterable[GuardedCall], call_id: str, name: str, given: dict[str, Any]
) -> Judgement:
    """Ask the guards of a run about a call that the CLI makes; if a person is to be asked, the loop asks them again.

    Those of the calls let through so far that have not been reported yet are `running`.
    """
    guards = held_guards(live, "before_tool", (name,))
    if not guards:
        return Judgement()
    call = GuardedCall(call_id, name, json.dumps(given), given)

    def accept(params: Any) -> GuardedCall:
        if not isinstance(params, Mapping):
            raise TypeError(f"Replace takes the input of '{name}' as a mapping, got {type(params).__name__}")
        return replace(call, arguments=json.dumps(dict(params)), params=dict(params))

    reported = {event.call_id for event in live.session[ToolInvoked].view()}
    still = tuple(each for each in running if each.id not in reported)
    inquiry = Inquiry(live, "before_tool", call, accept=accept, call_id=call_id, running=still)
    verdict = await call_async(inquiry.steps(guards))
    if verdict.strongest == "ask":
        return Judgement(WAITS)
    inquiry.record(verdict)
    if verdict.refuses:
        stops = verdict.strongest == "stop"
        return Judgement(verdict.message, error=verdict.error("before_tool", live.name) if stops else None)
    return Judgement(given=verdict.value.params if verdict.replaced else None)


class Gate:
    """Decides once for each call of the CLI's own tools if it may run; `wake` is called when it has decided.

    Calls of the tools in `names` are decided about; those in `ruled` have a rule of approval. While `stopping`, the CLI
    also ends its turn after any call of our tools. `error` is that of a guard that has stopped the run.
    """

    def __init__(self, names: frozenset[str], ruled: frozenset[str], judge: Judge, wake: Callable[[], None]) -> None:
        self._names = names
        self._ruled = ruled
        self._ask = judge
        self._wake = wake
        self._verdicts: dict[str, Judgement] = {}
        self._turn = asyncio.Lock()
        self.stopping = False
        self.error: GuardRefusedError | None = None

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
        if unknown := sorted(self._ruled - set(tools)):
            raise PromptEvaluationError(
                f"cli_tool_approval has a rule for {unknown[0]!r}, but Claude Code lists no tool of this name; its "
                f"tools are {', '.join(sorted(tool for tool in tools if not tool.startswith(PREFIX))) or 'none'}.",
                phase="request",
            )

    async def waiting(self, turn: Turn) -> list[ToolCall] | None:
        """The calls of the CLI's own tools that wait for a person; None if the CLI has not come to all of them yet.

        It comes to those behind a call of ours only when that is answered, so these are decided here.
        """
        order = [block["id"] for block, _ in turn.blocks() if block["type"] == "tool_use"]
        ours = min((order.index(call.id) for call in turn.tool_calls), default=len(order))
        ruled = [call for call in turn.cli_calls if call.name in self._names]
        for call in ruled:
            if call.id not in self._verdicts and order.index(call.id) > ours:
                await self._judge(call.id, call.name, _arguments(call))
        if any(call.id not in self._verdicts for call in ruled):
            return None
        return [call for call in ruled if self._verdicts[call.id].reason == WAITS]

    def ended(self, blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of calls that ran, or that the CLI refused before it asked."""
        for block in blocks:
            self._verdicts.setdefault(block.get("tool_use_id", ""), Judgement())
        return [block for block in blocks if self._verdicts[block.get("tool_use_id", "")].reason != WAITS]

    async def _judge(self, call_id: str, name: str, given: dict[str, Any], *, inside: bool = False) -> Judgement:
        # One at a time, because what is decided about a call may depend on those before it.
        async with self._turn:
            if call_id in self._verdicts:
                return self._verdicts[call_id]
            try:
                verdict = await self._ask(call_id, name, given)
            except (Exception, SystemExit) as error:
                logger.warning("The approval rule of tool '%s' failed.", name, exc_info=error)
                verdict = Judgement(f"Tool '{name}' was not run, because its approval rule failed: {error}")
            if verdict.reason == WAITS and inside:
                problem = f"Tool '{name}' was not run: a person must approve it, which a subagent cannot ask for."
                verdict = Judgement(problem)
            verdict = self._verdicts.setdefault(call_id, verdict)
            self.error = self.error or verdict.error
            return verdict

    async def _before(self, data: Any, call_id: str | None, context: Any) -> Any:
        name = data["tool_name"]
        if name not in self._names:
            return {}
        inside = bool(data.get("agent_id"))
        verdict = await self._judge(call_id or data["tool_use_id"], name, data["tool_input"], inside=inside)
        self._wake()
        if verdict.reason == _FREE and verdict.given is None:
            return {}
        decision: dict[str, Any] = {"permissionDecision": "deny", "permissionDecisionReason": verdict.reason}
        if verdict.given is not None:
            decision = {"permissionDecision": "allow", "updatedInput": dict(verdict.given)}
        stopped = verdict.reason == WAITS or verdict.error is not None
        stops = {"continue_": False, "stopReason": verdict.reason} if stopped else {}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}, **stops}

    async def _after(self, data: Any, call_id: str | None, context: Any) -> Any:
        return {"continue_": False, "stopReason": WAITS} if self.stopping else {}


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
