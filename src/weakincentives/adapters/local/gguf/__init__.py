"""Language models in GGUF files, run by llama.cpp (extra `gguf`)."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front

if TYPE_CHECKING:
    from weakincentives.adapters.local.gguf.engine import load_runtime
    from weakincentives.adapters.local.gguf.models import (
        PublishedModel,
        fetch,
        fetched_model,
        folder,
        published,
        remove,
    )

__all__ = ["PublishedModel", "fetch", "fetched_model", "folder", "load_runtime", "published", "remove"]

__getattr__ = lazy_front(
    __name__,
    {
        "engine": ["load_runtime"],
        "models": ["PublishedModel", "fetch", "fetched_model", "folder", "published", "remove"],
    },
)
