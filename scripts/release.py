"""Build a release, and try it as a user would get it:  python -m scripts.release [--offline]

Builds the source distribution and the wheel into dist/, checks that they hold what is tracked and nothing else,
installs the wheel into a clean environment, and runs the README's examples from there. It uploads nothing.

  --offline   take what the wheel needs from this environment instead of the package index
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RANKER = re.compile(r"^ranker='(.*)'$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=__doc__.partition(":")[0])
    parser.add_argument("--offline", action="store_true", help="take what the wheel needs from this environment")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder for the files (dist)")
    chosen = parser.parse_args()
    version = _version()
    is_listed = f"## {version} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    problems = [] if is_listed else [f"CHANGELOG.md has no heading for {version}"]
    source, wheel = build(chosen.into, version)
    problems += check_contents(source, wheel)
    with tempfile.TemporaryDirectory() as folder:
        python = install(wheel, Path(folder) / "environment", offline=chosen.offline)
        problems += [] if problems else run_examples(python, Path(folder))
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(
            f"{source.name} and {wheel.name} are in {chosen.into}; to publish: python -m twine upload {chosen.into}/*"
        )
    return 1 if problems else 0


def build(folder: Path, version: str) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it and from nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], cwd=ROOT)
    source = folder / f"weakincentives-{version}.tar.gz"
    with tempfile.TemporaryDirectory() as unpacked:
        _run(["tar", "-xzf", str(source), "-C", unpacked])
        inside = Path(unpacked) / f"weakincentives-{version}"
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())], cwd=inside)
    return source, folder / f"weakincentives-{version}-py3-none-any.whl"


def check_contents(source: Path, wheel: Path) -> list[str]:
    """The files that are missing in the distributions, or are not tracked."""
    tracked = set(_run(["git", "ls-files"], cwd=ROOT).splitlines())
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    with zipfile.ZipFile(wheel) as unpacked:
        in_wheel = {f"src/{name}" for name in unpacked.namelist() if ".dist-info/" not in name}
    library = {name for name in tracked if name.startswith("src/")}
    return [
        *_listed("not tracked, but in the source distribution", in_source - tracked),
        *_listed("not tracked, but in the wheel", in_wheel - tracked),
        *_listed("missing in the source distribution", library - in_source),
        *_listed("missing in the wheel", library - in_wheel),
    ]


def install(wheel: Path, folder: Path, *, offline: bool) -> Path:
    """A new environment with the wheel and the ranker's model; returns its interpreter."""
    venv.create(folder, with_pip=not offline, clear=True)
    python = folder / "bin" / "python"
    if offline:
        site = Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
        with zipfile.ZipFile(wheel) as unpacked:
            unpacked.extractall(site)
        # Only this folder: what it has in editable form, such as the library itself, is not found through it.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ranker = RANKER.search((ROOT / "scripts" / "env.sh").read_text(encoding="utf-8"))
    assert ranker is not None
    _run([*pip, f"{wheel.resolve()}[local]"])
    _run([*pip, *shlex.split(ranker[1])])
    return python


QUESTION, ANSWER = "Please refund order 7.", "Order 7 is refunded."


def run_examples(python: Path, folder: Path) -> list[str]:
    """The problems that the README's examples have, each imported outside the repository, and asked one question."""
    problems = []
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def output_of(*arguments: str) -> str:
        done = subprocess.run([python, *arguments], cwd=folder, env=clean, capture_output=True, text=True, check=False)
        if done.returncode:
            problems.append(f"README.md: {shlex.join(arguments)} failed:\n{done.stderr}")
        return done.stdout

    examples = EXAMPLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    for number, code in enumerate(examples, 1):
        (folder / f"example_{number}.py").write_text(code, encoding="utf-8")
        library = "import weakincentives; print(weakincentives.__file__)"
        lines = output_of("-c", f"import example_{number}; {library}").splitlines()
        if lines and not lines[-1].startswith(str(folder)):
            problems.append(f"example {number} of README.md ran on another library: {lines[-1]}")
    story = output_of("-m", "weakincentives.cli", "run", "example_1:template", QUESTION, "--no-record")
    if ANSWER not in story:
        problems.append(f"the first example of README.md answered without a key:\n{story}")
    print(f"{len(examples)} examples of README.md; without a key, the first one answered {ANSWER!r}")
    return problems


def _version() -> str:
    text = (ROOT / "src" / "weakincentives" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def _listed(problem: str, names: Iterable[str]) -> list[str]:
    return [f"{problem}: {name}" for name in sorted(names)]


def _run(command: list[str], cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
