"""Hosted tools end to end: the real SDKs and LiteLLM against scripted servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.vendors import ANTHROPIC, HOSTING, LITELLM, OPENAI, Vendor
from tests.helpers.hosted_tools import OracleCodec, OracleResult, oracle_tool, reply, stored
from tests.servers.loopback import Loopback
from tests.servers.turn import Call, Raw, Turn
from weakincentives import FallbackAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    HostedTool,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import (
    Completed,
    Conversation,
    HostedToolInvoked,
    Message,
    TextDelta,
    ToolsInjected,
    assert_prefix_kept,
)
from weakincentives.session import Session, Snapshot
from weakincentives.tools.advisor import Advice, AdvisorConfig, AdvisorSection
from weakincentives.tools.code_interpreter import CodeInterpreterConfig, CodeInterpreterSection
from weakincentives.tools.file_search import FileSearchConfig, FileSearchSection
from weakincentives.tools.web_fetch import WebFetchSection
from weakincentives.tools.web_search import (
    Citation,
    DomainFilter,
    GeoHint,
    WebSearchConfig,
    WebSearchResult,
    WebSearchSection,
    web_search_tool,
)

# LiteLLM's own types, on which pydantic remarks when they are first streamed.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

WHO = "https://www.who.int/news/flu"
SECTIONS = {
    "web_search": WebSearchSection,
    "web_fetch": WebFetchSection,
    "advisor": lambda: AdvisorSection(AdvisorConfig("claude-opus-5")),
    "code_interpreter": CodeInterpreterSection,
    "file_search": lambda: FileSearchSection(FileSearchConfig(("vs_1",))),
}
PAIRS = [
    (OPENAI, "web_search"),
    (OPENAI, "code_interpreter"),
    (OPENAI, "file_search"),
    (ANTHROPIC, "web_search"),
    (ANTHROPIC, "web_fetch"),
    (ANTHROPIC, "advisor"),
    (ANTHROPIC, "code_interpreter"),
    (LITELLM, "web_search"),
]


def nothing(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("noted")


NOTE: Tool[None, None] = Tool(name="note", description="Takes note.", handler=nothing)
SUMMARIZED = {"summary": "Search the web.", "visibility": SectionVisibility.SUMMARY}


def prompt(*sections: Any) -> Prompt[Any]:
    task = MarkdownSection(key="task", title="Task", template="Answer.", tools=(NOTE,))
    return Prompt(PromptTemplate(ns="t", key="hosted", sections=[task, *sections]))


def bodies(server: Loopback) -> list[Any]:
    return [received.json for received in server.requests]


def stored_turn(vendor: Vendor, kind: str, case: str = "normal", **fields: Any) -> Turn:
    """A stored answer as a turn that the server can also stream."""
    body = json.loads(stored(vendor.name, kind, case))
    if vendor is LITELLM:
        message = body["choices"][0]["message"]
        return Turn(message["content"], items=tuple(message.get("annotations", ())), **fields)
    return Turn(items=tuple(body["output" if vendor is OPENAI else "content"]), **fields)


@pytest.mark.parametrize(("vendor", "kind"), PAIRS, ids=str)
def test_every_kind_comes_back_typed_through_the_sdk(vendor: Vendor, kind: str) -> None:
    session = Session()
    with vendor.server([Raw(body=stored(vendor.name, kind, "many_calls"))]) as server:
        response = vendor.adapter(server).evaluate(prompt(SECTIONS[kind]()), session=session)
    output = response.hosted_outputs[kind]
    assert output.text == response.text
    event = session[HostedToolInvoked].all()[0]
    assert (event.name, event.kind, event.output, event.run_id) == (kind, kind, output, response.run_id)
    other = Session()
    other.restore(Snapshot.from_json(session.snapshot().to_json()), preserve_logs=False)
    assert other[HostedToolInvoked].all() == (event,)


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_a_tool_that_was_not_used_has_no_output_and_no_event(vendor: Vendor) -> None:
    session = Session()
    with vendor.server([Turn("Four.")]) as server:
        response = vendor.adapter(server).evaluate(prompt(WebSearchSection()), session=session)
    assert (response.hosted_outputs, session[HostedToolInvoked].all()) == ({}, ())


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_streaming_gives_the_citations_at_the_end(vendor: Vendor) -> None:
    with vendor.server([stored_turn(vendor, "web_search")]) as server:
        events = list(vendor.adapter(server).stream(prompt(WebSearchSection()), session=Session()))
    last = events[-1]
    assert isinstance(last, Completed)
    assert [citation.url for citation in last.response.hosted_outputs["web_search"].citations] == [WHO]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == last.response.text


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
async def test_async_runs_and_streams_give_the_same(vendor: Vendor) -> None:
    with vendor.server([stored_turn(vendor, "web_search")] * 2) as server:
        adapter = vendor.adapter(server)
        whole = await adapter.evaluate_async(prompt(WebSearchSection()), session=Session())
        streamed = [event async for event in adapter.stream_async(prompt(WebSearchSection()), session=Session())]
    assert streamed[-1].response.hosted_outputs == whole.hosted_outputs != {}


@pytest.mark.parametrize(
    ("vendor", "kind", "requests"),
    [
        (OPENAI, "web_search", 4),
        (OPENAI, "code_interpreter", 3),
        (ANTHROPIC, "web_search", 2),
        (ANTHROPIC, "code_interpreter", 4),
    ],
    ids=str,
)
def test_usage_counts_hosted_requests(vendor: Vendor, kind: str, requests: int) -> None:
    with vendor.server([stored_turn(vendor, kind, "many_calls")]) as server:
        response = vendor.adapter(server).evaluate(prompt(SECTIONS[kind]()), session=Session())
    assert response.usage.hosted_requests == requests


def test_anthropics_own_count_holds_where_blocks_are_left_out() -> None:
    body = json.loads(stored("anthropic", "web_search", "no_call"))
    body["usage"]["server_tool_use"] = {"web_search_requests": 3, "web_fetch_requests": None}
    with ANTHROPIC.server([Raw(body=json.dumps(body).encode())]) as server:
        response = ANTHROPIC.adapter(server).evaluate(prompt(WebSearchSection()), session=Session())
    assert response.usage.hosted_requests == 3


def test_litellm_says_how_often_it_searched() -> None:
    body = json.loads(stored("litellm", "web_search", "normal"))
    body["usage"]["prompt_tokens_details"] = {"web_search_requests": 2}
    with LITELLM.server([Raw(body=json.dumps(body).encode())]) as server:
        response = LITELLM.adapter(server).evaluate(prompt(WebSearchSection()), session=Session())
    assert response.usage.hosted_requests == 2


@pytest.mark.parametrize(("vendor", "kind"), [pair for pair in PAIRS if pair[0] is not LITELLM], ids=str)
def test_hosted_items_go_back_verbatim(vendor: Vendor, kind: str) -> None:
    first = stored_turn(vendor, kind, "many_calls", calls=(Call("note"),))
    with vendor.server([first, Turn("Done.")]) as server:
        vendor.adapter(server).evaluate(prompt(SECTIONS[kind]()), session=Session())
    sent = server.requests[1].body.decode()
    for item in reply(vendor.name, kind, "many_calls").items:
        if json.loads(item)["type"] != "container":
            assert json.dumps(json.loads(item)) in sent


@pytest.mark.parametrize(("vendor", "kind"), [pair for pair in PAIRS if pair[0] is not LITELLM], ids=str)
def test_hosted_items_of_a_stream_go_back_as_they_came(vendor: Vendor, kind: str) -> None:
    first = stored_turn(vendor, kind, "many_calls", calls=(Call("note"),))
    with vendor.server([first, Turn("Done.")]) as server:
        list(vendor.adapter(server).stream(prompt(SECTIONS[kind]()), session=Session()))
    body = bodies(server)[1]
    sent = body["input"][1:] if vendor is OPENAI else body["messages"][1]["content"]
    given = [{key: value for key, value in item.items() if value is not None} for item in first.items]
    assert [{key: value for key, value in item.items() if value is not None} for item in sent[: len(given)]] == given


def test_gemini_through_litellm_searches_beside_other_tools() -> None:
    from weakincentives.adapters.litellm import LiteLLMAdapter

    cited = {
        "groundingChunks": [{"web": {"uri": WHO, "title": "who.int"}}],
        "groundingSupports": [{"segment": {"startIndex": 0, "endIndex": 3}, "groundingChunkIndices": [0]}],
    }
    content = {"role": "model", "parts": [{"text": "Flu is up."}]}
    candidate = {"content": content, "finishReason": "STOP", "index": 0, "groundingMetadata": cited}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 4, "totalTokenCount": 9}
    with Loopback([Raw(body=json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode())]) as server:
        adapter = LiteLLMAdapter("gemini/gemini-3-pro", parameters={"api_base": server.url, "api_key": "key"})
        response = adapter.evaluate(prompt(WebSearchSection()), session=Session())
    assert [list(tool) for tool in bodies(server)[0]["tools"]] == [["function_declarations"], ["googleSearch"]]
    assert response.hosted_outputs["web_search"].citations == (Citation(WHO, "who.int", (0, 3)),)


def claude_through_litellm(server: Loopback) -> Any:
    from weakincentives.adapters.litellm import LiteLLMAdapter

    return LiteLLMAdapter("anthropic/claude-opus-5", parameters={"api_base": server.url, "api_key": "key"})


def test_searches_of_claude_through_litellm_are_not_taken_for_calls_of_ours() -> None:
    first = stored_turn(ANTHROPIC, "web_search", "many_calls", calls=(Call("note", id="t1"),))
    with ANTHROPIC.server([first, Turn("Done.")]) as server:
        response = claude_through_litellm(server).evaluate(prompt(WebSearchSection()), session=Session())
    output = response.hosted_outputs["web_search"]
    assert (response.text, response.turns, response.usage.hosted_requests) == ("Done.", 2, 2)
    assert output.source_urls == (WHO, "https://www.cdc.gov/flu/weekly")
    assert len(output.citations) == 3
    sent = [block["type"] for block in bodies(server)[1]["messages"][1]["content"]]
    assert sent.count("server_tool_use") == sent.count("web_search_tool_result") == 2


def test_claude_through_litellm_streams_the_same() -> None:
    first = stored_turn(ANTHROPIC, "web_search", "many_calls", calls=(Call("note", id="t1"),))
    with ANTHROPIC.server([first, Turn("Done.")] * 2) as server:
        adapter = claude_through_litellm(server)
        whole = adapter.evaluate(prompt(WebSearchSection()), session=Session())
        last = list(adapter.stream(prompt(WebSearchSection()), session=Session()))[-1]
    assert last.response.hosted_outputs == whole.hosted_outputs
    assert last.response.usage.hosted_requests == 2
    assert bodies(server)[3]["messages"][1] == bodies(server)[1]["messages"][1]


def test_a_failed_search_of_claude_through_litellm_is_typed() -> None:
    with ANTHROPIC.server([stored_turn(ANTHROPIC, "web_search", "error_inside")]) as server:
        response = claude_through_litellm(server).evaluate(prompt(WebSearchSection()), session=Session())
    assert [error.code for error in response.hosted_outputs["web_search"].errors] == ["limit_reached", "rate_limited"]


def test_what_litellm_cites_is_not_sent_back() -> None:
    with LITELLM.server([stored_turn(LITELLM, "web_search", calls=(Call("note"),)), Turn("Done.")]) as server:
        response = LITELLM.adapter(server).evaluate(prompt(WebSearchSection()), session=Session())
    assert bodies(server)[0]["web_search_options"] == {}
    assert "annotations" not in server.requests[1].body.decode()
    assert response.hosted_outputs["web_search"].source_urls == (WHO,)


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_the_searches_of_all_turns_are_one_output(vendor: Vendor) -> None:
    turns = [stored_turn(vendor, "web_search", calls=(Call("note"),)), stored_turn(vendor, "web_search", "many_calls")]
    with vendor.server(turns) as server:
        result = vendor.adapter(server).evaluate(prompt(WebSearchSection()), session=Session())
    output = result.hosted_outputs["web_search"]
    assert output.text.endswith(result.text)
    assert len(output.text) > len(result.text)
    assert [citation.span and output.text[slice(*citation.span)][1:4] for citation in output.citations[:2]] in (
        ["who", "who"],
        [None, None],
    )


def test_a_paused_turn_goes_on_with_its_blocks_untouched() -> None:
    blocks = json.loads(stored("anthropic", "web_search", "many_calls"))["content"]
    session = Session()
    with ANTHROPIC.server([Turn(items=tuple(blocks[:4]), stop="pause"), Turn(items=tuple(blocks[4:]))]) as server:
        response = ANTHROPIC.adapter(server).evaluate(prompt(WebSearchSection()), session=session)
    assert bodies(server)[1]["messages"][1:] == [{"role": "assistant", "content": blocks[:4]}]
    assert response.text == response.hosted_outputs["web_search"].text == "Rising in Europe, stable in the US."
    assert (response.usage.hosted_requests, response.turns) == (2, 2)
    assert_prefix_kept(bodies(server), session)


def test_a_paused_stream_goes_on_too() -> None:
    blocks = json.loads(stored("anthropic", "web_search", "many_calls"))["content"]
    with ANTHROPIC.server([Turn(items=tuple(blocks[:4]), stop="pause"), Turn(items=tuple(blocks[4:]))]) as server:
        events = list(ANTHROPIC.adapter(server).stream(prompt(WebSearchSection()), session=Session()))
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text == events[-1].response.text == "Rising in Europe, stable in the US."
    assert len(events[-1].response.hosted_outputs["web_search"].citations) == 3


def test_a_paused_turn_can_be_resumed_in_another_process() -> None:
    blocks = json.loads(stored("anthropic", "web_search", "many_calls"))["content"]
    session, saved = Session(), []
    session.observe(lambda event: saved.append(session.snapshot().to_json()) if isinstance(event, Message) else None)
    with ANTHROPIC.server([Turn(items=tuple(blocks[:4]), stop="pause"), Turn(items=tuple(blocks[4:]))]) as server:
        whole = ANTHROPIC.adapter(server).evaluate(prompt(WebSearchSection()), session=session)
    other = Session()
    other.restore(Snapshot.from_json(saved[1]))
    with ANTHROPIC.server([Turn(items=tuple(blocks[4:]))]) as second:
        resumed = ANTHROPIC.adapter(second).resume(prompt(WebSearchSection()), session=other)
    assert bodies(second)[0] == bodies(server)[1]
    assert (resumed.text, resumed.hosted_outputs) == (whole.text, whole.hosted_outputs)


def test_code_goes_on_in_the_container_where_it_ran() -> None:
    body = json.loads(stored("anthropic", "code_interpreter", "normal"))
    body["content"].append({"type": "tool_use", "id": "t1", "name": "note", "input": {}})
    body["stop_reason"] = "tool_use"
    with ANTHROPIC.server([Raw(body=json.dumps(body).encode()), Turn("Done.")]) as server:
        response = ANTHROPIC.adapter(server).evaluate(prompt(CodeInterpreterSection()), session=Session())
    first, second = bodies(server)
    assert ("container" in first, second["container"]) == (False, "container_01")
    assert second["messages"][1]["content"] == body["content"]
    assert response.hosted_outputs["code_interpreter"].stdout == "42\n"


def test_a_container_of_the_users_own_stays() -> None:
    body = json.loads(stored("anthropic", "code_interpreter", "normal")) | {"stop_reason": "pause_turn"}
    with ANTHROPIC.server([Raw(body=json.dumps(body).encode()), Turn("Done.")]) as server:
        adapter = ANTHROPIC.adapter(server, parameters={"container": "mine"})
        adapter.evaluate(prompt(CodeInterpreterSection()), session=Session())
    assert [sent["container"] for sent in bodies(server)] == ["mine", "mine"]


def offered(vendor: Vendor, body: Any) -> list[str]:
    """The types of tools that a request declares, at its start or later in the conversation."""
    found = [tool["type"] for tool in body.get("tools", ()) if "type" in tool]
    for item in body.get("input", ()):
        found += [tool["type"] for tool in item.get("tools", ())] if item.get("type") == "additional_tools" else []
    for message in body.get("messages", ()):
        for block in message["content"] if isinstance(message.get("content"), list) else ():
            if block["type"] == "tool_addition":
                found.append(block["tool"]["definition"].get("type", "custom"))
    return [*found, *(["web_search_options"] if "web_search_options" in body else [])]


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_a_hosted_tool_appears_when_its_section_is_read(vendor: Vendor) -> None:
    session = Session()
    read = Turn(calls=(Call("read_section", {"section_key": "web_search"}),))
    with vendor.server([read, stored_turn(vendor, "web_search")]) as server:
        response = vendor.adapter(server).evaluate(prompt(WebSearchSection(**SUMMARIZED)), session=session)
    wire_type = {"openai": "web_search", "anthropic": "web_search_20260318", "litellm": "web_search_options"}
    before, after = (wire_type[vendor.name] in offered(vendor, body) for body in bodies(server))
    assert (before, after) == (False, True)
    assert session[ToolsInjected].all()[0].tool_names == ("web_search",)
    assert response.hosted_outputs["web_search"].source_urls[0] == WHO
    if vendor is not LITELLM:
        assert_prefix_kept(bodies(server), session)


@pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC], ids=str)
def test_a_hosted_tool_of_a_closed_section_is_withdrawn_by_the_vendors_name(vendor: Vendor) -> None:
    section = WebSearchSection(name="lookup", **SUMMARIZED)
    task = MarkdownSection(key="task", title="Task", template="Answer.", tools=(NOTE,))
    template = PromptTemplate(ns="t", key="t", sections=[task, section], allow_collapse=True)
    turns = [
        Turn(calls=(Call("read_section", {"section_key": "web_search"}),)),
        Turn(calls=(Call("collapse_section", {"section_key": "web_search"}),)),
        Turn("Done."),
    ]
    with vendor.server(turns) as server:
        vendor.adapter(server).evaluate(Prompt(template), session=Session())
    last = bodies(server)[-1]
    if vendor is OPENAI:
        assert "web_search" not in [tool["type"] for tool in last["tool_choice"]["tools"]]
    else:
        removed = [block for block in last["messages"][-1]["content"] if block["type"] == "tool_removal"]
        assert removed == [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "web_search"}}]


def test_openai_is_asked_for_what_the_outputs_need() -> None:
    with OPENAI.server([Turn("Done.")]) as server:
        files = FileSearchSection(FileSearchConfig(("vs_1",)))
        OPENAI.adapter(server).evaluate(prompt(WebSearchSection(), CodeInterpreterSection(), files), session=Session())
    assert bodies(server)[0]["include"] == [
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
        "file_search_call.results",
    ]


def refused(vendor: Vendor, section: Any) -> PromptEvaluationError:
    with vendor.server([]) as server:
        with pytest.raises(PromptEvaluationError) as caught:
            vendor.adapter(server).evaluate(prompt(section), session=Session())
        assert server.requests == []
    assert (caught.value.phase, caught.value.prompt_name) == ("render", "hosted")
    return caught.value


@pytest.mark.parametrize("hidden", [False, True])
def test_what_a_provider_cannot_do_is_refused_before_any_request(hidden: bool) -> None:
    options: Any = SUMMARIZED if hidden else {}
    both = WebSearchConfig(DomainFilter(("who.int",), ("ads.who.int",)))
    assert "openai can" in str(refused(ANTHROPIC, WebSearchSection(both, **options)))
    assert "openai can" in str(refused(LITELLM, WebSearchSection(WebSearchConfig(allow_live_access=False), **options)))
    small = CodeInterpreterSection(CodeInterpreterConfig(memory_gb=4), **options)
    assert "openai can" in str(refused(ANTHROPIC, small))
    assert str(refused(OPENAI, WebFetchSection(**options))) == (
        "Unsupported hosted tool kind 'web_fetch' for openai adapter (supported: code_interpreter, file_search, "
        "web_search); anthropic can, or pass hosted_tool_codecs= to add one."
    )


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_two_tools_of_a_kind_that_are_set_up_alike_are_one(vendor: Vendor) -> None:
    other = MarkdownSection(key="b", title="B", template="B.", hosted_tools=(web_search_tool(name="other"),))
    session = Session()
    with vendor.server([stored_turn(vendor, "web_search")] * 2) as server:
        alone = vendor.adapter(server).evaluate(prompt(WebSearchSection()), session=Session())
        both = vendor.adapter(server).evaluate(prompt(WebSearchSection(), other), session=session)
        assert offered(vendor, bodies(server)[1]) == offered(vendor, bodies(server)[0])
    assert both.hosted_outputs == dict.fromkeys(("web_search", "other"), alone.hosted_outputs["web_search"])
    assert [event.name for event in session[HostedToolInvoked].all()] == ["web_search"]


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_two_tools_of_a_kind_that_cannot_be_told_apart_are_refused(vendor: Vendor) -> None:
    london = web_search_tool(WebSearchConfig(geo_hint=GeoHint(city="London")), name="other")
    other = MarkdownSection(key="b", title="B", template="B.", hosted_tools=(london,))
    clash = r"'web_search' \(section 'web_search'\) and 'other' \(section 'b'\).*give both the same config"
    with vendor.server([]) as server:
        with pytest.raises(PromptEvaluationError, match=clash):
            vendor.adapter(server).evaluate(prompt(WebSearchSection(), other), session=Session())
        assert server.requests == []


def test_explain_says_what_would_be_refused() -> None:
    with ANTHROPIC.server([]) as server:
        cached = WebSearchSection(WebSearchConfig(allow_live_access=False))
        explained = ANTHROPIC.adapter(server).explain(prompt(cached, WebFetchSection()))
    assert {tool.name: tool.supported for tool in explained.hosted_tools} == {"web_search": False, "web_fetch": True}
    assert "cannot honour allow_live_access=False; openai can." in explained.render()


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_a_made_up_kind_works_with_a_codec_of_the_users_own(vendor: Vendor) -> None:
    codec = OracleCodec()
    section = MarkdownSection(key="oracle", title="Oracle", template="Ask.", hosted_tools=(oracle_tool(),))
    said = {"type": "oracle_call", "saying": "Beware."}
    with vendor.server([Turn("So be it.", items=() if vendor is LITELLM else (said,))]) as server:
        adapter = vendor.adapter(server, hosted_tool_codecs={"oracle": codec})
        response = adapter.evaluate(prompt(section), session=Session())
    assert {"type": "oracle", "name": "oracle", "mood": "calm"} in bodies(server)[0]["tools"]
    assert response.hosted_outputs == ({} if vendor is LITELLM else {"oracle": OracleResult(("Beware.",))})


class Cheerful(OracleCodec):
    """A codec that takes the place of the library's own."""

    def parse_output(self, response_items: Any, tool: HostedTool[Any]) -> Any:
        return WebSearchResult("All is well.", (Citation(WHO, "Fine"),))


