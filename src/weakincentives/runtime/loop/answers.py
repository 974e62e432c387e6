"""The answer of a run: parsed, passed by the guards, or asked for again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from weakincentives.errors import OutputParseError
from weakincentives.prompt import parse_structured_output
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.effects import Effect
from weakincentives.runtime.loop.inquiry import HeldGuard, Inquiry, held_guards
from weakincentives.runtime.messages import CORRECTION, Message, ModelReply, last_exchange, text_before_pauses
from weakincentives.runtime.window import transcript
from weakincentives.serde import encode


def hold(live: LiveRun) -> None:
    """Hold the text of the next reply back if a guard asks for that."""
    live.stream.held = any(held.guard.hold for held in held_guards(live, "before_answer"))


def check(live: LiveRun, reply: ModelReply) -> Generator[Effect, Any, tuple[str, Any] | None]:
    """The text and the typed value of an answer, or None if the model was asked to correct it."""
    output = live.prompt.template.structured_output
    text = text_before_pauses(live.session[Message].view()[:-1]) + reply.text
    value: Any = None
    if output is not None:
        try:
            value = parse_structured_output(text, output)
        except OutputParseError as error:
            form = "text" if output.container == "text" else "JSON"
            request = f"{error}. Answer again with {form} that fits the required format."
            if not _ask_again(live, request, str(error)):
                raise
            return None
    guards = held_guards(live, "before_answer")
    if not guards:
        return text, value
    return (yield from _pass(live, guards, text, value))


def _pass(
    live: LiveRun, guards: Sequence[HeldGuard], text: str, value: Any
) -> Generator[Effect, Any, tuple[str, Any] | None]:
    """Have the guards pass the answer."""
    inquiry = Inquiry(
        live,
        "before_answer",
        (text, value),
        arguments=lambda now: ((now[0],), now[1]),
        accept=lambda replacement: _replacement(live, replacement),
    )
    verdict = yield from inquiry.ask(guards)
    if verdict.strongest == "retry" and _ask_again(live, verdict.message, verdict.message):
        return None
    if verdict.strongest != "allow":
        _take_back(live)
        raise verdict.error("before_answer", live.name)
    if verdict.replaced:
        text, value = verdict.value
        live.stream.replaced = True
        _take_back(live, Message("assistant", text, provider=live.model.name))
    return text, value


def _replacement(live: LiveRun, replacement: Any) -> tuple[str, Any]:
    """The text and the value of an answer that a guard gives."""
    output = live.prompt.template.structured_output
    if output is not None:
        value = parse_structured_output(replacement, output)
        text = replacement
        if not isinstance(replacement, str):
            text = encode(value, as_input=True).decode()
        parse_structured_output(text, output)
        return text, value
    if not isinstance(replacement, str):
        raise TypeError(f"Replace takes the text of the answer, got {type(replacement).__name__}")
    return replacement, None


def _ask_again(live: LiveRun, text: str, reason: str) -> bool:
    """Ask the model for another answer, unless it was asked as often as it may."""
    retries = live.state.output_retries
    if retries >= live.model.output_retries:
        return False
    # A snapshot has the question and that it was asked, or neither.
    with live.session.together():
        live.save(output_retries=retries + 1)
        transcript.say(live, Message("user", text, kind=CORRECTION))
    live.stream.restarted = None if live.stream.held else reason
    return True


def _take_back(live: LiveRun, replacement: Message | None = None) -> None:
    """Remove the answer from the conversation, which guards have refused or replaced."""

    def without_answer(messages: Sequence[Message]) -> Sequence[Message]:
        end = start = last_exchange(messages)
        removed_roles = ("assistant",) if replacement is not None else ("assistant", "user")
        while start and messages[start - 1].role in removed_roles and _is_answer(messages[start - 1]):
            start -= 1
        inserted = [] if replacement is None else [replacement]
        return (*messages[:start], *inserted, *messages[end:])

    live.session[Message].update(without_answer)


def _is_answer(message: Message) -> bool:
    """True for the parts of an answer: a reply without calls, and the request for another."""
    return message.kind == CORRECTION if message.role == "user" else not message.tool_calls
