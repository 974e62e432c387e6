"""Sections made from markdown files: one page, or a folder of them.

Front matter is the YAML between two `---` lines at the top of a page. PyYAML reads it, but only pages that have some
need the package. Every scalar is text, so `version: 1.10` stays `1.10`.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count, groupby
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from weakincentives._base.imports import import_extra
from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import FilesystemError, HostFilesystem
from weakincentives.prompt.markdown import TextSection
from weakincentives.prompt.visibility import SectionVisibility

Value = str | list["Value"] | dict[str, "Value"]

MAX_SUMMARY = 300
# People write a few lines and a few levels; the limits keep a hostile folder from taking minutes or the whole stack.
MAX_FRONT_MATTER = 50_000
MAX_DEPTH = 32

_HIDDEN = (".", "__pycache__")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_NO_PROSE = re.compile(r"\s*(?:#|<|!\[|\[!\[|\||---|\*\*\*|===)")
_BLOCK = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"""(?:"[^"]*"|'[^']*'|\w[^:]*):(?:\s|$)""")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_ ,.;()/+-]*")
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null"})


def markdown_sections(folder: str | PathLike[str], *, headings: bool = False) -> list[TextSection[None]]:
    """A summarized section of literal text for each markdown file in a folder, or for a single file.

        PromptTemplate(ns="shop", key="desk", sections=markdown_sections("handbook"))

    The summary is `summary` or `description` of the front matter, or the first paragraph. A subfolder is a section with
    its pages as children, and `index.md` or `README.md` as its text; with `headings`, the parts of a page are children
    too. Keys are made from file names and headings. `AGENTS.md` is shown in full.
    """
    root = Path(folder)
    if not root.is_dir() and os.path.lexists(root):
        file = Path(os.path.realpath(root))
        return [_file_section(root, read_page(file.parent, file.name, _title(root.stem)), headings)]
    pages = list(filter(is_page, files_below(root)))
    if not pages:
        raise PromptValidationError(f"'{root}' has no markdown files (*.md); pass a folder that has some.")
    return _sections(root, Path(), pages, headings)


@dataclass(frozen=True, slots=True)
class Page:
    """A markdown file: its title, the text below front matter and title, its summary, and the front matter."""

    title: str
    text: str
    summary: str
    fields: Mapping[str, Value] = field(default_factory=dict)


