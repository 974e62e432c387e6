"""A run that goes on under a changed prompt uses what exists, and tells the model what has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.disclosure.desk import a_tool, section
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Message, PromptChanged
from weakincentives.session import Session, Snapshot


@dataclass(frozen=True)
class Customer:
    name: str


def shop(*tools: str, rules: str = "Be kind.", extra: bool = True, customer: str = "Ann") -> Prompt[None]:
    sections = [
        MarkdownSection(title="Rules", key="rules", template=rules, tools=[a_tool(name) for name in tools]),
        *([section("returns", closed=False)] if extra else []),
        MarkdownSection[Customer](title="Customer", key="customer", template="Serve ${name}."),
    ]
    return Prompt(PromptTemplate(ns="t", key="shop", sections=sections)).bind(Customer(customer))


def interrupted(prompt: Prompt[None], *script: Any) -> Session:
    """A session in which the run was stopped before the model's last reply, as another process finds it."""
    session = Session()
    taken: list[Snapshot] = []
    session.observe(lambda event: taken.append(session.snapshot()))
    ScriptedAdapter([*script, "Done."]).evaluate(prompt, session=session)
    before_reply = next(s for s in reversed(taken) if s[Message] and s[Message][-1].role != "assistant")
    restored = Session()
    restored.restore(Snapshot.from_json(before_reply.to_json()))
    return restored


def test_a_run_resumed_under_the_same_prompt_sends_the_same_request() -> None:
    session = interrupted(shop("find"), call("find"))
    with ScriptedAdapter(["Done."]) as adapter:
        adapter.resume(shop("find"), session=session)
    assert session[PromptChanged].all() == ()
    assert [message.role for message in adapter.requests[0].messages] == ["system", "assistant", "tool"]


def test_a_tool_that_was_renamed_meanwhile_is_replaced_and_the_model_is_told() -> None:
    session = interrupted(shop("find"), call("find"))
    with ScriptedAdapter([call("search"), "Done."]) as adapter:
        adapter.resume(shop("search"), session=session)
    (event,) = session[PromptChanged].all()
    assert event.removed_tools == ("find",)
    notes = [message.text for message in adapter.requests[0].messages if message.role == "system"][1:]
    assert notes == ["These tools are no longer available: find."]
    assert [message.text for message in session[Message] if message.role == "tool"] == ["find done", "search done"]


def test_sections_that_read_otherwise_or_are_gone_are_told() -> None:
    session = interrupted(shop())
    with ScriptedAdapter(["Done."]) as adapter:
        adapter.resume(shop(rules="Be brief.", extra=False), session=session)
    (event,) = session[PromptChanged].all()
    assert (event.changed_sections, event.removed_sections) == (("rules",), ("returns",))
    assert adapter.requests[0].messages[-1].text == (
        "The instructions have changed. From now on these sections read:\n\n## Rules\n\nBe brief.\n\n"
        "These sections no longer apply: returns."
    )


def test_params_bound_anew_are_told() -> None:
    session = interrupted(shop())
    with ScriptedAdapter(["Done."]) as adapter:
        adapter.resume(shop(customer="Bob"), session=session)
    assert session[PromptChanged].all()[0].changed_sections == ("customer",)
    assert "Serve Bob." in adapter.requests[0].messages[-1].text
