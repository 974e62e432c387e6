from __future__ import annotations

import shutil
import sys

import pytest

from tests.cli.conftest import Wink


def completed(wink: Wink, *words: str) -> list[str]:
    """What bash offers for the last word."""
    script = wink("completion", "bash").stdout
    line = " ".join(f"'{word}'" for word in ("wink", *words))
    script += f"\nwink() {{ '{sys.executable}' -m weakincentives.cli \"$@\"; }}"
    script += (
        f'\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}'
    )
    script += "\n_wink; echo ${COMPREPLY[@]}"
    return wink.process("bash", "-c", script).stdout.split()


@pytest.fixture(autouse=True)
def bash() -> None:
    if not shutil.which("bash"):
        pytest.skip("there is no bash")


def test_commands_are_completed(wink: Wink) -> None:
    assert completed(wink, "re") == ["render", "report"]


def test_options_of_a_command_are_completed(wink: Wink) -> None:
    assert completed(wink, "render", "desk:template", "--t") == ["--tag", "--tools"]


def test_a_command_is_not_taken_for_another_that_begins_alike(wink: Wink) -> None:
    assert "--queue" in completed(wink, "worker", "--")
    assert completed(wink, "work", "re") == ["retry"]


def test_inner_commands_and_choices_are_completed(wink: Wink) -> None:
    assert completed(wink, "overrides", "") == ["list", "show", "diff", "edit", "--help"]
    assert completed(wink, "completion", "z") == ["zsh"]


def test_every_shell_gets_every_command(wink: Wink) -> None:
    for shell in ("bash", "fish", "zsh"):
        script = wink("completion", shell).stdout
        assert all(name in script for name in ("render", "overrides", "--adapter" if shell != "fish" else "-l adapter"))


def test_sections_are_completed_from_the_prompt(wink: Wink) -> None:
    assert completed(wink, "render", "desk:template", "--open", "") == ["welcome", "house"]
    assert completed(wink, "overrides", "edit", "desk:template", "ho") == ["house"]
    assert completed(wink, "render", "nothing:here", "--open", "ho") == []


def test_tags_and_runs_are_completed_from_what_is_stored(wink: Wink) -> None:
    wink("overrides", "edit", "desk:template", "house", "--tag", "calm", "--from", "-", stdin="Calm.")
    assert completed(wink, "run", "desk:template", "--tag", "") == ["calm"]
    (wink.folder / "script.json").write_text('["Hello."]', encoding="utf-8")
    run_id = wink.json("run", "desk:template", "-p", "Guest.name=Ada", "-a", "scripted:script.json")["run_id"]
    assert completed(wink, "runs", "show", run_id[:4]) == [run_id]
    assert completed(wink, "view", "--run", run_id[:4]) == [run_id]


def test_an_unknown_shell_is_wrong_usage(wink: Wink) -> None:
    assert wink("completion", "cmd").returncode == 2
