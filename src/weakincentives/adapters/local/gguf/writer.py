"""What a language model writes: answers, structured output, arguments that nobody has said, and free text."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from weakincentives.adapters.local.arguments import Grounding
from weakincentives.adapters.local.gguf.decoding import ChatMessage, WrittenReply, too_long, write, write_json
from weakincentives.adapters.local.gguf.engine import Engine
from weakincentives.adapters.local.outlook import Outlook
from weakincentives.adapters.local.watch import Listener, Watch
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Tool
from weakincentives.prompt.disclosure.ranking import terms
from weakincentives.runtime import Message, ModelReply, ModelRequest
from weakincentives.runtime.spi import INSTRUCTIONS, PROMPT_TEXT

# Below this many weights, quoting finds the needed fact more often than composing; docs/models/local.md has figures.
SMALL = 1_000_000_000
# Tokens in a composed answer: anything later repeats itself.
MAX_ANSWER = 200
_SYSTEM = "You are a helpful assistant. Answer briefly."
_CONFIRM = (
    "The user wrote:\n{message}\n\nThe tool {name} does this: {description}\nIt would be called with {arguments}.\n"
    "Does the user ask for this to be done now? Answer yes or no."
)
_ASK = "Text:\n{text}\n\nQuestion: {question}"
NOTHING = "The text does not say that."
# Asked to use its own words, a small model omits conditions or reverses them; using the words of the text, it answers
# half again as many questions. Worked examples help it more than instructions.
_STYLE = "Copy the sentences of the text that answer the question, word for word."
_EXAMPLES = (
    (
        "- The museum opens at 10 and closes at 18 o'clock.\n"
        "- A ticket costs 8 euros, for children under 12 it costs 4 euros.\n- Dogs wait outside.",
        "what do I pay with my little son",
        "A ticket costs 8 euros, for children under 12 it costs 4 euros.",
    ),
    (
        "- Bicycles are lent for a day at 12 euros.\n- A helmet is free.",
        "do you have parking for my car",
        NOTHING,
    ),
    (
        "- The desk is open until 22 o'clock.\n"
        "- A lost key is reported to the desk at once, so that the lock can be changed.\n- A new key costs 25 euros.",
        "cannot find my key anywhere",
        "A lost key is reported to the desk at once, so that the lock can be changed. A new key costs 25 euros.",
    ),
)


class Writer:
    """A language model that writes what cannot be quoted; if it `composes`, it writes the answers, too."""

    def __init__(self, engine: Engine, max_tokens: int, *, composes: bool) -> None:
        self.composes = composes
        self._engine = engine
        self._max_tokens = max_tokens

    def count(self, text: str) -> int:
        return self._engine.count(text)

    def fitting(self, request: ModelRequest) -> tuple[ModelRequest, int]:
        """The request without the oldest turns that leave no room for a reply, and its number of tokens.

        The language model rarely reads all of it; what was read in an earlier turn can still be quoted.
        """
        context = self._engine.settings.context
        limit = context - min(self._max_tokens, context // 4)
        starts = [index for index, message in enumerate(request.messages) if message.asks]

        def since(turn: int) -> tuple[ModelRequest, int]:
            shortened = replace(request, messages=_without(request.messages, starts, turn))
            return shortened, self._engine.count_chat(chat(shortened))

        shortened, tokens = since(0)
        if tokens > limit:
            turns = range(max(len(starts) - 1, 0))
            shortened, tokens = since(bisect_left(turns, True, key=lambda turn: since(turn)[1] <= limit))
        if tokens > context:
            raise too_long(tokens, self._engine, request.prompt_name)
        return shortened, tokens

    def reply(self, request: ModelRequest, tokens: int, watch: Watch, listener: Listener) -> ModelReply:
        """A reply in the model's own words, to a request of so many tokens."""
        written = write(self._engine, chat(request), watch, listener=listener, max_tokens=self._max_tokens)
        return _reply(written.text.strip(), written, tokens)

    def structured(
        self,
        request: ModelRequest,
        question: str,
        evidence: str,
        tokens: int,
        watch: Watch,
    ) -> ModelReply:
        """Structured output, written by the model from the sentences that match best."""
        assert request.output is not None
        messages: Sequence[ChatMessage] = chat(request)
        if evidence:
            messages = [_user(f"{evidence}\n\n{question}\n\nAnswer as JSON.")]
        written = write_json(self._engine, messages, watch, request.output.schema, max_tokens=self._max_tokens)
        return _reply(written.text, written, tokens)

    def arguments(
        self, tool: Tool[Any, Any], grounding: Grounding, question: str, watch: Watch
    ) -> Mapping[str, Any] | None:
        """All arguments of a call; the model writes those that the question does not hold as such."""
        fixed = {name: {"enum": [value]} for name, value in grounding.values.items()}
        schema = {**tool.strict_schema, "properties": {**tool.strict_schema["properties"], **fixed}}
        task = f"{question}\n\nWrite the JSON arguments of the tool {tool.name}: {tool.description}"
        written = write_json(self._engine, [_user(task)], watch, schema, max_tokens=self._max_tokens)
        if not written.whole:
            return None
        arguments: Mapping[str, Any] = json.loads(written.text)
        return arguments

    def confirms(self, tool: Tool[Any, Any], arguments: str, outlook: Outlook, watch: Watch) -> bool:
        """True if the model agrees that the user wants this change."""
        task = _CONFIRM.format(
            message=outlook.messages, name=tool.name, description=tool.description, arguments=arguments
        )
        schema = {"type": "string", "enum": ["yes", "no"]}
        return write_json(self._engine, [_user(task)], watch, schema, max_tokens=8).text == '"yes"'

    def composed(self, outlook: Outlook, evidence: str, watch: Watch) -> tuple[str, TokenUsage]:
        """An answer that the model writes; empty if it is not made of what was read.

        It is not streamed, since only the whole answer shows whether it is based on what was read.
        """
        messages = [{"role": "system", "content": f"{outlook.instructions}\n\n{_STYLE}".strip()}]
        for text, question, answer in _EXAMPLES:
            messages += [_user(_ASK.format(text=text, question=question)), {"role": "assistant", "content": answer}]
        if outlook.question not in outlook.instructions:
            self._engine.recall(messages, partial(write, self._engine, messages, watch, max_tokens=1))
        messages += [*outlook.earlier, _user(_ASK.format(text=evidence, question=outlook.question))]
        limit = min(MAX_ANSWER, self._max_tokens)
        written = write(self._engine, messages, watch, max_tokens=limit, repeat_penalty=1.0)
        answer = written.text.strip()
        if not written.whole:
            answer += "…"
        if not _is_made_of(answer, f"{NOTHING} {evidence}", outlook.question):
            answer = ""
        return answer, written.usage


