"""Installs what tests run against besides our own environment: packages of npm, and from PyPI MCP servers and readers.

`python -m tests.packages` is part of the set-up, so that tests never use the network; those that need something that
could not be installed are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests import npm_support

# Each generation of MCP in a folder of its own, apart from ours; in the environment, since they have compiled parts.
SERVERS = Path(sys.prefix) / "mcp-servers"
PACKAGES = {
    "2026": ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"),
    # It fails on mcp 2, though it does not say so.
    "2025": ("mcp-server-sqlite==2025.4.25", "mcp==1.30.0"),
    # What reads our cases and runs, without what it needs for running models: of that, our environment has enough.
    "inspect": (
        "inspect-ai==0.3.285",
        "ijson==3.6.0",
        "jsonlines==4.0.0",
        "jsonpatch==1.47",
        "jsonpointer==3.12",
        "mmh3==5.3.1",
        "semver==3.1.1",
        "shortuuid==1.0.13",
        "tenacity==9.2.1",
        "textual==8.2.8",
        "zipfile_zstd==0.0.4",
        "zstandard==0.25.0",
    ),
    # Its models of trajectories run on 3.11, though the rest of it does not.
    "harbor": ("harbor==0.25.0",),
}
ALONE = frozenset({"inspect", "harbor"})


def is_installed(generation: str) -> bool:
    done = SERVERS / generation / "installed.txt"
    return done.exists() and done.read_text() == " ".join(PACKAGES[generation])


def install(generation: str) -> None:
    wanted, folder = PACKAGES[generation], SERVERS / generation
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--no-warn-conflicts",
    ]
    if generation in ALONE:
        command += ["--no-deps", "--ignore-requires-python"]
    subprocess.run([*command, "--upgrade", "--target", str(folder), *wanted], check=True)
    (folder / "installed.txt").write_text(" ".join(wanted))


def main() -> int:
    missing: list[Callable[[], None]] = [] if npm_support.is_installed() else [npm_support.install]
    missing += [partial(install, generation) for generation in PACKAGES if not is_installed(generation)]
    failed = 0
    for install_it in missing:
        try:
            install_it()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"not installed: {error}; the tests that need it are skipped", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
