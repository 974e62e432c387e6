"""The support agent: what opens, what a failed call leaves, and whose orders a tool sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from examples.support import ANN, SCRIPT, Bank, Case, CaseNote, Reply, desk, sample_shop, template
from weakincentives import Prompt, ScriptedAdapter, Section, call
from weakincentives.runtime import ToolInvoked

DONE = Reply("Done.", "other")


def all_sections(sections: tuple[Section[Any], ...]) -> Iterator[Section[Any]]:
    for section in sections:
        yield section
        yield from all_sections(section.children)


def offered(model: ScriptedAdapter, request: int) -> list[str]:
    return [tool.name for tool in model.requests[request].tools]


def results(chat: Any) -> list[str]:
    return [event.result.render() for event in chat.session[ToolInvoked].all()]


def test_it_has_fifteen_sections_and_twenty_tools_of_which_the_first_request_has_two() -> None:
    sections = list(all_sections(template.sections))
    assert (len(sections), sum(len(section.tools()) for section in sections)) == (15, 20)
    model = ScriptedAdapter([DONE])
    desk(ANN, sample_shop(), model).send("Hello.")
    assert offered(model, 0) == ["list_orders", "find_order", "read_section"]


def test_a_return_and_a_refund_open_their_sections_one_inside_the_other() -> None:
    model, shop = ScriptedAdapter(SCRIPT), sample_shop()
    with model, desk(ANN, shop, model) as chat:
        reply = chat.send("The lid of my teapot (order 7) does not fit.").require_output()
    assert reply.topic == "return" and shop.orders[7].status == "refunded"
    assert offered(model, 2)[-2:] == ["open_return", "return_label"]
    assert offered(model, 4)[-1] == "refund"
    assert chat.session[Case].latest() == Case(
        (CaseNote("return", "Order 7: The lid does not fit."), CaseNote("refund", "Order 7: 49.00 EUR"))
    )


def test_a_refund_that_the_bank_refuses_changes_neither_the_shop_nor_the_case() -> None:
    shop = sample_shop()
    before = shop.snapshot()
    model = ScriptedAdapter([call("read_section", section_key="returns.refunds"), call("refund", order=8), DONE])
    chat = desk(ANN, shop, model, bank=Bank(limit_cents=50_000))
    chat.send("Refund order 8.")
    assert results(chat)[-1] == "The bank transfers at most 500.00 EUR; ask a person."
    assert shop.snapshot() == before
    assert chat.session[CaseNote].all() == ()


def test_what_is_sold_out_is_not_sent_again_and_the_stock_stays() -> None:
    shop = sample_shop()
    shop.stock["teapot"] = 0
    model = ScriptedAdapter([call("read_section", section_key="shipping"), call("send_again", order=7), DONE])
    chat = desk(ANN, shop, model)
    chat.send("My parcel is lost.")
    assert results(chat)[-1] == "No teapot is left; offer a refund."
    assert (shop.stock["teapot"], shop.orders[7].status) == (0, "shipped")


def test_tools_see_only_the_orders_of_the_customer() -> None:
    model = ScriptedAdapter([[call("find_order", order=9), call("list_orders")], DONE])
    chat = desk(ANN, sample_shop(), model)
    chat.send("Show me order 9.")
    other, own = [event.result for event in chat.session[ToolInvoked].all()]
    assert other.message == "Ann has no order 9."
    assert [order.number for order in own.value or ()] == [7, 8]


def test_only_members_have_the_section_about_loyalty() -> None:
    for customer in (ANN, replace(ANN, member=False)):
        assert ("Ann is a member" in Prompt(template).bind(customer).render().text) is customer.member


def test_an_answer_with_an_unknown_topic_is_corrected() -> None:
    model = ScriptedAdapter(['{"text": "Hm", "topic": "weather", "needs_a_person": false}', DONE])
    assert desk(ANN, sample_shop(), model).send("Will it rain?").require_output() == DONE
    assert "topic" in model.requests[1].messages[-1].text
