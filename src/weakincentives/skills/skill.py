"""Reads skill folders as sections, checks them against the Agent Skills specification, and writes them."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import LateContent, Section, SectionVisibility, TextSection, Tool
from weakincentives.prompt.markdown import own_filesystem
from weakincentives.prompt.pages import (
    Page,
    Value,
    check_keys,
    files_below,
    front_matter,
    is_hidden,
    is_page,
    leads_out,
    page_section,
    read_bytes,
    read_page,
    section_key,
    slug,
    summarize,
)
from weakincentives.resources import ResourceRegistry, ScopedResourceContext

BUNDLED = Path(__file__).parent / "bundled"
"""The folder with this library's own skills, for people who build with it."""

FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
LIMITS = {"name": 64, "description": 1024, "compatibility": 500}
MAX_LISTED = 30
SKILL_FILES = ("SKILL.md", "skill.md")

logger = logging.getLogger(__name__)


class SkillSection(TextSection[None]):
    """A skill: `SKILL.md` is its text, other pages are its children, `front_matter` is kept as data."""

    def __init__(self, name: str, folder: Path, page: Page, tools: Iterable[Tool[Any, Any]], mount: str) -> None:
        paths = _other_files(folder)
        pages = _page_keys(list(filter(_is_page, paths)))
        self.folder = folder
        self.front_matter = page.fields
        self.files = tuple(path.as_posix() for path in paths if path not in pages)
        self.mount = f"{mount}/{name}"
        notes = [f"`{path.as_posix()}` is the subsection `{key}`." for path, key in pages.items()]
        if self.files:
            listed = ", ".join(f"`{name}`" for name in self.files[:MAX_LISTED])
            more = ", ..." if len(self.files) > MAX_LISTED else ""
            notes.append(f"Files of this skill, in `{self.mount}/` of the workspace: {listed}{more}.")
        super().__init__(
            key=name,
            title=page.title,
            text="\n".join([page.text, "", *notes]).strip("\n"),
            summary=page.summary,
            visibility=SectionVisibility.SUMMARY,
            tools=tools,
            children=[page_section(key, read_page(folder, path, path.stem)) for path, key in pages.items()],
        )


class SkillWithFiles(SkillSection):
    """A skill whose other files are copied to `<mount>/<name>/` in the prompt's filesystem when it is opened."""

    loads_tools = False

    def resources(self) -> ResourceRegistry:
        return own_filesystem()

    def stored(self) -> LateContent:
        """Opening a skill copies its files and adds nothing else."""
        return LateContent()

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        workspace = resources.get(Filesystem)
        for name in self.files:
            data, target = read_bytes(self.folder, name), f"{self.mount}/{name}"
            if not workspace.exists(target) or workspace.read_bytes(target) != data:
                workspace.write(target, data)
        return None


def skill_sections(
    folder: str | PathLike[str],
    *,
    tools: Mapping[str, Iterable[Tool[Any, Any]]] | None = None,
    mount: str = "skills",
    strict: bool = True,
) -> list[SkillSection]:
    """A summarized section for each skill in a folder, or for the folder itself if it is a skill.

        PromptTemplate(ns="desk", key="clerk", sections=[*skill_sections(".claude/skills"), VfsToolsSection()])

    `tools` maps the names of skills to their tools. A skill that breaks a rule of the specification raises an error;
    with `strict=False` it is logged, and the skill is loaded if that is possible, else left out.
    """
    given = dict(tools or {})
    sections: dict[str, SkillSection] = {}
    for skill in skill_folders(folder):
        try:
            key = section_key(skill.absolute().name, skill)
            own = given.pop(key, ())
            if key in sections:
                check_keys([(key, sections[key].folder), (key, skill)])
            if skill != Path(folder) and skill.is_symlink():
                raise PromptValidationError(
                    f"'{skill}' is a symbolic link that leads out of '{folder}'; put a copy in its place."
                )
            page, problems = _read(skill)
            if strict and problems:
                raise PromptValidationError("\n".join(problems))
            for problem in problems:
                logger.warning("%s", problem)
            if page.fields.get("disable-model-invocation") != "true":
                kind = SkillSection if all(map(_is_page, files_below(skill))) else SkillWithFiles
                sections[key] = kind(key, skill, page, own, mount)
        except PromptValidationError as error:
            if strict:
                raise PromptValidationError(f"{error}\nCorrect it, or pass strict=False to load the rest.") from error
            logger.warning("The skill '%s' is left out: %s", skill, error)
    if given:
        names = ", ".join(sections)
        raise PromptValidationError(f"tools= names no skill of '{folder}': {', '.join(given)}; it has {names}.")
    return list(sections.values())


