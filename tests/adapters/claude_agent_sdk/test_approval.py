"""A person decides about calls on the real CLI: of our tools, and of the CLI's own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import adapter, processes, prompt, section
from tests.approval.bank import Balance, Paid
from tests.rounds import rounds
from tests.servers.claude_cli import CliServer, say
from tests.servers.turn import Call, Turn
from tests.waiting import forever
from weakincentives import (
    Answer,
    Approve,
    Conversation,
    Deny,
    Edit,
    MainLoop,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Session,
    Snapshot,
    Tool,
    ToolContext,
    delegate,
    run,
    run_async,
    tool,
)
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.filesystem import HostFilesystem
from weakincentives.limits import Deadline
from weakincentives.prompt import WorkspaceSection
from weakincentives.runtime import ApprovalNeeded, CallDecided, RunEnded, ToolInvoked

# The CLI takes a second to start, so each decision is tried in some of the ways.
WAYS = ["run", "async", "stream", "conversation"]
DECISIONS = [Approve(by="ann"), Deny("too much"), Edit({"amount": 7}), Answer("later")]


def desk(needs: Any) -> list[Tool[Any, Any]]:
    @tool(approval=needs, changes=(Balance,))
    def pay(amount: int, *, context: ToolContext) -> str:
        "Pay an amount."
        context.session.dispatch(Paid(amount))
        return f"paid {amount}"

    @tool
    def note(text: str, *, context: ToolContext) -> str:
        "Write a note."
        return f"noted {text}"

    return [pay, note]


def calls(*made: tuple[str, dict[str, Any]], text: str = "") -> Turn:
    return Turn(text, calls=tuple(Call(name, given) for name, given in made))


def later(session: Session) -> Session:
    """The session in another process."""
    other = Session(session_id=session.session_id)
    other.restore(Snapshot.from_json(session.snapshot().to_json(), types=[Paid]))
    return other


class Run:
    """A prompt on a new adapter for each part of its run, as if each part had a process of its own."""

    def __init__(self, api: CliServer, prompt: Prompt[Any], way: str, **options: Any) -> None:
        self._api, self._prompt, self._way, self._options = api, prompt, way, options
        self.session = Session()

    def go(self, decisions: Any = None) -> Any:
        self.session = later(self.session)
        given = {} if decisions is None else {"decisions": decisions}
        with adapter(self._api, **self._options) as model:
            match self._way:
                case "run":
                    return run(self._prompt, model, session=self.session, **given)
                case "async":
                    return asyncio.run(run_async(self._prompt, model, session=self.session, **given))
                case "stream":
                    with MainLoop().stream(self._prompt, session=self.session, adapter=model, **given) as events:
                        seen = list(events)
                    asked = tuple(event.call for event in seen if isinstance(event, ApprovalNeeded))
                    assert asked == seen[-1].response.pending
                    return seen[-1].response
                case _:
                    chat = Conversation(self._prompt, adapter=model, session=self.session)
                    return chat.send("Pay.") if decisions is None else chat.decide(decisions)


def texts(api: CliServer) -> dict[str, tuple[str, bool]]:
    """The results in the last request: text and success by id of the call."""
    found = {}
    for block in api.results():
        content = block["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        found[block["tool_use_id"]] = text, not block.get("is_error")
    return found


@pytest.mark.parametrize(
    ("way", "needs", "decision"),
    [
        *zip(WAYS, ["call"] * 4, DECISIONS, strict=True),
        *zip(WAYS, ["effects"] * 4, DECISIONS[1:] + DECISIONS[:1], strict=True),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_a_call_of_our_tools_waits_and_then_happens_as_it_was_decided(way: str, needs: str, decision: Any) -> None:
    with CliServer([calls(("pay", {"amount": 5}), ("note", {"text": "n"})), say("Done.")]) as api:
        work = Run(api, prompt(section("task", tools=tuple(desk(needs)))), way)
        (pending,) = work.go().pending
        assert (pending.tool, pending.params.amount, pending.needs) == ("pay", 5, needs)
        assert [event.name for event in work.session[ToolInvoked]] == ["note"]
        assert work.session[RunEnded].latest().status == "waiting"  # type: ignore[union-attr]
        assert work.session[Paid].all() == ()
        assert processes(api) == []
        done = work.go({pending.call_id: decision})
        if needs == "effects" and isinstance(decision, Edit):
            assert [call.params.amount for call in done.pending] == [7]
            assert work.session[Paid].all() == ()
            done = work.go({pending.call_id: Approve()})
        assert (done.text, done.pending, len(api.requests)) == ("Done.", (), 2)
        assert processes(api) == []
    text, success = texts(api)[pending.call_id]
    made, said, good = {
        Approve: ((Paid(5),), "paid 5", True),
        Deny: ((), "A person denied this call: too much", False),
        Edit: ((Paid(7),), "paid 7", True),
        Answer: ((), "later", True),
    }[type(decision)]
    assert (work.session[Paid].all(), success) == (made, good)
    assert text.endswith(said) and ("A person changed" in text) is isinstance(decision, Edit)
    assert {text for call_id, (text, _) in texts(api).items() if call_id != pending.call_id} == {"noted n"}
    assert work.session[CallDecided].all()[0].by == decision.by


def test_nothing_is_sent_until_all_calls_are_decided() -> None:
    script = [calls(("pay", {"amount": 5}), ("pay", {"amount": 6})), say("Done.")]
    with CliServer(script) as api:
        work = Run(api, prompt(section("task", tools=tuple(desk("effects")))), "run")
        one, two = (call.call_id for call in work.go().pending)
        # What the second would change was shown with the change of the first, so that is decided before.
        assert [call.call_id for call in work.go({two: Approve()}).pending] == [one, two]
        assert [call.call_id for call in work.go({}).pending] == [one, two]
        assert [call.call_id for call in work.go({one: Deny("no")}).pending] == [two]
        assert len(api.requests) == 1
        assert work.go({two: Approve()}).text == "Done."
    assert texts(api) == {one: ("A person denied this call: no", False), two: ("paid 6", True)}
    assert work.session[Balance].latest() == Balance(94)


def test_the_cli_that_goes_on_after_a_decision_stays_open_for_the_conversation() -> None:
    with CliServer([calls(("pay", {"amount": 5})), say("Paid."), say("Bye.")]) as api:
        with adapter(api) as model:
            chat = Conversation(prompt(section("task", tools=tuple(desk("call")))), adapter=model)
            (pending,) = chat.send("Pay.").pending
            assert chat.decide({pending.call_id: Approve()}).text == "Paid."
            started = processes(api)
            assert chat.send("Bye.").text == "Bye."
            assert started and processes(api) == started
        assert processes(api) == []


def test_a_conversation_goes_on_although_a_call_was_not_decided() -> None:
    with CliServer([calls(("pay", {"amount": 5})), say("Well."), say("Bye.")]) as api, adapter(api) as model:
        chat = Conversation(prompt(section("task", tools=tuple(desk("call")))), adapter=model)
        assert chat.send("Pay.").pending
        assert chat.send("No, wait.").text == "Well."
        assert chat.send("Bye.").text == "Bye."
    assert [text[:11] for text, _ in texts(api).values()] == ["Not decided"]


@pytest.mark.parametrize(("way", "fork"), [("run", False), ("conversation", False), ("async", True), ("stream", True)])
def test_a_call_of_a_child_waits_and_is_decided_above(way: str, fork: bool) -> None:
    task = MarkdownSection(key="task", title="Task", template="Pay the bill.", tools=() if fork else desk("call"))
    child = PromptTemplate(ns="tests", key="payer", sections=[task])
    hand_over = delegate(child, description="Have the bill paid.", fork=fork)
    script = [calls(("payer", {})), calls(("pay", {"amount": 5})), say("It is paid."), say("Done.")]
    with CliServer(script) as api:
        work = Run(api, prompt(section("task", tools=(hand_over, *(desk("call") if fork else ())))), way)
        (pending,) = work.go().pending
        assert (pending.tool, pending.call_id.count("/"), len(api.requests)) == ("pay", 1, 2)
        assert processes(api) == []
        assert work.go({pending.call_id: Approve()}).text == "Done."
        assert processes(api) == []
    assert [text for text, _ in texts(api).values()] == ["It is paid."]
    assert work.session[Paid].all() == (Paid(5),)


def test_a_tool_that_takes_too_long_fails_and_the_cli_goes_on() -> None:
    @tool(timeout=0.2)
    async def wait(*, context: ToolContext) -> str:
        "Wait."
        await forever()
        return "too late"

    with CliServer([calls(("wait", {})), say("Done.")]) as api:
        assert Run(api, prompt(section("task", tools=(wait,))), "run").go().text == "Done."
    ((text, success),) = texts(api).values()
    assert "0.2" in text and not success


# The CLI's own tools.


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    (root / "plan.md").write_text("step one\n")
    return root


def in_workspace(root: Path, *tools: Tool[Any, Any]) -> Prompt[Any]:
    return prompt(WorkspaceSection(HostFilesystem(root)), section("task", tools=tuple(tools)))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


TOUCH = ("Bash", {"command": "touch touched && echo made"})
WRITE = ("Write", {"file_path": "written.md", "content": "w"})


@pytest.mark.parametrize(
    ("way", "decision"),
    [
        ("run", Deny("too much")),
        ("async", Approve(by="ann")),
        ("stream", Edit({"command": "touch edited && echo other"})),
        ("conversation", Answer("later")),
        ("conversation", Approve(by="bob")),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_a_call_of_the_cli_waits_and_then_happens_as_it_was_decided(way: str, decision: Any, workspace: Path) -> None:
    with CliServer([calls(TOUCH), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Bash",), "cli_tool_approval": {"Bash": "call"}}
        work = Run(api, in_workspace(workspace), way, **options)
        (pending,) = work.go().pending
        assert (pending.tool, pending.params, pending.needs) == (*TOUCH, "call")
        assert "touch touched" in pending.text
        assert names(workspace) == ["plan.md"] and work.session[ToolInvoked].all() == ()
        assert processes(api) == []
        done = work.go({pending.call_id: decision})
        assert (done.text, done.pending, len(api.requests)) == ("Done.", (), 2)
    made, said, good = {
        Approve: (["plan.md", "touched"], "made", True),
        Deny: (["plan.md"], "A person denied this call: too much", False),
        Edit: (["edited", "plan.md"], "other", True),
        Answer: (["plan.md"], "later", True),
    }[type(decision)]
    text, success = texts(api)[pending.call_id]
    assert (names(workspace), success) == (made, good)
    assert text.endswith(said) and ("A person changed" in text) is isinstance(decision, Edit)
    (invoked,) = work.session[ToolInvoked].all()
    assert (invoked.name, invoked.success) == ("Bash", good)


# Two calls that wait, before, between and after one that does not; then other pairs and threes of them.
ORDERS = [
    ("run", (("pay", {"amount": 5}), TOUCH, WRITE)),
    ("async", (TOUCH, ("pay", {"amount": 5}), WRITE)),
    ("run", (WRITE, TOUCH, ("pay", {"amount": 5}))),
    ("async", (("note", {"text": "n"}), WRITE, TOUCH)),
    ("async", (("pay", {"amount": 5}), WRITE)),
    ("run", (WRITE, ("pay", {"amount": 5}), ("note", {"text": "n"}))),
    ("run", (TOUCH, WRITE)),
    ("async", (WRITE, TOUCH)),
]


@pytest.mark.parametrize(
    ("way", "turn"),
    rounds(ORDERS[:4], ORDERS),
    ids=lambda each: each if isinstance(each, str) else "-".join(name for name, _ in each),
)
def test_other_calls_of_the_turn_have_run_and_their_results_are_kept(way: str, turn: Any, workspace: Path) -> None:
    """`pay` and `Bash` wait; `note` and `Write` do not, wherever they stand."""
    with CliServer([calls(*turn, text="I begin."), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Bash", "Write"), "cli_tool_approval": {"Bash": "call"}}
        work = Run(api, in_workspace(workspace, *desk("call")), way, **options)
        pending = work.go().pending
        assert [call.tool for call in pending] == [name for name, _ in turn if name in ("pay", "Bash")]
        assert names(workspace) == (["plan.md", "written.md"] if WRITE in turn else ["plan.md"])
        ran = sorted(event.name for event in work.session[ToolInvoked])
        assert ran == sorted(name for name, _ in turn if name in ("note", "Write"))
        assert (len(api.requests), processes(api)) == (1, [])
        for call in pending:
            assert len(api.requests) == 1
            done = work.go({call.call_id: Approve()})
        assert (done.text, len(api.requests)) == ("Done.", 2)
    results = texts(api)
    assert len(results) == len(turn) and all(success for _, success in results.values())
    assert ("touched" in names(workspace)) is (TOUCH in turn)
    assert sum(event.name == "Write" for event in work.session[ToolInvoked]) == (WRITE in turn)


def test_two_calls_of_the_cli_are_decided_one_by_one(workspace: Path) -> None:
    turn = [("Bash", {"command": f"touch {name}"}) for name in ("one", "two")]
    with CliServer([calls(*turn), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Bash",), "cli_tool_approval": {"Bash": "call"}}
        work = Run(api, in_workspace(workspace), "run", **options)
        first, second = (call.call_id for call in work.go().pending)
        assert [call.call_id for call in work.go({second: Approve()}).pending] == [first]
        assert (names(workspace), len(api.requests)) == (["plan.md", "two"], 1)
        assert work.go({first: Deny()}).text == "Done."
    assert names(workspace) == ["plan.md", "two"]
    assert {call_id: success for call_id, (_, success) in texts(api).items()} == {first: False, second: True}


def running(command: str) -> list[str]:
    """The processes whose command line contains these words."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if command in line]