def test_a_users_codec_comes_before_the_adapters_own() -> None:
    with OPENAI.server([Turn("Hm.")]) as server:
        adapter = OPENAI.adapter(server, hosted_tool_codecs={"web_search": Cheerful("web_search")})
        section = MarkdownSection(key="s", title="S", template="S.", hosted_tools=(oracle_tool(name="seer"),))
        assert sorted(adapter.hosted_tool_codecs) == ["code_interpreter", "file_search", "web_search"]
        with pytest.raises(PromptEvaluationError, match="Unsupported hosted tool kind 'oracle'"):
            adapter.evaluate(prompt(section), session=Session())
        mine = HostedTool("web_search", "mine", "Searches.", oracle_tool().config)
        response = adapter.evaluate(
            prompt(MarkdownSection(key="s", title="S", template="S.", hosted_tools=(mine,))), session=Session()
        )
    assert response.hosted_outputs["mine"].text == "All is well."


def test_an_answer_that_cannot_be_read_fails_in_phase_parse_with_the_prompts_name() -> None:
    odd = Turn("Hm.", items=({"type": "web_search_call", "action": 7},))
    with OPENAI.server([odd]) as server, pytest.raises(PromptEvaluationError, match="cannot be read") as caught:
        OPENAI.adapter(server).evaluate(prompt(WebSearchSection()), session=Session())
    assert (caught.value.phase, caught.value.prompt_name) == ("parse", "hosted")


