"""A CLI that is missing, too old, or cannot take up new tools."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import prompt, section
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.adapters.claude_agent_sdk.adapter import disprove, follows_list_changes
from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel, Settings
from weakincentives.adapters.claude_agent_sdk.cli import MIN_VERSION, Cli, find_cli, permissions
from weakincentives.errors import PromptEvaluationError
from weakincentives.session import Session
from weakincentives.tools.web_search import WebSearchSection


def program(folder: Path, text: str) -> Path:
    path = folder / "claude"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_missing_cli_is_named_with_the_way_out(tmp_path: Path) -> None:
    adapter = ClaudeAgentSDKAdapter(cli_path=tmp_path / "nowhere")
    with pytest.raises(PromptEvaluationError, match=r"No Claude Code CLI at .*nowhere.*weakincentives\[claude\]"):
        adapter.evaluate(prompt(section("task")), session=Session())
    assert not adapter.supports_dynamic_tools


def test_a_cli_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    adapter = ClaudeAgentSDKAdapter(cli_path=program(tmp_path, "echo '1.0.3 (Claude Code)'"))
    with pytest.raises(PromptEvaluationError, match=r"is version 1\.0\.3, but this adapter needs 2\.1\.325"):
        adapter.evaluate(prompt(section("task")), session=Session())


def test_a_cli_that_dies_says_what_it_said(tmp_path: Path) -> None:
    path = program(tmp_path, 'if [ "$1" = --version ]; then echo 9.9.9; else echo out of memory >&2; exit 1; fi')
    adapter = ClaudeAgentSDKAdapter(cli_path=path, dynamic_tools=True)
    with pytest.raises(PromptEvaluationError, match="out of memory"):
        adapter.evaluate(prompt(section("task")), session=Session())


INITIALIZED_AND_GONE = """
import json, sys
asked = json.loads(sys.stdin.readline())
answer = {"subtype": "success", "request_id": asked["request_id"], "response": {}}
print(json.dumps({"type": "control_response", "response": answer}), flush=True)
"""


def test_a_cli_that_ends_before_it_lists_our_tools_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(INITIALIZED_AND_GONE)
    run = f"exec {sys.executable} -S {tmp_path}/program.py"
    path = program(tmp_path, f'if [ "$1" = --version ]; then echo 9.9.9; else {run}; fi')
    adapter = ClaudeAgentSDKAdapter(api_key="not-a-key", cli_path=path, dynamic_tools=True)
    with pytest.raises(PromptEvaluationError, match="it ended before it listed our tools"):
        adapter.evaluate(prompt(section("task")), session=Session())


def test_a_cli_that_says_the_key_does_not_say_it_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "correct horse battery")
    said = 'echo "using $ANTHROPIC_API_KEY, $MY_TOKEN and correct horse battery" >&2; exit 1'
    path = program(tmp_path, f'if [ "$1" = --version ]; then echo 9.9.9; else {said}; fi')
    env = {"MY_TOKEN": "0123456789abcdef"}
    adapter = ClaudeAgentSDKAdapter(api_key="key-7-0123456789", env=env, cli_path=path, dynamic_tools=True)
    with pytest.raises(PromptEvaluationError, match="using ") as caught:
        adapter.evaluate(prompt(section("task")), session=Session())
    shown = "".join(traceback.format_exception(caught.value))
    assert [secret for secret in ("key-7", "0123456789abcdef", "correct horse") if secret in shown] == []


def test_a_cli_that_is_asked_for_its_version_sees_no_variable_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    path = program(tmp_path, f"/usr/bin/env > {tmp_path}/seen; echo 9.9.9")
    assert find_cli(path).version == "9.9.9"
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert seen - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "LANG", "HOME"}
    assert f"HOME={tmp_path}\n" not in (tmp_path / "seen").read_text()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_temporary_folder_that_cannot_be_made_is_an_error_and_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    adapter = ClaudeAgentSDKAdapter(api_key="not-a-key", cli_path=program(tmp_path, "echo 9.9.9"), dynamic_tools=True)
    find_cli(tmp_path / "claude")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(PromptEvaluationError, match=r"temporary folder for Claude Code cannot be created: .*gone"):
        if is_async:
            asyncio.run(asyncio.wait_for(adapter.evaluate_async(prompt(section("task")), session=Session()), 20))
        else:
            adapter.evaluate(prompt(section("task")), session=Session())


def test_a_home_that_cannot_be_filled_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "mkfifo", full)
    with pytest.raises(PromptEvaluationError, match="No space left on device"):
        ClaudeChannel(Settings(cli=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_options_that_the_adapter_sets_itself_are_refused() -> None:
    with pytest.raises(ValueError, match=r"may not set 'cwd'; use a HostFilesystem"):
        ClaudeAgentSDKAdapter(sdk_options={"cwd": "/"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"allowed_cli_tools": "Bash"},
            r"allowed_cli_tools must be a tuple of names, .* write \('Bash',\)",
        ),
        ({"setting_sources": "user"}, r"setting_sources must be a tuple of names, .* write \('user',\)"),
        ({"setting_sources": ("users",)}, "setting_sources may contain user, project, local, got 'users'"),
        ({"env": {"X": 1}}, "env values must be strings, got 1 for 'X'"),
    ],
)
def test_options_that_make_no_sense_are_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClaudeAgentSDKAdapter(**options)


def test_an_option_that_the_sdk_does_not_have_is_named() -> None:
    adapter = ClaudeAgentSDKAdapter(api_key="not-a-key", sdk_options={"efort": "low"})
    with pytest.raises(PromptEvaluationError, match="sdk_options sets efort, but the installed SDK's"):
        adapter.evaluate(prompt(section("task")), session=Session())


def test_whether_tools_may_appear_is_found_out_without_a_model() -> None:
    channel = ClaudeChannel(Settings(cli=find_cli().path, options=permissions(())))
    assert channel.follows_list_changes()
    channel.close()


def test_a_cli_that_once_did_not_take_up_tools_is_not_trusted_again(tmp_path: Path) -> None:
    cli = Cli(tmp_path, MIN_VERSION)
    assert follows_list_changes(cli)
    disprove(cli)
    assert not follows_list_changes(cli)


def test_the_bundled_cli_takes_up_new_tools() -> None:
    assert ClaudeAgentSDKAdapter().supports_dynamic_tools


def test_hosted_tools_are_refused_and_no_codec_is_asked_for() -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        ClaudeAgentSDKAdapter().evaluate(prompt(WebSearchSection()), session=Session())
    assert str(caught.value) == (
        "Unsupported hosted tool kind 'web_search' for claude_agent_sdk adapter (supported: none); "
        "anthropic and litellm and openai can."
    )
