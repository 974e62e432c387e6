"""Does disclosure lead to the right sections? Rankers, menus and misses on public sets; `--data FOLDER` has them.

The data belong to LiveMCPBench, tau-bench, MetaTool and BFCL and are not part of this project. For each set, FOLDER
holds `public/SET/tree.jsonl.gz` and `public/SET/queries.jsonl.gz`; `baselines.json` has the figures of plain rankings.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.baselines import Baseline, lexical_baselines, vector_baselines
from bench.finding_words import rare_word_rows, text_maker
from bench.row import Row
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SearchSections,
    SearchSectionsParams,
    SectionVisibility,
    Tool,
    ToolResult,
    default_tokenizer,
)
from weakincentives.prompt.disclosure.ranking import Found, LexicalRanker, SectionText, StaticRanker
from weakincentives.runtime import ModelRequest
from weakincentives.runtime.past.misses import best_miss
from weakincentives.session import Session

SLOW = True

COLUMNS = (
    ("livemcp", "task"),
    ("tau_banking", "scenario"),
    ("tau_banking", "opening"),
    ("metatool", "single"),
    ("metatool", "multi"),
)
FURTHER = (("livemcp", "steps"), ("bfcl_miss_func", "turn"), ("bfcl_miss_func", "late"))
KS = (1, 5, 10)
GOALS = {"built-in": 42.0, "static table": 47.0, "embedding model": 50.0}
# The words that the names of a class's baselines contain; a ranker is held to those of simpler classes as well.
CLASSES = {
    "built-in": ("BM25", "lexical only"),
    "static table": ("BM25", "lexical only", "WordLlama"),
    "embedding model": ("BM25", "lexical only", "WordLlama", "MiniLM"),
}
# Published figures, for the reader: each measures something else, as its note says.
PUBLISHED = (
    Row("livemcp: servers in the agent's first search, published", 49, "%", note="Claude Sonnet 4 wrote the search"),
    Row("livemcp: servers at 5, Tool-to-Agent Retrieval", 85, "%", note="arXiv 2511.01854, quoted; other queries"),
    Row("metatool: nDCG@5 by embeddings, OATS", 0.869, "", note="arXiv 2603.13426; other candidates and queries"),
)


@dataclass(frozen=True, slots=True)
class Query:
    kind: str
    text: str
    task: str
    gold: tuple[frozenset[int], ...]
    tools: tuple[frozenset[int], ...]


@dataclass(slots=True)
class Dataset:
    """A set: its sections as rankers get them, what opening each costs, and its queries."""

    name: str
    sections: list[SectionText]
    bodies: list[str]
    queries: list[Query]
    costs: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path, name: str) -> Dataset:
        tree = _lines(folder / "public" / name / "tree.jsonl.gz")
        place = {one["key"]: index for index, one in enumerate(tree)}
        queries = [
            Query(
                one["kind"],
                one["text"],
                str(one["task"]),
                tuple(frozenset(place[key] for key in keys) for keys in one["gold_sections"]),
                tuple(frozenset(place[tool.rpartition("/")[0]] for tool in tools) for tools in one["gold_tools"]),
            )
            for one in _lines(folder / "public" / name / "queries.jsonl.gz")
        ]
        bodies = ["\n".join([one["body"], *map(_as_json, one["tools"])]).strip() for one in tree]
        data = cls(name, [_section(one) for one in tree], bodies, queries)
        count = default_tokenizer().count
        data.costs = [count(f"## {one.headline}\n\n{body}") for one, body in zip(data.sections, bodies, strict=True)]
        return data

    def template(self, **options: Any) -> PromptTemplate[None]:
        """A prompt with a closed section for each of the set's; tools are part of the text."""
        closed = SectionVisibility.SUMMARY
        sections = [
            MarkdownSection(
                title=one.title or one.key,
                key=f"s{index}",
                template=body.replace("$", "$$") or one.title,
                summary=(one.summary or one.title).replace("$", "$$"),
                visibility=closed,
            )
            for index, (one, body) in enumerate(zip(self.sections, self.bodies, strict=True))
        ]
        task = MarkdownSection(title="Task", key="task", template="Help the user.")
        return PromptTemplate(
            ns="bench", key="finding", sections=[task, *sections], disclosure=SearchSections(**options)
        )