def test_what_was_found_before_a_fallback_is_part_of_the_output() -> None:
    searched = stored_turn(ANTHROPIC, "web_search", calls=(Call("note", id="c1"),))
    down, session = Raw(400, b'{"error":{"message":"down"}}'), Session()
    with ANTHROPIC.server([searched, down]) as one, OPENAI.server([stored_turn(OPENAI, "web_search")]) as two:
        adapter = FallbackAdapter(ANTHROPIC.adapter(one), OPENAI.adapter(two))
        response = adapter.evaluate(prompt(WebSearchSection()), session=session)
    output = response.hosted_outputs["web_search"]
    before = len(output.text) - len(response.text)
    assert output.text.endswith(response.text) and before > 0
    assert [citation.url for citation in output.citations] == [WHO, WHO]
    assert output.citations[1].span[0] >= before
    assert [event.output for event in session[HostedToolInvoked]] == [output]


def test_the_advisors_blocks_are_sent_only_together_with_its_tool() -> None:
    asked = stored_turn(ANTHROPIC, "advisor", "many_calls")
    section = AdvisorSection(AdvisorConfig("claude-opus-5", max_uses=2))
    with ANTHROPIC.server([asked, Turn("Yes."), Turn("No.")]) as server, ANTHROPIC.adapter(server) as adapter:
        chat = Conversation(prompt(section), adapter=adapter)
        output = chat.send("How?").hosted_outputs["advisor"]
        chat.send("Sure?")
        later = Conversation(prompt(), adapter=adapter, session=chat.session)
        later.send("Really?")
    assert output.advice == (Advice("Write the test first."), Advice("", complete=False))
    assert ["advisor_tool_result" in json.dumps(body) for body in bodies(server)] == [False, True, False]
    assert [request.headers["anthropic-beta"] for request in server.requests[:2]] == ["advisor-tool-2026-03-01"] * 2
    declared = bodies(server)[0]["tools"][-1]
    assert declared == {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-5", "max_uses": 2}
