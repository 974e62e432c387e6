"""Tokens sent with every strategy, by every route and with the full prompt, on the same questions.

A prompt of 40 sections and 60 tools is made of docstrings of the standard library. Each of 30 questions needs one to
three sections; a scripted model opens what it needs, calls one tool of each (or reads a content-only one), and answers.
Requests are encoded by the adapters' own wire code. Counted is what the model is shown of them: of deferred tools, as
the vendors describe it, a namespace's name and description at OpenAI and nothing at Anthropic, until they are found or
referred to. A simulated provider cache honours exact prefixes of that. Every question starts with a cold cache. With
--data, the tokens before the first turn are measured on the 70 servers of LiveMCPBench too.
"""

from __future__ import annotations

import gzip
import importlib
import inspect
import os
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from bench.row import Row
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
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
    SearchSections,
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
    """Plays a script and counts each request as the provider would; `real` encodes it."""

    def __init__(self, script: Callable[[ModelRequest], Line], real: Any) -> None:
        super().__init__(real.model)
        self.name = real.name  # type: ignore[misc]
        self.script = script
        self.real = real
        self.seen: list[str] = []
        self.totals = Totals()

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @property
    def tool_route(self) -> str:
        return str(self.real.tool_route)

    @property
    def defers_tools(self) -> bool:
        return bool(self.real.defers_tools)

    @property
    def carries_search(self) -> bool:
        return bool(self.real.carries_search)

    def found_tools(self, items: Sequence[str]) -> tuple[str, ...]:
        found: tuple[str, ...] = self.real.found_tools(items)
        return found

    def channel(self) -> Any:
        return _Wired(self)


def shown(body: dict[str, Any]) -> str:
    """What the model is shown of a request, in the order in which a cache reads it."""
    listed = body.get("tools", [])
    if "input" in body:
        return _json([[_visible(tool) for tool in listed], body["input"]])
    tools = {tool["name"]: {**tool, "defer_loading": None} for tool in listed}
    plain = [tool for tool in listed if "defer_loading" not in tool]
    return _json([plain, body.get("system"), _expanded(body["messages"], tools)])


def _visible(tool: dict[str, Any]) -> dict[str, Any]:
    if any("defer_loading" in member for member in tool.get("tools", ())):
        return {name: value for name, value in tool.items() if name != "tools"}
    return {name: tool[name] for name in ("name", "description")} if "defer_loading" in tool else tool


