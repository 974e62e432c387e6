"""Reading JSON, and finding it in other text.

Valid data is read by msgspec alone. Only if msgspec rejects it do the nodes read it, to list every problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Generic, TypeVar

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde import nodes
from weakincentives.serde.annotations import build
from weakincentives.serde.nodes import AnyOf, Record, Scalar, StrictTypes, read
from weakincentives.serde.records import UnresolvedType, columns
from weakincentives.serde.strict import is_covered_by

T = TypeVar("T")

MAX_DEPTH = 900
_SPACE = r"[ \t\r\n]*+"
_STRING = r'"(?>(?:[^"\\\x00-\x1f]++|\\.)*)"'
_TOKEN = re.compile(rf"{_SPACE}([][{{}},:]|{_STRING}|-?[0-9][-+.0-9eE]*+|true|false|null|)")
# Most brackets in prose and in hostile text do not start a value; the regular expressions skip them quickly.
_START = {
    "{": re.compile(rf"{{(?={_SPACE}(?:}}|{_STRING}{_SPACE}:))"),
    "[": re.compile(rf"\[(?={_SPACE}(?:[][{{0-9tfn-]|{_STRING}{_SPACE}[],]))"),
}
_VALUE = {"{": "first key", "[": "first item", '"': "end", "scalar": "end"}
# For each state, the tokens that may follow and the state after each.
_NEXT = {
    "value": _VALUE,
    "first item": {**_VALUE, "]": "end"},
    "first key": {'"': "colon", "}": "end"},
    "key": {'"': "colon"},
    "colon": {":": "value"},
    "end": {",": "more", "}": "end", "]": "end"},
}
_CLOSING = {"{": "}", "[": "]"}


class MalformedJson(SerdeError):
    """The text is not JSON. Every other `SerdeError` is about JSON that does not match the type."""


class Codec(Generic[T]):
    """Reads JSON as one type. `codec(cls)` prepares it once and caches it."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.node = build(annotation)
        self._fast: dict[bool, _Fast] = {}

    def parse(self, data: Any, *, allow_extra: bool = False) -> T:
        """Convert decoded JSON."""
        strict, _, typed = self._fast.get(allow_extra) or self._prepare(allow_extra)
        if typed is not None:
            try:
                if strict is not None:
                    msgspec.convert(data, strict, str_keys=True, dec_hook=_from_json)
                value: T = msgspec.convert(data, self.annotation, str_keys=True, dec_hook=_from_json)
                return value
            except Exception:
                pass  # The reader below reports what is wrong and where, or accepts it.
        result: T = read(self.node, data, allow_extra=allow_extra)
        return result

    def decode(self, text: str | bytes, *, allow_extra: bool = False) -> T:
        """Convert JSON text; raises `MalformedJson` if it is not JSON."""
        _, check, typed = self._fast.get(allow_extra) or self._prepare(allow_extra)
        if typed is not None:
            try:
                if check is not None:
                    check(text)
                value: T = typed(text)
                return value
            except Exception:
                pass  # As above.
        result: T = read(self.node, loads(text), allow_extra=allow_extra)
        return result

    @property
    def is_text(self) -> bool:
        """True if the type is plain text."""
        return isinstance(self.node, Scalar) and self.node.cls is str

    @property
    def is_object(self) -> bool:
        """True if JSON of the type is an object with named fields."""
        return self.node.has_fields

    @property
    def accepts_null(self) -> bool:
        return self.node.accepts_null

    def schema(self, *, strict: bool = True) -> dict[str, Any]:
        """A new copy of the type's JSON Schema."""
        return nodes.schema(self.node, strict=strict)

    def _prepare(self, allow_extra: bool) -> _Fast:
        try:
            types = StrictTypes(allow_extra)
            strict = types.build(self.node)
            check = msgspec.json.Decoder(strict, dec_hook=_from_json).decode
            typed = msgspec.json.Decoder(self.annotation, dec_hook=_from_json).decode
        except Exception:
            # A type that msgspec does not support: only the nodes read it.
            fast: _Fast = (None, None, None)
        else:
            fast = (strict, check, typed) if types.constrained or not allow_extra else (None, None, typed)
        self._fast[allow_extra] = fast
        return fast


_Decode = Callable[[str | bytes], Any]
_Fast = tuple[Any, _Decode | None, _Decode | None]
"""The readers of valid data: a type and its decoder, which reject what the last decoder would accept by mistake.

They are None if there is nothing to reject, and all is None if only the nodes can read the data.
"""


