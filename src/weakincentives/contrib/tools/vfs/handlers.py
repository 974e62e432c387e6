"""The file tools themselves: each call is checked, bounded and answered in words that a model can act on."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weakincentives.contrib.tools.vfs.edit import replace_exactly
from weakincentives.contrib.tools.vfs.limits import VfsLimits
from weakincentives.contrib.tools.vfs.params import (
    EditParams,
    GlobParams,
    GrepParams,
    LsParams,
    ReadParams,
    RmParams,
    WriteParams,
)
from weakincentives.contrib.tools.vfs.results import FileText, Listing, Matches, Paths
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, FilesystemError, NotFoundError, NotTextError
from weakincentives.prompt import Tool, ToolContext, ToolResult


def file_tools(limits: VfsLimits, *, read_only: bool) -> tuple[Tool[Any, Any], ...]:
    """ls, read, glob and grep, and unless read_only also write, edit and rm."""
    calls = _Calls(limits)
    reading = (
        _tool("ls", "List a directory: its files with their sizes, and its directories.", LsParams, calls.ls),
        _tool("read", "Read a text file, or some of its lines.", ReadParams, calls.read),
        _tool("glob", "Find files by a pattern of their path.", GlobParams, calls.glob),
        _tool("grep", "Find lines in files by a regular expression.", GrepParams, calls.grep),
    )
    if read_only:
        return reading
    return (
        *reading,
        _tool("write", "Write a text file.", WriteParams, calls.write, read_only=False),
        _tool("edit", "Replace an exact piece of text in a file.", EditParams, calls.edit, read_only=False),
        _tool("rm", "Delete a file or a directory.", RmParams, calls.rm, read_only=False),
    )


class _Calls:
    """What each tool does to a filesystem, within the limits."""

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
            raise ToolValidationError("limit is 1 or more")
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
                f"{params.path!r} exists already; use edit to change it, or mode 'overwrite' to replace it"
            ) from None
        verb = "Appended to" if params.mode == "append" else "Wrote"
        return ToolResult(f"{verb} {params.path} ({len(params.content)} characters).")

    def edit(self, fs: Filesystem, params: EditParams) -> ToolResult[Any]:
        text, count = replace_exactly(
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
            raise ToolValidationError("limit is 1 or more")
        found = fs.grep(params.pattern, path=params.path, glob=params.glob, limit=limit + 1)
        if not found:
            return ToolResult(f"No line matches {params.pattern!r} below {params.path!r}.", Matches(()))
        shown = tuple(
            replace(match, path=_printable(match.path), line=self._short(match.line)) for match in found[:limit]
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

    def _short(self, line: str) -> str:
        return line if len(line) <= self.limits.line_characters else line[: self.limits.line_characters] + " [cut]"


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
            return ToolResult("There is no filesystem in this prompt.", success=False)
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
    """Names in the same directory that look like the missing one."""
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        entries = {entry.name: entry.path for entry in fs.list(parent or ".")}
    except FilesystemError:
        return ""
    close = difflib.get_close_matches(name, entries, n=3)
    return f"; did you mean {', '.join(repr(entries[match]) for match in close)}?" if close else ""


def _printable(name: str) -> str:
    """Names on a disk need not be Unicode; what the model reads must be."""
    return name.encode("utf-8", "replace").decode()
