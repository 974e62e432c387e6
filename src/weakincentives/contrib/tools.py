"""A ready-made section whose tools let the model work on the prompt's filesystem."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, Literal, Unpack

from weakincentives._base.display import shortened
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Entry, Filesystem, FilesystemError, NotFoundError, NotTextError
from weakincentives.prompt import (
    Approvals,
    SectionOptions,
    Timeouts,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
    by_tool,
    tool,
)

__all__ = ["VfsLimits", "VfsToolsSection"]

_READING = """\
You have files to work with. Paths are relative to the root, such as `src/main.py`; the root itself is `.`.

- `ls`, `glob` and `grep` find files and lines; `read` shows a file, a long one in parts."""
_WRITING = """
- `write` creates a file, `edit` replaces an exact piece of text in one, `rm` deletes.

Read a file before you edit it. A call that fails changes nothing."""
_READ_ONLY = """

The files cannot be changed."""
_READERS = ("ls", "read", "glob", "grep")
MAX_LINES_LISTED = 10


@dataclass(frozen=True, slots=True)
class VfsLimits:
    """How much one tool call may return or write. A truncated result notes that, and how to get the rest."""

    read_lines: int = 2_000  #: lines of one read
    read_characters: int = 60_000  #: characters of one read
    entries: int = 500  #: entries of one listing
    matches: int = 100  #: matches of one search
    line_characters: int = 500  #: characters of one matching line
    write_characters: int = 1_000_000  #: characters of one write

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) < 1:
                raise ValueError(f"{item.name} must be 1 or more, got {getattr(self, item.name)}")


class VfsToolsSection(WorkspaceSection):
    """The tools `ls`, `read`, `glob`, `grep`, and unless `read_only` also `write`, `edit` and `rm`.

        PromptTemplate(ns="demo", key="coder", sections=[VfsToolsSection(HostFilesystem("work"))])

    They work on the prompt's filesystem: the one given here, else the one from another section or from
    `bind(resources=...)`, else the in-memory files of the session, `session.workspace`. `timeout` and `approval` are
    those of each tool, or mappings by name; `approval="effects"` asks with the diff of what a call would write.
    """

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        *,
        read_only: bool = False,
        limits: VfsLimits = VfsLimits(),
        timeout: Timeouts = None,
        approval: Approvals = None,
        title: str = "Files",
        key: str = "vfs",
        template: str | None = None,
        **options: Unpack[SectionOptions[None]],
    ) -> None:
        if template is None:
            template = _READING + (_READ_ONLY if read_only else _WRITING)
        functions = _FileTools(limits).functions(read_only=read_only)
        whose, names = f"VfsToolsSection '{key}'", [each.__name__ for each in functions]
        timeouts = by_tool(whose, "timeout", timeout, names)
        approvals = by_tool(whose, "approval", approval, names, hosted=options.get("hosted_tools", ()))
        if approval == "effects" or callable(approval):
            # Tools that only read have no effects to ask about.
            approvals |= dict.fromkeys(_READERS, _for_readers(approval) if callable(approval) else None)
        tools: list[Tool[Any, Any]] = []
        for name, function in zip(names, functions, strict=True):
            declared: dict[str, Any] = {"timeout": timeouts[name], "approval": approvals[name]}
            if name in _READERS:
                declared["read_only"] = True
            else:
                declared["changes"] = (Filesystem,)
            tools.append(tool(**declared)(_reporting(function)))
        options["tools"] = (*tools, *options.get("tools", ()))
        super().__init__(filesystem, title=title, key=key, template=template, **options)


class _FileTools:
    """The functions behind the tools, within the limits."""

    def __init__(self, limits: VfsLimits) -> None:
        self.limits = limits

    def functions(self, *, read_only: bool) -> tuple[Callable[..., ToolResult[str]], ...]:
        """The functions of the tools `ls`, `read`, `glob` and `grep`, and unless read_only `write`, `edit` and `rm`."""
        reading = (self.ls, self.read, self.glob, self.grep)
        return reading if read_only else (*reading, self.write, self.edit, self.rm)

    def ls(
        self, path: Annotated[str, "Directory to list, relative to the root."] = ".", *, context: ToolContext
    ) -> ToolResult[str]:
        """List a directory: its files with their sizes, and its directories."""
        entries = _filesystem(context).list(path)
        if not entries:
            return ToolResult(f"{path!r} is empty.")
        shown = entries[: self.limits.entries]
        cut = (
            f"The first {len(shown)} of {len(entries)} entries; use glob to narrow."
            if len(shown) < len(entries)
            else ""
        )
        return ToolResult(cut, "\n".join(map(_listing_line, shown)))

    def read(
        self,
        path: Annotated[str, "File to read, relative to the root."],
        offset: Annotated[int, "How many lines to skip."] = 0,
        limit: Annotated[int | None, "How many lines to read at most."] = None,
        *,
        context: ToolContext,
    ) -> ToolResult[str]:
        """Read a text file, or some of its lines."""
        most, characters = _limited(limit, self.limits.read_lines), self.limits.read_characters
        text = _filesystem(context).read(path, offset=offset, limit=most + 1)
        if not text:
            return self._nothing_to_read(_filesystem(context), path, offset)
        lines = text.split("\n")
        lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        shown, size = 0, 0
        while shown < min(most, len(lines)) and size + len(lines[shown]) <= characters:
            size += len(lines[shown])
            shown += 1
        first = offset + 1
        if shown == 0:
            message = f"Line {first} is {len(lines[0])} characters long; its first {characters} follow."
            if len(lines) > 1:
                message += f" Read on with offset={first}."
            return ToolResult(message, lines[0][:characters])
        complete = shown == len(lines)
        message = "" if complete and offset == 0 else f"Lines {first} to {offset + shown} of {path}."
        if not complete:
            message += f" More follow: read on with offset={offset + shown}."
        return ToolResult(message, "".join(lines[:shown]))

    def _nothing_to_read(self, fs: Filesystem, path: str, offset: int) -> ToolResult[str]:
        if offset == 0:
            return ToolResult(f"{path!r} is an empty file.")
        text = fs.read(path)
        count = text.count("\n") + (not text.endswith("\n") and text != "")
        raise ToolValidationError(f"offset {offset} is past the end: {path!r} has {count} lines")

    def glob(
        self,
        pattern: Annotated[str, "Such as '**/*.py' or 'src/*.{c,h}'; '**' matches any directories."],
        path: Annotated[str, "Directory to search, relative to the root."] = ".",
        *,
        context: ToolContext,
    ) -> ToolResult[str]:
        """Find files by a glob pattern."""
        paths = _filesystem(context).glob(pattern, path=path)
        if not paths:
            return ToolResult(f"No file matches {pattern!r} below {path!r}.")
        shown = paths[: self.limits.entries]
        cut = f"The first {len(shown)} of {len(paths)} files; narrow the pattern." if len(shown) < len(paths) else ""
        return ToolResult(cut, "\n".join(map(_printable, shown)))

    def grep(
        self,
        pattern: Annotated[str, "A regular expression (Python syntax), matched line by line."],
        path: Annotated[str, "File or directory to search, relative to the root."] = ".",
        glob: Annotated[str | None, "Search only files that match, such as '*.py'."] = None,
        limit: Annotated[int | None, "How many matching lines to return at most."] = None,
        *,
        context: ToolContext,
    ) -> ToolResult[str]:
        """Find lines in files by a regular expression."""
        most, width = _limited(limit, self.limits.matches), self.limits.line_characters
        found = _filesystem(context).grep(pattern, path=path, glob=glob, limit=most + 1)
        if not found:
            return ToolResult(f"No line matches {pattern!r} below {path!r}.")
        lines = [f"{_printable(each.path)}:{each.line_number}: {shortened(each.line, width)}" for each in found[:most]]
        cut = f"The first {most} matches; more follow: narrow the pattern, path or glob." if len(found) > most else ""
        return ToolResult(cut, "\n".join(lines))

    def write(
        self,
        path: Annotated[str, "File to write, relative to the root; missing directories are created."],
        content: Annotated[str, "The whole text to write."],
        mode: Annotated[
            Literal["create", "overwrite", "append"],
            "create: only if the file does not exist; overwrite: replace it; append: add to its end.",
        ] = "create",
        *,
        context: ToolContext,
    ) -> ToolResult[str]:
        """Write a text file."""
        self._check_size(content)
        try:
            _filesystem(context).write(path, content, mode=mode)
        except FileExistsError:
            raise ToolValidationError(
                f"{path!r} already exists; use edit to change it, or mode 'overwrite' to replace it"
            ) from None
        verb = "Appended to" if mode == "append" else "Wrote"
        return ToolResult(f"{verb} {path} ({len(content)} characters).")

    def edit(
        self,
        path: Annotated[str, "File to change, relative to the root."],
        old: Annotated[str, "The exact text to replace, with its whitespace; it must occur once."],
        new: Annotated[str, "The text to put in its place."],
        replace_all: Annotated[bool, "Replace every occurrence."] = False,
        *,
        context: ToolContext,
    ) -> ToolResult[str]:
        """Replace an exact piece of text in a file."""
        fs = _filesystem(context)
        text, count = _replace_exactly(fs.read(path), old, new, path=path, replace_all=replace_all)
        self._check_size(text)
        fs.write(path, text, mode="overwrite")
        return ToolResult(f"Replaced {count} {'piece' if count == 1 else 'pieces'} of text in {path}.")

    def rm(
        self,
        path: Annotated[str, "File or directory to delete, relative to the root."],
        recursive: Annotated[bool, "Delete a directory with everything in it."] = False,
        *,
        context: ToolContext,
    ) -> ToolResult[str]:
        """Delete a file or a directory."""
        _filesystem(context).delete(path, recursive=recursive)
        return ToolResult(f"Deleted {path}.")

    def _check_size(self, text: str) -> None:
        if len(text) > self.limits.write_characters:
            raise ToolValidationError(
                f"The file would have {len(text)} characters, more than {self.limits.write_characters}; split it"
            )


def _reporting(function: Callable[..., ToolResult[str]]) -> Callable[..., ToolResult[str]]:
    """The function with errors of the filesystem as failed results."""

    @wraps(function)
    def run(path: str = ".", *, context: ToolContext, **arguments: Any) -> ToolResult[str]:
        try:
            return function(path=path, context=context, **arguments)
        except NotFoundError as error:
            return ToolResult(f"{error}{_suggestion(_filesystem(context), path)}", success=False)
        except NotTextError:
            return ToolResult(f"{path!r} is not UTF-8 text; these tools read and write text only", success=False)
        except (FilesystemError, ToolValidationError) as error:
            return ToolResult(str(error), success=False)

    return run


def _for_readers(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of all tools for those that only read: "effects" is no question."""

    @wraps(rule)
    def asked(*arguments: Any, **named: Any) -> Any:
        return None if (found := rule(*arguments, **named)) == "effects" else found

    return asked


def _filesystem(context: ToolContext) -> Filesystem:
    if context.filesystem is None:
        raise ToolValidationError("This prompt has no filesystem.")
    return context.filesystem


def _limited(given: int | None, most: int) -> int:
    limit = most if given is None else min(given, most)
    if limit < 1:
        raise ToolValidationError(f"limit must be 1 or more, got {limit}")
    return limit


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
    """The new text and the number of replacements; an error names what to do instead."""
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
    path = _printable(entry.path)
    if entry.kind == "directory":
        return f"{path}/"
    return f"{path} ({entry.size} bytes)" if entry.kind == "file" else f"{path} ({entry.kind})"
