"""Bring the viewer's JavaScript libraries from npm into the tree, with a lock of their hashes; `--check` only compares.

Needs npm, and only here: installing, building and running the library do not.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parents[1] / "src" / "weakincentives" / "viewer" / "static" / "vendor"
LOCK = VENDOR / "lock.json"

# npm package at a version, the name to import it by, and its file in the package.
LIBRARIES = [
    ("preact@11.2.0", {"preact": "dist/preact.mjs", "preact/hooks": "hooks/dist/hooks.mjs"}),
    ("@preact/signals-core@1.14.5", {"@preact/signals-core": "dist/signals-core.module.js"}),
    ("@preact/signals@2.11.4", {"@preact/signals": "dist/signals.module.js"}),
    ("htm@3.1.1", {"htm": "dist/htm.module.js"}),
]


def main(argv: list[str]) -> int:
    if argv == ["--check"]:
        wrong = mismatches()
        for line in wrong:
            print(line, file=sys.stderr)
        return int(bool(wrong))
    LOCK.write_text(json.dumps([fetch(*library) for library in LIBRARIES], indent=2) + "\n", encoding="utf-8")
    return 0


def fetch(package: str, modules: dict[str, str]) -> dict[str, Any]:
    """Copy the package's modules and licence, and return its entry in the lock."""
    name, _, version = package.rpartition("@")
    flat = name.lstrip("@").replace("/", "-")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["npm", "pack", "--json", package], cwd=folder, capture_output=True, text=True, check=True
        )
        packed = json.loads(done.stdout)
        (details,) = packed.values() if isinstance(packed, dict) else packed
        files = {}
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            for imported, path in modules.items():
                target = imported.lstrip("@").replace("/", "-") + ".js"
                files[target] = {"import": imported, "source": path, "sha256": copy(archive, path, target)}
            copy(archive, "LICENSE", f"{flat}.LICENSE")
    return {"package": name, "version": version, "integrity": details["integrity"], "files": files}


def copy(archive: tarfile.TarFile, path: str, target: str) -> str:
    source = archive.extractfile(f"package/{path}")
    assert source is not None
    content = source.read()
    (VENDOR / target).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def mismatches() -> list[str]:
    """Files that are not what the lock says."""
    wrong = []
    for library in json.loads(LOCK.read_text(encoding="utf-8")):
        for name, details in library["files"].items():
            path = VENDOR / name
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != details["sha256"]:
                wrong.append(f"{name} is not the file of {library['package']} {library['version']}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
