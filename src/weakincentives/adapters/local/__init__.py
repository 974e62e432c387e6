"""Quotation inside this process, and language models in GGUF files: no key, no network."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.local.adapter import LocalAdapter
    from weakincentives.adapters.local.ranker import LocalRanker

__all__ = ["SPEC", "LocalAdapter", "LocalRanker"]

SPEC = AdapterSpec(
    name="local",
    package=__name__,
    adapter="LocalAdapter",
    provider="local",
    model="FILE.gguf",
    requires_model=False,
    in_process=True,
    package_needed="numpy",
)

__getattr__ = lazy_front(__name__, {"adapter": ["LocalAdapter"], "ranker": ["LocalRanker"]})
