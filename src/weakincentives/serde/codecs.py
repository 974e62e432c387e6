"""Reading JSON, and finding it in other text.

Valid data is read by msgspec alone. Only if msgspec rejects it do the nodes read it, to list every problem.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
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

# Most brackets in prose and in hostile text do not start a value; the regular expressions skip them quickly.
_SPACE = r"[ \t\r\n]*+"
_STRING = r'"(?>(?:[^"\\\x00-\x1f]++|\\.)*)"'
_START = {
    "{": re.compile(rf"{{(?={_SPACE}(?:}}|{_STRING}{_SPACE}:))"),
    "[": re.compile(rf"\[(?={_SPACE}(?:[][{{0-9tfn-]|{_STRING}{_SPACE}[],]))"),
}
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(.))', re.DOTALL)
_scan = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


class MalformedJson(SerdeError):
    """The text is not JSON. Every other `SerdeError` is about JSON that does not match the type."""


class Codec(Generic[T]):
    """Reads JSON as one type. `codec(cls)` prepares it once and caches it."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.node = build(annotation)
        self._decoders: dict[bool, Sequence[Callable[[str | bytes], Any]]] = {}

    def parse(self, data: Any, *, allow_extra: bool = False) -> T:
        """Convert decoded JSON."""
        result: T = read(self.node, data, allow_extra=allow_extra)
        return result

    def decode(self, text: str | bytes, *, allow_extra: bool = False) -> T:
        """Convert JSON text; raises `MalformedJson` if it is not JSON."""
        decoders = self._decoders.get(allow_extra)
        if decoders is None:
            decoders = self._decoders[allow_extra] = self._quick(allow_extra)
        if decoders:
            try:
                for decode in decoders:
                    value: T = decode(text)
                return value
            except Exception:
                pass  # `parse` reports what is wrong and where, or accepts it.
        return self.parse(loads(text), allow_extra=allow_extra)

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

    def _quick(self, allow_extra: bool) -> Sequence[Callable[[str | bytes], Any]]:
        """The decoders of valid data; the first rejects what the last, which returns the value, accepts by mistake."""
        try:
            types = StrictTypes(allow_extra)
            decoders = [
                msgspec.json.Decoder(each, dec_hook=_from_json).decode
                for each in (types.build(self.node), self.annotation)
            ]
        except Exception:
            return []  # A type that msgspec does not support: only the nodes read it.
        return decoders if types.constrained or not allow_extra else decoders[1:]


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
    """Yield the JSON objects (`opening="{"`) or arrays (`"["`) in a text, in order, in linear time.

    After a value that is cut off or malformed, the search continues where it breaks off, not inside it. One with wrong
    escapes is found too, so that whoever reads it can say what is wrong.
    """
    valid, end = _Text(_ESCAPE.sub(lambda escape: f"x{escape[1]}" if escape[1] else escape[0], text)), 0
    while match := _START[opening].search(valid, end):
        start = match.start()
        try:
            _, end = _scan(valid, start)
            yield text[start:end]
        except json.JSONDecodeError as error:
            end = max(error.pos, start + 1)
        except RecursionError:
            return


class _Text(str):
    """Text of which `json` counts no lines: every error would count those before it, which takes quadratic time."""

    __slots__ = ()

    def count(self, *_: Any) -> int:
        return 0

    def rfind(self, *_: Any) -> int:
        return -1


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
