"""Hosted tools in the loop, with a made-up kind: offered, withdrawn, read, refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.disclosure.desk import a_tool
from tests.helpers.endings import endings
from tests.helpers.hosted_tools import OracleCodec, OracleConfig, OracleResult, oracle_reply, oracle_tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import HostedTool, MarkdownSection, Prompt, PromptTemplate, SectionVisibility
from weakincentives.runtime import (
    Completed,
    Conversation,
    HostedToolInvoked,
    MainLoop,
    ModelCalled,
    PromptRendered,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.session import Session, Snapshot


def section(key: str = "oracle", *, hidden: bool = False, **options: Any) -> MarkdownSection[None]:
    if hidden:
        options |= {"summary": "An oracle.", "visibility": SectionVisibility.SUMMARY}
    options.setdefault("hosted_tools", (oracle_tool(name=key),))
    return MarkdownSection(title=key.title(), key=key, template="Ask the oracle.", **options)


def prompt(*sections: MarkdownSection[None], **options: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate(ns="t", key="t", sections=sections, **options))


def adapter(*script: Any, codec: Any = None, **options: Any) -> ScriptedAdapter:
    return ScriptedAdapter(script, hosted_tool_codecs={"oracle": codec or OracleCodec()}, **options)


def test_a_hosted_tool_is_offered_and_its_output_is_typed() -> None:
    model = adapter(oracle_reply("Beware.", "The ides."))
    response = model.evaluate(prompt(section()), session=Session())
    assert response.hosted_outputs == {"oracle": OracleResult(("Beware.", "The ides."))}
    assert model.requests[0].hosted_tools == (oracle_tool(),)


def test_the_use_of_a_hosted_tool_is_an_event_with_the_sessions_time() -> None:
    clock = FakeClock()
    session = Session(clock=clock)
    response = adapter(oracle_reply("Beware.")).evaluate(prompt(section()), session=session)
    (event,) = session[HostedToolInvoked].all()
    assert (event.name, event.kind, event.output) == ("oracle", "oracle", OracleResult(("Beware.",)))
    assert (event.run_id, event.conversation_id) == (response.run_id, response.conversation_id)
    assert event.timestamp == pytest.approx(clock.now().timestamp(), abs=0.001)
    assert session[PromptRendered].all()[0].hosted_tools == ("oracle",)
    assert session[ModelCalled].all()[0].tools == ("oracle",)


def test_the_calls_of_all_turns_are_one_output() -> None:
    pause = oracle_reply("Beware.", text="Hm, ", stop_reason="pause", usage=TokenUsage(hosted_requests=1))
    response = adapter(pause, oracle_reply("The ides.", usage=TokenUsage(hosted_requests=2))).evaluate(
        prompt(section()), session=Session()
    )
    assert response.hosted_outputs["oracle"].sayings == ("Beware.", "The ides.")
    assert (response.text, response.usage.hosted_requests) == ("Hm, So be it.", 3)


def test_the_output_of_a_turn_is_not_repeated_in_the_next() -> None:
    model = adapter(oracle_reply("Beware."), "You are welcome.", oracle_reply("The ides."))
    chat = Conversation(prompt(section()), adapter=model)
    outputs = [chat.send(words).hosted_outputs for words in ("Tell me.", "Thanks.", "What else?")]
    assert outputs == [{"oracle": OracleResult(("Beware.",))}, {}, {"oracle": OracleResult(("The ides.",))}]
    assert [event.output.sayings for event in chat.session[HostedToolInvoked]] == [("Beware.",), ("The ides.",)]


def test_a_restart_keeps_the_outputs_of_its_own_turn() -> None:
    asked = replace(oracle_reply("Now."), text="", tool_calls=(call("read_section", section_key="more"),))
    script = (oracle_reply("Before."), asked, "So it is.")
    sections = section(), section("more", hidden=True, hosted_tools=(), tools=[a_tool("more")])
    chat = Conversation(prompt(*sections), adapter=adapter(*script, supports_dynamic_tools=False))
    chat.send("Tell me.")
    assert chat.send("And now?").hosted_outputs == {"oracle": OracleResult(("Now.",))}


def test_a_hosted_tool_appears_when_its_section_is_read() -> None:
    session = Session()
    model = adapter(call("read_section", section_key="oracle"), oracle_reply("Beware."))
    response = model.evaluate(prompt(section(hidden=True)), session=session)
    assert [len(request.hosted_tools) for request in model.requests] == [0, 1]
    assert (model.requests[1].initial_hosted_tools, session[ToolsInjected].all()[0].tool_names) == (0, ("oracle",))
    assert response.hosted_outputs["oracle"].sayings == ("Beware.",)


def test_where_tools_cannot_appear_the_run_starts_again_with_it() -> None:
    model = adapter(call("read_section", section_key="oracle"), oracle_reply("Beware."), supports_dynamic_tools=False)
    response = MainLoop().execute(prompt(section(hidden=True)), session=Session(), adapter=model)
    assert model.requests[1].initial_hosted_tools == 1
    assert response.hosted_outputs["oracle"].sayings == ("Beware.",)


def test_a_hosted_tool_of_a_closed_section_is_withdrawn() -> None:
    session = Session()
    model = adapter(
        call("read_section", section_key="oracle"),
        oracle_reply("Beware.", text="", tool_calls=(call("collapse_section", call_id="c", section_key="oracle"),)),
        "Done.",
    )
    response = model.evaluate(prompt(section(hidden=True), allow_collapse=True), session=session)
    assert session[ToolsWithdrawn].all()[0].tool_names == ("oracle",)
    assert "oracle" in model.requests[2].revoked
    assert response.hosted_outputs["oracle"].sayings == ("Beware.",)


def test_a_run_that_is_resumed_reads_what_came_before() -> None:
    session = Session()
    pause = oracle_reply("Beware.", stop_reason="pause")
    with pytest.raises(PromptEvaluationError):
        adapter(pause, PromptEvaluationError("down", phase="request")).evaluate(prompt(section()), session=session)
    other = Session()
    other.restore(Snapshot.from_json(session.snapshot().to_json()))
    resumed = adapter(oracle_reply("The ides.")).resume(prompt(section()), session=other)
    assert resumed.hosted_outputs["oracle"].sayings == ("Beware.", "The ides.")
    with pytest.raises(PromptEvaluationError, match="Unsupported hosted tool kind 'oracle' for scripted adapter"):
        ScriptedAdapter(["no"]).resume(prompt(section()), session=session)


async def test_async_and_streamed_runs_read_it_too() -> None:
    response = await adapter(oracle_reply("Beware.")).evaluate_async(prompt(section()), session=Session())
    events = list(adapter(oracle_reply("Beware.")).stream(prompt(section()), session=Session()))
    assert isinstance(events[-1], Completed)
    assert events[-1].response.hosted_outputs == response.hosted_outputs == {"oracle": OracleResult(("Beware.",))}


@pytest.mark.parametrize("hidden", [False, True])
def test_an_unknown_kind_is_refused_before_any_request(hidden: bool) -> None:
    session, model = Session(), ScriptedAdapter(["no"])
    with pytest.raises(PromptEvaluationError) as caught:
        model.evaluate(prompt(section(hidden=hidden)), session=session)
    assert str(caught.value) == (
        "Unsupported hosted tool kind 'oracle' for scripted adapter (supported: none); "
        "pass hosted_tool_codecs= to add one."
    )
    assert (caught.value.phase, caught.value.prompt_name, model.requests) == ("render", "t", [])
    assert endings(session, "failed")[0].phase == "render"


def test_a_disabled_section_asks_for_nothing() -> None:
    sections = (section(enabled=lambda: False), MarkdownSection(title="A", key="a", template="A."))
    assert ScriptedAdapter(["Fine."]).evaluate(prompt(*sections), session=Session()).text == "Fine."


class Picky(OracleCodec):
    def serialize(self, tool: HostedTool[OracleConfig]) -> dict[str, Any]:
        if tool.config.mood != "calm":
            raise PromptEvaluationError(f"No oracle is {tool.config.mood}.", phase="render")
        return super().serialize(tool)

    def parse_output(self, response_items: Any, tool: HostedTool[OracleConfig]) -> Any:
        raise PromptEvaluationError("The oracle mumbles.", phase="parse")


def test_a_codecs_refusal_carries_the_prompts_name() -> None:
    moody = section(hosted_tools=(oracle_tool(OracleConfig("grumpy")),))
    with pytest.raises(PromptEvaluationError, match=r"No oracle is grumpy\.") as caught:
        adapter("no", codec=Picky()).evaluate(prompt(moody), session=Session())
    assert (caught.value.phase, caught.value.prompt_name) == ("render", "t")


def test_a_hard_failure_to_read_carries_the_prompts_name() -> None:
    with pytest.raises(PromptEvaluationError, match=r"The oracle mumbles\.") as caught:
        adapter("yes", codec=Picky()).evaluate(prompt(section()), session=Session())
    assert (caught.value.phase, caught.value.prompt_name) == ("parse", "t")


class Single(OracleCodec):
    single = True


def test_two_of_a_kind_are_fine_unless_the_codec_says_otherwise() -> None:
    both = prompt(section("left"), section("right"))
    assert len(adapter(oracle_reply("Hm.")).evaluate(both, session=Session()).hosted_outputs) == 2
    with pytest.raises(PromptEvaluationError) as caught:
        adapter("no", codec=Single()).evaluate(prompt(section("left"), section("right")), session=Session())
    assert str(caught.value) == (
        "Hosted tools 'left' (section 'left') and 'right' (section 'right') are both of kind 'oracle' and declared "
        "differently, and the scripted adapter cannot tell their results apart; give both the same config, keep one of "
        "them, or let enabled= choose."
    )


class Merging(Single):
    def serialize(self, tool: HostedTool[OracleConfig]) -> dict[str, Any]:
        return {"type": "oracle", "mood": tool.config.mood}


def test_two_names_of_one_hosted_tool_are_declared_once_while_any_of_their_sections_is_open() -> None:
    session = Session()
    steps = ["read right", "read left", "collapse left", "collapse right", "read right"]
    calls = [call(f"{verb}_section", section_key=key) for verb, key in map(str.split, steps)]
    hidden = prompt(section("left", hidden=True), section("right", hidden=True), allow_collapse=True)
    model = adapter(*calls, oracle_reply("Hm."), codec=Merging())
    response = model.evaluate(hidden, session=session)
    assert [len(request.hosted_tools) - len(request.revoked) for request in model.requests] == [0, 1, 1, 1, 0, 1]
    assert response.hosted_outputs == dict.fromkeys(("left", "right"), OracleResult(("Hm.",)))


def test_explain_names_every_problem_and_runs_nothing() -> None:
    sections = [section("left"), section("right", hidden=True), section("gone", enabled=lambda: False)]
    explained = adapter(codec=Single()).explain(prompt(*sections))
    assert [(tool.name, tool.supported) for tool in explained.hosted_tools] == [("left", True), ("right", False)]
    assert "hosted tool 'left' (oracle): supported" in explained.render()


def test_the_users_codecs_come_before_the_adapters_own() -> None:
    mine, theirs = OracleCodec(), OracleCodec()

    class Seeing(ScriptedAdapter):
        def default_codecs(self) -> dict[str, Any]:
            return {"oracle": theirs, "seer": theirs}

    assert Seeing(hosted_tool_codecs={"oracle": mine}).hosted_tool_codecs == {"oracle": mine, "seer": theirs}