def skill_folders(folder: str | PathLike[str]) -> list[Path]:
    """The skills in a folder, or the folder itself if it is one."""
    root = Path(folder)
    if _skill_file(root):
        return [root]
    try:
        inner = sorted(path for path in root.iterdir() if not is_hidden(path.name) and _skill_file(path))
    except OSError as error:
        raise PromptValidationError(f"'{root}' cannot be read: {error.strerror}; pass a folder.") from error
    # A link within the folder is another name of a skill that is found anyway.
    found = [path for path in inner if not path.is_symlink() or leads_out(path, root)]
    if not found:
        raise PromptValidationError(f"'{root}' has no skills; pass a folder of folders with a SKILL.md.")
    return found


def validate_skill(folder: str | PathLike[str]) -> list[str]:
    """How a skill folder breaks the rules of the Agent Skills specification; an empty list if it is valid."""
    try:
        return _read(Path(folder))[1]
    except PromptValidationError as error:
        return [str(error)]


def export_skill(section: Section[Any], folder: str | PathLike[str]) -> Path:
    """Write a section as the skill `<folder>/<key>/`, its descendants as pages in `references/`, and return the path.

    A `SkillSection` is copied unchanged. For other sections, only text without placeholders can be exported. Tools are
    not part of a skill; a warning names them.
    """
    target, parts = Path(folder) / section.key, dict(_descendants(section))
    if target.exists():
        raise PromptValidationError(f"'{target}' exists already; delete it or export to another folder.")
    for name, content in skill_files(section, section.key).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
        if isinstance(section, SkillSection):
            shutil.copymode(section.folder / name, target / name)
    if names := [tool.name for part in (section, *parts.values()) for tool in part.tools()]:
        logger.warning("The tools of '%s' are not part of the exported skill: %s", section.key, ", ".join(names))
    return target


def skill_files(section: Section[Any], name: str) -> dict[str, bytes]:
    """The files of a section as a skill with this name, by path; a `SkillSection` has its own name and files."""
    if isinstance(section, SkillSection):
        return {path.as_posix(): read_bytes(section.folder, path) for path in files_below(section.folder)}
    files = {"SKILL.md": _skill_page(section, name).encode()}
    for key, part in _descendants(section):
        text, summary = _literal(part, "text"), _literal(part, "summary")
        head = "" if summary == summarize(text, part.title) else front_matter({"summary": summary}) + "\n"
        files[f"references/{key}.md"] = f"{head}# {part.title}\n\n{text}\n".encode()
    return files


def _skill_page(section: Section[Any], name: str) -> str:
    fields = {"name": name, "description": _literal(section, "summary")}
    if problems := list(_problems(fields, Path(name), name)):
        raise PromptValidationError("\n".join(problems))
    return f"{front_matter(fields)}\n# {section.title}\n\n{_literal(section, 'text')}\n"


def _read(folder: Path) -> tuple[Page, list[str]]:
    """The page of a skill, and the rules it breaks."""
    path = _skill_file(folder)
    if path is None:
        raise PromptValidationError(f"'{folder}' has no SKILL.md.")
    name = folder.absolute().name
    page = read_page(folder, path.name, name)
    return page, list(_problems(page.fields, path, name))