def read_page(root: Path, file: str | PathLike[str], name: str) -> Page:
    """Read a markdown file of a folder; a page without a title or heading is named after its file."""
    path = root / file
    try:
        text = read_bytes(root, file).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise PromptValidationError(f"'{path}' is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    fields, text = split_front_matter(text, f"'{path}'")
    text = text.strip("\n")
    first, _, rest = text.partition("\n")
    given = {name: value.strip() for name, value in fields.items() if isinstance(value, str)}
    level, title = _heading(first)
    if level == 1 and given.get("title", title) == title:
        text, name = rest.strip("\n"), title
    title = " ".join(given.get("title", "").split()) or name
    return Page(title, text, given.get("summary") or given.get("description") or summarize(text, title), fields)


def section_key(name: str, path: Path) -> str:
    """The name of a file as a section key."""
    key = slug(name)
    if not key:
        raise PromptValidationError(f"'{path}' does not yield a section key; rename it with letters a-z or digits.")
    return key


def summarize(text: str, title: str) -> str:
    """The first paragraph of prose, shortened to a few lines; the title if there is none."""
    words: list[str] = []
    for _, line, is_code in _lines(text):
        if is_code or not line.strip() or _NO_PROSE.match(line):
            if words:
                break
        else:
            words += line.split()
    paragraph = " ".join(words)
    if len(paragraph) > MAX_SUMMARY:
        paragraph = paragraph[:MAX_SUMMARY].rpartition(" ")[0] + " ..."
    return paragraph or title


def read_bytes(root: Path, file: str | PathLike[str]) -> bytes:
    """The content of a file of a folder, which may have been replaced by a link or a pipe since it was listed."""
    try:
        return HostFilesystem(root).read_bytes(Path(file).as_posix())
    except FilesystemError as error:
        raise PromptValidationError(f"'{root / file}' cannot be read: {error}.") from error


def files_below(root: Path) -> list[Path]:
    """The files below a folder, except hidden ones, as sorted relative paths.

    Links that lead out of the folder are refused, as are pipes and other special files; links to folders are not
    followed.
    """
    found: list[Path] = []
    folders = [root]
    while folders:
        for entry in _entries(folder := folders.pop()):
            path = folder / entry.name
            if entry.name.encode(errors="replace").decode() != entry.name:
                raise PromptValidationError(f"{str(path)!r} has a name that is not UTF-8; rename it.")
            if entry.is_dir(follow_symlinks=False):
                if len(path.relative_to(root).parts) > MAX_DEPTH:
                    raise PromptValidationError(f"'{path}' is more than {MAX_DEPTH} folders deep; move its files up.")
                folders.append(path)
            elif entry.is_symlink() and leads_out(path, root):
                raise PromptValidationError(
                    f"'{path}' is a symbolic link that leads out of '{root}'; put a copy in its place."
                )
            elif entry.is_file(follow_symlinks=False) or os.path.isfile(path):
                found.append(path.relative_to(root))
            elif not os.path.isdir(path):
                raise PromptValidationError(f"'{path}' is not a file, or a link that leads to none; remove it.")
    return sorted(found)


def leads_out(path: Path, root: Path) -> bool:
    """True if a path, with links resolved, is not below a folder."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def is_hidden(name: str) -> bool:
    return name.startswith(_HIDDEN)


def is_page(path: Path) -> bool:
    return path.suffix.lower() in (".md", ".markdown")


def check_keys(found: Iterable[tuple[str, Path]]) -> None:
    """Reject two files that would have the same key."""
    seen: dict[str, Path] = {}
    for key, path in found:
        if (twin := seen.setdefault(key, path)) != path:
            raise PromptValidationError(f"'{twin}' and '{path}' would both be the section '{key}'; rename one of them.")


def page_section(
    key: str,
    page: Page,
    children: Iterable[TextSection[None]] = (),
    visibility: SectionVisibility = SectionVisibility.SUMMARY,
) -> TextSection[None]:
    """A page as a section of literal text."""
    return TextSection(
        key=key, title=page.title, text=page.text, summary=page.summary, children=children, visibility=visibility
    )


def split_front_matter(text: str, where: str) -> tuple[dict[str, Value], str]:
    """The fields of a page's front matter, and the text below it; a page without front matter is all text."""
    block = _BLOCK.match(text)
    lines = block[1].split("\n") if block else [text]
    first = next((line for line in lines if _COMMENT.sub("", line).strip()), "a:")
    if block is None or not _KEY.match(first):
        return {}, text
    if len(block[1]) > MAX_FRONT_MATTER:
        raise PromptValidationError(
            f"{where}: front matter must have at most {MAX_FRONT_MATTER:,} characters, got {len(block[1]):,}; move the "
            "rest to the text."
        )
    return _fields(block[1], where), text[block.end() :]


def front_matter(fields: Mapping[str, str]) -> str:
    """The fields as front matter, which every YAML parser accepts."""
    return "".join(["---\n", *(f"{key}: {_scalar(text)}\n" for key, text in fields.items()), "---\n"])


def _sections(root: Path, folder: Path, pages: Iterable[Path], headings: bool) -> list[TextSection[None]]:
    """The sections of a folder below the root; `pages` are its files, relative to the root."""
    found: dict[Path, TextSection[None]] = {}
    for name, group in groupby(pages, lambda page: page.parts[len(folder.parts)]):
        path, inner = folder / name, list(group)
        found[root / path] = (
            _file_section(root / path, read_page(root, path, _title(path.stem)), headings)
            if inner == [path]
            else _folder_section(root, path, inner, headings)
        )
    check_keys((section.key, path) for path, section in found.items())
    return list(found.values())


def _file_section(path: Path, page: Page, headings: bool) -> TextSection[None]:
    page, children = _split(page) if headings else (page, [])
    shown = SectionVisibility.FULL if path.name == "AGENTS.md" else SectionVisibility.SUMMARY
    return page_section(section_key(path.stem, path), page, children, shown)


def _folder_section(root: Path, folder: Path, pages: list[Path], headings: bool) -> TextSection[None]:
    own = {page.name.lower(): page for page in pages if page.parent == folder}
    index = own.get("index.md") or own.get("readme.md")
    children = _sections(root, folder, [page for page in pages if page != index], headings)
    page = Page(_title(folder.name), "", ", ".join(child.title for child in children))
    if index is not None:
        page = read_page(root, index, page.title)
    return page_section(section_key(folder.name, root / folder), page, children)


def _split(page: Page) -> tuple[Page, list[TextSection[None]]]:
    """The page above its first heading, and a section for each heading of the highest level."""
    found = [(start, *_heading(line)) for start, line, is_code in _lines(page.text) if not is_code]
    top = min((level for _, level, _ in found if level), default=0)
    marks = [(start, title) for start, level, title in found if level and level == top]
    starts = [*(start for start, _ in marks), len(page.text)]
    sections: dict[str, TextSection[None]] = {}
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))
    for (start, title), end in zip(marks, starts[1:], strict=True):
        text = page.text[start:end].partition("\n")[2].strip("\n")
        part, children = _split(Page(title, text, summarize(text, title)))
        wanted = slug(title) or "part"
        numbered = (f"{wanted[:58]}-{number}" for number in numbers[wanted[:58]])
        key = next(key for key in chain([wanted], numbered) if key not in sections)
        sections[key] = page_section(key, part, children)
    return replace(page, text=page.text[: starts[0]].strip("\n")), list(sections.values())


