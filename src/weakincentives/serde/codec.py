"""Reading JSON into typed values: one msgspec pass when the data is right, a careful one when it is not."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePath
from typing import Any, ForwardRef, Generic, Literal, TypeVar, Union

import msgspec

from weakincentives.errors import Problem, SerdeError
from weakincentives.serde import schemas
from weakincentives.serde.nodes import Array, Choice, Choices, Node, Record, Row, Scalar, Table, build
from weakincentives.serde.reader import read

T = TypeVar("T")


class MalformedJson(SerdeError):
    """The text is not JSON; the other `SerdeError`s are about JSON that does not fit the type."""


class Codec(Generic[T]):
    """What a type needs to be read from JSON, prepared once; `codec(cls)` keeps them."""

    __slots__ = ("_fast", "_prepared", "annotation", "node")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.node = build(annotation)
        self._prepared = False
        self._fast: tuple[Any, Any, Any] | None = None

    def parse(self, data: Any, *, allow_extra: bool = False) -> T:
        """The value that decoded JSON stands for."""
        fast = self._fast if self._prepared else self._prepare()
        if fast is not None:
            try:
                if not allow_extra:
                    msgspec.convert(data, fast[0], str_keys=True, dec_hook=_from_json)
                value: T = msgspec.convert(data, self.annotation, str_keys=True, dec_hook=_from_json)
                return value
            except Exception:
                pass
        result: T = read(self.node, data, allow_extra=allow_extra)
        return result

    def decode(self, text: str | bytes, *, allow_extra: bool = False) -> T:
        """The value that JSON text stands for; text that is not JSON is `MalformedJson`."""
        fast = self._fast if self._prepared else self._prepare()
        if fast is not None:
            try:
                if not allow_extra:
                    fast[1](text)
                value: T = fast[2](text)
                return value
            except Exception:
                pass
        result: T = read(self.node, loads(text), allow_extra=allow_extra)
        return result

    def schema(self, *, strict: bool = True) -> dict[str, Any]:
        """The JSON Schema of the type, made anew."""
        return schemas.schema(self.node, strict=strict)

    def _prepare(self) -> tuple[Any, Any, Any] | None:
        """The mirror type that refuses unknown keys, and decoders for it and for the type itself."""
        try:
            mirror = _Mirror().build(self.node)
            guard = msgspec.json.Decoder(mirror, dec_hook=_from_json).decode
            typed = msgspec.json.Decoder(self.annotation, dec_hook=_from_json).decode
        except Exception:
            fast = None
        else:
            fast = (mirror, guard, typed)
        self._fast = fast
        self._prepared = True
        return fast


def codec(cls: type[T]) -> Codec[T]:
    """The prepared reader of a dataclass, or of any annotation made of supported types."""
    annotation: Any = cls
    return _codec(annotation, "" if isinstance(annotation, type) else str(annotation))


def parse(cls: type[T], data: Any, *, allow_extra: bool = False) -> T:
    """Read decoded JSON as `cls`; `SerdeError` lists every problem with its path."""
    return codec(cls).parse(data, allow_extra=allow_extra)


def decode(cls: type[T], text: str | bytes, *, allow_extra: bool = False) -> T:
    """Read JSON text as `cls`; `SerdeError` lists every problem with its path."""
    return codec(cls).decode(text, allow_extra=allow_extra)


def schema(cls: Any, *, strict: bool = True) -> dict[str, Any]:
    """The JSON Schema of `cls`: strict as OpenAI and Anthropic take it, or the plain form with formats and defaults."""
    return codec(cls).schema(strict=strict)


def loads(text: str | bytes) -> Any:
    """Decoded JSON text, or `MalformedJson`: for NaN, lone surrogates and hostile nesting too."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise MalformedJson((Problem("$", "JSON is nested too deeply"),)) from None
    except UnicodeError:
        raise MalformedJson((Problem("$", "JSON holds text that is not valid Unicode"),)) from None
    except msgspec.MsgspecError as error:
        raise MalformedJson((Problem("$", _malformed(str(error))),)) from None


@lru_cache(maxsize=2048)
def _codec(cls: Any, spelling: str) -> Codec[Any]:
    # Equal unions may list their options in another order, which matters: hence the spelling in the key.
    return Codec(cls)


def _malformed(message: str) -> str:
    return message if message.startswith("JSON") else f"JSON is malformed: {message[:1].lower()}{message[1:]}"


def _from_json(expected: type, data: Any) -> Any:
    if issubclass(expected, PurePath) and isinstance(data, str) and "\0" not in data:
        return expected(data)
    if expected is object:
        return data
    raise TypeError(expected.__name__)


class _Mirror:
    """Nodes as types that msgspec reads strictly: each dataclass as a struct that forbids unknown fields."""

    def __init__(self) -> None:
        self.started: dict[Record, str] = {}
        self.structs: dict[str, Any] = {}

    def build(self, node: Node) -> Any:
        mirror = self.of(node)
        for struct in self.structs.values():
            for name, other in self.structs.items():
                setattr(struct, name, other)
        return mirror

    def of(self, node: Node) -> Any:
        match node:
            case Scalar():
                return None if node.type is type(None) else node.type
            case Record():
                return self.struct(node)
            case Choice():
                return node.enum or Literal[tuple(value for value, _ in node.members)]
            case Array():
                item = self.of(node.item)
                container: Any = node.build
                return container[item, ...] if container is tuple else container[item]
            case Row():
                return tuple[tuple(self.of(item) for item in node.items)]  # type: ignore[misc]
            case Table():
                return dict[self.of(node.key), self.of(node.value)]  # type: ignore[misc]
            case Choices():
                return Union[tuple(self.of(option) for option in node.options)]  # noqa: UP007
        return Any

    def struct(self, node: Record) -> Any:
        if not node.plain:
            raise TypeError(f"{node.name} must be built by its own constructor")
        if (name := self.started.get(node)) is not None:
            # A string is resolved when the decoder is made, among the attributes that `build` sets.
            return self.structs.get(name, ForwardRef(name))
        name = self.started[node] = f"Mirror{len(self.started)}"
        fields: list[Any] = []
        for member in node.members.values():
            mirrored = self.of(member.node)
            fields.append((member.name, mirrored) if member.required else (member.name, mirrored, msgspec.UNSET))
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        self.structs[name] = struct
        return struct