def _problems(fields: Mapping[str, Value], path: Path, folder: str) -> Iterator[str]:
    if not fields:
        yield f"'{path}' must start with front matter: '---', name and description, '---'."
        return
    if unknown := [name for name in fields if name not in FIELDS]:
        yield f"'{path}': the specification has no field {', '.join(unknown)}; it has {', '.join(FIELDS)}."
    for field, limit in LIMITS.items():
        value = fields.get(field)
        if value is None and field == "compatibility":
            continue
        if not isinstance(value, str) or not value.strip():
            yield f"'{path}': {field} must be text, got {value!r}."
        elif len(value) > limit:
            yield f"'{path}': {field} must have at most {limit} characters, got {len(value)}."
    name = fields.get("name")
    if isinstance(name, str) and name:
        if not NAME.fullmatch(name):
            yield f"'{path}': name must be of a-z, 0-9 and single hyphens between them, got {name!r}."
        if name != folder:
            yield f"'{path}': name must be that of its folder, {folder!r}, got {name!r}."


def _skill_file(folder: Path) -> Path | None:
    return next((path for path in (folder / name for name in SKILL_FILES) if os.path.lexists(path)), None)


def _is_page(path: Path) -> bool:
    """True if a skill's file is text for the model: Markdown that is not under `assets` or `scripts`."""
    return is_page(path) and path.parts[0] not in ("assets", "scripts")


def _other_files(folder: Path) -> list[Path]:
    """The files of a skill without the one that is its text; there may be both a `SKILL.md` and a `skill.md`."""
    paths = files_below(folder)
    for name in SKILL_FILES:
        if Path(name) in paths:
            paths.remove(Path(name))
            break
    return paths


def _page_keys(paths: Sequence[Path]) -> dict[Path, str]:
    """A key for each page, which depends on nothing but the names of the skill's pages.

    It is made from the path, without the folder `references`. If that key is taken, or the path has no letters for one,
    the whole path makes it, and at last a digest of the path.
    """
    keys: dict[Path, str] = {}
    taken = {""}
    for path in sorted(paths, key=_precedence):
        for key in _possible_keys(path):
            if key not in taken:
                keys[path] = key
                taken.add(key)
                break
    return {path: keys[path] for path in paths}


def _precedence(path: Path) -> tuple[bool, bool, Path]:
    """Pages whose name is their key come first, then those outside of `references`."""
    name = "-".join(_named_parts(path))
    return slug(name) != name, _named_parts(path) != path.with_suffix("").parts, path


def _possible_keys(path: Path) -> Iterator[str]:
    whole = slug("-".join(path.with_suffix("").parts))
    yield slug("-".join(_named_parts(path)))
    yield whole
    digest = hashlib.sha256(path.as_posix().encode()).hexdigest()
    for length in range(8, len(digest)):
        yield f"{whole[: 63 - length] or 'page'}-{digest[:length]}"[:64]


def _named_parts(path: Path) -> tuple[str, ...]:
    parts = path.with_suffix("").parts
    if len(parts) > 1 and parts[0] in ("references", "reference"):
        return parts[1:]
    return parts


def _descendants(section: Section[Any], above: str = "") -> Iterator[tuple[str, Section[Any]]]:
    for child in section.children:
        yield above + child.key, child
        yield from _descendants(child, f"{above}{child.key}.")


def _literal(section: Section[Any], what: str) -> str:
    """A section's text or summary, which must be the same in every run."""
    text = section.body_text() if what == "text" else section.summary_text()
    if text is None:
        why = "has no summary; pass summary=..." if what == "summary" else "is written by code, which has no fixed text"
        raise PromptValidationError(f"Section '{section.key}' cannot be exported: it {why}.")
    if text.names:
        raise PromptValidationError(
            f"Section '{section.key}' cannot be exported: its {what} has the placeholder ${{{text.names[0]}}}."
        )
    return text.literals[0]
