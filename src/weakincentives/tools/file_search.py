"""File search: the provider finds passages in uploaded files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedTool, HostedToolConfig, HostedToolOutput
from weakincentives.tools.hosted import (
    HostedToolFailure as HostedToolFailure,
    HostedToolSection,
    check_positive,
    check_texts,
    check_type,
)

Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
Value = str | float | bool | tuple[str | float, ...]

_TEMPLATE = """
You can search the uploaded files. Search them before you answer what they may hold, use several queries where one is
not enough, and cite the files that your answer rests on.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Selects files by comparing attribute `key` to `value`; `in` and `nin` take a tuple, other operators one value."""

    key: str
    op: Operator
    value: Value

    def __post_init__(self) -> None:
        if not self.key:
            raise PromptValidationError("Comparison.key must not be empty; name the attribute to compare.")
        if self.op not in get_args(Operator):
            raise PromptValidationError(
                f"Comparison.op must be one of {', '.join(get_args(Operator))}, got {self.op!r}."
            )
        if isinstance(self.value, list):
            object.__setattr__(self, "value", tuple(self.value))
        if isinstance(self.value, tuple) != (self.op in ("in", "nin")):
            expected = "a tuple" if self.op in ("in", "nin") else "a single value"
            raise PromptValidationError(f"Comparison of '{self.key}' with '{self.op}' takes {expected}.")


@dataclass(frozen=True, slots=True)
class AllOf:
    """Selects files that match every filter."""

    filters: tuple[FileFilter, ...]

    def __post_init__(self) -> None:
        _check_filters(self)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Selects files that match at least one filter."""

    filters: tuple[FileFilter, ...]

    def __post_init__(self) -> None:
        _check_filters(self)


FileFilter = Comparison | AllOf | AnyOf


@dataclass(frozen=True, slots=True)
class FileSearchConfig(HostedToolConfig):
    """Which stores to search, how many passages to return, how relevant they must be, and from which files."""

    vector_store_ids: tuple[str, ...]
    max_results: int | None = None
    score_threshold: float | None = None
    filters: FileFilter | None = None

    def __post_init__(self) -> None:
        stores = check_texts(self.vector_store_ids, "FileSearchConfig.vector_store_ids")
        object.__setattr__(self, "vector_store_ids", stores)
        if not stores:
            raise PromptValidationError("FileSearchConfig.vector_store_ids must name at least one store.")
        check_positive(self.max_results, "FileSearchConfig.max_results")
        check_type(self.score_threshold, (int, float), "FileSearchConfig.score_threshold", "a number from 0 to 1")
        check_type(self.filters, (Comparison, AllOf, AnyOf), "FileSearchConfig.filters", "a Comparison, AllOf or AnyOf")
        if self.score_threshold is not None and not 0 <= self.score_threshold <= 1:
            raise PromptValidationError(
                f"FileSearchConfig.score_threshold must be a number from 0 to 1, got {self.score_threshold!r}."
            )


@dataclass(frozen=True, slots=True)
class FilePassage:
    """A passage found in a file; `score` is between 0 and 1, None if the provider gives none."""

    file_id: str
    filename: str = ""
    text: str = ""
    score: float | None = None
    attributes: Mapping[str, str | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileCitation:
    """A file that the answer cites; `position` is its place in the result's `text`, None if the provider gives none."""

    file_id: str
    filename: str = ""
    position: int | None = None


@dataclass(frozen=True, slots=True)
class FileSearchResult(HostedToolOutput):
    """All file searches of a run: queries and passages in order, the text of its answers, citations, and failures."""

    text: str
    queries: tuple[str, ...] = ()
    passages: tuple[FilePassage, ...] = ()
    citations: tuple[FileCitation, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()


def file_search_tool(config: FileSearchConfig, *, name: str = "file_search") -> HostedTool[FileSearchConfig]:
    """A file search with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(
        kind="file_search", name=name, description="Search the uploaded files and cite them.", config=config
    )


class FileSearchSection(HostedToolSection):
    """A section that lets the model search uploaded files."""

    default_title, default_template = "File Search", _TEMPLATE

    def __init__(self, config: FileSearchConfig, *, name: str = "file_search", **options: Any) -> None:
        super().__init__(file_search_tool(config, name=name), **options)


def _check_filters(compound: AllOf | AnyOf) -> None:
    name = type(compound).__name__
    if not isinstance(compound.filters, Iterable):
        raise PromptValidationError(f"{name}.filters must be a tuple, got {compound.filters!r}; write {name}((...,)).")
    object.__setattr__(compound, "filters", tuple(compound.filters))
    if not compound.filters:
        raise PromptValidationError(f"{name}.filters must contain at least one filter.")
    for each in compound.filters:
        if not isinstance(each, Comparison | AllOf | AnyOf):
            raise PromptValidationError(f"{name}.filters must contain Comparison, AllOf or AnyOf, got {each!r}.")
