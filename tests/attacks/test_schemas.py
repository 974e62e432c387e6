"""A schema from outside cannot freeze the process, whatever its patterns, references and sizes, or the data."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.patterns import CATASTROPHIC
from weakincentives.adapters.local.arguments import ground
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import SerdeError
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.serde import ForeignSchema, to_strict
from weakincentives.session import Session

MAX_SECONDS = 3.0
LEVELS = 40
A = "a" * 60 + "!"
OK, WRONG, LIMIT, REFUSED = "ok", "wrong", "too many steps", "refused"
Case = tuple[str, dict[str, Any], Any, str]
"""A name, the schema of the property `x`, the data for it, and the outcome."""


def doubled(keyword: str, leaf: Any) -> dict[str, Any]:
    """Definitions that each apply the next one twice."""
    definitions = {f"d{level}": twice(keyword, {"$ref": f"#/$defs/d{level + 1}"}) for level in range(LEVELS)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{LEVELS}": leaf}}


def twice(keyword: str, inner: Any) -> Any:
    match keyword:
        case "allOf" | "anyOf" | "oneOf":
            return {keyword: [inner, inner]}
        case "not":
            return {"not": {"not": inner}, "allOf": [inner]}
        case "if":
            return {"if": inner, "then": inner, "else": inner}
        case "dependentSchemas":
            return {"dependentSchemas": {"a": inner, "b": inner}}
        case "properties":
            return {"properties": {"a": inner}, "allOf": [{"properties": {"a": inner}}]}
        case "patternProperties":
            return {"properties": {"a": inner}, "patternProperties": {"^a": inner, "a$": inner}}
        case "propertyNames":
            return {"propertyNames": inner, "allOf": [inner]}
        case "items":
            return {"items": inner, "allOf": [{"items": inner}]}
        case "contains":
            return {"contains": inner, "items": inner}
    raise AssertionError(keyword)


def nested(name: str, depth: int, leaf: Any) -> Any:
    value = leaf
    for _ in range(depth):
        value = [value] if name == "items" else {"a": value}
    return value


def patterns() -> Iterator[Case]:
    for pattern, text in CATASTROPHIC:
        expected = REFUSED if r"\1" in pattern else ""
        yield f"pattern {pattern}", {"type": "string", "pattern": pattern}, text, expected
        yield f"patternProperties {pattern}", {"patternProperties": {pattern: {}}}, {text: 1}, expected
        yield f"propertyNames {pattern}", {"propertyNames": {"pattern": pattern}}, {text: 1}, expected
    yield "large nested counts", {"pattern": "^((a{0,1000}){0,1000}){0,1000}$"}, A, LIMIT
    for depth, expected in ((5, ""), (60, REFUSED)):
        deep = "(?:" * depth + "a" + "){1,3}" * depth
        yield f"counts nested {depth} deep", {"pattern": f"^{deep}$"}, A, expected
    yield "lookaheads at every place", {"pattern": "(?:(?=.*x).)*$"}, "a" * 20_000, ""
    yield "lookaheads in lookaheads", {"pattern": "(?=(?=(?=.*x).*y).*z)"}, "a" * 20_000, ""
    yield "lookbehinds", {"pattern": "(?<=a{50})(?<!b)x"}, "a" * 20_000, ""
    yield "a long text", {"pattern": "^(a|b|ab)*$"}, "ab" * 500_000, LIMIT
    yield "a text that is too long anyway", {"pattern": "^(a|b|ab)*$", "maxLength": 9}, "ab" * 500_000, WRONG
    yield "a long pattern", {"pattern": "(a|b)" * 2_000}, A, REFUSED
    yield "many patterns", {"patternProperties": {f"^(a+)+{i}$": {} for i in range(2_000)}}, {A: 1}, OK
    yield "many names", {"patternProperties": {"^(a+)+$": False}}, {f"{A}{i}": 1 for i in range(2_000)}, OK
    match = "(?:a?){300}"
    for _ in range(4):
        match = f"(?:(?={match})a?){{200}}"
    yield "lookaheads that match", {"pattern": match}, A, LIMIT
    wide = [f"[\0-{chr(0xFFFF - i)}]" for i in range(900)]
    yield "wide classes", {"pattern": "".join(wide)}, A, REFUSED
    yield "wide classes in many patterns", {"anyOf": [{"pattern": each} for each in wide]}, A, REFUSED
    yield "one wide class in many patterns", {"anyOf": [{"pattern": wide[0]}] * 900}, A, OK
    yield "ten thousand patterns", {"anyOf": [{"pattern": f"[{i}a]b"} for i in range(10_000)]}, A, REFUSED


def references() -> Iterator[Case]:
    for keyword in ("allOf", "anyOf", "oneOf", "if", "not"):
        for leaf, data in itertools.product(({"type": "integer"}, {"type": "string"}), (1, "text")):
            yield f"{keyword} of {leaf} for {data!r}", doubled(keyword, leaf), data, ""
    yield "allOf right", doubled("allOf", {"type": "integer"}), 1, OK
    yield "allOf wrong", doubled("allOf", {"type": "integer"}), "x", WRONG
    yield "anyOf right", doubled("anyOf", {"type": "integer"}), 1, OK
    yield "anyOf wrong", doubled("anyOf", {"type": "integer"}), "x", WRONG
    yield "null", doubled("anyOf", {"type": "integer"}), None, ""
    for keyword in ("dependentSchemas", "propertyNames"):
        yield f"{keyword} doubled", doubled(keyword, {"minProperties": 3}), {"a": 1, "b": 2}, ""
    for keyword in ("properties", "patternProperties", "items", "contains"):
        data = nested("items" if keyword in ("items", "contains") else "properties", 50, "x")
        yield f"{keyword} doubled", doubled(keyword, {"type": "integer"}), data, ""
    yield "a circle", {"$ref": "#/properties/x"}, 1, REFUSED
    yield "a circle of allOf", {"allOf": [{"$ref": "#/properties/x"}]}, 1, REFUSED
    yield "a circle of not", {"not": {"anyOf": [{"$ref": "#/properties/x"}]}}, 1, REFUSED
    yield "a circle of then", {"if": {}, "then": {"$ref": "#/properties/x"}}, 1, REFUSED
    chain = {f"d{level}": {"$ref": f"#/$defs/d{level + 1}"} for level in range(5_000)}
    yield "a long chain", {"$ref": "#/$defs/d0", "$defs": {**chain, "d5000": {}}}, 1, REFUSED
    yield "no schema", {"$ref": "#/properties/x/enum", "enum": [1]}, 1, REFUSED
    yield "a pattern in an example", {"$ref": "#/properties/x/examples/0", "examples": [{"pattern": "("}]}, "x", REFUSED
    hidden = {"allOf": [{"pattern": "^(a+)+$"}]}
    yield "a pattern elsewhere", {"$ref": "#/properties/x/x-more", "x-more": hidden}, A, WRONG


def sizes() -> Iterator[Case]:
    numbers = list(range(40_000))
    yield "a large enum", {"enum": numbers}, -1, WRONG
    yield "a large enum for many", {"items": {"enum": numbers}}, [39_999] * 5_000, LIMIT
    yield "a large required", {"items": {"required": [f"n{i}" for i in numbers]}}, [{}] * 5_000, LIMIT
    needs = {f"n{i}": ["a"] for i in range(15_000)}
    yield "a large dependentRequired", {"items": {"dependentRequired": needs}}, [{}] * 50_000, LIMIT
    yield "many unique numbers", {"uniqueItems": True}, numbers, OK
    yield "many unique objects", {"uniqueItems": True}, [{"a": [i, {"b": True}]} for i in range(20_000)], OK
    yield "many equal values", {"uniqueItems": True}, [[1]] * 20_000, WRONG
    yield "many wrong values", {"items": {"type": "string"}}, numbers, WRONG
    yield "many values", {"items": {"type": "integer"}}, numbers, OK
    yield "more values", {"items": {"type": "integer"}}, [0] * 500_000, LIMIT
    options = [{"type": "object", "required": [f"k{i}"]} for i in range(8_000)]
    for keyword in ("anyOf", "oneOf", "allOf"):
        yield f"many options of {keyword}", {"items": {keyword: options}}, [{}] * 5_000, ""
        yield f"one value for many options of {keyword}", {keyword: options}, {}, WRONG
    nullable = {"properties": {"n": {"anyOf": [{"const": i} for i in range(10_000)]}}}
    yield "null for many options", {"items": nullable}, [{"n": None}] * 10_000, ""
    junk = {"allOf": [{**{f"x-{i}": 1 for i in range(30_000)}, "type": "integer"}]}
    yield "many unknown keywords", {"items": junk}, [1] * 20_000, ""
    yield "many prefixItems", {"items": {"prefixItems": [{}] * 20_000}}, [[1]] * 20_000, ""
    yield "many contained", {"contains": {"anyOf": [{"const": i} for i in range(2_000)]}}, numbers, LIMIT
    yield "too many values in the schema", {"enum": list(range(100_000))}, 1, REFUSED
    yield "many types", {"type": [f"t{i}" for i in range(40_000)]}, 1, REFUSED
    twins = {"type": ["object"] * 20, "properties": {}}
    for _ in range(40):
        twins = {"type": ["object", "object"], "properties": {"a": twins}}
    yield "types given twice", twins, nested("properties", 40, 1), WRONG
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"items": deep}
    yield "a deep schema", deep, [], REFUSED
    yield "multiples of nothing", {"multipleOf": 0}, 1, REFUSED
    tiny = {"type": "number", "multipleOf": 5e-324}
    yield "multiples of almost nothing", tiny, 1.7e308, ""


CASES: dict[str, Case] = {case[0]: case for case in itertools.chain(patterns(), references(), sizes())}


def handle(params: dict[str, Any], *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("ran")


def outcome(case: Case) -> tuple[str, float]:
    """What happens to the data of a case, and the seconds of CPU time that it takes."""
    _, schema, data, _ = case
    text = json.dumps({"x": data})
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    started = time.process_time()
    try:
        foreign = ForeignSchema({"properties": {"x": schema}, "required": ["x"], **definitions})
        to_strict(foreign.sent)
    except SerdeError:
        return REFUSED, time.process_time() - started
    if isinstance(data, str) and len(data) < 200:
        # The local adapter looks for the arguments in what the user wrote.
        ground(Tool.from_schema(name="x", description="", schema=foreign.schema, handler=handle), f"Take {data} now")
    try:
        foreign.decode(text)
        found = OK
    except SerdeError as error:
        assert len(str(error)) < 200_000
        found = LIMIT if "steps" in str(error) else WRONG
    return found, time.process_time() - started


def main() -> None:
    for name, case in CASES.items():
        print(json.dumps(name), flush=True)
        print(json.dumps(outcome(case)), flush=True)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, float]]:
    """Every case, in a process that can be killed."""
    command = [sys.executable, "-c", "from tests.attacks.test_schemas import main; main()"]
    try:
        printed = subprocess.run(
            command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=True
        ).stdout
    except subprocess.TimeoutExpired as error:
        written = error.stdout if isinstance(error.stdout, str) else (error.stdout or b"").decode()
        pytest.fail(f"never ended: {written.splitlines()[-1]}")
    lines = [json.loads(line) for line in printed.splitlines()]
    return {name: (found, seconds) for name, (found, seconds) in zip(lines[::2], lines[1::2], strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_reading_data_for_a_hostile_schema_ends(outcomes: dict[str, tuple[str, float]], name: str) -> None:
    found, seconds = outcomes[name]
    expected = CASES[name][3]
    assert (found if expected else "", seconds < MAX_SECONDS) == (expected, True), (found, seconds)


PATTERN_PARTS = ["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\d", r"\b", r"\B", "^", "$", ""]


def some_pattern(chance: random.Random, depth: int = 4) -> str:
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice(PATTERN_PARTS)
    first, second = some_pattern(chance, depth - 1), some_pattern(chance, depth - 1)
    if kind < 0.5:
        return first + second
    if kind < 0.65:
        return f"(?:{first}|{second})"
    if kind < 0.9:
        return f"(?:{first})" + chance.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}", "{0}"])
    return chance.choice(["(?=", "(?!"]) + first + ")"


def test_patterns_match_what_they_match_in_re() -> None:
    chance = random.Random(5)
    for _ in range(1_500):
        pattern, text = some_pattern(chance), "".join(chance.choices("abc1 \n", k=chance.randint(0, 7)))
        expected = re.search(pattern.replace("$", r"\Z"), text) is not None
        found, _ = outcome(("", {"pattern": pattern}, text, ""))
        assert (pattern, text, found) == (pattern, text, OK if expected else WRONG)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("(?i)^abc$", "aBC", "abd"),
        ("^(?i:a)b$", "Ab", "AB"),
        (r"^\p{L}+$", "äß", "a1"),
        (r"^(?<year>\d{4})-(?<month>\d\d)$", "2026-11", "2026-1"),
        (r"^(?!.*\.\.)[\w./-]{1,1024}$", "a/b.txt", "a/../b"),
        (r"^(?=.*[A-Z])(?=.*\d).{8,}$", "Abcdefg1", "abcdefg1"),
        (r"(?<=\$)\d+(?<!0)$", "$15", "$10"),
        ("^[^/]+$", "a b", "a/b"),
        ("^$|^https?://", "", "ftp://a"),
        ("(?!)", None, "a"),
    ],
)
def test_ordinary_patterns_are_enforced(pattern: str, good: str | None, bad: str) -> None:
    assert good is None or outcome(("", {"pattern": pattern}, good, ""))[0] == OK
    assert outcome(("", {"pattern": pattern}, bad, ""))[0] == WRONG


def test_a_pattern_without_a_bound_is_refused_by_name() -> None:
    with pytest.raises(SerdeError, match=r"has a back-reference, which cannot be matched in bounded time"):
        ForeignSchema({"properties": {"x": {"pattern": r"(a+)\1"}}})


def test_the_deadline_of_a_run_and_the_event_loop_survive_a_hostile_schema() -> None:
    """The pattern that froze every thread: the call is refused with the reason, and the loop is held only briefly."""
    schema = {"properties": {"x": {"pattern": "^((a{0,500}){0,500})+$"}}}
    tool = Tool.from_schema(name="hostile", description="", schema=schema, handler=handle)
    section = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool])
    session = Session()

    async def run() -> None:
        adapter = ScriptedAdapter([call("hostile", x=A * 50), "Done."])
        prompt = Prompt(PromptTemplate(ns="tests", key="hostile", sections=[section]))
        await adapter.evaluate_async(prompt, session=session, deadline=Deadline.after(30))

    started = time.thread_time()
    asyncio.run(run())
    assert time.thread_time() - started < MAX_SECONDS
    (event,) = session[ToolInvoked].all()
    assert event.result.message == (
        "Invalid arguments for 'hostile': $: checking this against its schema takes more than 1,000,000 steps"
    )
