"""What web searches gave."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.prompt import HostedToolOutput
from weakincentives.tools.failure import HostedToolFailure


@dataclass(frozen=True, slots=True)
class Citation:
    """A web source; `span` is the range of the result's `text` that cites it, None where the provider gives none."""

    url: str
    title: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WebSearchResult(HostedToolOutput):
    """All searches of a run: the text of its answers, what it cites, every page consulted, and what failed.

    A run of one answer has the same `text` as its response; of several answers, `text` is one after the other.
    """

    text: str
    citations: tuple[Citation, ...] = ()
    source_urls: tuple[str, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()
