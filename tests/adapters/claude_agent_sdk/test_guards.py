"""Guards on the real CLI: they hold for our tools and for the answer, as on every other adapter."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import adapter
from tests.guarding.cases import CASES, Case, check, guard_for, prompt_for
from tests.servers.claude_cli import CliServer, call, say
from weakincentives.guards import Guard, Outcome, Refuse, Replace
from weakincentives.runtime import Conversation, MainLoop, Message
from weakincentives.session import Session


@pytest.mark.parametrize("case", [case for case in CASES if case.outcome is not None], ids=lambda case: case.id)
def test_a_guard_decides_on_the_cli(case: Case) -> None:
    script = [call("pay", amount=5), say("Done."), say("It is paid.")]
    prompt, session = prompt_for(guard_for(case, is_async=True)), Session()
    with CliServer(script) as api:
        check(case, session, lambda: MainLoop().execute(prompt, session=session, adapter=adapter(api)))


@pytest.mark.parametrize("outcome", [Refuse("No."), Replace("Somewhere.")], ids=["refused", "replaced"])
def test_an_answer_that_did_not_pass_is_not_what_the_next_turn_is_based_on(outcome: Outcome) -> None:
    class Discreet(Guard):
        def before_answer(self, answer: str, *, context: Any) -> Outcome | None:
            return outcome if "Lyon" in answer else None

    with CliServer([say("In Lyon."), say("Tomorrow.")]) as api:
        chat = Conversation(prompt_for(Discreet(), words=""), adapter=adapter(api))
        try:
            assert chat.send("Where is it?").text == "Somewhere."
        except Exception as error:
            assert isinstance(outcome, Refuse), error
        assert chat.send("When does it come?").text == "Tomorrow."
        assert "Lyon" not in str(api.requests[-1].json["messages"])
        assert not any("Lyon" in message.text for message in chat.session[Message].all())
        chat.adapter.close()  # type: ignore[attr-defined]
