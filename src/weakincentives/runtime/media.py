"""Media that a model accepts besides text: which, how large, how many, and their cost in tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weakincentives.content import Audio, Document, Image, Media, Part
from weakincentives.errors import PromptEvaluationError

MEGABYTE = 1 << 20
TEXT_TYPES = ("text/plain", "text/markdown", "text/csv", "text/html", "application/json")
PAGE_TOKENS = 2_250
_PDF_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")


def _image_tokens(image: Image) -> int:
    """Tokens of an image by its pixels, if no vendor's formula is known."""
    width, height = image.dimensions or (1024, 1024)
    return max(1, width * height // 750)


@dataclass(frozen=True, slots=True)
class MediaSupport:
    """The media types a model accepts, by kind; by default text only.

    Sizes are in bytes: for one image, for one document or recording, and for all media of a request together.
    `max_side` is in pixels. `image_tokens` is the vendor's formula.
    """

    images: Sequence[str] = ()  #: media types of images
    documents: Sequence[str] = ()  #: media types of documents
    audio: Sequence[str] = ()  #: media types of recordings
    document_urls: bool = True  #: True if documents may be given by URL
    max_image_bytes: int = 20 * MEGABYTE  #: for one image
    max_document_bytes: int = 50 * MEGABYTE  #: for one document or recording
    max_total_bytes: int = 50 * MEGABYTE  #: for one request
    max_images: int = 500  #: images in one request
    max_side: int = 100_000
    image_tokens: Callable[[Image], int] = _image_tokens

    def __str__(self) -> str:
        kinds = (("images", self.images), ("documents", self.documents), ("audio", self.audio))
        listed = [f"{kind} ({', '.join(_endings(types))})" for kind, types in kinds if types]
        return ", ".join(["text", *listed]) if listed else "text only"

    def count(self, part: Media) -> int:
        """The tokens of an image, of a document by its pages or text, or of a recording by its bytes."""
        if isinstance(part, Image):
            return self.image_tokens(part)
        if part.media_type in ("", "application/pdf"):
            return PAGE_TOKENS * max(1, len(_PDF_PAGE.findall(part.data)))
        return max(1, len(part.data) // (4 if isinstance(part, Document) else 1_000))

    def problem(self, part: Part) -> str:
        """The reason why the model does not accept this part; empty if it does."""
        if not isinstance(part, Media):
            return ""
        types = self.images if isinstance(part, Image) else self.audio if isinstance(part, Audio) else self.documents
        if not types or (part.media_type and part.media_type not in types):
            return f"accepts {self}, got {part}"
        if part.url and isinstance(part, Document) and not self.document_urls:
            return f"accepts no documents by URL, got {part}; pass Document.from_bytes(...)"
        limit = self.max_image_bytes if isinstance(part, Image) else self.max_document_bytes
        if len(part.data) > limit:
            kind = type(part).__name__.lower()
            return f"accepts at most {limit / MEGABYTE:.1f} MB for one {kind}, got {part}"
        side = max(part.dimensions or (0,)) if isinstance(part, Image) else 0
        if side > self.max_side:
            return f"accepts images of at most {self.max_side} pixels a side, got {side}: {part}"
        return ""

    def check(self, parts: Iterable[Part], who: str) -> None:
        """Raise for the first part that the model does not accept; `who` describes the adapter and the model."""
        for part in parts:
            if problem := self.problem(part):
                raise PromptEvaluationError(f"{who} {problem}.", phase="request")

    def check_amount(self, parts: Sequence[Part], who: str) -> None:
        """Raise if all media of a conversation together are too many or too large for one request."""
        images = sum(isinstance(part, Image) for part in parts)
        if images > self.max_images:
            raise PromptEvaluationError(
                f"{who} accepts at most {self.max_images} images, got {images}.", phase="request"
            )
        size = sum(len(part.data) for part in parts if isinstance(part, Media))
        if size > self.max_total_bytes:
            limit = self.max_total_bytes / MEGABYTE
            raise PromptEvaluationError(
                f"{who} accepts at most {limit:.1f} MB of media in one conversation, got {size / MEGABYTE:.1f} MB.",
                phase="request",
            )


def _endings(types: Iterable[str]) -> list[str]:
    """Media types as familiar file name endings."""
    known = {kind: ending for media in (Image, Document, Audio) for ending, kind in reversed(media.types.items())}
    return [known.get(kind, kind) for kind in types]
