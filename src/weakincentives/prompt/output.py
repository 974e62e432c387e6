"""Structured output: what a prompt declares, and how an answer becomes a value of that type.

An answer may wrap its JSON in prose. Fenced `json` blocks are tried first, then the whole message, then the values of
the declared container in the text, in order: the first that fits the type is the answer. A block or message that is
JSON but does not fit is not searched for parts that would. If the declared type is text, the answer is used as is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Protocol, get_args, get_origin

from weakincentives import serde
from weakincentives.errors import OutputParseError, PromptValidationError, SerdeError
from weakincentives.prompt.tools import type_name

Container = Literal["object", "array", "value", "text"]

_OPENING = {"object": "{", "array": "[", "value": "{"}
_WRAPPING_FIELD = {"array": "items", "value": "value"}
_FENCE = "```"
_WHOLE = slice(None)
MAX_CANDIDATES = 1_000


@dataclass(frozen=True)
class StructuredOutputConfig:
    """The type of a prompt's answer.

    `container` is how it is written: an `object`, an `array` of `output_type`, a `value` of another type, which is sent
    as the only field of an object, or plain `text`.
    """

    output_type: Any
    container: Container = "object"
    allow_extra_keys: bool = False  #: ignore unknown keys instead of rejecting them

    @property
    def name(self) -> str:
        """The type's name in messages."""
        return self._codec.node.name

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The strict JSON Schema of the answer; shared, so do not modify it."""
        return self._codec.schema()

    @cached_property
    def wire_schema(self) -> dict[str, Any]:
        """The schema to send: providers require an object at the top, so anything else becomes its only field."""
        return self.schema if self.container in ("object", "text") else self._wrapped.schema()

    @cached_property
    def is_strict(self) -> bool:
        """True if strict modes accept the schema to send as it is."""
        return serde.is_strict(self.wire_schema)

    @cached_property
    def _codec(self) -> serde.Codec[Any]:
        annotation: Any = list[self.output_type] if self.container == "array" else self.output_type  # type: ignore[name-defined]
        return serde.codec(annotation)

    @cached_property
    def _wrapped(self) -> serde.Codec[Any]:
        return serde.codec(make_dataclass("Output", [(_WRAPPING_FIELD[self.container], self._codec.annotation)]))

    def read(self, text: str) -> Any:
        """Parse JSON text; a value that is sent as a field of an object may arrive with or without that object."""
        allow_extra = self.allow_extra_keys
        if self.container == "object" or text[:1] != "{":
            return self._codec.decode(text, allow_extra=allow_extra)
        field = _WRAPPING_FIELD[self.container]
        try:
            return getattr(self._wrapped.decode(text, allow_extra=allow_extra), field)
        except serde.MalformedJson:
            raise
        except SerdeError as error:
            wrapped = error
        try:
            return self._codec.decode(text, allow_extra=allow_extra)
        except SerdeError as bare:
            without = any(path == f"$.{field}" and message.startswith("missing") for path, message in wrapped.problems)
            raise (bare if without else wrapped) from None

    def unwrapped(self, value: Any) -> Any:
        """Decoded JSON without the object around it, if there is one; None while its field is missing."""
        if self.container == "object" or not isinstance(value, dict):
            return value
        field = _WRAPPING_FIELD[self.container]
        return value.get(field) if self.container == "array" or field in value or not value else value

    def parse(self, value: Any) -> Any:
        """Check a value that is already decoded."""
        return self._codec.parse(value, allow_extra=self.allow_extra_keys)


class DeclaresOutput(Protocol):
    """Anything that declares what its answer must be, such as a rendered prompt."""

    @property
    def structured_output(self) -> StructuredOutputConfig | None: ...


def structured_output(annotation: Any, allow_extra_keys: bool = False) -> StructuredOutputConfig:
    """The output that `PromptTemplate[annotation]` declares."""
    serde.declare_type(annotation)
    container: Container = "value"
    output_type = annotation
    if get_origin(annotation) is list:
        container = "array"
        (output_type,) = get_args(annotation)
    try:
        codec = serde.codec(output_type)
        if container == "value":
            container = "text" if codec.is_text else "object" if codec.is_object else "value"
        config = StructuredOutputConfig(output_type, container, allow_extra_keys)
        # Created here, so that a type without a schema is rejected where it is declared.
        _ = config.schema
    except SerdeError as error:
        raise PromptValidationError(f"Output type {type_name(annotation)} cannot be an output: {error}") from error
    if codec.accepts_null:
        raise PromptValidationError(
            f"Output type {type_name(annotation)} cannot be an output: None is reserved for 'no output'; declare a "
            "type of its own instead, such as a dataclass Refusal."
        )
    if (twins := serde.confusable_options(output_type, allow_extra=allow_extra_keys)) is not None:
        raise PromptValidationError(
            f"Output type {type_name(annotation)} cannot be an output: JSON for {twins[1]} would also match "
            f"{twins[0]}; give each a field of its own, such as kind: Literal['{twins[0].lower()}']."
        )
    return config


def parse_structured_output(output_text: Any, rendered: DeclaresOutput | StructuredOutputConfig) -> Any:
    """The typed value of an answer; a value that already has the type is returned unchanged.

    `OutputParseError` holds the whole answer in `raw` and the field that failed in `path`.
    """
    config = rendered if isinstance(rendered, StructuredOutputConfig) else rendered.structured_output
    if config is None:
        raise OutputParseError("The prompt declares no output type; write PromptTemplate[MyType]", raw=str(output_text))
    if isinstance(output_text, bytes):
        output_text = output_text.decode("utf-8", "replace")
    if not isinstance(output_text, str):
        return _typed(output_text, config)
    try:
        return config.parse(output_text) if config.container == "text" else _find(output_text, config)
    except SerdeError as error:
        raise _parse_error(error, output_text, config) from error


def _typed(value: Any, config: StructuredOutputConfig) -> Any:
    try:
        parsed = config.parse(value)
    except SerdeError as error:
        raise _parse_error(error, str(value), config) from error
    same = isinstance(value, list | tuple) and isinstance(parsed, list) and all(map(operator.is_, parsed, value))
    return value if same else parsed


def _find(text: str, config: StructuredOutputConfig) -> Any:
    misfit: SerdeError | None = None
    malformed: SerdeError | None = None
    prose, end = "", 0
    for span in _spans(text) if "`" in text else (_WHOLE,):  # Finding one character is much faster than three.
        candidate = text[span].strip(" \t\r\n\ufeff")
        try:
            return config.read(candidate)
        except serde.MalformedJson as error:
            if candidate.startswith(("{", "[")):
                malformed = malformed or error
        except SerdeError as error:
            misfit = misfit or error
            if span is _WHOLE:
                raise misfit from None
            prose, end = prose + text[end : span.start], span.stop
    for candidate in islice(serde.find_json(prose + text[end:], _OPENING[config.container]), MAX_CANDIDATES):
        try:
            return config.read(candidate)
        except serde.MalformedJson as error:
            malformed = malformed or error
        except SerdeError as error:
            misfit = misfit or error
    if misfit is not None:
        raise misfit
    if config.container == "value" and malformed is None:
        try:
            return config.parse(text.strip())
        except SerdeError:
            pass
    detail = f": {malformed.problems[0].message}" if malformed is not None else ""
    raise OutputParseError(f"The answer contains no JSON {config.container} for {config.name}{detail}", raw=text)


def _spans(text: str) -> Iterator[slice]:
    """Where JSON may be: in fences that open with `json` at the start of a line, then in the whole text.

    A fence extends to the next fence or the end.
    """
    left, start, position = MAX_CANDIDATES, -1, 0
    for line in text.split("\n"):
        end = position + len(line) + 1
        if line.startswith(_FENCE):
            if 0 <= start < position and left:
                left -= 1
                yield slice(start, position)
            words = line.lstrip("`").split(maxsplit=1)
            start = end if words and words[0].lower() == "json" else -1
        position = end
    if 0 <= start < len(text) and left:
        yield slice(start, len(text))
    yield _WHOLE


def _parse_error(error: SerdeError, raw: str, config: StructuredOutputConfig) -> OutputParseError:
    return OutputParseError(f"The answer does not fit {config.name}: {error}", raw=raw, path=error.problems[0].path)
