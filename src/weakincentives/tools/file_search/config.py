"""What a file search is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedToolConfig
from weakincentives.tools.file_search.filter import FileFilter
from weakincentives.tools.number import check_positive


@dataclass(frozen=True, slots=True)
class FileSearchConfig(HostedToolConfig):
    """Which stores to search, how many passages to bring back, how relevant, and from which files."""

    vector_store_ids: tuple[str, ...]
    max_results: int | None = None
    score_threshold: float | None = None
    filters: FileFilter | None = None

    def __post_init__(self) -> None:
        if isinstance(self.vector_store_ids, str):
            raise PromptValidationError(
                f"FileSearchConfig.vector_store_ids is a tuple; write ({self.vector_store_ids!r},)."
            )
        object.__setattr__(self, "vector_store_ids", tuple(self.vector_store_ids))
        if not self.vector_store_ids or not all(self.vector_store_ids):
            raise PromptValidationError("FileSearchConfig.vector_store_ids names no store; give at least one id.")
        check_positive(self.max_results, "FileSearchConfig.max_results")
        if self.score_threshold is not None and not 0 <= self.score_threshold <= 1:
            raise PromptValidationError(
                f"FileSearchConfig.score_threshold is {self.score_threshold!r}; give a number from 0 to 1."
            )
