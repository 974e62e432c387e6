"""Every conversation scenario on every adapter, and the table of them in the docs."""

from __future__ import annotations

import pytest

from tests.adapters.around import Around, around
from tests.adapters.conversations import REFUSED, SCENARIOS, Speaker, page, routes, speakers
from tests.adapters.scenarios import PAGE

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

SPEAKERS = speakers()
ROUTES = routes()
AROUND = around(SPEAKERS)


@pytest.mark.parametrize("speaker", SPEAKERS, ids=[speaker.name for speaker in SPEAKERS])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conversation(scenario: str, speaker: Speaker) -> None:
    if speaker.outcomes.get(scenario, REFUSED) != REFUSED:
        pytest.skip(speaker.outcomes[scenario])
    SCENARIOS[scenario](speaker)


@pytest.mark.parametrize("speaker", ROUTES, ids=[speaker.name for speaker in ROUTES])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conversation_on_every_route(scenario: str, speaker: Speaker) -> None:
    SCENARIOS[scenario](speaker)


@pytest.mark.parametrize("speaker", AROUND, ids=[speaker.name for speaker in AROUND])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conversation_with_another_adapter_around(scenario: str, speaker: Around) -> None:
    if speaker.outcomes.get(scenario, REFUSED) != REFUSED:
        pytest.skip(speaker.outcomes[scenario])
    SCENARIOS[scenario](speaker)


def test_only_scenarios_that_exist_have_other_outcomes() -> None:
    assert {name for speaker in SPEAKERS for name in speaker.outcomes} <= set(SCENARIOS)


def test_the_table_in_the_docs_shows_every_conversation_scenario() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.adapters.conversations --write"
