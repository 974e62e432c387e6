"""The cases of an evaluation: from Python, from JSONL in the common shapes, and from recorded runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from weakincentives._base.display import shortened
from weakincentives.errors import SerdeError, WinkError
from weakincentives.prompt import Prompt
from weakincentives.serde import columns, parse
from weakincentives.telemetry import plain

INPUTS = ("params", "input", "inputs", "vars", "item", "question", "prompt")
EXPECTED = ("expected", "target", "expected_output", "outputs", "ideal", "answer")
IDS = ("id", "case_id", "name", "description")
GROUPS = ("group", "task")
MAX_NAMED = 10
ASSERTED = ("equals", "contains", "icontains")
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_KNOWN = {*INPUTS, *EXPECTED, *IDS, *GROUPS, "messages", "metadata", "additional_metadata", "recording"}


class CaseError(WinkError):
    """A case cannot be read, or does not fit the prompt."""


@dataclass(frozen=True, slots=True)
class Case:
    """One task for the prompt, and what is expected of it.

    `params` is an instance, a tuple of instances, a mapping that is read into the prompt's params types, or a text,
    which fills the only text field or is the message. `messages` are sent one after the other, and scorers see the last
    answer. Cases of one `group` share a source, so their results are not independent. `recording` is that of the run
    from which the case was made.
    """

    id: str  #: unique in its dataset
    params: Any = None
    messages: tuple[str, ...] = ()
    expected: Any = None  #: the expected answer, for scorers
    group: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)  #: for scorers and your program
    recording: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise CaseError(f"a case needs an id, a text that is not empty, got {self.id!r}")
        if _SURROGATE.search(self.id):
            raise CaseError(f"the id of a case must be text that can be written as UTF-8, got {self.id!r}")
        if not isinstance(self.metadata, Mapping):
            raise CaseError(f"the metadata of case {self.id!r} must be a mapping, got {self.metadata!r}")
        if not isinstance(self.recording, Mapping | None):
            raise CaseError(
                f"the recording of case {self.id!r} must be a mapping, got {shortened(repr(self.recording), 80)}"
            )
        if isinstance(self.messages, str):
            object.__setattr__(self, "messages", (self.messages,))
        object.__setattr__(self, "messages", tuple(self.messages))

    @property
    def digest(self) -> str:
        """A digest of everything that decides what the case asks and expects."""
        parts = [plain(self.params), self.messages, plain(self.expected), plain(self.metadata), self.recording]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def question(self) -> str:
        """The task in words: the last message, else the texts among its params."""
        if self.messages:
            return self.messages[-1]
        return "\n".join(_texts(plain(self.params)))

    def bind(self, prompt: Prompt[Any]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """The params to bind to a prompt, and the messages to send."""
        types = prompt.template.outline.params_types
        if isinstance(self.params, str):
            places = [(kind, name) for kind in types for name in _text_fields(kind)]
            if len(places) != 1:
                return (), (self.params, *self.messages)
            (kind, name) = places[0]
            return self._read([(kind, {name: self.params})]), self.messages
        if self.params is None:
            return (), self.messages
        if isinstance(self.params, Mapping) and self.params.__class__ not in types:
            if not types and len(self.params) == 1 and isinstance(text := next(iter(self.params.values())), str):
                return (), (text, *self.messages)
            return self._read(_by_type(self.params, types, self.id)), self.messages
        return (self.params if isinstance(self.params, tuple) else (self.params,)), self.messages

    def _read(self, values: Iterable[tuple[type, Mapping[str, Any]]]) -> tuple[Any, ...]:
        try:
            return tuple(parse(kind, given) for kind, given in values)
        except SerdeError as error:
            raise CaseError(f"the params of case {self.id!r} do not fit the prompt: {error}") from None

    def as_json(self) -> dict[str, Any]:
        """The case as a line of JSON that `load_cases` reads."""
        params = self.params
        if params is not None and not isinstance(params, str | Mapping):
            instances = params if isinstance(params, tuple) else (params,)
            params = {type(each).__name__: plain(each) for each in instances}
        written = {
            "id": self.id,
            "params": params,
            "messages": list(self.messages),
            "expected": plain(self.expected),
            "group": self.group,
            "metadata": plain(self.metadata),
            "recording": self.recording,
        }
        return {name: value for name, value in written.items() if value not in (None, "", [], {})}

    def as_inspect(self) -> dict[str, Any]:
        """The case as a sample of inspect-ai."""
        target = "" if self.expected is None else self.expected
        several = isinstance(target, list | tuple) and all(isinstance(each, str) for each in target)
        metadata = {**plain(self.metadata), **({"group": self.group} if self.group else {})}
        said = [{"role": "user", "content": text} for text in self.messages]
        return {
            "id": self.id,
            "input": said if len(said) > 1 else self.question,
            "target": list(target) if several else target if isinstance(target, str) else json.dumps(plain(target)),
            **({"metadata": metadata} if metadata else {}),
        }


def load_cases(path: str | os.PathLike[str]) -> tuple[Case, ...]:
    """The cases of a JSONL file, one per line, or of a JSON file with a list of them.

    It understands the shapes of inspect-ai, OpenAI evals, braintrust, langsmith, promptfoo, deepeval and
    pydantic-evals: `input`, `inputs`, `vars` or `item` are the params, `target`, `expected`, `expected_output` or
    `outputs` what is expected; all other fields are metadata. A missing id is a hash of the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CaseError(f"{path} must be UTF-8: {error.reason} at byte {error.start}") from None
    lines = list(_documents(text, path))
    cases = [_case(line, f"{path}, case {number}") for number, line in enumerate(lines, start=1)]
    check_ids(cases, f"{path}: ")
    if not cases:
        raise CaseError(f"{path} has no cases; write one JSON object per line")
    return tuple(cases)