@dataclass(slots=True)
class Result:
    """One ranker on one kind of queries, query by query."""

    recall: dict[int, list[float]] = field(default_factory=lambda: {k: [] for k in KS})
    reach: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    index_seconds: float = 0.0
    query_seconds: float = 0.0

    def add(self, query: Query, order: Sequence[int], costs: Sequence[int]) -> None:
        rank = {place: at for at, place in enumerate(order)}
        found = [min(rank.get(place, len(costs)) for place in group) for group in query.gold]
        for k in KS:
            self.recall[k].append(100 * fmean(at < k for at in found))
        self.complete.append(100.0 * all(at < 10 for at in found))
        self.tokens.append(sum(costs[place] for place in order[:5]))
        if query.tools:
            reached = [min(rank.get(place, len(costs)) for place in group) for group in query.tools]
            self.reach.append(100 * fmean(at < 5 for at in reached))


Results = dict[tuple[str, str], Result]


def rows() -> Iterator[Row]:
    sets = read_sets(COLUMNS + FURTHER)
    published = json.loads((_data_folder() / "baselines.json").read_text(encoding="utf-8"))
    against: dict[str, Results] = {}
    for name, ranker, compared in rankers():
        results = measure(ranker, sets.values())
        for baseline in compared:
            if baseline.name not in against:
                against[baseline.name] = measure(baseline, sets.values())
        yield from _ranker_rows(name, results, {one.name: against[one.name] for one in compared}, published)
        yield from rare_word_rows(name, ranker)
    yield from PUBLISHED
    yield from _menu_rows(sets["tau_banking"])
    yield from _size_rows()
    yield from _end_to_end_rows(sets["livemcp"])
    yield from _preopen_rows(sets.values())
    yield from _miss_rows(sets.values())


def read_sets(columns: Iterable[tuple[str, str]]) -> dict[str, Dataset]:
    """The sets of these columns, by name."""
    return {name: Dataset.read(_data_folder(), name) for name in dict.fromkeys(name for name, _ in columns)}


def _data_folder() -> Path:
    folder = Path(os.environ.get("WINK_BENCH_DATA", ""))
    if not (folder / "public").is_dir():
        raise FileNotFoundError(
            "pass --data FOLDER with public/SET/{tree,queries}.jsonl.gz of LiveMCPBench, tau-bench (banking), MetaTool "
            "and BFCL; they are published by their authors and are not part of this project"
        )
    return folder


def rankers() -> Iterator[tuple[str, Any, Sequence[Baseline]]]:
    """Every ranker that can be had here, with what it is compared with query by query."""
    lexical = lexical_baselines()
    yield "built-in", LexicalRanker(), lexical
    try:
        static = StaticRanker()
    except ImportError:
        return
    yield "static table", static, [lexical[1], *vector_baselines(static, "WordLlama")]
    try:
        from weakincentives.adapters.local import LocalRanker

        local = LocalRanker(threads=1)
    except (ImportError, FileNotFoundError):
        return
    yield "embedding model", local, [lexical[1], *vector_baselines(local, "MiniLM")]


def measure(ranker: Any, sets: Iterable[Dataset]) -> Results:
    results: Results = {}
    for data in sets:
        start = time.process_time()
        index = ranker.index_sections(data.sections)
        indexed = time.process_time()
        for query in data.queries:
            order = [place for place, _ in index.rank(query.text, 10)]
            results.setdefault((data.name, query.kind), Result()).add(query, order, data.costs)
        spent = (time.process_time() - indexed) / max(1, len(data.queries))
        for (name, _), result in results.items():
            if name == data.name:
                result.index_seconds, result.query_seconds = indexed - start, spent
    return results


def _ranker_rows(
    name: str, results: Results, against: Mapping[str, Results], published: Mapping[str, Any]
) -> Iterator[Row]:
    mean = fmean(fmean(results[column].recall[5]) for column in COLUMNS)
    yield Row(f"{name}: mean recall@5 of five columns", mean, "%", goal=GOALS[name], better="more")
    worst = min(fmean(results[column].recall[5]) - _best(column, name, published) for column in COLUMNS)
    yield Row(f"{name}: worst column, less the best baseline", worst, "points", goal=-3.0, better="more")
    for column in COLUMNS + FURTHER:
        result = results[column]
        compared = [
            f"{fmean(differences):+.1f} ± {_standard_error(differences):.1f} to {other}"
            for other, found in against.items()
            for differences in [
                [ours - theirs for ours, theirs in zip(result.recall[5], found[column].recall[5], strict=True)]
            ]
        ]
        note = (
            f"@1 {fmean(result.recall[1]):.0f}, @10 {fmean(result.recall[10]):.0f}; reach@5 {fmean(result.reach):.0f}; "
            f"complete@10 {fmean(result.complete):.0f}; {fmean(result.tokens):,.0f} tokens@5; "
            f"{result.index_seconds:.2f} s + {1000 * result.query_seconds:.1f} ms a query; " + ", ".join(compared)
        )
        yield Row(f"{name}: {' '.join(column)}", fmean(result.recall[5]), "% recall@5", note=note)


