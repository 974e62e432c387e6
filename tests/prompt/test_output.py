from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from weakincentives.prompt import (
    OutputParseError,
    PromptValidationError,
    StructuredOutputConfig,
    parse_structured_output,
)
from weakincentives.prompt.output import structured_output
from weakincentives.serde import dump, encode


@dataclass(frozen=True)
class Step:
    title: str
    minutes: int = 5


@dataclass(frozen=True)
class Plan:
    summary: str
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Tree:
    name: str
    child: Tree | None = None


PLAN = structured_output(Plan)
STEPS = structured_output(list[Step])


def error(text: Any, config: StructuredOutputConfig = PLAN) -> OutputParseError:
    with pytest.raises(OutputParseError) as caught:
        parse_structured_output(text, config)
    return caught.value


def test_an_output_may_be_an_object_or_a_list() -> None:
    assert (PLAN.output_type, PLAN.container, PLAN.allow_extra_keys) == (Plan, "object", False)
    assert (STEPS.output_type, STEPS.container) == (Step, "array")


@pytest.mark.parametrize("annotation", [complex, list[complex], Plan | None, None, "Plan"])
def test_a_type_that_an_answer_cannot_be_is_refused(annotation: Any) -> None:
    with pytest.raises(PromptValidationError, match="cannot be an output: "):
        structured_output(annotation)


def test_a_field_that_no_schema_can_describe_is_refused_at_declaration() -> None:
    @dataclass
    class Odd:
        handle: complex

    with pytest.raises(PromptValidationError, match=r"Odd cannot be an output: .*Odd\.handle: type complex"):
        structured_output(Odd)


def test_the_wire_schema_of_an_array_has_an_object_at_the_top() -> None:
    assert PLAN.wire_schema is PLAN.schema
    assert STEPS.schema["type"] == "array"
    assert STEPS.wire_schema["required"] == ["items"]
    assert STEPS.wire_schema["properties"]["items"] == {"type": "array", "items": STEPS.schema["items"]}


@pytest.mark.parametrize(
    "text",
    [
        '{"summary": "s"}',
        '\ufeff  {"summary": "s"}\n',
        'Here you are:\n```json\n{"summary": "s"}\n```\nDone.',
        'Here:\r\n```JSON\r\n{"summary": "s"}\r\n```',
        '```json\n{"summary": "s"}',
        '```python\n{"summary": "no"}\n```\n```json\n{"summary": "s"}\n```',
        '```json\n{not json}\n```\n```json\n{"summary": "s"}\n```',
        '```json\n[1]\n```\n```json\n{"summary": "s"}\n```',
        'inline ```json {"summary": "s"} ``` is no fence',
        'Use {braces} and {"quotes"}: {"summary": "s"} and {"summary": "later"}',
        '[1, 2] then {"summary": "s"} as asked',
        '```json\nbroken\n```\n{"summary": "s"}',
        '{"summary": "s"} trailing } brace',
        b'{"summary": "s"}',
    ],
)
def test_the_json_of_an_answer_is_found(text: str) -> None:
    assert parse_structured_output(text, PLAN) == Plan("s")


@pytest.mark.parametrize(
    "text",
    [
        '[{"title": "a"}]',
        '{"items": [{"title": "a"}]}',
        '```json\n{"items": [{"title": "a"}]}\n```',
        'The steps: [{"title": "a"}].',
        'Wrapped: {"items": [{"title": "a"}]}',
    ],
)
def test_an_array_may_be_bare_or_wrapped(text: str) -> None:
    assert parse_structured_output(text, STEPS) == [Step("a")]


def test_a_fence_wins_over_the_rest_of_the_message() -> None:
    text = '{"summary": "prose"}\n```json\n{"summary": "fence"}\n```'
    assert parse_structured_output(text, PLAN) == Plan("fence")


def test_an_error_has_the_raw_answer_and_the_path_of_the_field() -> None:
    text = 'Sure: {"summary": "s", "steps": [{"title": "a"}, {"title": 2, "minutes": 1.5}], "x": 1}'
    caught = error(text)
    assert (caught.raw, caught.path) == (text, "$.steps[1].title")
    assert str(caught) == (
        "The answer does not fit Plan: $.steps[1].title: expected str, got int 2; "
        "$.steps[1].minutes: expected int, got float 1.5; $.x: unknown field (Plan has summary, steps)"
    )


@pytest.mark.parametrize(
    ("text", "config", "message"),
    [
        ("[1]", PLAN, "expected Plan (an object), got an array"),
        ('```json\n[{"summary": "s"}]\n```', PLAN, "expected Plan (an object), got an array"),
        ('"text"', PLAN, "expected Plan (an object), got str 'text'"),
        ('{"title": "a"}', STEPS, "expected list[Step], got an object"),
        ("no json here", PLAN, "The answer contains no JSON object for Plan"),
        ("", STEPS, "The answer contains no JSON array for list[Step]"),
        (
            '{"summary": "s", ',
            PLAN,
            "The answer contains no JSON object for Plan: JSON is malformed: input data was truncated",
        ),
        ('{"summary": NaN}', PLAN, "JSON is malformed: invalid character"),
    ],
)
def test_the_message_says_what_was_wrong_with_the_best_candidate(text: str, config: Any, message: str) -> None:
    assert message in str(error(text, config))


