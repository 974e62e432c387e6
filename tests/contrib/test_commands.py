"""The command tool in whole runs, with real programs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import answers
from tests.waiting import until_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.commands import CommandResult, CommandSection, UnfitWorkspaceError
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import (
    DeadlineExceededError,
    PromptEvaluationError,
    PromptValidationError,
    ToolValidationError,
)
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem, Recovery
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt, SectionVisibility, ToolContext, tool
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session

PYTHON = sys.executable


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFilesystem:
    monkeypatch.setenv("WINK_STATE", str(tmp_path / "state"))
    (tmp_path / "work" / "src").mkdir(parents=True)
    (tmp_path / "work" / "a.txt").write_text("old")
    (tmp_path / "outside.txt").write_text("outside")
    return HostFilesystem(tmp_path / "work", track_external=True, ignore=("cache",))


def python(code: str, *words: str, **options: Any) -> Any:
    return call("run_command", command=[PYTHON, "-c", code, *words], **options)


def prompt(files: HostFilesystem | None, **options: Any) -> Prompt[None]:
    section = CommandSection(files, **{"programs": [PYTHON, "no-such-program"], "timeout": 30, **options})
    return Prompt(ns="tests", key="commands", sections=[section])


def run(files: HostFilesystem | None, *script: Any, is_async: bool = False, **options: Any) -> list[Any]:
    session = Session()
    with ScriptedAdapter([*script, "Done."]) as adapter:
        if is_async:
            asyncio.run(adapter.evaluate_async(prompt(files, **options), session=session))
        else:
            adapter.evaluate(prompt(files, **options), session=session)
    return [event.result for event in session[ToolInvoked].all()]


def tree(files: HostFilesystem) -> dict[str, str]:
    return {path: files.read(path) for path in files.glob("**/*")}


CHANGES = """
import os, sys
open("a.txt", "w").write("new"); open("src/b.txt", "w").write("b"); print("done", file=sys.stderr); print("there")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_command_changed_is_found_and_what_a_failed_one_changed_is_restored(
    files: HostFilesystem, is_async: bool
) -> None:
    failed, done = run(files, python(CHANGES, "3"), python(CHANGES, "0"), is_async=is_async)
    assert (failed.success, failed.message) == (False, "Exit code 3; 2 changed paths were restored.")
    assert (done.success, done.message) == (True, "Exit code 0; changed a.txt, src/b.txt.")
    assert done.value == CommandResult(0, "done\nthere\n", ("a.txt", "src/b.txt"))
    assert tree(files) == {"a.txt": "new", "src/b.txt": "b"}


def test_a_failed_command_leaves_everything_as_it_was(files: HostFilesystem) -> None:
    code = (
        "import os, shutil; os.remove('a.txt'); os.makedirs('x/y'); open('x/y/z', 'w').write('z'); "
        "os.symlink('/etc', 'link'); shutil.rmtree('src'); open('cache', 'w').write('c'); 1 / 0"
    )
    (result,) = run(files, python(code))
    assert not result.success and "ZeroDivisionError" in result.value.output
    assert tree(files) == {"a.txt": "old", "cache": "c"}
    assert sorted(os.listdir(files.root)) == ["a.txt", "cache", "src"]


@pytest.mark.parametrize("ending", ["", "; 1 / 0"])
def test_a_command_cannot_remove_the_workspace_itself(files: HostFilesystem, ending: str) -> None:
    code = f"import os, shutil; shutil.rmtree(os.getcwd()){ending}"
    removed, after = run(files, python(code), python("print('still there')"))
    assert (removed.success, after.success) == (False, True)
    assert tree(files) == {"a.txt": "old"}
    assert files.exists("src")


@pytest.mark.parametrize("is_async", [False, True])
def test_in_a_branch_a_command_leaves_the_workspace_as_it_was(files: HostFilesystem, is_async: bool) -> None:
    before, branch = tree(files), files.branch()
    branch.write("src/branch.txt", "seen by commands")
    failed, done, after = run(
        branch,
        python(CHANGES, "3"),
        python(CHANGES, "0"),
        python("print(open('a.txt').read(), open('src/b.txt').read(), open('src/branch.txt').read())"),
        is_async=is_async,
    )
    assert failed.message == "Exit code 3; 2 changed paths were restored."
    assert done.message == "Exit code 0; changed a.txt, src/b.txt."
    assert after.value.output == "new b seen by commands\n"
    assert tree(files) == before
    assert tree(branch) == {"a.txt": "new", "src/b.txt": "b", "src/branch.txt": "seen by commands"}
    assert [label.split()[0] for label in branch.programs_run] == [PYTHON] * 3


