"""What fetching pages gave."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.prompt import HostedToolOutput
from weakincentives.tools.failure import HostedToolFailure


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """One page: its text, or the bytes of what is no text (a PDF), as `media_type` says."""

    url: str
    title: str = ""
    text: str = ""
    media_type: str = "text/plain"
    data: bytes | None = None
    retrieved_at: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentCitation:
    """A passage of a fetched page that the answer rests on; `document_span` is its range in the document's text.

    `url` is empty where the provider names a document that was not fetched in this run.
    """

    url: str
    title: str
    cited_text: str = ""
    document_span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WebFetchResult(HostedToolOutput):
    """All pages that a run fetched, in order; the text of its answers, what it cites, and what failed."""

    text: str
    documents: tuple[FetchedDocument, ...] = ()
    citations: tuple[DocumentCitation, ...] = ()
    errors: tuple[HostedToolFailure, ...] = ()
