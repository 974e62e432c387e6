"""Keeps what LiteLLM leaves open (a loop per thread, cached clients) out of the tests that come after it."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def litellm_cleared_away(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "litellm" in request.node.nodeid and (module := sys.modules.get("litellm")) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            module.in_memory_llm_clients_cache.flush_cache()
            asyncio.set_event_loop(None)
            gc.collect()