PUT = """
import sys, time
open(sys.argv[1], "w").write("x")
time.sleep(0.1)
sys.exit(int(sys.argv[2]))
"""


@tool
def put(name: str, fails: bool, context: ToolContext) -> str:
    """Write a file, and perhaps fail."""
    assert context.filesystem is not None
    context.filesystem.write(name, "x")
    if fails:
        raise ToolValidationError("failed")
    return "put"


@tool(read_only=True)
async def pause(seconds: float) -> str:
    """Wait a little."""
    await asyncio.sleep(seconds)
    return "waited"


@pytest.mark.parametrize("seed", range(3))
def test_runs_in_one_workspace_keep_what_succeeds_and_undo_what_fails_of_their_own(
    files: HostFilesystem, seed: int
) -> None:
    chance, expected = random.Random(seed), {"a.txt": "old"}

    def script(run_number: int) -> list[Any]:
        calls = []
        for number in range(4):
            name, fails = f"src/{run_number}-{number}", chance.random() < 0.7
            is_command = chance.random() < 0.6
            calls.append(call("pause", seconds=chance.random() / 4))
            calls.append(python(PUT, name, str(int(fails))) if is_command else call("put", name=name, fails=fails))
            if not fails:
                expected[name] = "x"
        return [*calls, "Done."]

    async def work() -> None:
        runs = []
        for run_number in range(4):
            section = CommandSection(files, programs=[PYTHON], timeout=60, tools=[put, pause])
            asked = Prompt(ns="tests", key="many", sections=[section])
            runs.append(ScriptedAdapter(script(run_number)).evaluate_async(asked, session=Session()))
        await asyncio.gather(*runs)

    asyncio.run(work())
    assert tree(files) == expected


WORKER = """
import sys
from weakincentives import Prompt, ScriptedAdapter, Session, call
from weakincentives.contrib.commands import CommandSection
from weakincentives.filesystem import HostFilesystem
files = HostFilesystem(sys.argv[1], track_external=True)
files = files.branch() if sys.argv[2] == "branch" else files
section = CommandSection(files, programs=[sys.executable])
model = ScriptedAdapter([call("run_command", command=[sys.executable, "-c", sys.argv[3]]), "Done."])
model.evaluate(Prompt(ns="tests", key="commands", sections=[section]), session=Session())
"""
KILLS_ITS_WORKER = """
import os, signal
open("a.txt", "w").write("evil")
os.kill(os.getppid(), signal.SIGKILL)
number = 0
while True:
    number += 1
    open(f"src/evil-{number % 9}.txt", "w").write("evil")
"""


@pytest.mark.parametrize("kind", ["workspace", "branch"])
def test_a_command_that_kills_its_worker_is_killed_and_changes_nothing(
    files: HostFilesystem, kind: str, tmp_path: Path
) -> None:
    before = tree(files)
    worker = subprocess.run([PYTHON, "-c", WORKER, files.root, kind, KILLS_ITS_WORKER], check=False)
    assert worker.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 40
    recoveries: list[Recovery] = []
    while not recoveries and time.monotonic() < deadline:
        time.sleep(0.01)
        if not list((tmp_path / "state").rglob("journal-*")):
            # The process that puts it back leaves its report when it is done.
            recoveries += HostFilesystem(files.root).recoveries
    (recovery,) = recoveries
    assert recovery.kind == "program" and recovery.label.startswith(PYTHON)
    assert tree(files) == before


def test_other_exit_codes_can_be_a_success(files: HostFilesystem) -> None:
    (result,) = run(files, python(CHANGES, "1"), success_codes=(0, 1))
    assert (result.success, files.read("a.txt")) == (True, "new")


def test_there_is_no_shell(files: HostFilesystem) -> None:
    (result,) = run(files, python("import sys; print(sys.argv[1:])", "*.txt", "$HOME", "; rm a.txt", "&& x"))
    assert result.value.output == "['*.txt', '$HOME', '; rm a.txt', '&& x']\n"