def check_ids(cases: Sequence[Case], where: str = "") -> None:
    """Raise if two cases have one id."""
    places: dict[str, list[int]] = {}
    for number, case in enumerate(cases, start=1):
        places.setdefault(case.id, []).append(number)
    twice = [f"{case!r} (cases {', '.join(map(str, found))})" for case, found in places.items() if len(found) > 1]
    if twice:
        more = f" and {len(twice) - MAX_NAMED} more" if len(twice) > MAX_NAMED else ""
        raise CaseError(
            f"{where}ids must be unique, and these are not: {', '.join(twice[:MAX_NAMED])}{more}; "
            "equal lines without an id need one each"
        )


def write_cases(
    path: str | os.PathLike[str], cases: Iterable[Case], form: Callable[[Case], dict[str, Any]] = Case.as_json
) -> None:
    """Write cases to a JSONL file; `form=Case.as_inspect` writes samples of inspect-ai."""
    lines = [json.dumps(form(case), ensure_ascii=True) for case in cases]
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _documents(text: str, path: object) -> Iterator[Any]:
    stripped = text.lstrip()
    whole = _whole(stripped) if stripped[:1] in ("[", "{") else None
    if isinstance(whole, list):
        yield from whole
        return
    if isinstance(whole, dict) and isinstance(whole.get("cases") or whole.get("tests"), list):
        yield from whole.get("cases") or whole["tests"]
        return
    # Only line feeds end a line: JSON may have other separators, such as U+2028, in its texts.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield json.loads(line, parse_constant=_no_number)
            except (ValueError, RecursionError) as error:
                raise CaseError(f"{path}, line {number} must be one JSON object: {error}") from None


def _whole(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _case(line: Any, where: str) -> Case:
    if not isinstance(line, Mapping):
        raise CaseError(f"{where} must be a JSON object, got {type(line).__name__}")
    params = _first(line, INPUTS)
    messages = _messages(line.get("messages"), where)
    if isinstance(params, Sequence) and not isinstance(params, str):
        # A conversation of inspect-ai; the user's side of it is sent.
        messages, params = (*messages, *_messages(params, where)), None
    if params is None and not messages and line.get("recording") is None:
        raise CaseError(f"{where} has no input; it needs one of {', '.join(INPUTS)}, or messages")
    named = _first(line, IDS)
    if not isinstance(named, str | int | float | None):
        raise CaseError(f"{where}: an id must be text or a number, got {named!r}")
    stable = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()[:12]
    metadata = line.get("metadata") or line.get("additional_metadata") or {}
    if not isinstance(metadata, Mapping):
        metadata = {"metadata": metadata}
    others = {name: value for name, value in line.items() if name not in _KNOWN}
    return Case(
        id=stable if named in (None, "") else str(named),
        params=params,
        messages=messages,
        expected=_asserted(line) if (expected := _first(line, EXPECTED)) is None else expected,
        group=str(_first(line, GROUPS) or metadata.get("group") or ""),
        metadata={**metadata, **others},
        recording=line.get("recording"),
    )


def _first(line: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((line[name] for name in names if line.get(name) is not None), None)


def _asserted(line: Mapping[str, Any]) -> Any:
    """The texts that promptfoo's assertions expect in the answer."""
    asserted = line.get("assert")
    texts = [
        each["value"]
        for each in (asserted if isinstance(asserted, list) else ())
        if isinstance(each, Mapping) and each.get("type") in ASSERTED and isinstance(each.get("value"), str)
    ]
    return texts or None


def _messages(given: Any, where: str) -> tuple[str, ...]:
    """The user's messages among chat messages, or texts as they are."""
    if not isinstance(given, str | list | tuple | None):
        raise CaseError(f"{where}: messages must be a list of texts or chat messages, got {given!r}")
    found: list[str] = []
    for each in [given] if isinstance(given, str) else given or ():
        if isinstance(each, str):
            found.append(each)
        elif not isinstance(each, Mapping):
            raise CaseError(f"{where}: a message must be a text or have role and content, got {each!r}")
        elif each.get("role", "user") == "user":
            found.append(_content(each.get("content", ""), where))
    return tuple(found)


def _content(content: Any, where: str) -> str:
    parts = [part.get("text", "") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    texts = parts if isinstance(content, list) else [content]
    if not all(isinstance(text, str) for text in texts):
        raise CaseError(f"{where}: the content of a message must be text, or parts with text, got {content!r}")
    return "".join(texts)


def _text_fields(kind: type) -> list[str]:
    hints = get_type_hints(kind)
    return [column.key for column in columns(kind) if column.init and hints.get(column.name) is str]


def _by_type(given: Mapping[str, Any], types: Sequence[type], case_id: str) -> Iterator[tuple[type, Mapping[str, Any]]]:
    """The fields of a mapping by the params type that has them; `{"Type": {...}}` names it."""
    named = {kind.__name__: kind for kind in types}
    values: dict[type, dict[str, Any]] = {}
    for name, value in given.items():
        if name in named and isinstance(value, Mapping):
            values.setdefault(named[name], {}).update(value)
            continue
        owners = [kind for kind in types if name in {column.key for column in columns(kind) if column.init}]
        if len(owners) != 1:
            known = ", ".join(f"{kind.__name__}.{column.key}" for kind in types for column in columns(kind))
            problem = "no field of the prompt's params" if not owners else "several params types"
            there = f"there are {known}" if known else "it has none; give the case one text, or messages"
            raise CaseError(f"case {case_id!r}: {name!r} belongs to {problem}; {there}")
        values.setdefault(owners[0], {})[name] = value
    yield from values.items()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
