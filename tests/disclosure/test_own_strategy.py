"""A strategy of the user's own: other words, another tool, the same opening."""

from __future__ import annotations

import pytest

from tests.disclosure.desk import LookUp, desk, tool_names
from tests.helpers.endings import endings
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import Prompt
from weakincentives.runtime import MainLoop, ToolInvoked, ledger
from weakincentives.session import Session


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_strategy_of_ones_own_opens_sections_with_their_tools(dynamic: bool) -> None:
    template, session = desk(disclosure=LookUp()), Session()
    rendered = template.render()
    assert "[In short; `look_up` finds the rest by its words.]" in rendered.text
    assert "look_up" in tool_names(rendered.tools) and "read_section" not in tool_names(rendered.tools)
    adapter = ScriptedAdapter([call("look_up", words="All of orders"), "done"], supports_dynamic_tools=dynamic)
    MainLoop().execute(Prompt(template), session=session, adapter=adapter)
    assert "lookup" in tool_names(adapter.requests[1].tools)
    assert [event.section_keys for event in endings(session, "restarted")] == ([] if dynamic else [("orders",)])


def test_an_opening_by_a_strategy_of_ones_own_is_recorded_and_priced_as_one() -> None:
    session = Session()
    adapter = ScriptedAdapter([call("look_up", words="All of orders"), call("lookup", order=7), "done"])
    MainLoop().execute(Prompt(desk(disclosure=LookUp())), session=session, adapter=adapter)
    opening, use = session[ToolInvoked].all()
    assert opening.disclosure is not None and opening.disclosure.requested_sections == ("orders",)
    assert opening.disclosure.current_visibility_state["orders",] == "summary"
    assert use.disclosure is None
    accounts = {section.key: section for section in ledger(session).sections}
    assert (accounts["orders"].opened, accounts["orders"].tools_used) == (1, 1)
