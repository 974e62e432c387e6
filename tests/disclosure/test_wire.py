"""Disclosure through the vendors' real SDKs: what goes over the wire, and whether the provider's cache can hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.vendors import ANTHROPIC, OPENAI, ROUTED, VENDORS, Vendor
from tests.disclosure.desk import answers, desk, desk_with_files, section
from tests.helpers.endings import endings
from tests.servers.turn import Call, Turn
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import OpenAndHalt, OpenOrRead, OpenToFiles, Prompt, PromptTemplate
from weakincentives.runtime import MainLoop, ToolsInjected, assert_prefix_kept, prefix_breaks
from weakincentives.session import Session, Snapshot

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

READ_ORDERS = Turn(calls=(Call("read_section", {"section_key": "orders"}),))
LOOKUP = Turn(calls=(Call("lookup", {}),))
DONE = Turn("Done.")
SAFE = [(OPENAI, "additional_tools"), (ANTHROPIC, "tool_addition")]


def run(
    vendor: Vendor, template: PromptTemplate[Any], *steps: Turn, **options: Any
) -> tuple[list[dict[str, Any]], Session]:
    session = Session()
    pytest.importorskip(vendor.package)
    with vendor.server(steps) as server, vendor.adapter(server, **options) as adapter:
        MainLoop().execute(Prompt(template), session=session, adapter=adapter)
        return [request.json for request in server.requests], session


@pytest.mark.parametrize(("vendor", "route"), SAFE, ids=str)
def test_tools_appear_without_breaking_the_prefix(vendor: Vendor, route: str) -> None:
    bodies, session = run(vendor, desk(), READ_ORDERS, LOOKUP, DONE)
    assert session[ToolsInjected].all()[0].route == route
    assert answers(session)[1] == (True, "lookup done")
    assert bodies[0]["tools"] == bodies[-1]["tools"]
    assert_prefix_kept(bodies, session)


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_appending_breaks_the_prefix_and_the_check_names_the_section(vendor: Vendor) -> None:
    options = {"tool_route": "append"} if vendor in ROUTED else {}
    bodies, session = run(vendor, desk(), READ_ORDERS, LOOKUP, DONE, **options)
    (broken,) = prefix_breaks(bodies, session)
    assert (broken.request, broken.where, broken.section_key) == (1, "tools", "orders")
    assert str(broken) == "request 1 breaks the prefix at tools: tools changed: lookup (section 'orders')"


def test_a_restart_breaks_the_prefix_at_the_section_that_was_opened() -> None:
    opened = Turn(calls=(Call("open_sections", {"section_keys": ["orders"], "reason": "needed"}),))
    bodies, session = run(OPENAI, desk(disclosure=OpenOrRead()), opened, LOOKUP, DONE)
    assert len(endings(session, "restarted")) == 1
    (broken,) = prefix_breaks([{**body, "tools": []} for body in bodies], session)
    assert (broken.where, broken.section_key) == ("input[0]", "orders")


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@pytest.mark.parametrize("strategy", [OpenOrRead(), OpenToFiles(), OpenAndHalt()], ids=lambda s: type(s).__name__)
def test_every_strategy_opens_sections_with_tools(vendor: Vendor, strategy: Any) -> None:
    opened = Turn(calls=(Call("open_sections", {"section_keys": ["orders.refunds"], "reason": "needed"}),))
    refund = Turn(calls=(Call("refund", {}),))
    _, session = run(vendor, desk_with_files(disclosure=strategy), opened, refund, DONE)
    (asked, reason), refunded = answers(session)
    assert asked and "orders.refunds" in reason
    assert refunded == (True, "refund done")


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_content_goes_to_files_over_the_wire(vendor: Vendor) -> None:
    opened = Turn(calls=(Call("open_sections", {"section_keys": ["docs"], "reason": "needed"}),))
    prompt = Prompt(desk_with_files(disclosure=OpenToFiles()))
    pytest.importorskip(vendor.package)
    with vendor.server([opened, DONE]) as server, vendor.adapter(server) as adapter, prompt.resources:
        adapter.evaluate(prompt, session=Session())
        assert prompt.resources.get(Filesystem).read("context/docs.md").endswith("All of docs.")


@pytest.mark.parametrize(("vendor", "route"), SAFE, ids=str)
def test_a_closed_section_is_withdrawn_without_rewriting_history(vendor: Vendor, route: str) -> None:
    template = PromptTemplate(
        ns="t",
        key="k",
        sections=[section("shown", closed=False), section("orders", tools=("lookup",))],
        allow_collapse=True,
    )
    close = Turn(calls=(Call("collapse_section", {"section_key": "orders"}),))
    bodies, session = run(vendor, template, READ_ORDERS, close, LOOKUP, DONE, tool_route=route)
    assert_prefix_kept(bodies, session)
    assert "section 'orders' is closed" in answers(session)[2][1]
    last = bodies[-1]
    if vendor is OPENAI:
        assert {tool["name"] for tool in last["tool_choice"]["tools"]} == {"read_section", "collapse_section"}
    else:
        assert "tool_removal" in str(last["messages"])


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_resumed_conversation_sends_the_same_next_request(vendor: Vendor) -> None:
    pytest.importorskip(vendor.package)
    session, snapshots = Session(), []
    with vendor.server([READ_ORDERS, LOOKUP, DONE]) as server, vendor.adapter(server) as adapter:
        session.observe(lambda event: snapshots.append(session.snapshot().to_json()))
        adapter.evaluate(Prompt(desk()), session=session)
        original = [request.json for request in server.requests]
    other = Session()
    other.restore(Snapshot.from_json(next(s for s in snapshots if "tools_added" in s)))
    with vendor.server([LOOKUP, DONE]) as server, vendor.adapter(server) as adapter:
        adapter.resume(Prompt(desk()), session=other)
        assert server.requests[0].json == original[1]
