"""Every scenario on every adapter, and the table of them in the docs."""

from __future__ import annotations

import pytest

from tests.adapters.scenarios import PAGE, SCENARIOS, Subject, page_with, subjects, table

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

RESULTS: dict[tuple[str, str], str] = {}
SUBJECTS = subjects()


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, subject: Subject) -> None:
    if scenario not in subject.exempt:
        SCENARIOS[scenario](subject)
    RESULTS[scenario, subject.name] = subject.exempt.get(scenario, "yes")


def test_the_table_in_the_docs_is_what_was_just_run() -> None:
    if len(RESULTS) < len(SCENARIOS) * len(SUBJECTS):
        pytest.skip("not every scenario was run")
    assert PAGE.read_text() == page_with(table(RESULTS)), "run python -m tests.adapters.scenarios --write"
