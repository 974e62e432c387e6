"""The stations of one tool call: it is checked, permitted, has run, and then it has ended, or it waits for a person.

Each is a value. What can be stopped and taken back while the call runs belongs to its `LiveCall`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from weakincentives._base.frozen import quick_init
from weakincentives.content import Part, parts_of, text_of
from weakincentives.prompt import DisclosureRequest, Tool, ToolResult
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.runtime.calls.question import Needs
from weakincentives.runtime.messages import Message, ToolCall

NO_RESULT: ToolResult[Any] = ToolResult()


@quick_init
@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call of a tool that is offered, with arguments that fit.

    `arguments` is the JSON text that counts: the model's, or what a person or a guard has put in its place. `notice`
    tells the model of a person's change, and `note` is the text with which a guard has asked for a person.
    """

    call: ToolCall
    tool: Tool[Any, Any]
    params: Any
    since: float
    arguments: str
    notice: str = ""
    note: str = ""

    def with_params(self, params: Any, arguments: str) -> CheckedCall:
        """The call with other arguments."""
        return replace(self, params=params, arguments=arguments)

    def ran(self, result: ToolResult[Any], **facts: Any) -> RanCall:
        return RanCall(self.call, self.since, result, self.params, notice=self.notice, **facts)

    def failed(self, message: str, **facts: Any) -> RanCall:
        return self.ran(ToolResult(message, success=False), **facts)


@quick_init
@dataclass(frozen=True, slots=True)
class PermittedCall:
    """A call that guards and rules let pass; `needs` says what a person is to be asked for, if that is so."""

    checked: CheckedCall
    needs: Needs | None


@quick_init
@dataclass(frozen=True, slots=True)
class RanCall:
    """A call that has run, or was refused.

    `message` is the text that the model reads, if it was rendered. `expansion` are the sections that the call ends the
    turn for. `compensation` is "done", or says why effects outside were not undone. `unchanged` names what a call that
    asks with its effects might have changed, but did not, so that nobody was asked. It has `declined` if its handler
    says that it did nothing. `error` ends the run, once the call is recorded.
    """

    call: ToolCall
    since: float
    result: ToolResult[Any]
    params: Any = None
    message: str = ""
    notice: str = ""
    expansion: DisclosureRequest | None = None
    rolled_back: bool = False
    compensation: str = ""
    unchanged: tuple[str, ...] = ()
    declined: bool = False
    error: BaseException | None = None

    def failed(self, message: str) -> RanCall:
        """The call as one that failed."""
        return replace(self, result=ToolResult(message, success=False), message="")

    def with_note(self, note: str) -> RanCall:
        """The call with another line for the model."""
        result = replace(self.result, message=f"{self.result.message}\n{note}")
        return replace(self, result=result, message=self.message and f"{self.message}\n{note}")

    def after_error(self, error: BaseException) -> RanCall:
        """The call after an error that is raised once it is recorded; the first one counts."""
        return self if self.error is not None else replace(self, error=error)

    @property
    def undone(self) -> bool:
        """True if nothing that the call changed may stay."""
        return not self.result.success or self.expansion is not None


class CallRefused(Exception):
    """Ends a call that was refused before it ran; `ran` is recorded."""

    def __init__(self, ran: RanCall) -> None:
        super().__init__(ran.result.message)
        self.ran = ran


def refused_call(call: ToolCall, since: float, message: str) -> RanCall:
    """A call that cannot be made."""
    return RanCall(call, since, ToolResult(message, success=False))


@quick_init
@dataclass(frozen=True, slots=True)
class ToolExecutionOutcome:
    """The outcome of a call that has ended. `message` is what the model reads.

    `disclosure` is what a successful call opened or closed, and `expanded_tools` are the tools that appeared with it.
    A call ends the turn if it `restarts` the run, which alone can open the sections, or halts for the caller.
    `operator_text` is to be sent as a system message; `found` are the sections that a search has listed.
    """

    tool_call_id: str  #: the id of the call
    message: str
    success: bool  #: False if the call failed or was refused
    expanded_tools: tuple[Any, ...] = ()
    name: str = ""  #: the tool's name
    disclosure: DisclosureRequest | None = None
    restarts: bool = False
    attachments: tuple[Part, ...] = ()  #: media for the model
    operator_text: str = ""
    found: tuple[str, ...] = ()

    def as_message(self, tools: tuple[str, ...] = ()) -> Message:
        """The message for the model; `tools` are those that come with it."""
        parts = parts_of([self.message, *self.attachments]) if self.attachments else ()
        text = text_of(parts) if parts else self.message
        message = Message("tool", text, call_id=self.tool_call_id, name=self.name, success=self.success, parts=parts)
        return replace(message, tools=tools) if tools else message

    @property
    def halts(self) -> bool:
        return self.disclosure is not None and self.disclosure.halt

    @property
    def ends_turn(self) -> bool:
        return self.restarts or self.halts

    @property
    def opened(self) -> tuple[str, ...]:
        """The sections that were opened or read, as the model named them."""
        request = self.disclosure
        return () if request is None or request.action != "open" else request.keys


@quick_init
@dataclass(frozen=True, slots=True)
class Waits:
    """A call that has no result yet: a person is asked about it, or about calls of a run inside it.

    `pending` is what is asked, or the first of several.
    """

    tool_call_id: str  #: the id of the call
    name: str  #: the tool's name
    pending: PendingCall

    @property
    def ends_turn(self) -> bool:
        return False


CallOutcome: TypeAlias = ToolExecutionOutcome | Waits
