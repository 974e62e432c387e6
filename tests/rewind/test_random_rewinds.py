"""Random conversations go back to random points, and are then as they were: requests, session and files.

`python -m bench rewind` does the same two thousand times.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from bench.journeys import journey
from tests.rounds import rounds


@pytest.mark.parametrize("seed", range(rounds(8, 60)))
def test_a_random_conversation_goes_back_to_random_points(tmp_path: Path, seed: int) -> None:
    assert journey(Random(seed), tmp_path if seed % 2 else None) == 4
