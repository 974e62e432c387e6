"""Types that Pydantic reads: models, its own types, and annotations that carry its metadata.

Pydantic is never imported here: a program that has such a type has imported it already.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.constraints import describe, field_path
from weakincentives.serde.strict import JsonSchema, from_strict, resolved

_OWN_WORDS = ("Value error, ", "Assertion failed, ")


def is_pydantic(cls: type) -> bool:
    """Whether Pydantic knows how to read the class."""
    return "pydantic" in sys.modules and (
        hasattr(cls, "__pydantic_validator__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def has_pydantic_metadata(metadata: tuple[object, ...]) -> bool:
    """Whether an `Annotated` type says something that only Pydantic understands, such as `Field(...)`."""
    return any(type(item).__module__.partition(".")[0] == "pydantic" for item in metadata)


class PydanticType:
    """A type with the validator and the JSON Schema that Pydantic makes of it.

    Fields that the schema does not declare are refused, unless a model in it says `extra` in its own configuration.
    """

    def __init__(self, annotation: Any) -> None:
        pydantic: Any = sys.modules["pydantic"]
        self.annotation = annotation
        self._invalid: type[Exception] = pydantic.ValidationError
        self._adapter = pydantic.TypeAdapter(annotation)
        says_extra: list[type] = []

        class Generator(pydantic.json_schema.GenerateJsonSchema):  # type: ignore[misc]
            def model_schema(self, schema: Any) -> Any:
                written = super().model_schema(schema)
                model = schema["cls"]
                if "extra" in model.model_config:
                    says_extra.append(model)
                elif "properties" in written:
                    written.setdefault("additionalProperties", False)
                if written.get("title") == model.__name__:
                    del written["title"]
                return written

            def field_title_should_be_set(self, schema: Any) -> bool:
                return False

        self.schema: JsonSchema = self._adapter.json_schema(schema_generator=Generator)
        self._closed = not says_extra

    @property
    def has_fields(self) -> bool:
        """Whether its JSON is an object with named fields."""
        return "properties" in resolved(self.schema, self.schema)

    def read(self, data: Any, *, allow_extra: bool = False) -> Any:
        """Validate data; a `SerdeError` lists what Pydantic found."""
        if isinstance(self.annotation, type) and isinstance(data, self.annotation):
            return data
        extra = "forbid" if self._closed and not allow_extra else None
        given = from_strict(self.schema, data, self.schema)
        try:
            # As JSON, since strict models take text for dates and the like from JSON alone.
            return self._adapter.validate_json(msgspec.json.encode(given), extra=extra)
        except self._invalid as error:
            raise SerdeError(tuple(_problem(each, given) for each in error.errors(include_url=False))) from None  # type: ignore[attr-defined]
        except RecursionError:
            raise
        except Exception as error:
            name = getattr(self.annotation, "__name__", self.annotation)
            message = f"{name} rejected it: {str(error) or type(error).__name__}"
            raise SerdeError((FieldProblem("$", message),)) from error


def pydantic_type(annotation: Any) -> PydanticType:
    """The `PydanticType` of an annotation; a `SerdeError` says why there is none."""
    try:
        return _known_type(annotation)
    except TypeError:
        # Metadata of an `Annotated` type that has no hash.
        return PydanticType(annotation)


@lru_cache(maxsize=512)
def _known_type(annotation: Any) -> PydanticType:
    return PydanticType(annotation)


def _problem(error: Any, data: Any) -> FieldProblem:
    """What Pydantic found in the data, in our words."""
    path, option, kind = "$", "", error["type"]
    for index, step in enumerate(error["loc"]):
        if isinstance(step, int) and isinstance(data, list):
            path, data = f"{path}[{step}]", data[step] if step < len(data) else None
        elif isinstance(data, dict) and (step in data or (kind == "missing" and index == len(error["loc"]) - 1)):
            path, data = field_path(path, str(step)), data.get(step)
        else:
            option = f"as {step}: "
    message = {"missing": "missing", "extra_forbidden": "unknown field"}.get(kind)
    if message is None:
        message = error["msg"]
        own = next((message.removeprefix(start) for start in _OWN_WORDS if message.startswith(start)), None)
        message = own or f"{message}, got {describe(error['input'])}"
    return FieldProblem(path, option + message)
