"""The local adapter as it is out of the box, and with a small language model, each loaded once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.embedded import require_quotation, small_model
from weakincentives.adapters.local import LocalAdapter


@pytest.fixture(scope="session")
def local() -> Iterator[LocalAdapter]:
    require_quotation()
    with LocalAdapter() as adapter:
        yield adapter


@pytest.fixture(scope="session")
def writing() -> Iterator[LocalAdapter]:
    """An adapter whose language model is too small to compose, but writes what cannot be quoted."""
    with LocalAdapter(small_model()) as adapter:
        # Loading takes a second, which a test with a deadline does not have.
        assert adapter.engine is not None
        yield adapter
