"""A ready-made section whose tools let the model work on the prompt's filesystem."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, Unpack

from weakincentives._display import shortened
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Entry, Filesystem, FilesystemError, Match, NotFoundError, NotTextError
from weakincentives.prompt import SectionOptions, Tool, ToolContext, ToolResult, WorkspaceSection

__all__ = ["VfsLimits", "VfsToolsSection"]

_READING = """\
You have files to work with. Paths are relative to the root, such as `src/main.py`; the root itself is `.`.

- `ls`, `glob` and `grep` find files and lines; `read` shows a file, a long one in parts."""
_WRITING = """
- `write` creates a file, `edit` replaces an exact piece of text in one, `rm` deletes.

Read a file before you edit it. A call that fails changes nothing."""
_READ_ONLY = """

The files cannot be changed."""
MAX_LINES_LISTED = 10


@dataclass(frozen=True, slots=True)
class VfsLimits:
    """How much one tool call may return or write. A truncated result says so, and how to get the rest."""

    read_lines: int = 2_000
    read_characters: int = 60_000
    entries: int = 500
    matches: int = 100
    line_characters: int = 500
    write_characters: int = 1_000_000

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) < 1:
                raise ValueError(f"{item.name} must be 1 or more, got {getattr(self, item.name)}")


class VfsToolsSection(WorkspaceSection):
    """The tools `ls`, `read`, `glob`, `grep`, and unless `read_only` also `write`, `edit` and `rm`.

        PromptTemplate(ns="demo", key="coder", sections=[VfsToolsSection(HostFilesystem("work"))])

    They work on the prompt's filesystem: the one given here, else the one from another section or from
    `bind(resources=...)`, else the in-memory files of the session, `session.workspace`.
    """

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        *,
        read_only: bool = False,
        limits: VfsLimits = VfsLimits(),
        title: str = "Files",
        key: str = "vfs",
        template: str | None = None,
        **options: Unpack[SectionOptions[None]],
    ) -> None:
        if template is None:
            template = _READING + (_READ_ONLY if read_only else _WRITING)
        options["tools"] = (*_file_tools(limits, read_only=read_only), *options.get("tools", ()))
        super().__init__(filesystem, title=title, key=key, template=template, **options)


@dataclass(frozen=True, slots=True)
class LsParams:
    path: Annotated[str, "Directory to list, relative to the root."] = "."


@dataclass(frozen=True, slots=True)
class ReadParams:
    path: Annotated[str, "File to read, relative to the root."]
    offset: Annotated[int, "How many lines to skip."] = 0
    limit: Annotated[int | None, "How many lines to read at most."] = None


@dataclass(frozen=True, slots=True)
class WriteParams:
    path: Annotated[str, "File to write, relative to the root; missing directories are created."]
    content: Annotated[str, "The whole text to write."]
    mode: Annotated[
        Literal["create", "overwrite", "append"],
        "create: only if the file does not exist; overwrite: replace it; append: add to its end.",
    ] = "create"


@dataclass(frozen=True, slots=True)
class EditParams:
    path: Annotated[str, "File to change, relative to the root."]
    old: Annotated[str, "The exact text to replace, with its whitespace; it must occur once."]
    new: Annotated[str, "The text to put in its place."]
    replace_all: Annotated[bool, "Replace every occurrence."] = False


@dataclass(frozen=True, slots=True)
class GlobParams:
    pattern: Annotated[str, "Such as '**/*.py' or 'src/*.{c,h}'; '**' matches any directories."]
    path: Annotated[str, "Directory to search, relative to the root."] = "."


@dataclass(frozen=True, slots=True)
class GrepParams:
    pattern: Annotated[str, "A regular expression (Python syntax), matched line by line."]
    path: Annotated[str, "File or directory to search, relative to the root."] = "."
    glob: Annotated[str | None, "Search only files that match, such as '*.py'."] = None
    limit: Annotated[int | None, "How many matching lines to return at most."] = None


@dataclass(frozen=True, slots=True)
class RmParams:
    path: Annotated[str, "File or directory to delete, relative to the root."]
    recursive: Annotated[bool, "Delete a directory with everything in it."] = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of a directory; the names of directories end with a slash."""

    entries: tuple[Entry, ...]

    def render(self) -> str:
        return "\n".join(_listing_line(entry) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class FileText:
    """Lines of a file, starting at `offset`; `complete` is False if more lines follow."""

    path: str
    text: str
    offset: int
    complete: bool

    def render(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of files."""

    paths: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(self.paths)


@dataclass(frozen=True, slots=True)
class Matches:
    """Matching lines, as `path:line: text`."""

    matches: tuple[Match, ...]

    def render(self) -> str:
        return "\n".join(f"{match.path}:{match.line_number}: {match.line}" for match in self.matches)


def _file_tools(limits: VfsLimits, *, read_only: bool) -> tuple[Tool[Any, Any], ...]:
    """The tools `ls`, `read`, `glob` and `grep`, and unless read_only also `write`, `edit` and `rm`."""
    run = _Operations(limits)
    reading = (
        _tool("ls", "List a directory: its files with their sizes, and its directories.", LsParams, run.ls),
        _tool("read", "Read a text file, or some of its lines.", ReadParams, run.read),
        _tool("glob", "Find files by a glob pattern.", GlobParams, run.glob),
        _tool("grep", "Find lines in files by a regular expression.", GrepParams, run.grep),
    )
    if read_only:
        return reading
    return (
        *reading,
        _tool("write", "Write a text file.", WriteParams, run.write, read_only=False),
        _tool("edit", "Replace an exact piece of text in a file.", EditParams, run.edit, read_only=False),
        _tool("rm", "Delete a file or a directory.", RmParams, run.rm, read_only=False),
    )


class _Operations:
    """The filesystem operations behind the tools, within the limits."""

    def __init__(self, limits: VfsLimits) -> None:
        self.limits = limits

    def ls(self, fs: Filesystem, params: LsParams) -> ToolResult[Any]:
        entries = fs.list(params.path)
        if not entries:
            return ToolResult(f"{params.path!r} is empty.")
        shown = tuple(
            replace(entry, name=_printable(entry.name), path=_printable(entry.path))
            for entry in entries[: self.limits.entries]
        )
        cut = (
            f"The first {len(shown)} of {len(entries)} entries; use glob to narrow."
            if len(shown) < len(entries)
            else ""
        )
        return ToolResult(cut, Listing(shown))

    def read(self, fs: Filesystem, params: ReadParams) -> ToolResult[Any]:
        limits = self.limits
        limit = limits.read_lines if params.limit is None else min(params.limit, limits.read_lines)
        if limit < 1:
            raise ToolValidationError(f"limit must be 1 or more, got {limit}")
        text = fs.read(params.path, offset=params.offset, limit=limit + 1)
        if not text:
            return self._nothing_to_read(fs, params)
        lines = text.split("\n")
        lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        shown, size = 0, 0
        while shown < min(limit, len(lines)) and size + len(lines[shown]) <= limits.read_characters:
            size += len(lines[shown])
            shown += 1
        first = params.offset + 1
        if shown == 0:
            message = f"Line {first} is {len(lines[0])} characters long; its first {limits.read_characters} follow."
            if len(lines) > 1:
                message += f" Read on with offset={first}."
            part = lines[0][: limits.read_characters]
            return ToolResult(message, FileText(params.path, part, params.offset, False))
        complete = shown == len(lines)
        message = (
            "" if complete and params.offset == 0 else f"Lines {first} to {params.offset + shown} of {params.path}."
        )
        if not complete:
            message += f" More follow: read on with offset={params.offset + shown}."
        return ToolResult(message, FileText(params.path, "".join(lines[:shown]), params.offset, complete))

    def _nothing_to_read(self, fs: Filesystem, params: ReadParams) -> ToolResult[Any]:
        if params.offset == 0:
            return ToolResult(f"{params.path!r} is an empty file.", FileText(params.path, "", 0, True))
        text = fs.read(params.path)
        count = text.count("\n") + (not text.endswith("\n") and text != "")
        raise ToolValidationError(f"offset {params.offset} is past the end: {params.path!r} has {count} lines")

    def write(self, fs: Filesystem, params: WriteParams) -> ToolResult[Any]:
        self._check_size(params.content)
        try:
            fs.write(params.path, params.content, mode=params.mode)
        except FileExistsError:
            raise ToolValidationError(
                f"{params.path!r} already exists; use edit to change it, or mode 'overwrite' to replace it"
            ) from None
        verb = "Appended to" if params.mode == "append" else "Wrote"
        return ToolResult(f"{verb} {params.path} ({len(params.content)} characters).")

    def edit(self, fs: Filesystem, params: EditParams) -> ToolResult[Any]:
        text, count = _replace_exactly(
            fs.read(params.path), params.old, params.new, path=params.path, replace_all=params.replace_all
        )
        self._check_size(text)
        fs.write(params.path, text, mode="overwrite")
        return ToolResult(f"Replaced {count} {'piece' if count == 1 else 'pieces'} of text in {params.path}.")

    def glob(self, fs: Filesystem, params: GlobParams) -> ToolResult[Any]:
        paths = fs.glob(params.pattern, path=params.path)
        if not paths:
            return ToolResult(f"No file matches {params.pattern!r} below {params.path!r}.", Paths(()))
        shown = tuple(_printable(path) for path in paths[: self.limits.entries])
        cut = f"The first {len(shown)} of {len(paths)} files; narrow the pattern." if len(shown) < len(paths) else ""
        return ToolResult(cut, Paths(shown))

    def grep(self, fs: Filesystem, params: GrepParams) -> ToolResult[Any]:
        limit = self.limits.matches if params.limit is None else min(params.limit, self.limits.matches)
        if limit < 1:
            raise ToolValidationError(f"limit must be 1 or more, got {limit}")
        found = fs.grep(params.pattern, path=params.path, glob=params.glob, limit=limit + 1)
        if not found:
            return ToolResult(f"No line matches {params.pattern!r} below {params.path!r}.", Matches(()))
        width = self.limits.line_characters
        shown = tuple(
            replace(match, path=_printable(match.path), line=shortened(match.line, width)) for match in found[:limit]
        )
        cut = f"The first {limit} matches; more follow: narrow the pattern, path or glob." if len(found) > limit else ""
        return ToolResult(cut, Matches(shown))

    def rm(self, fs: Filesystem, params: RmParams) -> ToolResult[Any]:
        fs.delete(params.path, recursive=params.recursive)
        return ToolResult(f"Deleted {params.path}.")

    def _check_size(self, text: str) -> None:
        if len(text) > self.limits.write_characters:
            raise ToolValidationError(
                f"The file would have {len(text)} characters, more than {self.limits.write_characters}; split it"
            )


def _tool(
    name: str,
    description: str,
    params_type: type,
    call: Callable[[Filesystem, Any], ToolResult[Any]],
    *,
    read_only: bool = True,
) -> Tool[Any, Any]:
    def handler(params: Any, *, context: ToolContext) -> ToolResult[Any]:
        fs = context.filesystem
        if fs is None:
            return ToolResult("This prompt has no filesystem.", success=False)
        try:
            return call(fs, params)
        except NotFoundError as error:
            return ToolResult(f"{error}{_suggestion(fs, params.path)}", success=False)
        except NotTextError:
            return ToolResult(f"{params.path!r} is not UTF-8 text; these tools read and write text only", success=False)
        except (FilesystemError, ToolValidationError) as error:
            return ToolResult(str(error), success=False)

    return Tool(name=name, description=description, handler=handler, params_type=params_type, read_only=read_only)


def _suggestion(fs: Filesystem, path: str) -> str:
    """Similar names in the same directory."""
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        entries = {entry.name: entry.path for entry in fs.list(parent or ".")}
    except FilesystemError:
        return ""
    close = difflib.get_close_matches(name, entries, n=3)
    return f"; did you mean {', '.join(repr(entries[match]) for match in close)}?" if close else ""


def _printable(name: str) -> str:
    """File names need not be valid Unicode, but text for the model must be."""
    return name.encode("utf-8", "replace").decode()


def _replace_exactly(text: str, old: str, new: str, *, path: str, replace_all: bool) -> tuple[str, int]:
    """The new text and the number of replacements; an error tells the model what to do instead."""
    if not old:
        raise ToolValidationError(f"'old' must not be empty; use the write tool to fill {path!r}")
    if old == new:
        raise ToolValidationError("'old' and 'new' are the same text, so nothing would change")
    if old not in text and "\r\n" in text and "\r\n" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = text.count(old)
    if count == 0:
        raise ToolValidationError(
            f"The text to replace is not in {path!r}{_near_miss(text, old)}; read the file and copy the text exactly"
        )
    if count > 1 and not replace_all:
        raise ToolValidationError(
            f"The text to replace is in {path!r} {count} times (lines {_lines(text, old)}); add the lines around it to "
            "make it unique, or set replace_all"
        )
    return text.replace(old, new), count


def _near_miss(text: str, old: str) -> str:
    """The line where the same text appears with different whitespace."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    wanted = [" ".join(line.split()) for line in old.strip("\n").split("\n")]
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start : start + len(wanted)] == wanted:
            return f" (line {start + 1} differs in whitespace only)"
    return ""


def _lines(text: str, old: str) -> str:
    numbers: list[str] = []
    start = text.find(old)
    while start >= 0 and len(numbers) < MAX_LINES_LISTED:
        numbers.append(str(text.count("\n", 0, start) + 1))
        start = text.find(old, start + len(old))
    return ", ".join(numbers) + (" ..." if start >= 0 else "")


def _listing_line(entry: Entry) -> str:
    if entry.kind == "directory":
        return f"{entry.path}/"
    return f"{entry.path} ({entry.size} bytes)" if entry.kind == "file" else f"{entry.path} ({entry.kind})"