def _expanded(value: Any, tools: dict[str, Any]) -> Any:
    """The conversation with the definitions of tools where it refers to them."""
    if isinstance(value, dict):
        if value.get("type") == "tool_reference" and "tool_name" in value:
            return tools[value["tool_name"]]
        return {name: _expanded(item, tools) for name, item in value.items()}
    return [_expanded(item, tools) for item in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class _Wired:
    def __init__(self, adapter: WireAdapter) -> None:
        self._adapter = adapter
        self._wire = adapter.real._wire()

    def call(self, request: ModelRequest) -> ModelReply:
        adapter = self._adapter
        body = msgspec.json.decode(self._wire.encode_request(request).body())
        text = shown(body)
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
        if isinstance(line, Search):
            return ModelReply(usage=usage, items=tuple(map(_json, line.items(body))), stop_reason="pause")
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


@dataclass(frozen=True, slots=True)
class Search:
    """A search by the provider that finds the tools of these sections."""

    keys: list[str]

    def items(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The items of a reply that say so, in the format of the request."""
        if "input" in body:
            found = [tool for tool in body["tools"] if tool["type"] == "namespace" and tool["name"] in self.keys]
            common = {"call_id": None, "execution": "server", "status": "completed"}
            yield {"type": "tool_search_call", "id": "s", "arguments": {"paths": self.keys}, **common}
            yield {"type": "tool_search_output", "id": "o", "tools": found, **common}
            return
        names = [tool["name"] for tool in body["tools"] if tool["name"].startswith(tuple(f"{k}_" for k in self.keys))]
        query = {"query": " ".join(self.keys)}
        yield {"type": "server_tool_use", "id": "s", "name": "tool_search_tool_bm25", "input": query}
        references = [{"type": "tool_reference", "tool_name": name} for name in names]
        result = {"type": "tool_search_tool_search_result", "tool_references": references}
        yield {"type": "tool_search_tool_result", "tool_use_id": "s", "content": result}


Line = list[ToolCall] | str | Search


def script_for(
    needed: list[str], disclosure: Disclosure, *, everything_open: bool, searches: bool = False, asks: bool = False
) -> Any:
    """A model that opens what it needs in one turn, uses one tool of each section in a turn of its own, and answers.

    If it `searches`, the provider does that; if it `asks`, the first turn is a search of ours.
    """
    opened: set[str] = set()
    asked = not asks
    done: set[str] = set()

    def play(request: ModelRequest) -> Line:
        nonlocal asked
        if not asked:
            asked = True
            return [call("search_sections", query=" ".join(needed))]
        offered = {tool.name for tool in request.tools}
        if searches and not opened and any(map(has_tools, needed)):
            opened.update(filter(has_tools, needed))
            return Search(sorted(opened))
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
    if isinstance(disclosure, (ReadSections, SearchSections)):
        return [call("read_section", section_key=key) for key in keys]
    if isinstance(disclosure, OpenOrRead):
        reads = [call("read_section", section_key=key) for key in keys if not has_tools(key)]
        opens = [key for key in keys if has_tools(key)]
        return [*reads, *([call("open_sections", section_keys=opens, reason="needed")] if opens else [])]
    return [call("open_sections", section_keys=keys, reason="needed")]


def measure(disclosure: Disclosure, real: Any, *, everything_open: bool = False) -> Totals:
    totals = Totals()
    blueprint = template(disclosure, SectionVisibility.FULL if everything_open else SectionVisibility.SUMMARY)
    searches = real.defers_tools and isinstance(disclosure, ReadSections) and not everything_open
    asks = real.carries_search and isinstance(disclosure, SearchSections)
    for needed in questions():
        script = script_for(needed, disclosure, everything_open=everything_open, searches=searches, asks=asks)
        adapter = WireAdapter(script, real)
        session = Session()
        MainLoop().execute(Prompt(blueprint), session=session, adapter=adapter)
        totals.sent += adapter.totals.sent
        totals.cached += adapter.totals.cached
        totals.turns += adapter.totals.turns
        totals.restarts += sum(event.status == "restarted" for event in session[RunEnded])
    return totals


OPENAI, OPUS, SONNET = "gpt-5.6", "claude-opus-5", "claude-sonnet-5"
# The goals are shares of the full prompt.
SETUPS: tuple[tuple[str, Disclosure, str, dict[str, Any], float | None], ...] = (
    ("ReadSections (default), additional_tools", ReadSections(), OPENAI, {}, 0.2),
    ("ReadSections, append", ReadSections(), OPENAI, {"tool_route": "append"}, None),
    ("ReadSections, tool_search with namespaces", ReadSections(), OPENAI, {"tool_search": True}, None),
    ("SearchSections, tool_search that we execute", SearchSections(), OPENAI, {"tool_search": True}, None),
    ("ReadSections, tool_addition", ReadSections(), OPUS, {}, 0.15),
    ("ReadSections, append", ReadSections(), SONNET, {"tool_route": "append"}, None),
    ("ReadSections, tool_reference", ReadSections(), SONNET, {}, 0.15),
    ("ReadSections, tool_search", ReadSections(), SONNET, {"tool_search": True}, None),
    ("OpenOrRead", OpenOrRead(), OPENAI, {}, None),
    ("OpenToFiles", OpenToFiles(), OPENAI, {}, None),
    ("OpenAndHalt", OpenAndHalt(), OPENAI, {}, None),
)


def adapter_of(model: str, options: dict[str, Any]) -> Any:
    return (OpenAIAdapter if model == OPENAI else AnthropicAdapter)(model, **options)


def rows() -> Iterator[Row]:
    everything = {}
    for model in (OPENAI, OPUS, SONNET):
        full = everything[model] = measure(ReadSections(), adapter_of(model, {}), everything_open=True)
        yield Row(f"full prompt, {model}: tokens sent", full.sent, "tokens", note=describe(full))
    for name, disclosure, model, options, goal in SETUPS:
        totals, full = measure(disclosure, adapter_of(model, options)), everything[model]
        sent, paid = totals.sent / full.sent, totals.uncached / full.uncached
        what, baseline = name if model == OPENAI else f"{name}, {model}", "full prompt"
        yield Row(f"{what}: sent", totals.sent, "tokens", ratio=sent, ratio_goal=goal, baseline=baseline)
        note = describe(totals)
        yield Row(
            f"{what}: uncached", totals.uncached, "tokens", ratio=paid, ratio_goal=goal, baseline=baseline, note=note
        )
        if goal is not None:
            yield Row(f"{what}: restarts", totals.restarts, "", goal=0)
    if os.environ.get("WINK_BENCH_DATA"):
        yield from livemcp_rows(Path(os.environ["WINK_BENCH_DATA"]))


def livemcp_rows(folder: Path) -> Iterator[Row]:
    """Tokens that the model is shown before the first turn, for the servers of LiveMCPBench as closed sections."""
    with gzip.open(folder / "public" / "livemcp" / "tree.jsonl.gz", "rt", encoding="utf-8") as file:
        servers = [msgspec.json.decode(line) for line in file]
    names = [tool["name"] for one in servers for tool in one["tools"]]
    yield Row("livemcp: servers", len(servers), "", note=f"{len(names)} tools, {len(set(names))} names")
    sections = [server_section(one) for one in servers]
    searching = OpenAIAdapter(OPENAI, tool_search=True)
    flat = searching._wire()
    flat._groups = False  # type: ignore[attr-defined]
    for what, disclosure, wire in (
        ("flat deferral, summaries in the prompt", ReadSections(), flat),
        ("namespaces, summaries in the prompt", ReadSections(), searching._wire()),
        ("namespaces, no summaries in the prompt", Unlisted(), searching._wire()),
        ('the search of SearchSections(menu="none")', SearchSections(menu="none"), searching._wire()),
    ):
        made: PromptTemplate[None] = PromptTemplate(ns="bench", key="mcp", sections=sections, disclosure=disclosure)
        request = searching.next_request(Prompt(made))
        body = msgspec.json.decode(wire.encode_request(request).body())
        yield Row(f"livemcp, before the first turn: {what}", count(shown(body)), "tokens")


@dataclass(frozen=True, slots=True)
class Unlisted(ReadSections):
    """The default, without any summaries in the prompt: the model finds sections by their namespaces."""

    menu: Any = "none"


def server_section(one: dict[str, Any]) -> MarkdownSection[None]:
    """A server as a section; its tools accept what its listing says."""
    tools = [
        Tool.from_schema(
            name=tool["name"],
            description=tool["description"] or tool["name"],
            schema=tool["schema"],
            handler=lambda params, *, context: ToolResult(""),
        )
        for tool in one["tools"]
    ]
    key = re.sub(r"[^a-z0-9._-]+", "-", one["key"].lower()).strip("._-")
    summary = (one["summary"] or one["title"]).replace("$", "$$")
    text = one["body"].replace("$", "$$") or one["title"]
    options: dict[str, Any] = {"visibility": SectionVisibility.SUMMARY, "tools": tools}
    return MarkdownSection(title=one["title"], key=key, template=text, summary=summary, **options)


def describe(totals: Totals) -> str:
    return f"{totals.turns} turns, {totals.restarts} restarts, {totals.uncached:,} uncached"
