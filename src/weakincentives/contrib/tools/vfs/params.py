"""What the model passes to the file tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def _described(text: str, **kwargs: Any) -> Any:
    return field(metadata={"description": text}, **kwargs)


@dataclass(frozen=True, slots=True)
class LsParams:
    path: str = _described("Directory to list, relative to the root.", default=".")


@dataclass(frozen=True, slots=True)
class ReadParams:
    path: str = _described("File to read, relative to the root.")
    offset: int = _described("How many lines to skip.", default=0)
    limit: int | None = _described("How many lines to read at most.", default=None)


@dataclass(frozen=True, slots=True)
class WriteParams:
    path: str = _described("File to write, relative to the root; missing directories are made.")
    content: str = _described("The whole text to write.")
    mode: Literal["create", "overwrite", "append"] = _described(
        "create: only if there is no such file; overwrite: replace it; append: add at its end.", default="create"
    )


@dataclass(frozen=True, slots=True)
class EditParams:
    path: str = _described("File to change, relative to the root.")
    old: str = _described("The exact text to replace, with its whitespace; it must occur once.")
    new: str = _described("The text to put in its place.")
    replace_all: bool = _described("Replace every occurrence.", default=False)


@dataclass(frozen=True, slots=True)
class GlobParams:
    pattern: str = _described("Such as '**/*.py' or 'src/*.{c,h}'; '**' stands for any directories.")
    path: str = _described("Directory to search, relative to the root.", default=".")


@dataclass(frozen=True, slots=True)
class GrepParams:
    pattern: str = _described("A regular expression (Python syntax), matched line by line.")
    path: str = _described("File or directory to search, relative to the root.", default=".")
    glob: str | None = _described("Search only files that match, such as '*.py'.", default=None)
    limit: int | None = _described("How many matching lines to return at most.", default=None)


@dataclass(frozen=True, slots=True)
class RmParams:
    path: str = _described("File or directory to delete, relative to the root.")
    recursive: bool = _described("Delete a directory with everything in it.", default=False)
