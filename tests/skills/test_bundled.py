"""The skill for our own users; its examples run with those of the docs."""

from __future__ import annotations

from importlib.resources import files

import pytest

from weakincentives.prompt import PromptTemplate, SectionVisibility
from weakincentives.skills import BUNDLED, skill_folders, skill_sections, validate_skill


def test_it_is_valid_here_and_for_the_reference_validator() -> None:
    (folder,) = skill_folders(BUNDLED)
    assert validate_skill(folder) == []
    reference = pytest.importorskip("skills_ref", reason="skills-ref is the reference validator; see [test-full]")
    assert reference.validate(folder) == []


def test_it_opens_as_a_section_with_the_pages_for_porting() -> None:
    template = PromptTemplate(ns="t", key="t", sections=skill_sections(BUNDLED))
    opened = template.render(visibility_overrides={("building-with-weakincentives",): SectionVisibility.FULL}).text
    assert [node.key.partition(".")[2] for node in template.outline.nodes] == [
        "",
        "coming-from-openai-agents-sdk",
        "coming-from-pydantic-ai",
    ]
    assert 'call `read_section` with key "building-with-weakincentives.coming-from-pydantic-ai".' in opened


def test_it_is_found_as_package_data() -> None:
    skill = files("weakincentives.skills") / "bundled" / "building-with-weakincentives" / "SKILL.md"
    assert skill.read_text(encoding="utf-8").startswith("---\nname: building-with-weakincentives\n")