def test_an_approved_call_of_the_cli_ends_with_the_deadline_of_its_run(workspace: Path) -> None:
    with CliServer([calls(("Bash", {"command": "touch begun && sleep 98.7654"}))]) as api:
        options = {"allowed_cli_tools": ("Bash",), "cli_tool_approval": {"Bash": "call"}}
        work = Run(api, in_workspace(workspace), "run", **options)
        (pending,) = work.go().pending
        with adapter(api, **options) as model, pytest.raises(DeadlineExceededError):
            decisions = {pending.call_id: Approve()}
            deadline = Deadline.after(6)
            run(in_workspace(workspace), model, session=work.session, decisions=decisions, deadline=deadline)
    assert names(workspace) == ["begun", "plan.md"]
    assert running("sleep 98.7654") == []


def test_a_rule_decides_for_each_call_of_the_cli_and_is_asked_once(workspace: Path) -> None:
    asked: list[str] = []

    def rule(given: dict[str, Any], *, session: Session) -> Any:
        asked.append(given["command"])
        return "call" if given["command"].startswith("rm") else None

    script = [calls(("Bash", {"command": "ls"})), calls(("Bash", {"command": "rm plan.md"})), say("Done.")]
    with CliServer(script) as api:
        options = {"allowed_cli_tools": ("Bash",), "cli_tool_approval": {"Bash": rule}}
        work = Run(api, in_workspace(workspace), "run", **options)
        (pending,) = work.go().pending
        assert (pending.params["command"], names(workspace)) == ("rm plan.md", ["plan.md"])
        assert work.go({pending.call_id: Approve()}).text == "Done."
    assert names(workspace) == []
    assert asked == ["ls", "rm plan.md"]