def codec(cls: type[T]) -> Codec[T]:
    """The cached codec of a dataclass, or of any annotation made of supported types."""
    annotation: Any = cls
    return _codec(annotation, "" if isinstance(annotation, type) else str(annotation))


def parse(cls: type[T], data: Any, *, allow_extra: bool = False) -> T:
    """Read decoded JSON as `cls`; a `SerdeError` lists every problem with its path."""
    return codec(cls).parse(data, allow_extra=allow_extra)


def decode(cls: type[T], text: str | bytes, *, allow_extra: bool = False) -> T:
    """Read JSON text as `cls`; a `SerdeError` lists every problem with its path."""
    return codec(cls).decode(text, allow_extra=allow_extra)


def schema(cls: Any, *, strict: bool = True) -> dict[str, Any]:
    """The JSON Schema of `cls`: strict, as OpenAI and Anthropic require, or plain, with formats and defaults."""
    return codec(cls).schema(strict=strict)


def field_descriptions(cls: type) -> dict[str, str]:
    """The fields of a type by their names in JSON, with their descriptions, or '' for those without."""
    try:
        node = codec(cls).node
    except UnresolvedType:
        return {each.key: str(each.metadata.get("description", "")) for each in columns(cls) if each.init}
    if isinstance(node, Record):
        return {name: field.description or "" for name, field in node.fields.items() if field.column.name}
    properties = nodes.schema(node, strict=False).get("properties", {})
    return {name: str(each.get("description", "")) for name, each in properties.items()}


def confusable_options(cls: Any, *, allow_extra: bool = False) -> tuple[str, str] | None:
    """Two options of a union where the second would be read as the first; None if all are distinguishable."""
    made = codec(cls)
    if not isinstance(made.node, AnyOf):
        return None
    seen: list[tuple[str, dict[str, Any]]] = []
    for option in made.node.options:
        written = nodes.schema(option, strict=False)
        for name, earlier in seen:
            if is_covered_by(written, earlier, allow_extra=allow_extra):
                return name, option.name
        seen.append((option.name, written))
    return None


def loads(text: str | bytes) -> Any:
    """Decode JSON text. NaN, lone surrogates and hostile nesting raise `MalformedJson`, like other bad text."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise MalformedJson((FieldProblem("$", "JSON is nested too deeply"),)) from None
    except UnicodeError:
        raise MalformedJson((FieldProblem("$", "JSON contains text that is not valid Unicode"),)) from None
    except msgspec.MsgspecError as error:
        message = str(error)
        if not message.startswith("JSON"):
            message = f"JSON is malformed: {message[:1].lower()}{message[1:]}"
        raise MalformedJson((FieldProblem("$", message),)) from None


def find_json(text: str, opening: str) -> Iterator[str]:
    """Yield the JSON objects (`opening="{"`) or arrays (`"["`) in a text, in order.

    It takes linear time whatever the text contains; `json.JSONDecoder.raw_decode` would take quadratic time on hostile
    text, because each of its errors counts the lines before it. After a truncated value, the search continues where the
    value breaks off, not inside it.
    """
    end = 0
    while match := _START[opening].search(text, end):
        end, complete = _extent(text, match.start())
        if complete:
            yield text[match.start() : end]


@lru_cache(maxsize=2048)
def _codec(cls: Any, spelling: str) -> Codec[Any]:
    # Unions are equal whatever the order of their options, but reading depends on the order: hence `spelling` in the
    # key.
    return Codec(cls)


def _from_json(expected: type, data: Any) -> Any:
    if issubclass(expected, PurePath) and isinstance(data, str) and "\0" not in data:
        return expected(data)
    if expected is object:
        return data
    raise TypeError(expected.__name__)


def _extent(text: str, start: int) -> tuple[int, bool]:
    """The place where the value at `start` ends or stops being JSON, and True if it is complete."""
    closing: list[str] = []
    state = "value"
    position = start
    while match := _TOKEN.match(text, position):
        token = match[1]
        kind = token[:1]
        if kind not in '{}[],:"':
            kind = "scalar"
        following = _NEXT[state].get(kind) if token else None
        if following is None or (kind in "}]" and kind != closing[-1]):
            return max(match.start(1), start + 1), False
        position = match.end()
        if kind in "{[":
            if len(closing) >= MAX_DEPTH:
                return len(text), False
            closing.append(_CLOSING[kind])
        elif kind in "}]":
            closing.pop()
            if not closing:
                return position, True
        state = following if following != "more" else "key" if closing[-1] == "}" else "value"
    return len(text), False
