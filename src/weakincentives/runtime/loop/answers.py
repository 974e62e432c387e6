"""The answer of a run: parsed, passed by the guards, or asked for again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from weakincentives.errors import OutputParseError
from weakincentives.prompt import parse_structured_output
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.loop.effects import Effect
from weakincentives.runtime.loop.inquiry import Inquiry, held_guards
from weakincentives.runtime.messages import CORRECTION, Message, ModelReply, last_exchange, text_before_pauses
from weakincentives.serde import encode


@dataclass(slots=True)
class StreamState:
    """The facts about a run that a streaming driver needs.

    `text` is the part of the current reply that was shown, and `shown` says that any part of it was. `restarted` is the
    reason why the model begins again. While `held`, no text is shown before guards have passed the answer; `replaced`
    says that they have replaced it.
    """

    text: list[str] = field(default_factory=list)
    shown: bool = False
    restarted: str | None = None
    held: bool = False
    replaced: bool = False


@dataclass(slots=True)
class Answers:
    """Decides whether a reply is the answer."""

    context: RunContext
    stream: StreamState

    def hold(self) -> None:
        """Hold the text of the next reply back if a guard asks for that."""
        self.stream.held = any(held.guard.hold for held in held_guards(self.context, "before_answer"))

    def check(self, reply: ModelReply) -> Generator[Effect, Any, tuple[str, Any] | None]:
        """The text and the typed value, or None if the model was asked to correct its answer."""
        output = self.context.prompt.template.structured_output
        text = text_before_pauses(self.context.session[Message].view()[:-1]) + reply.text
        try:
            value = None if output is None else parse_structured_output(text, output)
        except OutputParseError as error:
            form = "text" if output is not None and output.container == "text" else "JSON"
            if not self._ask_again(f"{error}. Answer again with {form} that fits the required format.", str(error)):
                raise
            return None
        guards = held_guards(self.context, "before_answer")
        return (yield from self._pass(guards, text, value)) if guards else (text, value)

    def _pass(self, guards: Any, text: str, value: Any) -> Generator[Effect, Any, tuple[str, Any] | None]:
        """Have the guards pass the answer."""
        verdict = yield from Inquiry(
            self.context,
            "before_answer",
            (text, value),
            arguments=lambda now: ((now[0],), now[1]),
            accept=self._replacement,
        ).ask(guards)
        if verdict.strongest == "retry" and self._ask_again(verdict.message, verdict.message):
            return None
        if verdict.strongest != "allow":
            self._take_back()
            raise verdict.error("before_answer", self.context.name)
        if verdict.replaced:
            text, value = verdict.value
            self.stream.replaced = True
            self._take_back(Message("assistant", text, provider=self.context.adapter.name))
        return text, value

    def _replacement(self, given: Any) -> tuple[str, Any]:
        """The text and the value of an answer that a guard gives."""
        declared = self.context.prompt.template.structured_output
        if declared is not None:
            value = parse_structured_output(given, declared)
            written = given if isinstance(given, str) else encode(value, as_input=True).decode()
            parse_structured_output(written, declared)
            return written, value
        if not isinstance(given, str):
            raise TypeError(f"Replace takes the text of the answer, got {type(given).__name__}")
        return given, None

    def _ask_again(self, text: str, reason: str) -> bool:
        """Ask the model for another answer, unless it was asked as often as it may."""
        context = self.context
        if context.run.output_retries >= context.adapter.output_retries:
            return False
        context.save(output_retries=context.run.output_retries + 1)
        context.transcript.say(Message("user", text, kind=CORRECTION))
        self.stream.restarted = None if self.stream.held else reason
        return True

    def _take_back(self, replacement: Message | None = None) -> None:
        """Remove the answer from the conversation, which guards have refused or replaced."""

        def changed(messages: Sequence[Message]) -> Sequence[Message]:
            end = start = last_exchange(messages)
            removed = ("assistant",) if replacement is not None else ("assistant", "user")
            while start and messages[start - 1].role in removed and _is_answer(messages[start - 1]):
                start -= 1
            return (*messages[:start], *([] if replacement is None else [replacement]), *messages[end:])

        self.context.session[Message].update(changed)


def _is_answer(message: Message) -> bool:
    """True for the parts of an answer: a reply without calls, and the request for another."""
    return message.kind == CORRECTION if message.role == "user" else not message.tool_calls