@pytest.mark.parametrize("rule", [lambda given: 1 / 0, lambda given: "effects", lambda given: True])
def test_a_rule_that_fails_lets_no_call_run(rule: Any, workspace: Path) -> None:
    with CliServer([calls(TOUCH), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Bash",), "cli_tool_approval": {"Bash": rule}}
        assert Run(api, in_workspace(workspace), "run", **options).go().text == "Done."
    (result,) = texts(api).values()
    assert "was not run, because its approval rule failed" in result[0]
    assert names(workspace) == ["plan.md"]


def test_an_approved_edit_knows_the_files_that_were_read(workspace: Path) -> None:
    edit = ("Edit", {"file_path": "plan.md", "old_string": "one", "new_string": "two"})
    with CliServer([calls(("Read", {"file_path": "plan.md"})), calls(edit), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Read", "Edit"), "cli_tool_approval": {"Edit": "call"}}
        work = Run(api, in_workspace(workspace), "run", **options)
        (pending,) = work.go().pending
        assert work.go({pending.call_id: Approve()}).text == "Done."
    assert (workspace / "plan.md").read_text() == "step two\n"


def test_an_approved_call_stays_inside_the_workspace(workspace: Path) -> None:
    outside = workspace.parent / "outside.md"
    with CliServer([calls(("Write", {"file_path": str(outside), "content": "no"})), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Write",), "cli_tool_approval": {"Write": "call"}}
        work = Run(api, in_workspace(workspace), "run", **options)
        (pending,) = work.go().pending
        work.go({pending.call_id: Approve()})
    assert not outside.exists()
    assert not texts(api)[pending.call_id][1]


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"Bash": "effects"}, "may not be 'effects': the CLI runs its own tools outside of our transactions"),
        ({"Write": "call"}, "names 'Write', which is not in allowed_cli_tools: Bash"),
        ({"Bash": True}, "must be 'call' or a function of the input, got True"),
        (["Bash"], "must map names of tools"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(rules: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ClaudeAgentSDKAdapter("claude-sonnet-5", allowed_cli_tools=("Bash",), cli_tool_approval=rules)


def test_a_rule_for_a_tool_that_the_cli_does_not_have_is_refused() -> None:
    with CliServer([say("Done.")]) as api, pytest.raises(PromptEvaluationError, match="lists no tool of this name"):
        options = {"allowed_cli_tools": ("Bsh",), "cli_tool_approval": {"Bsh": "call"}}
        Run(api, prompt(section("task")), "run", **options).go()


def test_a_pending_call_of_a_tool_that_is_no_longer_allowed_does_not_run(workspace: Path) -> None:
    with CliServer([calls(TOUCH), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Bash",), "cli_tool_approval": {"Bash": "call"}}
        work = Run(api, in_workspace(workspace), "run", **options)
        (pending,) = work.go().pending
        with adapter(api) as model:
            decisions = {pending.call_id: Approve()}
            assert run(in_workspace(workspace), model, session=later(work.session), decisions=decisions).text == "Done."
    assert names(workspace) == ["plan.md"]
    assert "Unknown tool 'Bash'" in texts(api)[pending.call_id][0]


def test_a_subagent_of_the_cli_cannot_ask_and_its_call_does_not_run(workspace: Path) -> None:
    agent = ("Agent", {"description": "touch", "prompt": "Touch it.", "subagent_type": "general-purpose"})
    with CliServer([calls(agent), calls(TOUCH), say("I could not."), say("Done.")]) as api:
        options = {"allowed_cli_tools": ("Agent", "Bash"), "cli_tool_approval": {"Bash": "call"}}
        assert Run(api, in_workspace(workspace), "run", **options).go().text == "Done."
    assert names(workspace) == ["plan.md"]
    assert "a subagent cannot ask for" in str(api.results(2))
