"""Replies in chat completions, whole or streamed, from servers that differ in many details."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from weakincentives.adapters.network import TransportError, encode
from weakincentives.limits import TokenUsage
from weakincentives.runtime import (
    ArgumentsDelta,
    ModelReply,
    ReasoningDelta,
    StopReason,
    TextDelta,
    ToolCall,
)
from weakincentives.runtime.spi import ModelDelta

ORIGIN = '{"type":"origin",'
"""Marks the item that records who wrote a reply, since its reasoning must not be sent to anybody else."""

_STOPS: dict[str, StopReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}
_FAILURES = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    web_search_requests: int | None = 0


class Usage(msgspec.Struct):
    """The tokens of a completion; DeepSeek has a name of its own for those it read from its cache."""

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = 0
    server_tool_use: _Details | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = ""


class Call(msgspec.Struct, omit_defaults=True):
    """A call, or a piece of one; `extra_content` may hold a signature that has to be sent back."""

    function: _Function
    id: str | None = ""
    index: int | None = None
    extra_content: Any = None


class ChatMessage(msgspec.Struct):
    """A model's message, or a piece of one. Servers call its reasoning by different names."""

    content: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.get("text") or "" for part in self.content if isinstance(part, dict))
        return self.content or ""

    @property
    def shown_reasoning(self) -> str:
        if spoken := self.reasoning_content or self.reasoning:
            return spoken
        return "".join(detail.get("text") or detail.get("summary") or "" for detail in self.reasoning_details or ())

    @property
    def has_reasoning(self) -> bool:
        """True if only the model that wrote the message understands all of it."""
        return bool(self.reasoning_content or self.reasoning or self.reasoning_details)


class _Choice(msgspec.Struct):
    message: msgspec.Raw = msgspec.Raw(b"{}")
    finish_reason: str | None = None
    error: Any = None


class Completion(msgspec.Struct):
    """A whole completion, or an error in its place."""

    choices: list[_Choice] | None = None
    id: str | None = ""
    model: str | None = ""
    usage: Usage | None = None
    error: Any = None


MessageT = TypeVar("MessageT")


class _Groq(msgspec.Struct):
    usage: Usage | None = None
    error: Any = None


class _Streamed(msgspec.Struct, Generic[MessageT]):
    delta: MessageT | None = None
    finish_reason: str | None = None
    error: Any = None


class Chunk(msgspec.Struct, Generic[MessageT]):
    """A piece of a streamed completion, or an error."""

    choices: list[_Streamed[MessageT]] | None = None
    id: str | None = ""
    model: str | None = ""
    usage: Usage | None = None
    x_groq: _Groq | None = None
    error: Any = None


_decode_completion = msgspec.json.Decoder(Completion).decode


