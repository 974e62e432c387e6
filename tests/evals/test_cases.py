from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.evals.shop import Asked, shop
from weakincentives.evals import Case, CaseError, load_cases, write_cases
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate


@dataclass(frozen=True, slots=True)
class Guest:
    name: str
    nights: int = 1


@dataclass(frozen=True, slots=True)
class Hotel:
    city: str


HOTEL = PromptTemplate(
    ns="t",
    key="hotel",
    sections=[
        MarkdownSection[Guest](key="guest", title="Guest", template="${name} ${nights}"),
        MarkdownSection[Hotel](key="hotel", title="Hotel", template="${city}"),
    ],
)

SHAPES: dict[str, tuple[dict[str, Any], Case]] = {
    "inspect": (
        {"id": "1", "input": "hi", "target": ["a", "b"], "metadata": {"level": 2}, "choices": ["x"]},
        Case("1", "hi", expected=["a", "b"], metadata={"level": 2, "choices": ["x"]}),
    ),
    "inspect conversation": (
        {"id": "1", "input": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], "target": "a"},
        Case("1", messages=("hi",), expected="a"),
    ),
    "openai evals": ({"id": "1", "item": {"name": "Ann"}}, Case("1", {"name": "Ann"})),
    "chat": ({"id": "1", "messages": [{"role": "user", "content": "hi"}]}, Case("1", messages=("hi",))),
    "braintrust": (
        {"id": "1", "input": {"name": "Ann"}, "expected": {"x": 1}, "tags": ["t"]},
        Case("1", {"name": "Ann"}, expected={"x": 1}, metadata={"tags": ["t"]}),
    ),
    "langsmith": (
        {"id": "1", "inputs": {"name": "Ann"}, "outputs": {"x": 1}, "split": "dev"},
        Case("1", {"name": "Ann"}, expected={"x": 1}, metadata={"split": "dev"}),
    ),
    "promptfoo": (
        {"description": "greets", "vars": {"name": "Ann"}, "assert": [{"type": "contains", "value": "Ann"}]},
        Case("greets", {"name": "Ann"}, expected=["Ann"], metadata={"assert": [{"type": "contains", "value": "Ann"}]}),
    ),
    "deepeval": (
        {"input": "hi", "expected_output": "a", "additional_metadata": {"k": 1}, "name": "1"},
        Case("1", "hi", expected="a", metadata={"k": 1}),
    ),
    "pydantic-evals": (
        {"name": "1", "inputs": {"name": "Ann"}, "expected_output": "a", "metadata": {"k": 1}},
        Case("1", {"name": "Ann"}, expected="a", metadata={"k": 1}),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_of_the_field_are_understood(shape: str, tmp_path: Path) -> None:
    line, case = SHAPES[shape]
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(line) + "\n\n", encoding="utf-8")
    assert load_cases(file) == (case,)


def test_a_file_may_hold_a_list_or_a_dataset(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    lines = [{"id": "1", "input": "x"}, {"id": "2", "input": "y"}]
    for whole in (lines, {"name": "n", "cases": lines}, {"tests": lines}):
        file.write_text(json.dumps(whole, indent=2), encoding="utf-8")
        assert [case.id for case in load_cases(file)] == ["1", "2"]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    lines = [{"id": "1", "input": "one\u2028two\x85three"}, {"id": "2", "input": "x"}]
    written = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    file.write_bytes(written.encode("utf-8-sig"))
    assert [case.params for case in load_cases(file)] == ["one\u2028two\x85three", "x"]


def test_a_missing_id_is_a_hash_of_the_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"input": "a"}\n{"input": "b"}\n', encoding="utf-8")
    first, second = load_cases(file)
    file.write_text('{"input": "b"}\n', encoding="utf-8")
    assert load_cases(file)[0].id == second.id != first.id


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no cases"),
        ("{broken", "line 1 must be one JSON object"),
        ("[1]", "must be a JSON object, got int"),
        ('{"id": "1"}', "has no input"),
        ('{"id": "1", "input": "a"}\n{"id": "1", "input": "b"}', "ids must be unique, and these are not: '1'"),
        ('{"input": "a"}\n{"input": "a"}', "equal lines without an id need one each"),
        ('{"id": ["a"], "input": "a"}', "an id must be text or a number"),
        ('{"id": "\\ud800", "input": "a"}', "written as UTF-8"),
        ('{"input": "a", "expected": NaN}', "NaN is not JSON"),
        ('{"input": "a", "metadata": ' + '{"a": ' * 100_000 + "1" + "}" * 100_001, "line 1 must be one JSON object"),
        ('{"messages": 3}', "messages must be a list"),
        ('{"messages": [3]}', "a message must be a text or have role and content"),
        ('{"messages": [{"role": "user", "content": 3}]}', "content of a message must be text"),
        ('{"input": "a", "recording": "x"}', "recording of case .* must be a mapping"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CaseError, match=problem):
        load_cases(file)


def test_a_file_must_be_utf_8(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_bytes('{"input": "ü"}'.encode("utf-16"))
    with pytest.raises(CaseError, match="must be UTF-8"):
        load_cases(tmp_path / "cases.jsonl")


@pytest.mark.parametrize(
    ("params", "bound", "messages"),
    [
        ({"name": "Ann", "nights": 2, "city": "Rome"}, (Guest("Ann", 2), Hotel("Rome")), ()),
        ({"Guest": {"name": "Ann"}, "Hotel": {"city": "Rome"}}, (Guest("Ann"), Hotel("Rome")), ()),
        ((Guest("Ann"), Hotel("Rome")), (Guest("Ann"), Hotel("Rome")), ()),
        (Guest("Ann"), (Guest("Ann"),), ()),
        ("which field?", (), ("which field?",)),
        (None, (), ()),
    ],
)
def test_params_are_read_into_the_prompts_types(params: Any, bound: tuple[Any, ...], messages: tuple[str, ...]) -> None:
    assert Case("a", params).bind(Prompt(HOTEL)) == (bound, messages)


def test_a_text_fills_the_only_text_field() -> None:
    assert Case("a", "hi").bind(Prompt(shop())) == ((Asked("hi"),), ())


@pytest.mark.parametrize("params", [{"city": 7}, {"age": 7}])
def test_params_that_do_not_fit_are_refused_by_name(params: Any) -> None:
    with pytest.raises(CaseError, match="case 'a'"):
        Case("a", params).bind(Prompt(HOTEL))


def test_cases_are_written_and_read_again(tmp_path: Path) -> None:
    cases = (Case("a", {"name": "Ann"}, ("hi",), {"x": 1}, "g", {"k": [1]}), Case("b", "text", expected="t"))
    write_cases(tmp_path / "cases.jsonl", cases)
    assert load_cases(tmp_path / "cases.jsonl") == cases
    write_cases(tmp_path / "cases.jsonl", [Case("c", (Guest("Ann", 3), Hotel("Rome")))])
    assert load_cases(tmp_path / "cases.jsonl")[0].bind(Prompt(HOTEL))[0] == (Guest("Ann", 3), Hotel("Rome"))


def test_an_id_is_required() -> None:
    with pytest.raises(CaseError, match="needs an id"):
        Case("")
