from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def servers_start_at_once(forks: None) -> None:
    """The servers of these tests that are written in Python are forks."""
