"""What file searches gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weakincentives.prompt import HostedToolOutput
from weakincentives.tools.failure import HostedToolFailure


@dataclass(frozen=True, slots=True)
class FilePassage:
    """A passage that was found in a file; `score` is from 0 to 1, None where the provider gives none."""

    file_id: str
    filename: str = ""
    text: str = ""
    score: float | None = None
    attributes: Mapping[str, str | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileCitation:
    """A file that the answer cites; `position` is where in the result's `text`, None where the provider gives none."""

    file_id: str
    filename: str = ""
    position: int | None = None


@dataclass(frozen=True, slots=True)
class FileSearchResult(HostedToolOutput):
    """All file searches of a run: queries and passages in order, the answers' text, what they cite, what failed."""

    text: str
    queries: tuple[str, ...] = ()
    passages: tuple[FilePassage, ...] = ()
    citations: tuple[FileCitation, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()
