"""What a file search is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedToolConfig
from weakincentives.tools.file_search.filter import AllOf, AnyOf, Comparison, FileFilter
from weakincentives.tools.kind import check_kind, check_positive, texts


@dataclass(frozen=True, slots=True)
class FileSearchConfig(HostedToolConfig):
    """Which stores to search, how many passages to bring back, how relevant, and from which files."""

    vector_store_ids: tuple[str, ...]
    max_results: int | None = None
    score_threshold: float | None = None
    filters: FileFilter | None = None

    def __post_init__(self) -> None:
        stores = texts(self.vector_store_ids, "FileSearchConfig.vector_store_ids")
        object.__setattr__(self, "vector_store_ids", stores)
        if not stores:
            raise PromptValidationError("FileSearchConfig.vector_store_ids names no store; give at least one id.")
        check_positive(self.max_results, "FileSearchConfig.max_results")
        check_kind(self.score_threshold, (int, float), "FileSearchConfig.score_threshold", "a number from 0 to 1")
        check_kind(
            self.filters, (Comparison, AllOf, AnyOf), "FileSearchConfig.filters", "a Comparison, an AllOf or an AnyOf"
        )
        if self.score_threshold is not None and not 0 <= self.score_threshold <= 1:
            raise PromptValidationError(
                f"FileSearchConfig.score_threshold is {self.score_threshold!r}; give a number from 0 to 1."
            )
