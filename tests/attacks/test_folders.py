"""Folders of pages and skills made to hang, crash or leak: each is refused by name, in little time."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.disclosure.desk import answers
from tests.skills.folders import PDF, TRIAGE, read, write
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import Prompt, PromptTemplate, PromptValidationError, markdown_sections
from weakincentives.session import Session
from weakincentives.skills import export_skill, skill_sections

MOST_SECONDS = 5
SECRET = "hunter2"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def two_links_in_a_circle(path: Path) -> None:
    path.symlink_to("other.md")
    path.with_name("other.md").symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("missing.md")


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe.md"))
    path.symlink_to("pipe.md")


def link_out(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def name_not_utf8(path: Path) -> None:
    Path(os.fsdecode(os.fsencode(path.with_suffix("")) + b"\xff.md")).write_text("Text.")


def not_utf8(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


def nested_folders(path: Path) -> None:
    deep = path.with_suffix("").joinpath(*["d"] * 200)
    deep.mkdir(parents=True)
    (deep / "page.md").write_text("Text.")


def deep_front_matter(path: Path) -> None:
    path.write_text("---\n" + "".join(f"{' ' * level}k:\n" for level in range(2800)) + "---\n")


def long_front_matter(path: Path) -> None:
    path.write_text("---\n" + "".join(f"key{number}: value\n" for number in range(250_000)) + "---\n")


def open_brackets(path: Path) -> None:
    path.write_text("---\na: " + "[" * 49_000 + "\n---\n")


def exploding_aliases(path: Path) -> None:
    """Lists of lists, each twice in the next: 2 ** 60 values if written out."""
    lists = "".join(f"k{level}: &k{level} [*k{level - 1}, *k{level - 1}]\n" for level in range(1, 60))
    path.write_text(f"---\nk0: &k0 [x, x]\n{lists}---\n")


FRONT_MATTER = [deep_front_matter, long_front_matter, open_brackets, exploding_aliases]
FAULTS = [
    pipe,
    link_to_itself,
    two_links_in_a_circle,
    link_to_nothing,
    link_to_a_pipe,
    link_out,
    name_not_utf8,
    not_utf8,
    nested_folders,
    *FRONT_MATTER,
]
Fault = Callable[[Path], None]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_page_that_cannot_be_read_is_named_at_once(tmp_path: Path, fault: Fault) -> None:
    write(tmp_path, {"good.md": "Text."})
    fault(tmp_path / "bad.md")
    begun = time.process_time()
    with pytest.raises(PromptValidationError, match=r"bad|other\.md|pipe\.md"):
        markdown_sections(tmp_path)
    assert time.process_time() - begun < MOST_SECONDS


@pytest.mark.parametrize("fault", [pipe, link_to_itself, link_to_nothing, link_to_a_pipe, not_utf8])
def test_a_single_file_that_cannot_be_read_is_named(tmp_path: Path, fault: Fault) -> None:
    fault(tmp_path / "bad.md")
    with pytest.raises(PromptValidationError, match=r"(bad|missing|pipe)\.md' (cannot be read|is not UTF-8)"):
        markdown_sections(tmp_path / "bad.md")


def test_equal_headings_take_time_in_proportion_to_their_number(tmp_path: Path) -> None:
    write(tmp_path, {"a.md": "".join(f"# Same heading {'x' * 60}\n\nText.\n" for _ in range(20_000))})
    begun = time.process_time()
    (page,) = markdown_sections(tmp_path, headings=True)
    assert time.process_time() - begun < MOST_SECONDS
    assert len({part.key for part in page.children}) == 19_999


@pytest.mark.parametrize("place", ["SKILL.md", "references/bad.md", "scripts/bad.md"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_skill_leaves_the_others_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault, place: str
) -> None:
    """Front matter and encoding of files that are not pages do not matter."""
    harmless = place.startswith("scripts/") and fault in (not_utf8, *FRONT_MATTER)
    write(tmp_path, TRIAGE | {"bad/SKILL.md": "---\nname: bad\ndescription: Does.\n---\nText."})
    path = tmp_path / "bad" / place
    path.parent.mkdir(exist_ok=True)
    if place == "SKILL.md" and fault is not name_not_utf8:
        path.unlink()
        if fault is nested_folders:
            path.mkdir()
            path /= "bad.md"
    fault(path)
    if not harmless:
        with pytest.raises(PromptValidationError, match=r"bad(?s:.*)pass strict=False"):
            skill_sections(tmp_path)
    with caplog.at_level(logging.WARNING):
        keys = [section.key for section in skill_sections(tmp_path, strict=False, tools={"bad": []})]
    assert keys == (["bad", "triage"] if harmless else ["triage"])
    assert harmless or f"The skill '{tmp_path}/bad' is left out: " in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: bad\ndescription: Use it: often\n---\nText.",
        "---\nname: [bad\ndescription: Does.\n---\nText.",
        "---\nname: bad\nname: bad\ndescription: Does.\n---\nText.",
    ],
)
def test_a_skill_with_malformed_front_matter_leaves_the_others_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    write(tmp_path, {"bad/SKILL.md": text} | TRIAGE)
    with caplog.at_level(logging.WARNING):
        assert [section.key for section in skill_sections(tmp_path, strict=False)] == ["triage"]
    assert f"The skill '{tmp_path}/bad' is left out: '{tmp_path}/bad/SKILL.md', line" in caplog.text


def test_skills_whose_folders_have_one_key_or_none_leave_the_others_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = TRIAGE["triage/SKILL.md"]
    write(tmp_path / "skills", TRIAGE | {"Triage/SKILL.md": page, "日本/SKILL.md": page})
    write(tmp_path, {"elsewhere/SKILL.md": page})
    (tmp_path / "skills" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "skills" / "again").symlink_to("triage")
    with caplog.at_level(logging.WARNING):
        (section,) = skill_sections(tmp_path / "skills", strict=False)
    assert section.key == "triage"
    assert [text.partition(" is left out: ")[0] for text in caplog.messages if "left out" in text] == [
        f"The skill '{tmp_path}/skills/{name}'" for name in ("linked", "triage", "日本")
    ]


def replace_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parents[3] / "secret.txt")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_its_folder_by_a_link(path: Path) -> None:
    folder, elsewhere = path.parent, path.parents[3] / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / path.name).write_text(SECRET)
    path.unlink()
    folder.rmdir()
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("swap", [replace_by_link, replace_by_pipe, replace_its_folder_by_a_link])
def test_a_file_that_is_replaced_after_loading_is_neither_copied_nor_exported(
    tmp_path: Path, swap: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    write(tmp_path / "skills", PDF)
    (section,) = skill_sections(tmp_path / "skills")
    swap(tmp_path / "skills/pdf/scripts/fill.py")
    workspace, session = InMemoryFilesystem(), Session()
    prompt = Prompt(PromptTemplate(ns="t", key="clerk", sections=[section])).bind(resources={Filesystem: workspace})
    ScriptedAdapter([call("read_section", section_key="pdf"), "Hi."]).evaluate(prompt, session=session)
    success, text = answers(session)[0]
    assert not success and text == "Section 'pdf' cannot be opened now; go on without it."
    assert SECRET not in caplog.text and "fill.py" in caplog.text
    assert SECRET not in "".join(workspace.read(path) for path in workspace.glob("**"))
    with pytest.raises(PromptValidationError, match=r"scripts"):
        export_skill(section, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_exported_skill_has_the_files_and_their_modes(tmp_path: Path) -> None:
    write(tmp_path / "skills", PDF | {"pdf/.hidden": "", "pdf/scripts/__pycache__/x.pyc": ""})
    (tmp_path / "skills/pdf/scripts/fill.py").chmod(0o755)
    (section,) = skill_sections(tmp_path / "skills")
    target = export_skill(section, tmp_path / "out")
    assert read(tmp_path / "out") == PDF
    assert (target / "scripts/fill.py").stat().st_mode & 0o777 == 0o755