def _heading(line: str) -> tuple[int, str]:
    """The level and text of a heading; level 0 for any other line."""
    match = _HEADING.match(line)
    if match is None:
        return 0, ""
    title = match[2].rstrip()
    bare = title.rstrip("#")
    return len(match[1]), bare.rstrip() if bare.endswith((" ", "\t")) else title


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Each line with its position, and whether it is code."""
    position, fence = 0, ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        is_code = bool(fence or mark)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
        yield position, line, is_code
        position += len(line) + 1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not is_hidden(entry.name)]
    except OSError as error:
        raise PromptValidationError(f"'{folder}' cannot be read: {error.strerror}; pass a folder.") from error


def slug(name: str) -> str:
    """A name in the letters of a section key; empty if it has none of them."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_]+", "-", ascii_name)[:64].strip("-_")


def _title(name: str) -> str:
    words = re.sub(r"[-_]+", " ", name).strip() or name
    return words[0].upper() + words[1:]


def _scalar(text: str) -> str:
    # Some parsers end the front matter at any `---`.
    if _PLAIN.fullmatch(text) and "---" not in text and text == text.strip() and text.lower() not in _NOT_TEXT:
        return text
    quoted = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))
    return quoted.replace("---", "\\u002d--")


def _fields(block: str, where: str) -> dict[str, Value]:
    """The fields of a block of YAML; refuses aliases, with which a few lines can stand for gigabytes."""
    yaml: Any = import_extra("yaml", "skills", f"The front matter of {where}")
    seen: set[int] = set()

    def fail(mark: Any, why: str) -> NoReturn:
        line = f", line {mark.line + 2}" if mark else ""
        raise PromptValidationError(f"{where}{line}, front matter: {why}.")

    def value(node: Any) -> Value:
        if id(node) in seen:
            fail(node.start_mark, "aliases are not supported; write the value again")
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        return [value(item) for item in node.value] if isinstance(node, yaml.SequenceNode) else mapping(node)

    def mapping(node: Any) -> dict[str, Value]:
        fields: dict[str, Value] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                fail(key.start_mark, "a key must be text")
            if key.value in fields:
                fail(key.start_mark, f"the key {key.value!r} is there twice")
            fields[key.value] = value(item)
        return fields

    try:
        root = yaml.compose(block, Loader=yaml.BaseLoader)
        return {} if root is None else mapping(root)
    except RecursionError:
        raise PromptValidationError(f"{where}: front matter is nested too deeply; use fewer levels.") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        why = getattr(error, "problem", None) or str(error).partition("\n")[0]
        fail(getattr(error, "problem_mark", None), f"{why}; put text with special characters in quotes")