class ReplyParser:
    """Parses the replies of one server; `taken` are the ids of earlier calls in the conversation."""

    decode_message: Any = staticmethod(msgspec.json.Decoder(ChatMessage).decode)
    decode_chunk: Any = staticmethod(msgspec.json.Decoder(Chunk[ChatMessage]).decode)

    def __init__(self, name: str, origin: str, taken: Collection[str] = ()) -> None:
        self.name = name
        self.origin = origin
        self.taken = taken

    def parse(self, body: bytes | bytearray) -> ModelReply:
        return self.reply(_decode_completion(body))

    def reply(self, completion: Completion) -> ModelReply:
        if completion.error:
            raise self.failure(completion.error)
        if completion.choices is None:
            raise ValueError("missing `choices`")
        if not completion.choices:
            raise TransportError.unusable(
                f"{self.name} answered without any choices", {"id": completion.id, "choices": []}
            )
        choice = completion.choices[0]
        if choice.error or choice.finish_reason in _FAILURES:
            raise self.failure(choice.error or {"message": f"finish_reason is '{choice.finish_reason}'", "code": 503})
        message: ChatMessage = self.decode_message(choice.message)
        listed = self._numbered(message.tool_calls or ())
        own = [call for call in listed if not self.runs_itself(call)]
        calls = tuple(ToolCall(call.id or "", call.function.name or "", call.function.arguments) for call in own)
        text = message.text
        stop = _STOPS.get(choice.finish_reason or "", "tool_calls" if calls else "end")
        if message.refusal:
            stop, text = "refusal", message.refusal
        if not text and not calls and stop == "end":
            found = {"id": completion.id, "message": msgspec.json.decode(choice.message)}
            raise TransportError.unusable(f"{self.name} answered without any content", found)
        hosted = len(listed) - len(own)
        return ModelReply(
            text=text,
            tool_calls=calls,
            usage=_usage(completion.usage, hosted),
            stop_reason=stop,
            items=(
                encode(self.echo(message, choice.message, listed)).decode(),
                *self._grounding(message, hosted),
                *((self.origin,) if message.has_reasoning else ()),
            ),
            response_id=completion.id or "",
            model=completion.model or "",
            reasoning=message.shown_reasoning,
        )

    def runs_itself(self, call: Call) -> bool:
        """True for a call that the provider has already run."""
        return False

    def echo(self, message: ChatMessage, raw: msgspec.Raw, calls: Sequence[Call]) -> dict[str, Any]:
        """The message in the form it can be sent back: servers refuse fields that are unknown to them, or empty."""
        kept = {
            "refusal": message.refusal,
            "reasoning": message.reasoning,
            "reasoning_content": message.reasoning_content,
            "reasoning_details": message.reasoning_details,
            "tool_calls": [echoed(call) for call in calls],
        }
        return {
            "role": "assistant",
            "content": message.text or None,
            **{key: value for key, value in kept.items() if value},
        }

    def sources(self, message: ChatMessage) -> dict[str, Any]:
        """The sources that the answer names."""
        return {"annotations": message.annotations}

    def failure(self, error: Any) -> TransportError:
        """The error for a failure that the server reports in place of an answer, with the status 200."""
        fields = error if isinstance(error, dict) else {"message": error}
        status = fields.get("code") or fields.get("status") or 0
        retryable = str(status).isdigit() and (int(status) in (408, 409, 429) or int(status) >= 500)
        message = f"{self.name} could not answer: {fields.get('message') or status or 'no explanation'}"
        return TransportError.unusable(message, {"error": error}, retryable=retryable)

    def new_id(self, given: str | None, others: Collection[str]) -> str:
        """The id of a call, or a new one if it has none or one that another call has.

        The loop does so for every provider; here the pieces of a stream already have the id that their call will have.
        """
        # Nine letters and digits are an id that every server accepts back.
        return given if given and given not in others and given not in self.taken else secrets.token_hex(5)[:9]

    def _numbered(self, calls: Sequence[Call]) -> list[Call]:
        """The calls with distinct ids, and arguments as text."""
        ids: set[str] = set()
        for call in calls:
            call.id = self.new_id(call.id, ids)
            ids.add(call.id)
            call.function.arguments = _arguments(call.function.arguments)
        return list(calls)

    def _grounding(self, message: ChatMessage, hosted: int) -> tuple[str, ...]:
        """The sources of the answer, as a separate item; only the first item is sent back."""
        kept = {name: value for name, value in self.sources(message).items() if value}
        return (encode({"type": "grounding", **kept}).decode(),) if kept or hosted else ()


def with_call_ids(items: Sequence[str], ids: Sequence[str], run_by_provider: str = "") -> tuple[str, ...]:
    """The items of a reply with these ids of its calls, in order, except those that the provider has run.

    The ids of these begin with `run_by_provider`.
    """
    spoken: dict[str, Any] = msgspec.json.decode(items[0])
    remaining = iter(ids)
    for call in spoken["tool_calls"]:
        if not run_by_provider or not call["id"].startswith(run_by_provider):
            call["id"] = next(remaining)
    return (encode(spoken).decode(), *items[1:])


def echoed(call: Call) -> dict[str, Any]:
    """A call in the form it can be sent back."""
    function = {"name": call.function.name or "", "arguments": json_text(call.function.arguments)}
    signature = {"extra_content": call.extra_content} if call.extra_content else {}
    return {"id": call.id, "type": "function", "function": function, **signature}


def json_text(arguments: str) -> str:
    """The arguments of a call as an object; servers that parse them refuse a conversation with malformed ones."""
    return arguments if is_object(arguments) else "{}"


def is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False


def _arguments(given: Any) -> str:
    """The arguments of a call, which some servers send as an object."""
    return given if isinstance(given, str) else "" if given is None else encode(given).decode()


def _usage(usage: Usage | None, hosted: int) -> TokenUsage:
    if usage is None:
        return TokenUsage(hosted_requests=hosted)
    read, written = usage.prompt_tokens_details, usage.completion_tokens_details
    # Searches are counted in either place, depending on the provider.
    searched = max((part.web_search_requests or 0 for part in (usage.server_tool_use, read) if part), default=0)
    counts = (
        usage.prompt_tokens,
        usage.completion_tokens,
        (read.cached_tokens if read else 0) or usage.prompt_cache_hit_tokens,
        written.reasoning_tokens if written else 0,
        max(searched, hosted),
    )
    # A negative count would give back what a budget has spent.
    return TokenUsage(*(max(0, count or 0) for count in counts))


