"""Skill folders are valid for us if the reference validator finds them valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.skills.folders import PDF, TRIAGE, write
from weakincentives.skills import validate_skill

CASES = {
    "valid": "name: case\ndescription: Does.\ncompatibility: Python 3.11\nmetadata:\n  a: b",
    "quoted": "name: 'case'\ndescription: \"Does: much\"",
    "no name": "description: Does.",
    "no description": "name: case",
    "empty description": "name: case\ndescription: ''",
    "another name": "name: other\ndescription: Does.",
    "capitals": "name: Case\ndescription: Does.",
    "hyphens": "name: case--x\ndescription: Does.",
    "hyphen at the end": "name: case-\ndescription: Does.",
    "underscore": "name: case_x\ndescription: Does.",
    "long name": f"name: {'x' * 65}\ndescription: Does.",
    "longest description": f"name: case\ndescription: {'x' * 1024}",
    "long description": f"name: case\ndescription: {'x' * 1025}",
    "long compatibility": f"name: case\ndescription: Does.\ncompatibility: {'x' * 501}",
    "unknown field": "name: case\ndescription: Does.\nversion: 1",
    "no YAML": "name: case\ndescription: Deploy: now",
    "twice": "name: case\nname: case\ndescription: Does.",
}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES.keys())
def test_the_reference_validator_agrees(tmp_path: Path, fields: str) -> None:
    reference = pytest.importorskip("skills_ref", reason="skills-ref is the reference validator; see [test-full]")
    folder = write(tmp_path, {"case/SKILL.md": f"---\n{fields}\n---\n\nText."}) / "case"
    assert bool(validate_skill(folder)) == bool(reference.validate(folder))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Text.", "must start with front matter: '---', name and description, '---'."),
        ("---\nname: case\n---\n", "description must be text, got None."),
        (
            "---\nname: Case\ndescription: D\n---\n",
            "name must be of a-z, 0-9 and single hyphens between them, got 'Case'.",
        ),
        (
            f"---\nname: case\ndescription: {'x' * 1025}\n---\n",
            "description must have at most 1024 characters, got 1025.",
        ),
        ("---\nname: case\ndescription: D\nmodel: x\n---\n", "the specification has no field model; it has name, "),
        (
            "---\nname: case\ndescription: D: e\n---\n",
            "line 3, front matter: mapping values are not allowed",
        ),
    ],
)
def test_a_problem_names_the_file_and_the_rule(tmp_path: Path, text: str, problem: str) -> None:
    found = validate_skill(write(tmp_path, {"case/SKILL.md": text}) / "case")
    assert found[0].startswith(f"'{tmp_path}/case/SKILL.md'") and problem in found[0]


def test_a_folder_without_skill_file_is_named(tmp_path: Path) -> None:
    assert validate_skill(tmp_path) == [f"'{tmp_path}' has no SKILL.md."]


def test_valid_skills_have_no_problems(tmp_path: Path) -> None:
    folder = write(tmp_path, PDF | TRIAGE)
    assert (validate_skill(folder / "pdf"), validate_skill(folder / "triage")) == ([], [])
