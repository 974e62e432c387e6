"""Tokens sent with every strategy and with the full prompt, on the same questions.

A prompt of 40 sections and 60 tools is made of docstrings of the standard library. Each of 30 questions needs one to
three sections; a scripted model opens what it needs, calls one tool of each (or reads a content-only one), and answers.
Requests are encoded by the OpenAI adapter's own wire code, and a simulated provider cache honours exact prefixes. Every
question starts with a cold cache.
"""

from __future__ import annotations

import importlib
import inspect
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from bench.row import Row
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.adapters.scripted import call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    SectionVisibility,
    Tool,
    ToolResult,
    default_tokenizer,
)
from weakincentives.runtime import MainLoop, ModelReply, ModelRequest, ProviderAdapter, RunEnded, ToolCall
from weakincentives.session import Session

MODULES = [
    "argparse",
    "ast",
    "base64",
    "bisect",
    "calendar",
    "cmath",
    "codecs",
    "collections",
    "configparser",
    "contextlib",
    "copy",
    "csv",
    "datetime",
    "decimal",
    "difflib",
    "dis",
    "fractions",
    "functools",
    "gzip",
    "heapq",
    "inspect",
    "itertools",
    "json",
    "logging",
    "math",
    "pathlib",
    "pickle",
    "random",
    "re",
    "shutil",
    "socket",
    "sqlite3",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "zipfile",
]
CONTENT_ONLY = 10
QUESTIONS = 30
TOOLS = 60
SECTION_CHARACTERS = 6_000


@dataclass(frozen=True, slots=True)
class Argument:
    text: str = field(metadata={"description": "What to pass, as a Python expression."})


@dataclass(slots=True)
class Totals:
    """The sums over the runs of one setup."""

    sent: int = 0
    cached: int = 0
    turns: int = 0
    restarts: int = 0

    @property
    def uncached(self) -> int:
        return self.sent - self.cached


