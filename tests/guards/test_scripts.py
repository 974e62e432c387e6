"""The commands of the repository are POSIX shell, and say what they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ["run", "test", "check", ".ci/run"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_run_and_parses_as_posix_shell(command: str) -> None:
    shell = shutil.which("dash") or "sh"
    assert os.access(ROOT / command, os.X_OK)
    assert (ROOT / command).read_text(encoding="utf-8").startswith("#!/bin/sh\n# ")
    subprocess.run([shell, "-n", str(ROOT / command)], check=True)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The commands in a folder of their own, whose name has spaces and umlauts."""
    folder = tmp_path / "ein größerer Ordner"
    for name in ("run", "test", "scripts/env.sh", "scripts/litellm.py", "pyproject.toml", "tests/packages.py"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "bin").mkdir()
    for tool in ("cat", "cksum", "dirname", "id", "sh", "timeout", "uname"):
        (folder / "bin" / tool).symlink_to(str(shutil.which(tool)))
    return folder


def shell(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(folder / "bin"), "HOME": str(folder), **environment}
    words = ["/bin/sh", "-c", command, str(folder / "test")]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=50)


# Makes the environment, installs nothing, and prints which interpreter is behind it.
MAKE = """. "$(dirname -- "$0")/scripts/env.sh"
install() { :; }
environment core
base_of "$venv_python"
"""
OTHER = '#!/bin/sh\n[ -z "$2" ] || echo another interpreter\n'


