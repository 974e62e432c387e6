"""Structured output: what a prompt declares, and how an answer becomes a value of that type.

An answer may wrap its JSON in prose. Fenced `json` blocks are tried first, then the whole message, then the values of
the declared container in the text, in order: the first that fits the type is the answer. A block or message that is
JSON and does not fit is not searched for parts that would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, make_dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Protocol, get_args, get_origin

from weakincentives import serde
from weakincentives.errors import OutputParseError, PromptValidationError, SerdeError

Container = Literal["object", "array"]

_OPENING = {"object": "{", "array": "["}
_FENCE = "```"
MAX_CANDIDATES = 1_000


@dataclass(frozen=True)
class StructuredOutputConfig:
    """What a prompt's answer must be: one `output_type`, or an array of them."""

    output_type: Any
    container: Container = "object"
    allow_extra_keys: bool = False

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
        """The schema to send: providers require an object at the top, so an array becomes its one field `items`."""
        return self.schema if self.container == "object" else self._wrapped.schema()

    @cached_property
    def _codec(self) -> serde.Codec[Any]:
        annotation: Any = self.output_type if self.container == "object" else list[self.output_type]  # type: ignore[name-defined]
        return serde.codec(annotation)

    @cached_property
    def _wrapped(self) -> serde.Codec[Any]:
        return serde.codec(make_dataclass("Items", [("items", list[self.output_type])]))  # type: ignore[name-defined]

    def read(self, text: str) -> Any:
        """Parse JSON text; an array may also come wrapped in an object as `items`."""
        if self.container == "array" and text[:1] == "{":
            try:
                return self._wrapped.decode(text, allow_extra=self.allow_extra_keys).items
            except SerdeError as error:
                if any(path == "$.items" and message.startswith("missing") for path, message in error.problems):
                    return self._codec.parse({})
                raise
        return self._codec.decode(text, allow_extra=self.allow_extra_keys)


class DeclaresOutput(Protocol):
    """Anything that declares what its answer must be, such as a rendered prompt."""

    @property
    def structured_output(self) -> StructuredOutputConfig | None: ...


def structured_output(annotation: Any, allow_extra_keys: bool = False) -> StructuredOutputConfig:
    """What `PromptTemplate[annotation]` declares: a dataclass, or a list of one."""
    container: Container = "object"
    output_type = annotation
    if get_origin(annotation) is list:
        container = "array"
        (output_type,) = get_args(annotation)
    cls = get_origin(output_type) or output_type
    if not isinstance(cls, type) or not is_dataclass(cls):
        shown = getattr(annotation, "__name__", None) if isinstance(annotation, type) else annotation
        raise PromptValidationError(
            f"Output type {shown} is not a dataclass; declare PromptTemplate[MyDataclass] or "
            "PromptTemplate[list[MyDataclass]]"
        )
    config = StructuredOutputConfig(output_type, container, allow_extra_keys)
    try:
        _ = config.schema
    except SerdeError as error:
        raise PromptValidationError(f"Output type {cls.__name__} cannot be an output: {error}") from error
    return config


def parse_structured_output(output_text: Any, rendered: DeclaresOutput | StructuredOutputConfig) -> Any:
    """The typed value of an answer; a value that already has the type is returned unchanged.

    `OutputParseError` has the whole answer as `raw` and the field that failed as `path`.
    """
    config = rendered if isinstance(rendered, StructuredOutputConfig) else rendered.structured_output
    if config is None:
        raise OutputParseError(
            "The prompt declares no output type; write PromptTemplate[MyDataclass]", raw=str(output_text)
        )
    if isinstance(output_text, bytes):
        output_text = output_text.decode("utf-8", "replace")
    if not isinstance(output_text, str):
        return _typed(output_text, config)
    try:
        return _find(output_text, config)
    except SerdeError as error:
        raise _parse_error(error, output_text, config) from error


def _typed(value: Any, config: StructuredOutputConfig) -> Any:
    cls = get_origin(config.output_type) or config.output_type
    if config.container == "object":
        if isinstance(value, cls):
            return value
    elif isinstance(value, list | tuple) and all(isinstance(item, cls) for item in value):
        return value
    try:
        return config._codec.parse(value, allow_extra=config.allow_extra_keys)
    except SerdeError as error:
        raise _parse_error(error, str(value), config) from error


def _find(text: str, config: StructuredOutputConfig) -> Any:
    misfit: SerdeError | None = None
    malformed: SerdeError | None = None
    prose, end = "", 0
    for span in [*islice(_fenced(text), MAX_CANDIDATES), slice(0, len(text))]:
        candidate = text[span].strip(" \t\r\n\ufeff")
        try:
            return config.read(candidate)
        except serde.MalformedJson as error:
            if candidate.startswith(("{", "[")):
                malformed = malformed or error
        except SerdeError as error:
            misfit = misfit or error
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
    detail = f": {malformed.problems[0].message}" if malformed is not None else ""
    raise OutputParseError(f"The answer holds no JSON {config.container} for {config.name}{detail}", raw=text)


def _fenced(text: str) -> Iterator[slice]:
    """Where fences that open with `json` at the start of a line hold text, up to the next fence or the end."""
    start, position = -1, 0 if _FENCE in text else len(text)
    while position < len(text):
        end = text.find("\n", position) + 1 or len(text)
        if text.startswith(_FENCE, position):
            if 0 <= start < position:
                yield slice(start, position)
            words = text[position:end].lstrip("`").split(maxsplit=1)
            start = end if words and words[0].lower() == "json" else -1
        position = end
    if 0 <= start < len(text):
        yield slice(start, len(text))


def _parse_error(error: SerdeError, raw: str, config: StructuredOutputConfig) -> OutputParseError:
    return OutputParseError(f"The answer does not fit {config.name}: {error}", raw=raw, path=error.problems[0].path)