def _best(column: tuple[str, str], name: str, published: Mapping[str, Any]) -> float:
    found = published[column[0]]["kinds"][column[1]]["rows"]
    known = {label: row for label, row in found.items() if not ("MiniLM" in label and "MiniLM" not in CLASSES[name])}
    return max(
        100 * float(row["recall@5"]) for label, row in known.items() if any(word in label for word in CLASSES[name])
    )


def _menu_rows(data: Dataset) -> Iterator[Row]:
    count = default_tokenizer().count
    found: dict[str, list[list[str]]] = {}
    for menu in ("all", "none"):
        template = data.template(menu=menu)
        rendered = template.render()
        tokens = count(rendered.text) + sum(count(tool.definition) for tool in rendered.tools)
        goal = 1500 if menu == "none" else None
        yield Row(f'tau_banking, menu="{menu}": before the first turn', tokens, "tokens", goal=goal)
        finder, view = SearchSections(menu=menu).finder, Prompt(template).view()
        asked = [query.text for query in data.queries[:40]]
        found[menu] = [[one.node.key for one in finder.closed(view, text, 10)] for text in asked]
    yield Row('tau_banking: searches that find the same with menu="none"', 100.0 * (found["all"] == found["none"]), "%")


def _size_rows(size: int = 5000) -> Iterator[Row]:
    """A large template of made-up words, half of whose sections have a tool."""
    text = text_maker(random.Random(1))
    tools = [_tool(f"tool{number}", text(12)) for number in range(size // 2)]
    texts = [(text(4), text(15), ". ".join(text(14).capitalize() for _ in range(8))) for _ in range(size)]
    before, start = _resident(), time.process_time()
    sections = [
        MarkdownSection(
            title=title,
            key=f"s{place}",
            template=body,
            summary=summary,
            visibility=SectionVisibility.SUMMARY,
            tools=tools[place // 2 : place // 2 + 1] if place % 2 == 0 else [],
        )
        for place, (title, summary, body) in enumerate(texts)
    ]
    strategy = SearchSections(menu="none")
    template = PromptTemplate(ns="bench", key="large", sections=sections, disclosure=strategy)
    made = time.process_time()
    template.render()
    rendered = time.process_time()
    yield Row(f"{size:,} sections: template", made - start, "s", goal=1.5)
    yield Row(f"{size:,} sections: first render", 1000 * (rendered - made), "ms", goal=50)
    queries = [text(10) for _ in range(20)]
    indexed = time.process_time()
    view = Prompt(template).view()
    strategy.finder.closed(view, queries[0], 10)
    yield Row(f"{size:,} sections: index, once", time.process_time() - indexed, "s")
    yield Row(f"{size:,} sections: a search", _searched(template, queries), "ms", goal=20)
    yield Row(f"{size:,} sections: memory", _resident() - before, "MB", goal=200)


def _searched(template: PromptTemplate[None], queries: Sequence[str]) -> float:
    """CPU milliseconds of a search in a run, as the tool's handler takes them."""
    spent: list[float] = []
    tool = template.disclosure.tools(with_tools=True, content_only=True)[1]
    prompt = Prompt(template)
    context = type("Context", (), {"prompt": prompt, "session": None, "view": prompt.view()})
    for query in queries:
        start = time.process_time()
        tool.handler(SearchSectionsParams(query), context=context)
        spent.append(time.process_time() - start)
    return 1000 * fmean(spent)


def _end_to_end_rows(data: Dataset) -> Iterator[Row]:
    """A scripted model searches with the task's own words and opens the best three: tokens of all its requests."""
    count = default_tokenizer().count
    template, everything = data.template(menu="none"), sum(data.costs)
    shares: list[float] = []
    recalls: list[float] = []
    for query in (query for query in data.queries if query.kind == "task"):
        opened: list[int] = []

        def play(request: ModelRequest, text: str = query.text, opened: list[int] = opened) -> Any:
            last = request.messages[-1]
            if last.role != "tool":
                return call("search_sections", query=text[:2000], limit=5)
            if opened:
                return "Done."
            keys = [line.split('"')[1] for line in last.text.splitlines() if line.startswith('- "')][:3]
            opened += [int(key[1:]) for key in keys]
            return [call("read_section", section_key=key) for key in keys] or "Nothing."

        adapter = ScriptedAdapter(play)
        adapter.evaluate(Prompt(template), session=Session())
        sent = sum(
            sum(count(message.text) for message in request.messages)
            + sum(count(tool.definition) for tool in request.tools)
            for request in adapter.requests
        )
        shares.append(100 * sent / everything)
        recalls.append(100 * fmean(bool(group & set(opened)) for group in query.gold))
    note = f"three turns; {fmean(recalls):.0f}% of the needed servers open"
    yield Row("livemcp, end to end: tokens sent of everything open", fmean(shares), "%", goal=15, note=note)
    names = sum(count(line) for one in data.sections for line in one.tools)
    note = "if the model is shown the names and descriptions of deferred tools"
    yield Row("livemcp, before the first turn: a provider's own search", names, "tokens", note=note)
    rendered = template.render()
    ours = count(rendered.text) + sum(count(tool.definition) for tool in rendered.tools)
    yield Row("livemcp, before the first turn: search_sections", ours, "tokens")


def _preopen_rows(sets: Iterable[Dataset], most: int = 2) -> Iterator[Row]:
    """What is opened before the first turn for the words of a question, where the score is clear."""
    for data in sets:
        strategy, view = SearchSections(preopen=most), Prompt(data.template()).view()
        opened = right = needed = 0
        for query in data.queries:
            places = {int(node.key[1:]) for node in strategy.preopened(view, query.text) if node.key != "task"}
            opened += len(places)
            right += sum(any(place in group for group in query.gold) for place in places)
            needed += len(query.gold)
        note = f"recall {_share(right, needed):.0f}%"
        yield Row(f"preopen={most}, {data.name}: precision", _share(right, opened), "%", note=note)


def _miss_rows(sets: Iterable[Dataset]) -> Iterator[Row]:
    """Simulated runs: nothing opened, all that is needed, all but one, or another section that ranks high."""
    for data in sets:
        view, finder = Prompt(data.template()).view(), SearchSections().finder
        chance = random.Random(3)
        reported = right = missing = noticed = alarms = complete = 0
        for query in data.queries:
            ranked = [one for one in finder.ranked(view, query.text) if one.node.key != "task"]
            for opened in _runs(query, ranked, chance):
                left = [group for group in query.gold if not group & opened]
                misses = best_miss(ranked, {f"s{place}" for place in opened})
                named = {int(miss.section_key[1:]) for miss in misses}
                reported += len(named)
                right += sum(any(place in group for group in left) for place in named)
                missing += bool(left)
                noticed += any(group & named for group in left)
                complete += not left
                alarms += bool(not left and named)
        note = (
            f"recall {_share(noticed, missing):.0f}%, false alarms in {_share(alarms, complete):.0f}% of complete runs"
        )
        yield Row(f"possible misses, {data.name}: precision", _share(right, reported), "%", note=note)


def _runs(query: Query, ranked: Sequence[Found], chance: random.Random) -> Iterator[set[int]]:
    needed = {min(group) for group in query.gold}
    yield set()
    yield needed
    if len(needed) > 1:
        yield needed - {chance.choice(sorted(needed))}
    others = [int(one.node.key[1:]) for one in ranked[:10]]
    wrong = [place for place in others if not any(place in group for group in query.gold)]
    if wrong:
        yield {chance.choice(wrong)}


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _section(one: Mapping[str, Any]) -> SectionText:
    tools = tuple(
        f"{tool['name']}: {tool['description']}" if tool["description"] else tool["name"].replace("_", " ")
        for tool in one["tools"]
    )
    summary = "" if one["summary"] == one["title"] else one["summary"]
    return SectionText(one["key"], one["title"], summary, one["body"], tools)


def _as_json(tool: Mapping[str, Any]) -> str:
    form = {"name": tool["name"], "description": tool["description"], "parameters": tool["schema"]}
    return json.dumps(form, ensure_ascii=False, separators=(",", ":"))


def _tool(name: str, description: str) -> Tool[None, None]:
    handler: Callable[..., ToolResult[None]] = lambda params, *, context: ToolResult("")  # noqa: E731
    return Tool(name=name, description=description, handler=handler)


def _resident() -> float:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6
