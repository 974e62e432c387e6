"""The CLI's own tools: off unless named, kept to the workspace, and undone with a failed run when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from claude_agent_sdk import HookMatcher

from tests.adapters.claude_agent_sdk.cli_runs import adapter, prompt, section, tool
from tests.servers.claude_cli import CliServer, call, refuse, say
from weakincentives.errors import PromptEvaluationError
from weakincentives.evals import trajectory
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import WorkspaceSection
from weakincentives.runtime import ModelCalled, ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import RunStore, record

BROKEN = refuse(400, "invalid_request_error")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    (root / "plan.md").write_text("step one\n")
    return root


def test_the_tools_of_the_cli_are_off_by_default() -> None:
    with CliServer([say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task", tools=(tool("keep"),))), session=Session())
    assert api.offers == [{"keep"}]


def test_named_tools_work_on_the_files_of_the_workspace(workspace: Path) -> None:
    session = Session()
    script = [call("Read", file_path="plan.md"), call("Write", file_path="done.md", content="yes"), say("ok")]
    with CliServer(script) as api:
        run = adapter(api, allowed_cli_tools=("Read", "Write"))
        run.evaluate(prompt(WorkspaceSection(HostFilesystem(workspace))), session=session)
    assert api.offers[0] == {"Read", "Write"}
    assert (workspace / "done.md").read_text() == "yes"
    assert [event.stop_reason for event in session[ModelCalled].all()] == ["pause", "pause", "end"]
    invoked = [(event.name, event.params, event.success) for event in session[ToolInvoked].all()]
    assert invoked == [
        ("Read", {"file_path": "plan.md"}, True),
        ("Write", {"file_path": "done.md", "content": "yes"}, True),
    ]


def test_what_the_model_read_of_the_cli_s_own_tools_is_recorded_and_exported(workspace: Path, tmp_path: Path) -> None:
    file, session = tmp_path / "runs.db", Session()
    script = [call("Read", file_path="plan.md"), call("Read", file_path="gone.md"), say("ok")]
    with CliServer(script) as api, record(file):
        run = adapter(api, allowed_cli_tools=("Read",))
        run.evaluate(prompt(WorkspaceSection(HostFilesystem(workspace))), session=session)
    texts = [block["content"] for turn in (1, 2) for block in api.results(turn)]
    assert [event.text for event in session[ToolInvoked].all()] == texts
    assert all(texts)
    with RunStore(file) as store:
        (recorded,) = store.list_runs()
        steps = trajectory(store, recorded.run_id)["steps"]
    (first, second) = [step for step in steps if "observation" in step]
    assert [call["arguments"] for step in (first, second) for call in step["tool_calls"]] == [
        {"file_path": "plan.md"},
        {"file_path": "gone.md"},
    ]
    assert [step["observation"]["results"][0]["content"] for step in (first, second)] == texts


def test_named_tools_stay_inside_the_workspace(workspace: Path) -> None:
    outside = workspace.parent / "outside.md"
    with CliServer([call("Write", file_path=str(outside), content="no"), say("ok")]) as api:
        run = adapter(api, allowed_cli_tools=("Write",))
        run.evaluate(prompt(WorkspaceSection(HostFilesystem(workspace))), session=Session())
    assert api.results()[0]["is_error"]
    assert not outside.exists()


def test_a_rule_allows_less_than_a_name(workspace: Path) -> None:
    script = [call("Bash", command="echo yes"), call("Bash", command="touch no"), say("ok")]
    with CliServer(script) as api:
        run = adapter(api, allowed_cli_tools=("Bash(echo:*)",))
        run.evaluate(prompt(WorkspaceSection(HostFilesystem(workspace))), session=Session())
    assert [api.results(turn)[0]["is_error"] for turn in (1, 2)] == [False, True]


def test_a_hook_decides_on_tools_of_the_cli_and_never_sees_ours(workspace: Path) -> None:
    seen: list[str] = []

    async def deny(data: Any, call_id: str | None, context: Any) -> Any:
        seen.append(data["tool_name"])
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}}

    script = [call("keep", text="one"), call("Write", file_path="a.md", content="x"), say("ok")]
    with CliServer(script) as api:
        hooks = {"PreToolUse": [HookMatcher(hooks=[deny])]}
        run = adapter(api, allowed_cli_tools=("Write",), hooks=hooks)
        sections = (WorkspaceSection(HostFilesystem(workspace)), section("task", tools=(tool("keep"),)))
        run.evaluate(prompt(*sections), session=Session())
    assert seen == ["Write"]
    assert not (workspace / "a.md").exists()


def test_a_failed_run_is_undone_when_asked(workspace: Path) -> None:
    script = [call("Write", file_path="new.md", content="x"), call("Bash", command="rm plan.md"), *[BROKEN] * 9]
    with CliServer(script) as api:
        run = adapter(api, allowed_cli_tools=("Write", "Bash"), rollback_on_failure=True)
        with pytest.raises(PromptEvaluationError):
            run.evaluate(prompt(WorkspaceSection(HostFilesystem(workspace))), session=Session())
    assert {path.name: path.read_text() for path in workspace.iterdir()} == {"plan.md": "step one\n"}


def test_a_failed_run_keeps_what_it_did_unless_asked(workspace: Path) -> None:
    with CliServer([call("Write", file_path="new.md", content="x"), *[BROKEN] * 9]) as api:
        run = adapter(api, allowed_cli_tools=("Write",))
        with pytest.raises(PromptEvaluationError):
            run.evaluate(prompt(WorkspaceSection(HostFilesystem(workspace))), session=Session())
    assert (workspace / "new.md").read_text() == "x"
