from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import a_tool
from tests.skills.folders import BODY, PDF, TRIAGE, read, write
from weakincentives.prompt import MarkdownSection, PromptValidationError, Section, TextSection
from weakincentives.skills import export_skill, skill_sections, validate_skill


def shape(section: Section[Any]) -> Any:
    text = section.body_text()
    assert text is not None
    return section.key, section.title, section.summary, text.literals, [shape(child) for child in section.children]


@dataclass(frozen=True)
class Customer:
    name: str


def test_an_exported_skill_reads_as_the_same_sections_and_files(tmp_path: Path) -> None:
    before = skill_sections(write(tmp_path / "old", PDF | TRIAGE))
    for section in before:
        assert validate_skill(export_skill(section, tmp_path / "new")) == []
    after = skill_sections(tmp_path / "new")
    assert [shape(section) for section in after] == [shape(section) for section in before]
    assert [section.front_matter for section in after] == [section.front_matter for section in before]
    assert read(tmp_path / "new") == PDF | TRIAGE


def test_the_reference_validator_accepts_what_is_exported(tmp_path: Path) -> None:
    reference = pytest.importorskip("skills_ref", reason="skills-ref is the reference validator; see [test-full]")
    section = TextSection(
        key="cut-here", title="Cut", text="Text.\n\n---\n", summary="A --- in: \"it\", and a # and 'é'."
    )
    folder = export_skill(section, tmp_path)
    assert reference.validate(folder) == []
    assert reference.read_properties(folder).description == section.summary


def test_any_subtree_of_fixed_text_becomes_a_skill(tmp_path: Path) -> None:
    deep = TextSection(key="limits", title="Limits", text="At most $50.", summary="How much.")
    refunds = MarkdownSection(key="refunds", title="Refunds", template="Pay $$5.", summary="Pay.", children=[deep])
    desk = MarkdownSection(
        key="desk", title="Desk", template="Be kind.", summary="The desk's rules.", children=[refunds]
    )
    export_skill(desk, tmp_path)
    assert read(tmp_path) == {
        "desk/SKILL.md": '---\nname: desk\ndescription: "The desk\'s rules."\n---\n\n# Desk\n\nBe kind.\n',
        "desk/references/refunds.md": "---\nsummary: Pay.\n---\n\n# Refunds\n\nPay $5.\n",
        "desk/references/refunds.limits.md": "---\nsummary: How much.\n---\n\n# Limits\n\nAt most $50.\n",
    }


def test_an_exported_subtree_reads_as_the_same_sections(tmp_path: Path) -> None:
    forms = TextSection(key="forms", title="Forms", text="Fill `${name}`.\n\nAll of $5.", summary="Fill `${name}`.")
    before = TextSection(key="pdf", title="PDF", text=BODY, summary="Costs $5:\n- ${x}", children=[forms])
    export_skill(before, tmp_path)
    (after,) = skill_sections(tmp_path)
    assert (after.title, after.summary, [shape(child) for child in after.children]) == (
        "PDF",
        "Costs $5:\n- ${x}",
        [shape(forms)],
    )
    assert after.text == f"{BODY}\n\n`references/forms.md` is the subsection `forms`."


def test_tools_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    export_skill(TextSection(key="a", title="A", text="Use it.", summary="S.", tools=[a_tool("fill")]), tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        "The tools of 'a' are not part of the exported skill: fill"
    ]


class Clock(Section[None]):
    def render_body(self, params: None) -> str:
        return "noon"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (
            MarkdownSection[Customer](key="a", title="A", template="Hi ${name}", summary="S"),
            r"its text has .*\$\{name\}",
        ),
        (TextSection(key="a", title="A", text="T"), "Section 'a' cannot be exported: it has no summary; pass summary="),
        (Clock(key="a", title="A", summary="S"), "it is written by code, which has no fixed text"),
        (TextSection(key="a_b", title="A", text="T", summary="S"), "name must be of a-z, 0-9 and single hyphens"),
        (TextSection(key="a", title="A", text="T", summary="x" * 1025), "description must have at most 1024"),
    ],
)
def test_what_cannot_be_a_skill_is_refused_and_nothing_written(
    tmp_path: Path, section: Section[Any], problem: str
) -> None:
    with pytest.raises(PromptValidationError, match=problem):
        export_skill(section, tmp_path)
    assert read(tmp_path) == {}


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path, TRIAGE)
    with pytest.raises(PromptValidationError, match="triage' exists already; delete it"):
        export_skill(TextSection(key="triage", title="T", text="T", summary="S"), tmp_path)