class ChunkParser:
    """Assembles a streamed completion.

    If it `trusts_end`, the mark of the end is the server's own, and an answer without a finish reason complete.
    """

    trusts_end = True

    def __init__(self, replies: ReplyParser) -> None:
        self._replies = replies
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._thoughts: dict[str, list[str]] = {"reasoning": [], "reasoning_content": []}
        self._details: list[dict[str, Any]] = []
        self._annotations: list[Any] = []
        self._calls: list[Call] = []
        self._ids: set[str] = set()
        # The call that a piece with this index continues, and its id as the server writes it.
        self._by_index: dict[int | None, tuple[Call, str]] = {}
        self._finish: str | None = None
        self._last: Chunk[ChatMessage] = Chunk()
        self._usage: Usage | None = None

    def feed(self, event: bytes) -> Sequence[ModelDelta | ModelReply]:
        if event == b"[DONE]":
            return (self.reply(),)
        chunk: Chunk[ChatMessage] = self._replies.decode_chunk(event)
        error = chunk.error or (chunk.x_groq.error if chunk.x_groq else None)
        if error:
            raise self._replies.failure(error)
        self._last = chunk
        usage = chunk.usage or (chunk.x_groq.usage if chunk.x_groq else None)
        self._usage = usage or self._usage
        deltas: list[ModelDelta | ModelReply] = []
        for choice in (chunk.choices or ())[:1]:
            if choice.error:
                raise self._replies.failure(choice.error)
            self._finish = choice.finish_reason or self._finish
            if choice.delta is not None:
                deltas += self.add(choice.delta)
        if usage is not None and self._finish is not None:
            # Not every server marks the end of its stream, but nothing follows the usage of a finished answer.
            deltas.append(self.reply())
        return deltas

    def add(self, delta: Any) -> list[ModelDelta | ModelReply]:
        """Add a piece of the message; the deltas that it shows."""
        deltas: list[ModelDelta | ModelReply] = []
        if thought := delta.shown_reasoning:
            deltas.append(ReasoningDelta(thought))
        for name, pieces in self._thoughts.items():
            if piece := getattr(delta, name):
                pieces.append(piece)
        for detail in delta.reasoning_details or ():
            self._add_detail(detail)
        if text := delta.text:
            self._text.append(text)
            deltas.append(TextDelta(text))
        if delta.refusal:
            self._refusal.append(delta.refusal)
        self._annotations += delta.annotations or ()
        for call in delta.tool_calls or ():
            kept, arguments = self._add_call(call)
            if arguments:
                deltas.append(ArgumentsDelta(kept.id or "", kept.function.name or "", arguments))
        return deltas

    def reply(self) -> ModelReply:
        """The whole reply."""
        if self._finish is None and not self.trusts_end:
            name = self._replies.name
            raise TransportError(f"{name}'s stream ended before the answer was complete", phase="response")
        choice = _Choice(msgspec.Raw(encode(self.message())), self._finish)
        return self._replies.reply(Completion([choice], self._last.id, self._last.model, self._usage))

    def message(self) -> dict[str, Any]:
        """The message that the pieces make."""
        parts: dict[str, Any] = {
            "refusal": "".join(self._refusal),
            **{name: "".join(pieces) for name, pieces in self._thoughts.items()},
            "reasoning_details": self._details,
            "tool_calls": [{"type": "function", **msgspec.to_builtins(call)} for call in self._calls],
            "annotations": self._annotations,
        }
        given = {name: value for name, value in parts.items() if value}
        return {"role": "assistant", "content": "".join(self._text) or None, **given}

    def _add_detail(self, piece: dict[str, Any]) -> None:
        """Add a piece of a block of reasoning: its text arrives in many pieces, which have the same index."""
        last = self._details[-1] if self._details else {}
        if not last or (piece.get("type"), piece.get("index")) != (last.get("type"), last.get("index")):
            self._details.append(dict(piece))
            return
        for name, value in piece.items():
            if name in ("text", "summary", "data") and last.get(name) and value:
                last[name] += value
            elif value is not None:
                last[name] = value

    def _add_call(self, piece: Call) -> tuple[Call, str]:
        """Add a piece of a call, by its index unless the server gives several calls the same one, or none."""
        arguments = _arguments(piece.function.arguments)
        call, given = self._by_index.get(piece.index, (None, ""))
        if call is None or self._begins(piece, call, given, arguments):
            call = Call(_Function(""), self._replies.new_id(piece.id, self._ids))
            self._ids.add(call.id or "")
            self._calls.append(call)
            self._by_index[piece.index] = call, piece.id or ""
        call.function.name = piece.function.name or call.function.name
        call.function.arguments += arguments
        call.extra_content = piece.extra_content or call.extra_content
        return call, arguments

    @staticmethod
    def _begins(piece: Call, call: Call, given: str, arguments: str) -> bool:
        """True if a piece with the index of an earlier call is the beginning of another."""
        if piece.id and given and piece.id != given:
            return True
        if not piece.function.name or (piece.id and not arguments):
            return False
        # Some servers repeat the name in every piece, and parsing what is there so far takes long.
        written: str = call.function.arguments
        return written.rstrip().endswith("}") and is_object(written)
