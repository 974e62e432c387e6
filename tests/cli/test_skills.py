from __future__ import annotations

from tests.cli.conftest import Wink


def test_the_skill_of_this_library_is_installed_and_valid(wink: Wink) -> None:
    done = wink("skills", "install")
    assert (done.returncode, done.stdout) == (0, ".claude/skills/building-with-weakincentives\n")
    assert wink("skills", "check", ".claude/skills").returncode == 0
    assert wink("skills", "install", ".claude/skills").returncode == 0


def test_a_broken_rule_is_printed_with_its_file(wink: Wink) -> None:
    (wink.folder / "own").mkdir()
    (wink.folder / "own" / "SKILL.md").write_text("---\nname: own\n---\nText.", encoding="utf-8")
    done = wink("skills", "check", "own")
    assert (done.returncode, done.stderr) == (1, "'own/SKILL.md': description must be text, got None.\n")


def test_a_folder_without_skills_is_named(wink: Wink) -> None:
    done = wink("skills", "check", ".")
    assert (done.returncode, "'.' has no skills; pass a folder of folders with a SKILL.md" in done.stderr) == (1, True)
