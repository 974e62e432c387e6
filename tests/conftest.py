"""Keeps LiteLLM off the network, and what it leaves open (loops, clients) out of the tests that come after it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import warnings
from collections.abc import Iterator

import pytest

from tests import warm
from tests.npm_support import npm_modules as npm_modules

# Tests that import LiteLLM themselves, as a user would, must not make it fetch its price list.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
os.environ.setdefault("LITELLM_MODE", "PRODUCTION")


@pytest.fixture(scope="session")
def forks() -> None:
    """A server of forks, for what is started with `warm.command`."""
    warm.serve()


@pytest.fixture(autouse=True)
def litellm_cleared_away(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "litellm" in request.node.nodeid and (module := sys.modules.get("litellm")) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            module.in_memory_llm_clients_cache.flush_cache()
            asyncio.set_event_loop(None)
            gc.collect()