def test_the_inside_of_a_value_that_breaks_off_is_no_answer() -> None:
    config = structured_output(Tree)
    assert "truncated" in str(error('{"name": "root", "child": {"name": "leaf", "child": null}', config))
    assert error('Tree: {"name": "root", "child": {"name": "leaf", "child": null}, oops}', config).path == "$"


@pytest.mark.parametrize(
    ("text", "config", "found"),
    [
        ('{"summary": 1} or {"summary": "s"}', PLAN, Plan("s")),
        ('{"other": 1} {"summary": "s"}', PLAN, Plan("s")),
        ('see [1] and [{"title": "q"}]', STEPS, [Step("q")]),
        ('```json\n{"summary": 1}\n```\n```json\n{"summary": "s"}\n```', PLAN, Plan("s")),
        ('```json\n1\n```\nSo: {"summary": "1 or 11"}', PLAN, Plan("1 or 11")),
    ],
)
def test_the_first_value_that_fits_is_the_answer(text: str, config: Any, found: Any) -> None:
    assert parse_structured_output(text, config) == found


def test_the_first_failure_is_reported_when_no_value_fits() -> None:
    assert error('{"summary": 1} or {"steps": 2}').path == "$.summary"
    assert error('```json\n{"summary": 1}\n```\n{"steps": 2}').path == "$.summary"


def test_the_inside_of_a_value_that_does_not_fit_is_no_answer() -> None:
    assert "got an array" in str(error('```json\n[{"summary": "s"}]\n```'))
    assert "got an array" in str(error('[{"summary": "s"}]'))


def test_extra_keys_are_allowed_when_declared() -> None:
    text = '{"summary": "s", "more": 1, "steps": [{"title": "a", "note": 2}]}'
    assert parse_structured_output(text, structured_output(Plan, allow_extra_keys=True)) == Plan("s", [Step("a")])
    assert error(text).path == "$.steps[0].note"


def test_what_is_already_typed_comes_back_as_it_is() -> None:
    plan, steps = Plan("s"), [Step("a")]
    assert parse_structured_output(plan, PLAN) is plan
    assert parse_structured_output(steps, STEPS) is steps
    assert parse_structured_output({"summary": "s"}, PLAN) == plan
    assert error(None).path == "$"


def test_a_rendered_prompt_says_what_to_parse() -> None:
    assert parse_structured_output('{"summary": "s"}', SimpleNamespace(structured_output=PLAN)) == Plan("s")
    with pytest.raises(OutputParseError, match="declares no output type"):
        parse_structured_output("{}", SimpleNamespace(structured_output=None))


HOSTILE = [
    "{",
    "[",
    '{"a":',
    '{"summary": "s", "steps": [',
    '["',
    '[",',
    "[1,",
    "```json\n",
    "```json\n{",
    "```json\n{}\n```\n",
    "{}",
    '{"',
    "[[1],",
    " ",
    "`",
    "\\",
    '"',
]


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
@pytest.mark.parametrize("config", [PLAN, STEPS], ids=["object", "array"])
def test_a_megabyte_of_hostile_text_is_answered(piece: str, config: StructuredOutputConfig) -> None:
    with pytest.raises(OutputParseError):
        parse_structured_output("x" + piece * (1_000_000 // len(piece)), config)
    with pytest.raises(OutputParseError):
        parse_structured_output(piece * (1_000_000 // len(piece)), config)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["summary", "steps", "title", "minutes", "items", "x"]), inner, max_size=4)
    ),
    max_leaves=10,
)
plans = st.builds(Plan, st.text(), st.lists(st.builds(Step, st.text(), st.integers()), max_size=3))


def check(text: str) -> None:
    for config in (PLAN, STEPS):
        try:
            value = parse_structured_output(text, config)
        except OutputParseError as caught:
            assert caught.raw == text
        else:
            items = value if config is STEPS else [value]
            assert all(type(item) is config.output_type for item in items)
            assert parse_structured_output(dump(value), config) == value


@given(st.text(st.characters(exclude_categories=())))
def test_arbitrary_text_is_an_error_or_a_valid_value(text: str) -> None:
    check(text)


@given(
    st.lists(st.sampled_from([*HOSTILE, "}", "]", "\n", "```", '"summary"', ":", "1", "json", '{"summary": "s"}'])).map(
        "".join
    )
)
def test_text_made_of_json_pieces_is_an_error_or_a_valid_value(text: str) -> None:
    check(text)


@given(json_values)
def test_arbitrary_json_is_an_error_or_a_valid_value(value: Any) -> None:
    check(encode(value).decode())


@given(plans, st.sampled_from(["{}", "Answer: {} ok", "```json\n{}\n```", "\n```json\n{}"]))
def test_what_was_written_is_read_back(plan: Plan, around: str) -> None:
    assert parse_structured_output(around.replace("{}", encode(plan).decode()), PLAN) == plan


@dataclass
class Changeable:
    name: str


@pytest.mark.parametrize("kind", [set[Changeable], frozenset[list[int]], list[set[dict[str, int]]]])
def test_a_set_of_what_cannot_be_hashed_is_refused_where_it_is_declared(kind: Any) -> None:
    with pytest.raises(PromptValidationError, match="which has no hash; use a list, or, for a dataclass"):
        structured_output(kind)


@pytest.mark.parametrize("kind", [set[Step], frozenset[tuple[int, ...]], dict[str, Changeable], tuple[Changeable, ...]])
def test_collections_of_what_they_can_hold_are_outputs(kind: Any) -> None:
    assert structured_output(kind).output_type is not None
