"""What a scripted model says, in nobody's wire format; each server renders it in its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` as text is sent as it is, malformed or not."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model; `reasoning` is what it thinks before it speaks."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    stop: Literal["end", "length", "refusal", "content_filter", "pause", "empty"] = "end"
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    items: tuple[Mapping[str, Any], ...] = ()
    reasoning: str = ""
    delay: float = 0.0
    cut_after: int | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """An answer below the format: any status and bytes, a delay, a body that is cut, a connection that is reset."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False
    reset: bool = False


def words(text: str) -> list[str]:
    """The text in pieces, as a stream delivers it."""
    pieces = text.split(" ")
    return [piece + " " for piece in pieces[:-1]] + pieces[-1:]
