"""What a chat costs: CPU per turn early and late, and input tokens that a provider's cache cannot hold across runs."""

from __future__ import annotations

import inspect
import os.path
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from bench.adapters import ADAPTERS
from bench.model_server import serving
from bench.row import Row
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.demo.desk import chat as desk
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SearchSections, default_tokenizer
from weakincentives.runtime import Conversation, Message, ModelRequest
from weakincentives.telemetry import instrument, record

# The exchanges of the chat with the demo's handbook, none of whose sections is opened.
CLOSED = (10, 200, 1_000)
RUNS = 50
MODULES = ("argparse", "asyncio", "collections", "csv", "datetime", "decimal", "json", "logging", "pathlib", "re")
WORDS = "I ordered a lamp on Monday, and it has not arrived; could you look where it is, please?"


@dataclass(frozen=True)
class Customer:
    name: str
    words: str


def rows() -> Iterator[Row]:
    with serving() as url:
        for name, make in ADAPTERS.items():
            early, late = _exchanges(make(f"{url}/k0"), _plain, (10, 200), rounds=7)
            yield Row(
                f"turn 200 of a chat: {name}", late * 1e6, "µs", ratio=late / early, ratio_goal=1.2, baseline="turn 10"
            )
        for name, make in ADAPTERS.items():
            with make(f"{url}/k0") as adapter:
                yield from _closed(name, adapter, desk)
    with TemporaryDirectory() as folder, _instrumented() as instrumented:
        yield from _closed("ScriptedAdapter", _scripted(), desk, goal=1.2)
        yield from _closed("with SearchSections", _scripted(), _searching, goal=1.2)
        with record(Path(folder, "runs.db")):
            yield from _closed("with a recorder", _scripted(), desk, goal=1.3)
        with instrumented():
            yield from _closed("with OpenTelemetry", _scripted(), desk, goal=1.3)
    everything = _uncached("first")
    last, user = _uncached("last"), _uncached("user")
    yield Row(f"tokens not cached in {RUNS} runs: params first in the system text", everything, "tokens")
    yield Row(f"tokens not cached in {RUNS} runs: params last in the system text", last, "tokens")
    yield Row(
        f"tokens not cached in {RUNS} runs: params in a user section",
        user,
        "tokens",
        ratio=user / everything,
        ratio_goal=0.2,
        baseline="params first",
    )


def _closed(
    name: str, adapter: Any, template: Callable[[], PromptTemplate[None]], goal: float | None = None
) -> Iterator[Row]:
    """A chat with the demo's handbook. A provider is sent all of it each time, which costs more as it grows."""
    first, *others = _exchanges(adapter, lambda: Prompt(template()), CLOSED, rounds=2)
    yield Row(f"exchange {CLOSED[0]} of a chat with closed sections: {name}", first * 1e6, "µs")
    for number, taken in zip(CLOSED[1:], others, strict=True):
        label = f"exchange {number:,} of a chat with closed sections: {name}"
        ratio = taken / first
        yield Row(label, taken * 1e6, "µs", ratio=ratio, ratio_goal=goal, baseline=f"exchange {CLOSED[0]}")


def _scripted() -> ScriptedAdapter:
    return ScriptedAdapter(lambda request: "It is on its way.")


def _searching() -> PromptTemplate[None]:
    return PromptTemplate(ns="bench", key="search", sections=desk().sections, disclosure=SearchSections())


@contextmanager
def _instrumented() -> Iterator[Callable[[], Any]]:
    """How to report to OpenTelemetry as a program does that exports nothing."""
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    yield lambda: instrument(tracer_provider=provider)
    provider.shutdown()


def _exchanges(adapter: Any, prompt: Callable[[], Prompt[Any]], numbers: Sequence[int], *, rounds: int) -> list[float]:
    """CPU seconds of an exchange around each of these numbers, in the best of several chats."""
    best = [float("inf")] * len(numbers)
    for _ in range(rounds):
        chat = Conversation(prompt(), adapter=adapter)
        moments = [time.process_time()]
        for _ in range(max(numbers) + 10):
            chat.send(WORDS)
            moments.append(time.process_time())
        best = [min(known, (moments[at + 10] - moments[at - 5]) / 15) for known, at in zip(best, numbers, strict=True)]
    return best


def _plain() -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="You help.")
    return Prompt(PromptTemplate(ns="bench", key="chat", sections=[task]))


def _uncached(place: Literal["first", "last", "user"]) -> int:
    """The tokens of all first requests that follow the longest beginning which an earlier one had."""
    count = default_tokenizer().count
    template = _template(place)
    seen: list[str] = []
    uncached = 0
    for number in range(RUNS):
        rendered = Prompt(template).bind(Customer(f"Customer {number}", f"{WORDS} My number is {number}.")).render()
        messages = [Message("system", rendered.system_text)]
        if rendered.user_text:
            messages.append(Message("user", rendered.user_text))
        wire = ResponsesWire("gpt-5.6", route="append", codecs={})
        body = wire.encode_request(ModelRequest("bench", messages)).body().decode()
        known = max((len(os.path.commonprefix([body, other])) for other in seen), default=0)  # noqa: RUF071
        uncached += count(body[known:])
        seen.append(body)
    return uncached


def _template(place: Literal["first", "last", "user"]) -> PromptTemplate[None]:
    customer = MarkdownSection[Customer](
        title="Customer",
        key="customer",
        template="${name} says: ${words}",
        role="user" if place == "user" else "system",
    )
    manual = [
        MarkdownSection(title=name, key=name, template=(inspect.getdoc(__import__(name)) or name).replace("$", "$$"))
        for name in MODULES
    ]
    return PromptTemplate(
        ns="bench", key="runs", sections=[customer, *manual] if place == "first" else [*manual, customer]
    )
