"""The first ten minutes: the README's commands, typed in order in a clean clone, and its pages in a real browser.

The environment that runs the tests stands in for the one that `./run` would make.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import plain_environment
from tests.helpers.embedded import require_quotation

require_quotation("uvicorn")
expect = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
).expect

ROOT = Path(__file__).parents[2]
# The ranker computes for seconds, and for minutes beside others.
pytestmark = [pytest.mark.limit(300), pytest.mark.slow]
PATIENCE = 120_000
SENTENCE = "Parcels leave on Saturday too, if they are paid before noon."


def commands() -> list[str]:
    """The commands of the README, without their comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The first ten minutes")[2]
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return [re.sub(r"\s{2,}# .*", "", line) for line in block[1].splitlines()]


class Shell:
    """A person's terminal: a folder, which `cd` changes, and a history of what was printed."""

    def __init__(self, clone: Path) -> None:
        self.folder = clone
        path = f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # Nothing can be installed: that would change the environment that is borrowed.
        offline = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
        self.environment = {**plain_environment(clone), "PATH": path, "PYTHONPATH": str(clone / "src"), **offline}

    def type(self, command: str) -> str:
        line = f"{command}; code=$?; pwd; exit $code"
        done = subprocess.run(
            ["sh", "-c", line], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        # An evaluation with a failed case ends with 1.
        assert done.returncode == int(command.endswith("before")), f"{command}\n{done.stdout}\n{done.stderr}"
        *shown, where = done.stdout.splitlines()
        self.folder = Path(where)
        return "\n".join(shown)

    @contextmanager
    def serve(self, command: str, *options: str) -> Iterator[tuple[str, str]]:
        """What a command prints, up to the address that it serves, and that address."""
        words = [*command.split(), *options, "--port", "0"]
        with subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                shown = []
                for line in process.stdout:
                    shown.append(line)
                    if line.startswith("http://"):
                        break
                yield "".join(shown), shown[-1].strip()
            finally:
                process.terminate()


def clean_clone(folder: Path) -> Path:
    """A clone of what is committed and changed here, with this environment in place of its own."""
    clone = folder / "clone"
    listed = ["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
        if not name.startswith(("src/", "scripts/", "run", "pyproject.toml", "README.md", "tests/packages.py")):
            continue
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    (clone / "run").chmod(0o755)
    environment = clone / ".venv"
    environment.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    stamp = re.search(r"stamp=(\$\(.*)", (ROOT / "scripts" / "env.sh").read_text(encoding="utf-8"))
    assert stamp is not None
    made = subprocess.run(
        ["sh", "-c", f"root={clone}; stamp={stamp[1]}; printf '%s\\n' \"$stamp\""],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    )
    (environment / ".installed-demo").write_text(made.stdout, encoding="utf-8")
    return clone


def look_at_the_run(page: Any) -> None:
    """Read the page that `./run` leads to: the answer, and the section that was opened for it."""
    expect(page.locator("h1")).to_have_text("Where is order FH-20417 right now?")
    expect(page.locator(".answer")).to_contain_text("Order FH-20417")
    page.get_by_role("link", name="Disclosure").click()
    expect(page.locator(".steps-list")).to_contain_text("Opened order-status")
    page.close()


def change_a_section(page: Any) -> None:
    """From the run of the first question to the playground: add a sentence, run with it, and save it as `better`."""
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="Where is order 7?").first.click()
    expect(page.locator(".answer")).to_have_text("Order 7 is shipped on Monday.")
    page.get_by_role("button", name="Open in the playground").click()
    page.get_by_label("Edit Orders").click()
    text = page.get_by_label("Text", exact=True)
    text.fill(f"{text.input_value()}\n\n{SENTENCE}")
    expect(page.locator(".diff .line.new", has_text=SENTENCE)).to_have_count(1)
    page.get_by_label("Message").fill("Do parcels leave on Saturdays?")
    page.get_by_role("button", name="Run", exact=True).click()
    ran = page.locator(".page.run")
    expect(ran.locator(".title .pill")).to_have_text("answered", timeout=PATIENCE)
    expect(ran.locator(".answer")).to_contain_text(SENTENCE)
    page.get_by_label("Tag").fill("better")
    page.get_by_role("button", name="Save the draft as an override").click()
    expect(page.get_by_label("Override")).to_have_value("better")
    page.close()


def test_the_first_ten_minutes_of_the_readme(open_page: Callable[..., Any], tmp_path: Path) -> None:
    if not (Path(sys.prefix) / "pyvenv.cfg").exists():
        pytest.skip("needs a virtual environment")
    shell, shown = Shell(clean_clone(tmp_path)), {}
    for command in commands():
        if command == "./run":
            # On a terminal it serves the run afterwards.
            with shell.serve(command, "--view") as (shown[command], address):
                look_at_the_run(open_page(address))
        elif command.startswith("wink play"):
            with shell.serve(command, "--no-open") as (_, address):
                change_a_section(open_page(address))
        else:
            shown[command] = shell.type(command)
    cases = "wink eval run cases.jsonl agent:template --name"
    explained = shown["wink explain agent:template"]
    closed, opened = re.findall(r"([\d,]+) (?:tokens per request|with everything)", explained.replace("\n", " "))
    assert "(quoted from lookup_order)" in shown["./run"] and "Order FH-20417" in shown["./run"]
    assert "asked   Where is order FH-20417 right now?" in shown["wink runs show"]
    assert (shell.folder.parent / "run.html").stat().st_size > 100_000
    assert 3 * int(closed) < int(opened) and "closing" not in explained
    assert shown['wink run agent:template "Where is order 7?"'] == "Order 7 is shipped on Monday."
    assert "before: 5 passed, 1 failed" in shown[f"{cases} before"]
    assert "after: 6 passed" in shown[f"{cases} after --tag better"]
    assert "weekend" in shown["wink eval compare before after"]