def documents() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Per module: its name, its docstrings as one text, and its functions with their docstrings."""
    for name in MODULES:
        module = importlib.import_module(name)
        members = [
            (member, inspect.getdoc(value) or "")
            for member, value in sorted(vars(module).items())
            if inspect.isroutine(value) and not member.startswith("_") and inspect.getdoc(value)
        ]
        whole = [inspect.getdoc(module) or "", *(f"{name}.{member}\n{doc}" for member, doc in members)]
        yield name, "\n\n".join(whole)[:SECTION_CHARACTERS].replace("$", "$$"), members


def template(disclosure: Disclosure, visibility: SectionVisibility) -> PromptTemplate[None]:
    sections = []
    missing = TOOLS - sum(min(2, len(members)) for name, _, members in documents() if has_tools(name))
    for name, text, members in documents():
        tools = [a_tool(name, *member) for member in members[:2]] if has_tools(name) else []
        if missing and tools and len(members) > 2:
            tools.append(a_tool(name, *members[2]))
            missing -= 1
        sections.append(
            MarkdownSection(
                title=name,
                key=name,
                template=text,
                summary=f"The {name} module: {text.strip().splitlines()[0][:80]}",
                visibility=visibility,
                tools=tools,
            )
        )
    task = MarkdownSection(title="Task", key="task", template="Answer the question with the modules below.")
    files = [VfsToolsSection()] if isinstance(disclosure, OpenToFiles) else []
    return PromptTemplate(ns="bench", key="disclosure", sections=[task, *sections, *files], disclosure=disclosure)


def a_tool(module: str, member: str, doc: str) -> Tool[Any, Any]:
    return Tool(
        name=f"{module}_{member}".lower(),
        description=f"Call {module}.{member}: {doc.split(chr(10) * 2)[0]}"[:600],
        handler=lambda params, *, context: ToolResult(f"{module}.{member} answered with 42."),
        params_type=Argument,
    )


def questions() -> list[list[str]]:
    """The sections that each question needs."""
    chance = random.Random(7)
    return [chance.sample(MODULES, 1 + number % 3) for number in range(QUESTIONS)]


class WireAdapter(ProviderAdapter):
    """Plays a script and counts each request as the provider would."""

    name = "openai"

    def __init__(self, script: Callable[[ModelRequest], list[ToolCall] | str], route: str) -> None:
        super().__init__("gpt-5.6")
        self.script = script
        self.route = route
        self.seen: list[str] = []
        self.totals = Totals()

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @property
    def tool_route(self) -> str:
        return self.route

    def channel(self) -> Any:
        return _Wired(self, ResponsesWire(self.model, route=self.route, codecs={}, parameters={}))


class _Wired:
    def __init__(self, adapter: WireAdapter, wire: ResponsesWire) -> None:
        self._adapter = adapter
        self._wire = wire

    def call(self, request: ModelRequest) -> ModelReply:
        adapter = self._adapter
        body = msgspec.json.decode(self._wire.encode_request(request).body())
        text = msgspec.json.encode([body.get("tools", []), body["input"]]).decode()
        shared = max((common_prefix(text, earlier) for earlier in adapter.seen), default=0)
        tokens, cached = count(text), count(text[:shared])
        adapter.seen.append(text)
        adapter.totals.sent += tokens
        adapter.totals.cached += cached
        adapter.totals.turns += 1
        line = adapter.script(request)
        usage = TokenUsage(input_tokens=tokens, cached_tokens=cached)
        if isinstance(line, str):
            return ModelReply(text=line, usage=usage)
        calls = tuple(ToolCall(f"call_{adapter.totals.turns}_{n}", c.name, c.arguments) for n, c in enumerate(line))
        return ModelReply(tool_calls=calls, usage=usage, stop_reason="tool_calls")

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return self.call(request)

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]:
        yield self.call(request)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        yield self.call(request)


@lru_cache(maxsize=4096)
def count(text: str) -> int:
    return default_tokenizer().count(text)


def common_prefix(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def script_for(needed: list[str], disclosure: Disclosure, *, everything_open: bool) -> Any:
    """A model that opens what it needs in one turn, uses one tool of each section in a turn of its own, and answers."""
    opened: set[str] = set()
    done: set[str] = set()

    def play(request: ModelRequest) -> list[ToolCall] | str:
        offered = {tool.name for tool in request.tools}
        tools = {key: next((name for name in sorted(offered) if name.startswith(f"{key}_")), None) for key in needed}
        to_open = [key for key in needed if key not in opened and not tools[key]]
        if to_open and not everything_open:
            opened.update(to_open)
            return opening(to_open, disclosure)
        for key in needed:
            name = tools[key]
            if key in done:
                continue
            done.add(key)
            if name is not None:
                return [call(name, text=f"{key} argument")]
            if isinstance(disclosure, OpenToFiles) and not everything_open and not any(map(has_tools, needed)):
                return [call("read", path=f"context/{key}.md")]
        return "The answer is 42, as the modules say."

    return play


def has_tools(key: str) -> bool:
    return MODULES.index(key) % (len(MODULES) // CONTENT_ONLY) != 0


def opening(keys: list[str], disclosure: Disclosure) -> list[ToolCall]:
    if isinstance(disclosure, ReadSections):
        return [call("read_section", section_key=key) for key in keys]
    if isinstance(disclosure, OpenOrRead):
        reads = [call("read_section", section_key=key) for key in keys if not has_tools(key)]
        opens = [key for key in keys if has_tools(key)]
        return [*reads, *([call("open_sections", section_keys=opens, reason="needed")] if opens else [])]
    return [call("open_sections", section_keys=keys, reason="needed")]


def measure(disclosure: Disclosure, *, route: str = "additional_tools", everything_open: bool = False) -> Totals:
    totals = Totals()
    blueprint = template(disclosure, SectionVisibility.FULL if everything_open else SectionVisibility.SUMMARY)
    for needed in questions():
        adapter = WireAdapter(script_for(needed, disclosure, everything_open=everything_open), route)
        session = Session()
        MainLoop().execute(Prompt(blueprint), session=session, adapter=adapter)
        totals.sent += adapter.totals.sent
        totals.cached += adapter.totals.cached
        totals.turns += adapter.totals.turns
        totals.restarts += sum(event.status == "restarted" for event in session[RunEnded])
    return totals


SETUPS: tuple[tuple[str, Disclosure, str], ...] = (
    ("ReadSections (default), additional_tools", ReadSections(), "additional_tools"),
    ("ReadSections, append", ReadSections(), "append"),
    ("OpenOrRead", OpenOrRead(), "additional_tools"),
    ("OpenToFiles", OpenToFiles(), "additional_tools"),
    ("OpenAndHalt", OpenAndHalt(), "additional_tools"),
)


def rows() -> Iterator[Row]:
    full = measure(ReadSections(), everything_open=True)
    yield Row("full prompt: tokens sent", full.sent, "tokens", note=describe(full))
    for name, disclosure, route in SETUPS:
        totals = measure(disclosure, route=route)
        goal = 0.2 if "default" in name else None
        sent, paid = totals.sent / full.sent, totals.uncached / full.uncached
        yield Row(f"{name}: sent", totals.sent, "tokens", ratio=sent, ratio_goal=goal, baseline="full prompt")
        yield Row(
            f"{name}: uncached",
            totals.uncached,
            "tokens",
            ratio=paid,
            ratio_goal=goal,
            baseline="full prompt",
            note=describe(totals),
        )
        if goal is not None:
            yield Row(f"{name}: restarts", totals.restarts, "", goal=0)


def describe(totals: Totals) -> str:
    return f"{totals.turns} turns, {totals.restarts} restarts, {totals.uncached:,} uncached"
