"""Every scenario on every adapter, and the table of them in the docs."""

from __future__ import annotations

import pytest

from tests.adapters.around import Around, around
from tests.adapters.scenarios import PAGE, ROUTES, SCENARIOS, Network, Subject, page_with, subjects, table
from weakincentives.runtime.spi import adapter_specs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

SUBJECTS = subjects()
AROUND = around(SUBJECTS)


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, subject: Subject) -> None:
    if scenario in subject.exempt:
        pytest.skip(subject.exempt[scenario])
    SCENARIOS[scenario](subject)


@pytest.mark.parametrize("subject", ROUTES, ids=[subject.name for subject in ROUTES])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_on_every_route(scenario: str, subject: Network) -> None:
    SCENARIOS[scenario](subject)


@pytest.mark.parametrize("subject", AROUND, ids=[subject.name for subject in AROUND])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_with_another_adapter_around(scenario: str, subject: Around) -> None:
    if scenario in subject.exempt:
        pytest.skip(subject.exempt[scenario])
    SCENARIOS[scenario](subject)


def test_every_adapter_is_a_subject() -> None:
    names = {spec.name for spec in adapter_specs()}
    assert sorted(subject.name.replace(" ", "_") for subject in SUBJECTS) == sorted(names)


def test_only_scenarios_that_exist_are_exempt() -> None:
    assert {name for subject in SUBJECTS for name in subject.exempt} <= set(SCENARIOS)


def test_the_table_in_the_docs_shows_every_scenario_and_adapter() -> None:
    assert PAGE.read_text() == page_with(table()), "run python -m tests.adapters.scenarios --write"
