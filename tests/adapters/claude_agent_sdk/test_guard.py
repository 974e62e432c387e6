"""The CLI's process tree, with a shell in the CLI's place."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weakincentives.adapters.claude_agent_sdk.cli import Home, compaction_variables
from weakincentives.runtime import Compaction

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs Linux to watch processes that are not ours"
)

SHELL = Path("/bin/sh")
TWO_SLEEPERS = "(setsid sh -c 'echo $$; exec sleep 600' &) ; echo $$; exec sleep 601"


def test_the_cli_sees_only_the_environment_of_its_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "1")
    home = Home(cli=SHELL, env={"GIVEN": "2"})
    printed = subprocess.run([home.launcher, "-c", "env"], capture_output=True, text=True, check=True).stdout
    home.remove()
    seen = dict(line.split("=", 1) for line in printed.splitlines())
    assert seen["GIVEN"] == "2"
    assert seen["HOME"] == str(home.path / "home")
    assert "MY_SECRET" not in seen


def test_the_exit_status_of_the_cli_is_passed_on() -> None:
    home = Home(cli=SHELL, env={})
    ended = subprocess.run([home.launcher, "-c", "exit 3"], check=False)
    home.remove()
    assert ended.returncode == 3


def test_the_plan_with_its_credentials_is_gone_once_the_cli_runs() -> None:
    home = Home(cli=SHELL, env={"ANTHROPIC_API_KEY": "k"})
    printed = subprocess.run(
        [home.launcher, "-c", f"ls {home.path}"], capture_output=True, text=True, check=True
    ).stdout
    home.remove()
    assert "plan.json" not in printed


def test_cutting_the_lifeline_kills_the_whole_tree() -> None:
    home = Home(cli=SHELL, env={})
    with subprocess.Popen([home.launcher, "-c", TWO_SLEEPERS], stdout=subprocess.PIPE, text=True) as process:
        watched = _watch(process)
        home.cut()
        assert _all_end(watched)
    home.remove()


def test_what_a_cli_leaves_behind_dies_with_it() -> None:
    home = Home(cli=SHELL, env={})
    script = "(setsid sh -c 'echo $$; exec sleep 600' &) ; echo $$; read line"
    with subprocess.Popen(
        [home.launcher, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        watched = _watch(process)
        process.communicate()
        assert _all_end(watched)
    home.remove()


def test_killing_our_process_kills_the_tree_and_removes_the_home() -> None:
    program = (
        "import subprocess; from pathlib import Path; from weakincentives.adapters.claude_agent_sdk.cli import Home\n"
        f"home = Home(cli=Path('/bin/sh'), env={{}}); print(home.path, flush=True)\n"
        f"subprocess.run([home.launcher, '-c', {TWO_SLEEPERS!r}])"
    )
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        home = Path(process.stdout.readline().strip())
        watched = _watch(process)
        guard = _watch_pid(_parent(watched))
        process.send_signal(signal.SIGKILL)
        assert _all_end(watched)
        assert _all_end([guard])
    assert not home.exists()


def _watch(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [_watch_pid(int(process.stdout.readline())) for _ in range(2)]


def _watch_pid(pid: int) -> int:
    return os.pidfd_open(pid)


def _parent(watched: list[int]) -> int:
    info = Path(f"/proc/self/fdinfo/{watched[0]}").read_text()
    pid = next(line.split()[1] for line in info.splitlines() if line.startswith("Pid:"))
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _all_end(watched: list[int]) -> bool:
    ended = [bool(select.select([process], [], [], 60)[0]) for process in watched]
    for process in watched:
        os.close(process)
    return all(ended)


def test_a_compaction_becomes_the_cli_s_own_settings() -> None:
    assert compaction_variables(None) == {}
    assert compaction_variables(Compaction(window=60_000, at=0.5)) == {
        "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "50",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "60000",
    }