def script(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def test_without_python_and_venv_the_exact_packages_are_named(copied: Path) -> None:
    done = shell(copied, '"$0"')
    assert done.returncode == 2
    assert "apt-get install -y python3 python3-venv python3-pip" in done.stderr


def test_the_interpreter_that_python_names_makes_the_environment(copied: Path) -> None:
    script(copied / "bin" / "python3", OTHER)
    script(copied / ".venv" / "bin" / "python", OTHER)
    assert shell(copied, MAKE).stdout == "another interpreter\n"
    ours = f"{os.path.realpath(sys._base_executable)} {sys.version_info[:2]}\n"
    assert shell(copied, MAKE, PYTHON=sys.executable).stdout == ours
    before = (copied / ".venv" / "pyvenv.cfg").stat().st_mtime_ns
    assert shell(copied, MAKE, PYTHON=sys.executable).stdout == ours
    assert (copied / ".venv" / "pyvenv.cfg").stat().st_mtime_ns == before


def test_uv_is_given_the_interpreter_that_python_names_and_the_folder(copied: Path) -> None:
    uv = '#!/bin/sh\nprintf "[%s]" "$@" >uv.txt\nexec "$5" -m venv --without-pip "$6"\n'
    script(copied / "bin" / "uv", uv)
    done = shell(copied, MAKE, PYTHON=sys.executable, VENV=".venv-other")
    assert (copied / "uv.txt").read_text() == f"[venv][--quiet][--clear][--python][{sys.executable}][.venv-other]"
    assert done.returncode == 0 and not (copied / ".venv").exists()


# An interpreter that finds no library of the system, and makes environments of its own kind.
WITHOUT_LIBRARIES = """#!/bin/sh
case "$*" in
    *" venv "*) /bin/mkdir -p .venv/bin && /bin/cp "$0" .venv/bin/python ;;
    *ctypes*) exit 1 ;;
    *executable*) echo "$0" ;;
esac
"""


@pytest.mark.skipif(sys.platform != "linux", reason="names packages of Debian")
@pytest.mark.parametrize(("command", "packages"), [("run --model", "libgomp1"), ("test", "libgomp1 chromium")])
def test_all_missing_packages_of_the_system_are_named_before_anything_is_installed(
    copied: Path, command: str, packages: str
) -> None:
    as_root = "" if os.getuid() == 0 else "sudo "
    line = f"    {as_root}apt-get update && {as_root}apt-get install -y {{}}{packages}\n"
    program, *flags = command.split()
    words = f'"$(dirname -- "$0")/{program}" {" ".join(flags)}'
    unable = shell(copied, words)
    assert line.format("python3 python3-venv python3-pip ") in unable.stderr
    script(copied / "bin" / "python3", WITHOUT_LIBRARIES)
    able = shell(copied, words)
    assert "libgomp is needed" in able.stderr and line.format("") in able.stderr
    assert (unable.returncode, able.returncode, "Installing" in able.stderr) == (2, 2, False)


def test_the_demo_needs_no_library_of_the_system(copied: Path) -> None:
    script(copied / "bin" / "python3", WITHOUT_LIBRARIES)
    done = shell(copied, '"$(dirname -- "$0")/run"')
    assert done.returncode == 0
    assert "Installing the library, numpy and a model of 83 MB" in done.stderr
    assert "libgomp" not in done.stderr


def test_on_a_terminal_an_installation_shows_how_long_it_takes(copied: Path) -> None:
    pty = pytest.importorskip("pty", reason="needs a POSIX terminal")
    script(copied / ".venv" / "bin" / "python", '#!/bin/sh\n[ "$2" != pip ] || /bin/sleep 2.5\n')
    (copied / "bin" / "sleep").symlink_to(str(shutil.which("sleep")))
    ours, theirs = pty.openpty()
    install = '. "$(dirname -- "$0")/scripts/env.sh"\ninstall six'
    with subprocess.Popen(
        ["/bin/sh", "-c", install, str(copied / "test")],
        env={"PATH": str(copied / "bin"), "HOME": str(copied)},
        stderr=theirs,
    ) as process:
        assert process.wait(timeout=50) == 0
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "\r1 s \r2 s " in shown and shown.endswith("\r\x1b[K")


def test_uv_installs_where_there_is_uv_and_pip_where_uv_fails(copied: Path) -> None:
    script(copied / "bin" / "uv", '#!/bin/sh\n[ "$1" != pip ] || echo "uv $*"\nexit "$UV_STATUS"\n')
    script(copied / ".venv" / "bin" / "python", '#!/bin/sh\n[ "$2" != pip ] || echo "pip $4"\n')
    install = '. "$(dirname -- "$0")/scripts/env.sh"\ninstall six'
    by_uv, by_pip = (shell(copied, install, UV_STATUS=status).stdout.splitlines() for status in "01")
    uv_command = f"uv pip install --quiet --python {copied / '.venv' / 'bin' / 'python'} six"
    assert by_uv == [uv_command]
    assert by_pip == [uv_command, "pip --quiet"]


@pytest.mark.parametrize("named", ["/nowhere/python3", "./old"])
def test_a_python_that_does_not_do_is_refused(copied: Path, named: str) -> None:
    script(copied / "old", "#!/bin/sh\nexit 1\n")
    done = shell(copied, MAKE, PYTHON=named)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"PYTHON must be Python 3.11 or newer with venv, got '{named}'" in done.stderr


def test_the_build_uses_the_python_of_the_system_and_tries_the_others_that_run(copied: Path) -> None:
    stock = Path("/usr/bin/python3")
    if not stock.exists() or subprocess.run([stock, "-c", "import ensurepip"]).returncode:
        pytest.skip("needs /usr/bin/python3 with venv")
    (copied / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", copied / ".ci" / "run")
    script(copied / "test", '#!/bin/sh\necho "$PYTHON ${VENV:-.venv} $# $1"\n')
    for name in ("chromium", "python3"):
        script(copied / "bin" / name, "#!/bin/sh\nexit 1\n")
    # What the machine lacks is not installed here.
    for name in ("env", "sudo"):
        script(copied / "bin" / name, "#!/bin/sh\n")
    # A shim that does not run, and one that does; neither is asked for its version by more than its exit.
    script(copied / "bin" / "python3.12", "#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    script(copied / "bin" / "python3.13", "#!/bin/sh\n")
    script(copied / ".pyenv" / "versions" / "3.13.9" / "bin" / "python", "#!/bin/sh\n")
    done = shell(copied, '"$(dirname -- "$0")/.ci/run"')
    first, *others = [line for line in done.stdout.splitlines() if not line.startswith("Installing ")]
    assert (done.returncode, first) == (0, "/usr/bin/python3 .venv 0 ")
    assert others == [
        "Python 3.13 (python3.13): the quick tests",
        "python3.13 .venv-3.13 1 --quick",
        "Not tested, because no such interpreter is installed: Python 3.12 3.14 3.15",
    ]
