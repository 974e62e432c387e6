"""Agent Skills: reads folders with a `SKILL.md` as sections, and writes sections as skills."""

from weakincentives.prompt.pages import split_front_matter
from weakincentives.skills.skill import (
    BUNDLED,
    SkillSection,
    export_skill,
    skill_files,
    skill_folders,
    skill_sections,
    validate_skill,
)

__all__ = [
    "BUNDLED",
    "SkillSection",
    "export_skill",
    "skill_files",
    "skill_folders",
    "skill_sections",
    "split_front_matter",
    "validate_skill",
]
