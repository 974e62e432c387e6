"""Reading JSON into typed values.

Valid data is read by msgspec alone. Only when msgspec refuses it does the slower reader run, which lists every problem.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated, Any, ForwardRef, Generic, Literal, NamedTuple, TypeVar, Union

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde import schemas
from weakincentives.serde.nodes import (
    AnyOf,
    Array,
    Constrained,
    Enumeration,
    FixedTuple,
    Map,
    Model,
    Node,
    Record,
    Scalar,
    UnresolvedType,
    accepts_null,
    build,
)
from weakincentives.serde.reader import read
from weakincentives.serde.records import columns
from weakincentives.serde.strict import is_covered_by

T = TypeVar("T")


class MalformedJson(SerdeError):
    """The text is not JSON. Every other `SerdeError` is about JSON that does not match the type."""


class Codec(Generic[T]):
    """Reads JSON as one type. `codec(cls)` prepares it once and caches it."""

    __slots__ = ("_fast", "annotation", "node")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.node = build(annotation)
        self._fast: dict[bool, _Fast | None] = {}

    def parse(self, data: Any, *, allow_extra: bool = False) -> T:
        """Convert decoded JSON."""
        fast = self._fast[allow_extra] if allow_extra in self._fast else self._prepare(allow_extra)
        if fast is not None:
            try:
                if fast.strict is not None:
                    msgspec.convert(data, fast.strict, str_keys=True, dec_hook=_from_json)
                value: T = msgspec.convert(data, self.annotation, str_keys=True, dec_hook=_from_json)
                return value
            except Exception:
                pass  # The reader below says what is wrong and where, or accepts it.
        result: T = read(self.node, data, allow_extra=allow_extra)
        return result

    def decode(self, text: str | bytes, *, allow_extra: bool = False) -> T:
        """Convert JSON text; raises `MalformedJson` if it is not JSON."""
        fast = self._fast[allow_extra] if allow_extra in self._fast else self._prepare(allow_extra)
        if fast is not None:
            try:
                if fast.check is not None:
                    fast.check(text)
                value: T = fast.decode(text)
                return value
            except Exception:
                pass  # As above.
        result: T = read(self.node, loads(text), allow_extra=allow_extra)
        return result

    @property
    def is_text(self) -> bool:
        """Whether the type is plain text."""
        return isinstance(self.node, Scalar) and self.node.cls is str

    @property
    def is_object(self) -> bool:
        """Whether JSON of the type is an object with named fields."""
        return isinstance(self.node, Record) or (isinstance(self.node, Model) and self.node.source.has_fields)

    @property
    def accepts_null(self) -> bool:
        return accepts_null(self.node)

    def schema(self, *, strict: bool = True) -> dict[str, Any]:
        """A new copy of the type's JSON Schema."""
        return schemas.schema(self.node, strict=strict)

    def _prepare(self, allow_extra: bool) -> _Fast | None:
        try:
            types = _StrictTypes(allow_extra)
            strict = types.build(self.node)
            check = msgspec.json.Decoder(strict, dec_hook=_from_json).decode
            typed = msgspec.json.Decoder(self.annotation, dec_hook=_from_json).decode
        except Exception:
            # A type that msgspec does not know: only our own reader takes it.
            fast = None
        else:
            needed = types.constrained or not allow_extra
            fast = _Fast(strict if needed else None, check if needed else None, typed)
        self._fast[allow_extra] = fast
        return fast


class _Fast(NamedTuple):
    """Reads valid data. `strict`, a type, and `check`, its decoder, reject what `decode` would accept by mistake.

    They are None if there is nothing to reject.
    """

    strict: Any
    check: Callable[[str | bytes], Any] | None
    decode: Callable[[str | bytes], Any]


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
    properties = schemas.schema(node, strict=False).get("properties", {})
    return {name: str(each.get("description", "")) for name, each in properties.items()}


