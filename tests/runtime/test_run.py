"""`run` is the shortest way to an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.disclosure.desk import desk
from weakincentives import run, run_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import Prompt
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import RunStore, record

SCRIPT = [call("read_section", section_key="orders"), call("lookup"), "Done."]


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_prompt_is_run_until_it_is_answered_on_a_session_of_its_own(dynamic: bool) -> None:
    response = run(Prompt(desk()), ScriptedAdapter(SCRIPT, supports_dynamic_tools=dynamic))
    assert response.text == "Done." and response.session is not None
    assert [event.name for event in response.session[ToolInvoked]] == ["read_section", "lookup"]


def test_the_async_form_takes_a_session() -> None:
    session = Session()
    response = asyncio.run(run_async(Prompt(desk()), ScriptedAdapter(SCRIPT), session=session))
    assert (response.text, response.session) == ("Done.", session)


def test_a_recorder_and_a_limit_of_restarts_are_those_of_the_main_loop(tmp_path: Path) -> None:
    adapter = ScriptedAdapter(SCRIPT, supports_dynamic_tools=False)
    with pytest.raises(PromptEvaluationError, match="more than 0 times"):
        run(Prompt(desk()), adapter, recorder=record(tmp_path / "runs.db"), max_expansions=0)
    with RunStore(tmp_path / "runs.db") as store:
        assert [summary.status for summary in store.list_runs()] == ["failed"]
