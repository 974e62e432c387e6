"""Long conversations: dollars with and without compaction, and 300 exchanges against servers with a small window.

Conversations of 20, 50 and 200 exchanges look at a row of 2 kB in each of them. Requests are encoded by the OpenAI
adapter's own wire code; a simulated provider cache honours exact prefixes for half an hour and charges a quarter more
for what is written to it. There is a pause of an hour after every 40 exchanges. The window is never reached.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from bench.row import Row
from tests.adapters.long_conversations import CODE, DEPOT, ORDER, last_request, long_conversation
from tests.adapters.vendors import ANTHROPIC, OPENAI, OPENAI_CHAT
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.adapters.scripted import call
from weakincentives.clock import FakeClock
from weakincentives.limits import Prices, TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, default_tokenizer, tool
from weakincentives.runtime import (
    Compacted,
    Compaction,
    Conversation,
    Message,
    ModelReply,
    ModelRequest,
    ProviderAdapter,
    ToolCall,
)
from weakincentives.runtime.spi import prices_for
from weakincentives.session import Session

SLOW = True
MODEL = "gpt-5.6"
CACHE_SECONDS, CACHE_WRITE = 1800.0, 1.25
BETWEEN, PAUSE, PAUSE_AFTER = 45.0, 3600.0, 40
ANSWER = "The row is there; its state is open, it was changed last week, and nobody has asked for it since. " * 3
SUMMARY = "The customer has asked about rows one after another; all of them were there. " * 12


@tool(read_only=True)
def look(n: int) -> str:
    "Look at a row of the table of orders, with its history."
    return f"row {n}: " + " ".join(f"{n * 31 + step} item-{n}-{step} open" for step in range(95))


TEMPLATE = PromptTemplate(
    ns="bench",
    key="long",
    sections=[
        MarkdownSection(
            key="task", title="Task", template="Answer the customer's questions. " + "Be brief. " * 150, tools=[look]
        )
    ],
)


class CachedAdapter(ProviderAdapter):
    """A scripted model behind a simulated cache, which adds up what its requests cost."""

    name = "openai"
    cache_seconds = CACHE_SECONDS
    cache_write = CACHE_WRITE

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MODEL)
        self.clock = clock
        self.dollars = 0.0
        self.seen: list[tuple[float, list[bytes]]] = []
        prices = prices_for(MODEL)
        assert prices is not None and prices.cached_input is not None
        self.prices: Prices = prices

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @property
    def tool_route(self) -> str:
        return "additional_tools"

    def channel(self) -> Any:
        return _Channel(self)

    def bill(self, request: ModelRequest, text: str) -> TokenUsage:
        body = msgspec.json.decode(
            ResponsesWire(MODEL, route=self.tool_route, codecs={}, parameters={}).encode_request(request).body()
        )
        items = [msgspec.json.encode(item) for item in (body.get("tools", []), *body["input"])]
        now = self.clock.now().timestamp()
        self.seen = [(at, known) for at, known in self.seen[-40:] if now - at < CACHE_SECONDS]
        shared = max((_shared(items, known) for _, known in self.seen), default=0)
        self.seen.append((now, items))
        cached, fresh = sum(map(_count, items[:shared])), sum(map(_count, items[shared:]))
        usage = TokenUsage(cached + fresh, _count(text.encode()), cached)
        assert self.prices.cached_input is not None
        self.dollars += cached * self.prices.cached_input / 1e6 + fresh * self.prices.input * CACHE_WRITE / 1e6
        self.dollars += usage.output_tokens * self.prices.output / 1e6
        return usage


class _Channel:
    def __init__(self, adapter: CachedAdapter) -> None:
        self._adapter = adapter

    def call(self, request: ModelRequest) -> ModelReply:
        heard = [each for each in request.messages if each.role in ("user", "tool")]
        last: Message = next(each for each in reversed(heard) if not each.kind)
        if last.text.startswith("Summarize"):
            return ModelReply(SUMMARY, usage=self._adapter.bill(request, SUMMARY))
        if last.role == "tool":
            return ModelReply(ANSWER, usage=self._adapter.bill(request, ANSWER))
        asked = call("look", n=int(last.text.split()[-1]))
        made = ToolCall(f"call_{last.text.split()[-1]}", asked.name, asked.arguments)
        return ModelReply(
            tool_calls=(made,), usage=self._adapter.bill(request, asked.arguments), stop_reason="tool_calls"
        )

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return self.call(request)

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]:
        yield self.call(request)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        yield self.call(request)


@lru_cache(maxsize=65_536)
def _count(item: bytes) -> int:
    return default_tokenizer().count(item.decode())


def _shared(items: list[bytes], known: list[bytes]) -> int:
    pairs = enumerate(zip(items, known, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(items), len(known)))


def spent(exchanges: int, compaction: Compaction | None) -> tuple[float, list[str]]:
    """The dollars of a conversation, and by which steps it was shortened."""
    clock = FakeClock()
    adapter = CachedAdapter(clock)
    chat = Conversation(Prompt(TEMPLATE), adapter=adapter, session=Session(clock=clock), compaction=compaction)
    for number in range(1, exchanges + 1):
        chat.send(f"And what about row {number}")
        clock.advance(PAUSE if number % PAUSE_AFTER == 0 else BETWEEN)
    return adapter.dollars, [event.by for event in chat.session[Compacted]]


def dollars() -> Iterator[Row]:
    for exchanges, goal in ((20, 1.02), (50, 1.02), (200, 0.8)):
        without, _ = spent(exchanges, None)
        paid, steps = spent(exchanges, Compaction(when="pays"))
        yield Row(f"{exchanges} exchanges, no compaction", round(without, 4), "$")
        yield Row(
            f"{exchanges} exchanges, when it pays",
            round(paid, 4),
            "$",
            ratio=paid / without,
            ratio_goal=goal,
            baseline="no compaction",
            note=f"{len(steps)} compactions: {', '.join(sorted(set(steps))) or 'none'}",
        )


def within_the_window(window: int = 60_000, exchanges: int = 300) -> Iterator[Row]:
    for vendor in (OPENAI, ANTHROPIC, OPENAI_CHAT):
        for known in (True, False):
            compaction = Compaction(window=window if known else None)
            with long_conversation(vendor, compaction, window=window, exchanges=exchanges) as (chat, server):
                request, refused = last_request(server), server.refused
                within = ORDER in request and DEPOT in request and any(CODE in each.text for each in chat.messages)
                largest = max(map(server.size, server.requests[-exchanges:]))
            name = f"{vendor}: requests refused, window {'known' if known else 'found'}"
            note = f"{exchanges} exchanges, largest request {largest:,} tokens"
            yield Row(name, refused, "", goal=0 if known else 1, note=note)
            yield Row(f"{vendor}: facts out of reach", int(not within), "", goal=0)


def rows() -> Iterator[Row]:
    yield from dollars()
    yield from within_the_window()
