"""Bills are paid as a person decides, whatever dies in the meantime; `python -m bench kills` pays 200 of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable.killing import Workers, make_database, pay_and_die, worker_factory
from tests.rounds import rounds

pytestmark = pytest.mark.slow

RUNS = rounds(4, 20)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with worker_factory() as made:
        yield made


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_database(tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("seed", range(RUNS))
def test_whatever_dies_each_call_has_one_result_and_what_was_shown_is_what_happens(
    seed: int, tmp_path: Path, empty: Path, workers: Workers
) -> None:
    pay_and_die(seed, tmp_path, empty, workers)
