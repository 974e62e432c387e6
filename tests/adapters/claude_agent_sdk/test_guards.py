"""Guards on the real CLI: they hold for our tools and for the answer, as on every other adapter."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import adapter
from tests.guarding.cases import CASES, Case, check, guard_for, prompt_for
from tests.rounds import rounds
from tests.servers.claude_cli import CliServer, call, say
from tests.servers.turn import Call, Turn
from weakincentives import Approve, MarkdownSection, Prompt, run
from weakincentives.errors import PromptEvaluationError
from weakincentives.filesystem import HostFilesystem
from weakincentives.guards import (
    Ask,
    Guard,
    GuardContext,
    GuardDecided,
    GuardedCall,
    GuardRefusedError,
    MaxCalls,
    Outcome,
    Refuse,
    Replace,
    Stop,
)
from weakincentives.prompt import WorkspaceSection
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


EDITED = {"command": "touch edited && echo other"}


OUTCOMES: dict[str, tuple[Outcome | None, list[str], str]] = {
    "allow": (None, ["touched"], "made"),
    "refuse": (Refuse("Not in this folder."), [], "Not in this folder."),
    "replace": (Replace(EDITED), ["edited"], "other"),
    "stop": (Stop("Enough."), [], ""),
    "ask": (Ask("Really?"), ["touched"], "made"),
    "nonsense": (
        Replace("nonsense"),
        [],
        "Guard 'Rule' failed: TypeError: Replace takes the input of 'Bash' as a mapp",
    ),
}
EACH_ONCE = [*zip(OUTCOMES, cycle([False, True]), strict=False)]


@pytest.mark.parametrize(("name", "is_async"), rounds(EACH_ONCE, [*product(OUTCOMES, [False, True])]))
def test_a_guard_decides_about_the_clis_own_tools(name: str, is_async: bool, tmp_path: Path) -> None:
    outcome, made, said = OUTCOMES[name]
    asked: list[Any] = []

    class Rule(Guard):
        tools = ("Bash",)

        def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Any:
            asked.append(call.params)
            return outcome

    class LaterRule(Rule):
        name = "Rule"

        async def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Any:
            return super().before_tool(call, context=context)

    touch = Turn("", calls=(Call("Bash", {"command": "touch touched && echo made"}),))
    sections = [WorkspaceSection(HostFilesystem(tmp_path)), MarkdownSection(key="t", title="T", template="Go.")]
    guard = LaterRule() if is_async else Rule()
    asks: Prompt[Any] = Prompt(ns="tests", key="own", sections=sections, guards=[guard])
    session = Session()
    with CliServer([touch, say("Done.")]) as api, adapter(api, allowed_cli_tools=("Bash",)) as model:
        try:
            response = run(asks, model, session=session)
            if isinstance(outcome, Ask):
                (pending,) = response.pending
                assert "A guard asks a person:\n  Really?\n\nBash\n" in pending.text and list(tmp_path.iterdir()) == []
                response = run(asks, model, session=session, decisions={pending.call_id: Approve()})
            assert response.text == "Done."
        except GuardRefusedError as error:
            assert isinstance(outcome, Stop) and error.message == "Enough."
        else:
            assert not isinstance(outcome, Stop)
            (result,) = api.results()
            content = result["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            assert said in text
    assert sorted(path.name for path in tmp_path.iterdir()) == made
    assert asked[0] == {"command": "touch touched && echo made"}
    decided = [(each.guard, each.outcome) for each in session[GuardDecided].all()]
    kind = "refuse" if said.startswith("Guard") else type(outcome).__name__.lower()
    assert decided == ([] if outcome is None else [("Rule", kind)])


@pytest.mark.parametrize("turns", [["ab"], ["a", "b", "c"]], ids=["in-one-turn", "in-three-turns"])
def test_calls_of_the_clis_own_tools_count_before_their_results_are_known(turns: list[str], tmp_path: Path) -> None:
    sections = [WorkspaceSection(HostFilesystem(tmp_path)), MarkdownSection(key="t", title="T", template="Go.")]
    prompt: Prompt[Any] = Prompt(ns="tests", key="own", sections=sections, guards=[MaxCalls("Bash", 1)])
    touch = [Turn("", calls=tuple(Call("Bash", {"command": f"touch {name}"}) for name in turn)) for turn in turns]
    script = [*touch, say("Done."), *touch, say("Done.")]
    with CliServer(script) as api, adapter(api, allowed_cli_tools=("Bash",)) as model:
        chat = Conversation(prompt, adapter=model)
        for exchange in (1, 2):
            assert chat.send("Go.").text == "Done."
            assert [path.name for path in tmp_path.iterdir()] == ["a"]
            (tmp_path / "a").unlink()
            refused = [each.outcome for each in chat.session[GuardDecided].all()]
            assert refused == ["refuse"] * exchange * (sum(map(len, turns)) - 1)


def test_two_calls_with_one_id_end_the_run_before_either_is_made() -> None:
    calls = (Call("pay", {"amount": 5}, "toolu_same"), Call("pay", {"amount": 6}, "toolu_same"))
    said = [Turn(calls=calls), say("Done.")]
    with CliServer(said) as api, pytest.raises(PromptEvaluationError, match="toolu_same"):
        run(prompt_for(), adapter(api))