def confusable_options(cls: Any, *, allow_extra: bool = False) -> tuple[str, str] | None:
    """Two options of a union, the second of which would be read as the first; None if all can be told apart."""
    made = codec(cls)
    if not isinstance(made.node, AnyOf):
        return None
    seen: list[tuple[str, dict[str, Any]]] = []
    for option in made.node.options:
        written = schemas.schema(option, strict=False)
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


@lru_cache(maxsize=2048)
def _codec(cls: Any, spelling: str) -> Codec[Any]:
    # Unions are equal whatever the order of their options, but reading depends on it: hence `spelling` in the key.
    return Codec(cls)


def _from_json(expected: type, data: Any) -> Any:
    if issubclass(expected, PurePath) and isinstance(data, str) and "\0" not in data:
        return expected(data)
    if expected is object:
        return data
    raise TypeError(expected.__name__)


class _StrictTypes:
    """Builds msgspec types from nodes, with a struct in place of each dataclass, and with all constraints.

    msgspec ignores unknown fields of dataclasses and constraints that are not its own, so strict input is decoded
    twice: against these types, then as the dataclass. The two passes together take less time than `json.loads`.
    """

    def __init__(self, allow_extra: bool) -> None:
        self.allow_extra = allow_extra
        self.constrained = False
        self.in_union = False
        self.started: dict[Record, str] = {}
        self.structs: dict[str, Any] = {}

    def build(self, node: Node) -> Any:
        strict = self.of(node)
        for struct in self.structs.values():
            for name, other in self.structs.items():
                setattr(struct, name, other)
        return strict

    def of(self, node: Node) -> Any:
        plain = self.plain(node)
        if not isinstance(node, Constrained) or not node.constraints:
            return plain
        if isinstance(node, Array) and node.build in (set, frozenset):
            raise TypeError("msgspec counts the items of a set before it removes duplicates")
        self.constrained = True
        return Annotated[plain, msgspec.Meta(**node.constraints)]

    def plain(self, node: Node) -> Any:
        match node:
            case Scalar():
                return None if node.cls is type(None) else node.cls
            case Record():
                if "" in (field.column.name for field in node.fields.values()) and not self.in_union:
                    raise TypeError("msgspec asks for a tag only in unions")
                return self.struct(node)
            case Enumeration():
                return node.enum or Literal[tuple(value for value, _ in node.members)]
            case Array():
                item = self.of(node.item)
                container: Any = node.build
                return container[item, ...] if container is tuple else container[item]
            case FixedTuple():
                return tuple[tuple(self.of(item) for item in node.items)]  # type: ignore[misc]
            case Map():
                return dict[self.of(node.key), self.of(node.value)]  # type: ignore[misc]
            case AnyOf():
                return self.union(node)
            case Model():
                raise TypeError(f"{node.name} is read by Pydantic")
        return Any

    def union(self, node: AnyOf) -> Any:
        options = []
        for option in node.options:
            self.in_union = isinstance(option, Record)
            options.append(self.of(option))
        return Union[tuple(options)]  # noqa: UP007

    def struct(self, node: Record) -> Any:
        self.in_union = False
        if not node.settable:
            raise TypeError(f"{node.name} must be built by its own constructor")
        if (name := self.started.get(node)) is not None:
            # msgspec resolves the name when it makes the decoder, among the attributes that `build` sets.
            return self.structs.get(name, ForwardRef(name))
        name = self.started[node] = f"Strict{len(self.started)}"
        fields: list[Any] = []
        keys, tag = {}, {}
        for field in node.fields.values():
            strict = self.of(field.node)
            column = field.column
            if not column.name:
                tag = {"tag_field": column.key, "tag": field.node.members[0][0]}  # type: ignore[attr-defined]
                continue
            keys[column.name] = column.key
            fields.append((column.name, strict) if column.required else (column.name, strict, msgspec.UNSET))
        closed = node.closed or not self.allow_extra
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=closed, rename=keys, **tag)
        self.structs[name] = struct
        return struct
