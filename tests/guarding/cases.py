"""Each hook with each of its outcomes: a guard for it, and what a run with that guard comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weakincentives import MarkdownSection, Prompt, Session, ToolContext, ToolResult, tool
from weakincentives.guards import Ask, Guard, GuardDecided, GuardRefusedError, Outcome, Refuse, Replace, Retry, Stop
from weakincentives.runtime import Message, PromptResponse, ToolInvoked

OUTSIDE: list[str] = []
WORDS = "Pay 5."

ASKED = "Allow this call? It has not run yet.\n\nA guard asks a person:\n  Is 5 right?\n\npay\n  amount: 5"


@dataclass(frozen=True)
class Paid:
    amount: int


def undo(params: Any, *, context: ToolContext) -> None:
    OUTSIDE.append(f"undo {params.amount}")


@tool(compensate=undo)
def pay(amount: int, *, context: ToolContext) -> str:
    "Pay an amount."
    OUTSIDE.append(f"pay {amount}")
    context.session.dispatch(Paid(amount))
    return f"paid {amount}"


@dataclass(frozen=True)
class Case:
    """A hook, the outcome of its guard, and what follows.

    `text` is the answer, or the guard's message if the run ends with an error; `outside` is what the handler and its
    compensation did, `paid` what is in the session after it, `result` the text that the model reads of the call.
    """

    hook: str
    outcome: Outcome | None
    text: str = "Done."
    error: bool = False
    outside: tuple[str, ...] = ("pay 5",)
    paid: tuple[int, ...] = (5,)
    result: str | None = "paid 5"
    words: tuple[str, ...] = (WORDS,)
    answers: tuple[str, ...] = ("Done.",)

    @property
    def id(self) -> str:
        return f"{self.hook}-{type(self.outcome).__name__.lower()}"


assert pay.params_type is not None
SEVEN = pay.params_type(amount=7)
NOT_MADE: dict[str, Any] = {"outside": (), "paid": (), "result": None, "answers": ()}
UNDONE: dict[str, Any] = {"outside": ("pay 5", "undo 5"), "paid": ()}

CASES = (
    Case("before_run", None),
    Case("before_run", Refuse("Not today."), "Not today.", error=True, words=(), **NOT_MADE),
    Case("before_run", Stop("Closed."), "Closed.", error=True, words=(), **NOT_MADE),
    Case("before_run", Replace("Pay five."), words=("Pay five.",)),
    Case("before_tool", None),
    Case("before_tool", Refuse("Too much."), outside=(), paid=(), result="Too much."),
    Case("before_tool", Stop("Fraud."), "Fraud.", error=True, **{**NOT_MADE, "result": "Not run: Fraud."}),
    Case("before_tool", Replace(SEVEN), outside=("pay 7",), paid=(7,), result="paid 7"),
    Case("before_tool", Ask("Is 5 right?"), "", **NOT_MADE),
    Case("after_tool", None),
    Case("after_tool", Refuse("Not like this."), result="Not like this.", **UNDONE),
    Case("after_tool", Stop("Fraud."), "Fraud.", error=True, result="Fraud.", answers=(), **UNDONE),
    Case("after_tool", Replace(ToolResult("all is well")), result="all is well"),
    Case("before_answer", None),
    Case("before_answer", Refuse("No promises."), "No promises.", error=True, answers=()),
    Case("before_answer", Stop("Enough."), "Enough.", error=True, answers=()),
    Case("before_answer", Replace("All paid."), "All paid.", answers=("All paid.",)),
    Case("before_answer", Retry("Say more."), "It is paid.", answers=("Done.", "It is paid.")),
)


def guard_for(case: Case, *, is_async: bool) -> Guard:
    """A guard whose hook returns the outcome once, and then allows."""
    left = [case.outcome]

    def decide(self: Guard, *given: Any, context: Any) -> Outcome | None:
        return left.pop() if left else None

    async def decide_later(self: Guard, *given: Any, context: Any) -> Outcome | None:
        return decide(self, *given, context=context)

    made: type[Guard] = type("Rule", (Guard,), {case.hook: decide_later if is_async else decide})
    return made()


def prompt_for(*guards: Guard, words: str = WORDS) -> Prompt[Any]:
    sections = [MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay])]
    if words:
        sections.append(MarkdownSection(key="words", title="Words", template=words, role="user", heading=False))
    return Prompt(ns="tests", key="guarding", sections=sections, guards=guards)


def check(case: Case, session: Session, run: Callable[[], PromptResponse[Any]]) -> None:
    """Run it, and compare what came of it with the case."""
    OUTSIDE.clear()
    try:
        response = run()
    except GuardRefusedError as error:
        assert case.error, error
        assert (error.message, error.guard, error.hook, error.phase) == (case.text, "Rule", case.hook, "guard")
    else:
        assert not case.error
        assert response.text == case.text
        asked = isinstance(case.outcome, Ask)
        assert [(call.tool, call.text) for call in response.pending] == ([("pay", ASKED)] if asked else [])
    assert tuple(OUTSIDE) == case.outside
    assert tuple(each.amount for each in session[Paid].all()) == case.paid
    messages = session[Message].all()
    assert tuple(message.text for message in messages if message.asks) == case.words
    assert tuple(m.text for m in messages if m.role == "assistant" and not m.tool_calls) == case.answers
    results = [message.text for message in messages if message.role == "tool"]
    assert results == ([] if case.result is None else [case.result])
    assert [each.text for each in session[ToolInvoked].all()] == results
    expected = [] if case.outcome is None else [("Rule", case.hook, type(case.outcome).__name__.lower())]
    assert [(each.guard, each.hook, each.outcome) for each in session[GuardDecided].all()] == expected