def test_a_command_runs_in_a_directory_of_the_workspace(files: HostFilesystem) -> None:
    (result,) = run(files, python("import os; print(os.getcwd())", path="src"))
    assert result.value.output.strip() == os.path.join(files.root, "src")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"command": []}, "no program cannot be run; the programs are: "),
        ({"command": ["rm", "a.txt"]}, "'rm' cannot be run; the programs are: "),
        ({"command": ["no-such-program"]}, "'no-such-program' cannot be started: "),
        ({"command": [PYTHON, "a\0b"]}, "cannot be started: embedded null byte"),
        ({"command": [PYTHON], "path": ".."}, "'..'"),
        ({"command": [PYTHON], "path": "/etc"}, "'/etc'"),
        ({"command": [PYTHON], "path": "a.txt"}, "'a.txt' is a file"),
        ({"command": [PYTHON], "path": "none"}, "'none' does not exist"),
        ({"command": [PYTHON], "path": "link"}, "'link'"),
        ({"command": f"{PYTHON} -V"}, "command"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(files: HostFilesystem, arguments: Any, problem: str) -> None:
    os.symlink(os.path.dirname(files.root), os.path.join(files.root, "link"))
    (result,) = run(files, call("run_command", **arguments))
    assert result.success is False
    assert problem in result.message


def test_a_command_inherits_no_secrets(files: HostFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    (result,) = run(files, python("import os; print(dict(os.environ))"), env={"MODE": "test"})
    assert "hunter2" not in result.value.output
    assert "'MODE': 'test'" in result.value.output and "'PATH'" in result.value.output


LINGER = """
import subprocess, sys, time
open("a.txt", "w").write("new")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def ends(pid: int) -> bool:
    """True if the process is gone, or is soon: a killed one closes its files before it is."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


@pytest.mark.parametrize("is_async", [False, True])
def test_a_command_that_takes_too_long_is_killed_with_its_children(files: HostFilesystem, is_async: bool) -> None:
    started = time.monotonic()
    (result,) = run(files, python(LINGER, "60"), timeout=1, is_async=is_async)
    assert time.monotonic() - started < 20
    assert (result.success, result.message) == (False, "Stopped after 1 seconds; 1 changed path was restored.")
    assert result.value.exit_code is None and ends(int(result.value.output))
    assert files.read("a.txt") == "old"


def test_a_command_has_its_own_timeout_although_that_of_the_template_is_shorter(files: HostFilesystem) -> None:
    section = CommandSection(files, programs=[PYTHON], timeout={"run_command": 30})
    session, adapter = Session(), ScriptedAdapter([python("import time; time.sleep(0.5)"), "Done."])
    adapter.evaluate(Prompt(ns="tests", key="own", sections=[section], tool_timeout=0.1), session=session)
    assert answers(session) == [(True, "Exit code 0.")]


def test_a_command_without_a_timeout_has_that_of_its_template(files: HostFilesystem) -> None:
    section = CommandSection(files, programs=[PYTHON], timeout=None)
    session, adapter = Session(), ScriptedAdapter([python(LINGER, "60"), "Done."])
    adapter.evaluate(Prompt(ns="tests", key="own", sections=[section], tool_timeout=1), session=session)
    assert [success for success, _ in answers(session)] == [False]
    assert files.read("a.txt") == "old"


def test_what_a_command_leaves_running_is_killed_when_it_ends(files: HostFilesystem) -> None:
    started = time.monotonic()
    (result,) = run(files, python(LINGER, "0"))
    assert time.monotonic() - started < 20
    assert result.success and ends(int(result.value.output))


def test_a_command_ends_with_the_deadline_of_its_run(files: HostFilesystem) -> None:
    started = time.monotonic()
    adapter = ScriptedAdapter([python(LINGER, "60"), "Done."])
    with pytest.raises(DeadlineExceededError):
        adapter.evaluate(prompt(files), session=Session(), deadline=Deadline.after(2))
    assert time.monotonic() - started < 20
    assert files.read("a.txt") == "old"


def test_a_cancelled_run_ends_its_command_and_restores_the_files(files: HostFilesystem) -> None:
    async def stop() -> None:
        adapter = ScriptedAdapter([python(LINGER, "60"), "Done."])
        running = asyncio.create_task(adapter.evaluate_async(prompt(files), session=Session()))
        await until_async(lambda: files.read("a.txt") == "new")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(stop(), 30))
    assert files.read("a.txt") == "old"


@pytest.mark.parametrize("size", [10, 100, 101, 5_000_000])
def test_long_output_keeps_its_beginning_and_its_end(files: HostFilesystem, size: int) -> None:
    (result,) = run(files, python(f"print('a' * ({size} - 2) + 'z')"), max_output=100)
    output = result.value.output
    if size <= 100:
        assert output == "a" * (size - 2) + "z\n"
    else:
        assert output == f"{'a' * 50}\n[... {size - 100:,} bytes left out ...]\n{'a' * 48}z\n"


def test_file_tools_and_commands_share_a_workspace(files: HostFilesystem) -> None:
    sections = [VfsToolsSection(files), CommandSection(programs=[PYTHON])]
    session = Session()
    script = [call("write", path="b.py", content="print('hi')"), call("run_command", command=[PYTHON, "b.py"]), "Done."]
    ScriptedAdapter(script).evaluate(Prompt(ns="tests", key="both", sections=sections), session=session)
    assert answers(session)[-1] == (True, "Exit code 0.\n\nhi\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"programs": []}, "programs= takes a list of names"),
        ({"programs": "pytest"}, "programs= takes a list of names, got 'pytest'"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, or None for no limit, got 0"),
        ({"timeout": "60"}, "timeout must be a number of seconds above 0, or None for no limit, got '60'"),
        ({"timeout": {"pytest": 60}}, "timeout= names 'pytest', which is none of its tools: run_command"),
        ({"max_output": 0}, "max_output must be more than 0"),
        ({"filesystem": InMemoryFilesystem()}, r"needs HostFilesystem\(root, track_external=True\)"),
        ({"filesystem": HostFilesystem(".")}, r"needs HostFilesystem\(root, track_external=True\)"),
    ],
)
def test_a_section_that_cannot_work_is_refused_when_it_is_declared(options: Any, problem: str) -> None:
    with pytest.raises(PromptValidationError, match=problem):
        CommandSection(**{"programs": ["pytest"], **options})


UNFIT = [InMemoryFilesystem(), HostFilesystem("."), None]
NEEDED = r"CommandSection 'commands' needs HostFilesystem\(root, track_external=True\).*; pass it to the section"


@pytest.mark.parametrize("unfit", UNFIT, ids=repr)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_unfit_workspace_ends_the_run_before_the_model_is_called(unfit: Any, is_async: bool) -> None:
    bound = prompt(None).bind(resources={Filesystem: unfit} if unfit else {})
    adapter = ScriptedAdapter([python("1"), "Done."], tool_errors="tell")
    with pytest.raises(PromptEvaluationError, match=NEEDED):
        if is_async:
            asyncio.run(adapter.evaluate_async(bound, session=Session()))
        else:
            adapter.evaluate(bound, session=Session())
    assert adapter.requests == []


@pytest.mark.parametrize("unfit", UNFIT, ids=repr)
def test_an_unfit_workspace_ends_the_run_when_the_model_opens_the_section(unfit: Any) -> None:
    closed = prompt(None, summary="Runs programs.", visibility=SectionVisibility.SUMMARY)
    script = [call("read_section", section_key="commands"), "Done."]
    adapter = ScriptedAdapter(script, tool_errors="tell")
    with pytest.raises(UnfitWorkspaceError, match=NEEDED):
        adapter.evaluate(closed.bind(resources={Filesystem: unfit} if unfit else {}), session=Session())
    assert len(adapter.requests) == 1


def test_a_workspace_that_only_calls_have_is_checked_in_the_call() -> None:
    scoped = ResourceRegistry.of(Binding(Filesystem, lambda r: InMemoryFilesystem(), scope=Scope.TOOL_CALL))
    adapter = ScriptedAdapter([python("1"), "Done."], tool_errors="tell")
    with pytest.raises(UnfitWorkspaceError, match=NEEDED):
        adapter.evaluate(prompt(None).bind(resources=scoped), session=Session())
    assert len(adapter.requests) == 1


def test_a_disabled_section_needs_no_workspace() -> None:
    assert ScriptedAdapter(["Done."]).evaluate(prompt(None, enabled=lambda: False), session=Session()).text == "Done."
