"""Tools as they are sent: encoded once, forgotten with the tool, and recorded as sent."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from tests.adapters.tools import hosted, tool
from tests.adapters.vendors import VENDORS, Vendor
from tests.servers.turn import Turn
from weakincentives.adapters.network import ToolCache
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import PromptRendered
from weakincentives.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def test_a_tool_is_encoded_once_for_as_long_as_it_lives() -> None:
    encoded: list[str] = []

    def declare(one: Any) -> dict[str, Any]:
        encoded.append(one.name)
        return {"name": one.name}

    cache, first = ToolCache(declare), tool("first")
    assert [cache.encoded(first), cache.text(first), cache.encoded(first)] == [
        b'{"name":"first"}',
        '{"name":"first"}',
        b'{"name":"first"}',
    ]
    assert (encoded, vars(first).keys() & {"_encoded"}) == (["first"], set())
    del first
    gc.collect()
    cache.encoded(tool("second"))
    gc.collect()
    assert (encoded, cache._entries) == (["first", "second"], {})


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_the_definition_in_the_events_is_the_one_that_was_sent(vendor: Vendor) -> None:
    section = MarkdownSection(key="task", title="Task", template="Do it.", tools=[tool("first"), tool("second")])
    session = Session()
    with vendor.server([Turn("done")]) as server, vendor.adapter(server) as adapter:
        adapter.evaluate(Prompt(PromptTemplate(ns="t", key="t", sections=[section])), session=session)
    recorded = [json.loads(definition) for definition in session[PromptRendered].all()[0].definitions]
    assert recorded == server.requests[0].json["tools"]


def test_a_hosted_tool_that_the_adapter_cannot_offer_is_defined_in_neutral_form() -> None:
    vendor = VENDORS[0]
    with vendor.server() as server, vendor.adapter(server) as adapter:
        assert adapter.define_tool(hosted()) == hosted().definition