def chat(request: ModelRequest) -> list[dict[str, str]]:
    """A run's messages; consecutive messages of one side are merged, since chat templates require alternating turns."""
    messages = [{"role": "system", "content": _SYSTEM}]
    for message in request.messages:
        role = "assistant" if message.role == "assistant" else "user"
        text = _text(message)
        if messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        elif text:
            messages.append({"role": role, "content": text})
    return messages


def _without(messages: Sequence[Message], starts: Sequence[int], turn: int) -> list[Message]:
    """The messages without the turns before this one, but with the instructions among them."""
    first = starts[0] if starts else len(messages)
    start = starts[turn] if starts else len(messages)
    instructions = []
    for message in messages[first:start]:
        if message.role == "system" or message.kind in (PROMPT_TEXT, INSTRUCTIONS):
            instructions.append(message)
    return [*messages[:first], *instructions, *messages[start:]]


def _is_made_of(answer: str, text: str, question: str) -> bool:
    """True if an answer adds to the question, and has no numbers and few words that were not read.

    Small models repeat the question, repeat examples, and make things up.
    """
    words = set(terms(answer))
    question_words = set(terms(question))
    source = question_words | set(terms(text))
    if words <= question_words or len(words) > 2 * len(words & source):
        return False
    return not any(word[0].isdigit() for word in words - source)


def _reply(text: str, written: WrittenReply, tokens: int) -> ModelReply:
    cached = min(tokens, written.usage.cached_tokens)
    usage = TokenUsage(input_tokens=tokens, output_tokens=written.usage.output_tokens, cached_tokens=cached)
    return ModelReply(text=text, usage=usage, stop_reason="end" if written.whole else "length")


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _text(message: Message) -> str:
    if message.role == "tool":
        return f"{message.name} {'returned' if message.success else 'failed'}:\n{message.text}"
    return "\n".join([message.text, *(f"{call.name}({call.arguments})" for call in message.tool_calls)]).strip()
