"""Agent Skills: folders with a `SKILL.md`, as sections and back."""

from weakincentives.skills.skill import (
    BUNDLED,
    SkillSection,
    export_skill,
    skill_folders,
    skill_sections,
    validate_skill,
)

__all__ = ["BUNDLED", "SkillSection", "export_skill", "skill_folders", "skill_sections", "validate_skill"]
