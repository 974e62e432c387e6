"""The examples of the fifth spec: hosted tools, their codecs, and what comes back.

Adjusted where the design settles it: a section with placeholders is `MarkdownSection[Params]`, and the markers are
plain classes, since an empty protocol matches everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from tests.adapters.vendors import HOSTING, OPENAI, VENDORS, Vendor
from tests.helpers.hosted_tools import OracleCodec, oracle_reply, oracle_tool, stored
from tests.servers.turn import Raw, Turn
from weakincentives import MarkdownSection, Prompt, PromptTemplate
from weakincentives.adapters.openai.codecs import CODECS, OpenAIWebSearchCodec
from weakincentives.adapters.scripted import ScriptedAdapter, call as call_tool
from weakincentives.prompt import (
    HostedTool,
    HostedToolConfig,
    HostedToolOutput,
    PromptValidationError,
    SectionVisibility,
    tool,
)
from weakincentives.runtime import HostedToolCodec, PromptEvaluationError
from weakincentives.session import Bus, Session
from weakincentives.tools.web_search import (
    Citation,
    DomainFilter,
    GeoHint,
    WebSearchConfig,
    WebSearchResult,
    WebSearchSection,
    web_search_tool,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@dataclass(frozen=True)
class Question:
    question: str


@dataclass(frozen=True)
class Answer:
    answer: str


def lookup() -> Prompt[Answer]:
    task = MarkdownSection[Question](title="Task", key="task", template="Answer this question: $question")
    prompt: Prompt[Answer] = Prompt[Answer](ns="research", key="lookup", sections=[task, WebSearchSection()])
    return prompt.bind(Question("How is the flu season going?"))


def test_configurations_and_outputs_are_frozen_dataclasses() -> None:
    assert isinstance(WebSearchConfig(), HostedToolConfig)
    assert isinstance(WebSearchResult("hi"), HostedToolOutput)
    with pytest.raises(FrozenInstanceError):
        WebSearchConfig().allow_live_access = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "Web Search"}, "Web Search"),
        ({"name": "x" * 65}, "x" * 65),
        ({"description": ""}, "1 to 200 ASCII characters"),
        ({"description": "é"}, "1 to 200 ASCII characters"),
        ({"description": "x" * 201}, "1 to 200 ASCII characters"),
        ({"description": None}, "1 to 200 ASCII characters and not blank, got None"),
        ({"kind": ""}, "has no kind"),
        ({"kind": 3}, "has no kind"),
        ({"config": {"depth": 3}}, "must be an instance of a frozen dataclass, got dict"),
        ({"config": WebSearchConfig}, "must be an instance of a frozen dataclass"),
    ],
)
def test_a_hosted_tool_is_checked_when_it_is_made(fields: dict[str, Any], message: str) -> None:
    valid = {"kind": "web_search", "name": "web", "description": "Searches.", "config": WebSearchConfig()}
    with pytest.raises(PromptValidationError, match=message):
        HostedTool(**{**valid, **fields})


def test_a_basic_web_search_answers_with_citations() -> None:
    t = '{"answer": "It is rising (who.int)."}'
    note = {"type": "url_citation", "url": "https://who.int/flu", "title": "Flu", "start_index": 25, "end_index": 34}
    part = {"type": "output_text", "text": t, "annotations": [note]}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    call = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "flu"}}
    with OPENAI.server([Turn(items=(call, message))]) as server:
        response = OPENAI.adapter(server).evaluate(lookup(), bus=Bus(), session=Session())
    assert response.output == Answer("It is rising (who.int).")
    web_result = response.hosted_outputs.get("web_search")
    assert [f"- [{citation.title}]({citation.url})" for citation in web_result.citations] == [
        "- [Flu](https://who.int/flu)"
    ]
    assert t[slice(*web_result.citations[0].span)] == "(who.int)"


def test_a_domain_restricted_search() -> None:
    allowed = ("pubmed.ncbi.nlm.nih.gov", "www.cdc.gov", "www.who.int")
    section = WebSearchSection(config=WebSearchConfig(domain_filter=DomainFilter(allowed=allowed)))
    (hosted,) = section.hosted_tools()
    assert OpenAIWebSearchCodec().serialize(hosted) == {
        "type": "web_search",
        "filters": {"allowed_domains": list(allowed)},
    }


def test_a_geo_localized_search() -> None:
    hint = GeoHint(country_code="GB", city="London", timezone="Europe/London")
    (hosted,) = WebSearchSection(config=WebSearchConfig(geo_hint=hint)).hosted_tools()
    place = {"type": "approximate", "country": "GB", "city": "London", "timezone": "Europe/London"}
    assert OpenAIWebSearchCodec().serialize(hosted) == {"type": "web_search", "user_location": place}


@dataclass(frozen=True)
class Topic:
    topic: str


def test_a_tool_can_be_made_inline() -> None:
    cached = web_search_tool(WebSearchConfig(allow_live_access=False), name="cached_search")
    section = MarkdownSection[Topic](
        title="Research", key="research", template="Find information about $topic", hosted_tools=(cached,)
    )
    rendered = PromptTemplate(ns="t", key="t", sections=[section]).render(Topic("tides"))
    assert rendered.hosted_tools == (cached,)
    assert OpenAIWebSearchCodec().serialize(cached) == {"type": "web_search", "external_web_access": False}


@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b


def test_hosted_tools_are_collected_depth_first_from_enabled_sections() -> None:
    def section(key: str, *children: Any, **options: Any) -> MarkdownSection[None]:
        hosted = (oracle_tool(name=f"oracle_{key}"),)
        return MarkdownSection(title=key, key=key, template="T.", hosted_tools=hosted, children=children, **options)

    template = PromptTemplate(
        ns="t",
        key="t",
        sections=[
            section("a", section("b"), tools=(add,)),
            section("c", enabled=lambda: False),
            section("d", section("e"), summary="D.", visibility=SectionVisibility.SUMMARY),
            section("f"),
        ],
    )
    rendered = template.render()
    assert [hosted.name for hosted in rendered.hosted_tools] == ["oracle_a", "oracle_b", "oracle_f"]
    assert [offered.name for offered in rendered.tools] == ["add", "read_section"]


def test_hosted_tools_and_tools_share_one_name_space() -> None:
    first = MarkdownSection(title="A", key="a", template="A.", tools=(add,))
    second = MarkdownSection(title="B", key="b", template="B.", hosted_tools=(oracle_tool(name="add"),))
    with pytest.raises(PromptValidationError, match="'add'"):
        PromptTemplate(ns="t", key="t", sections=[first, second])


@pytest.mark.parametrize("name", ["read_section", "open_sections", "collapse_section"])
def test_the_names_of_built_in_tools_are_reserved(name: str) -> None:
    section = MarkdownSection(title="A", key="a", template="A.", hosted_tools=(oracle_tool(name=name),))
    with pytest.raises(PromptValidationError, match=name):
        PromptTemplate(ns="t", key="t", sections=[section])


def test_an_adapter_has_a_registry_of_codecs() -> None:
    with OPENAI.server([]) as server:
        assert isinstance(OPENAI.adapter(server).hosted_tool_codecs["web_search"], OpenAIWebSearchCodec)
    assert CODECS["web_search"].kind == "web_search"


def test_the_openai_codec_reads_calls_and_annotations() -> None:
    items = json.loads(stored("openai", "web_search", "normal"))["output"]
    assert OpenAIWebSearchCodec().parse_output(items, web_search_tool()) == WebSearchResult(
        text="Flu activity is rising in Europe (who.int).",
        citations=(Citation("https://www.who.int/news/flu", "Influenza update", (33, 42)),),
        source_urls=("https://www.who.int/news/flu", "https://www.cdc.gov/flu/weekly"),
    )


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_an_unsupported_kind_is_refused_before_any_request(vendor: Vendor) -> None:
    section = MarkdownSection(title="A", key="a", template="A.", hosted_tools=(oracle_tool(),))
    prompt = Prompt(PromptTemplate(ns="t", key="seer", sections=[section]))
    with vendor.server([]) as server:
        with pytest.raises(PromptEvaluationError, match="Unsupported hosted tool kind 'oracle' for") as caught:
            vendor.adapter(server).evaluate(prompt, session=Session())
        assert server.requests == []
    assert (caught.value.phase, caught.value.prompt_name) == ("render", "seer")


def test_a_round_trip_reads_a_stored_answer() -> None:
    prompt = Prompt(PromptTemplate(ns="t", key="t", sections=[WebSearchSection()]))
    with OPENAI.server([Raw(body=stored("openai", "web_search", "many_calls"))]) as server:
        response = OPENAI.adapter(server).evaluate(prompt, session=Session())
        assert server.requests[0].json["tools"] == [{"type": "web_search"}]
    assert len(response.hosted_outputs["web_search"].citations) == 2


def test_two_tools_of_one_kind_are_one_where_the_provider_cannot_tell_them_apart() -> None:
    named = MarkdownSection(title="B", key="b", template="B.", hosted_tools=(web_search_tool(name="lookup"),))
    prompt = Prompt(PromptTemplate(ns="t", key="t", sections=[WebSearchSection(), named]))
    with OPENAI.server([Raw(body=stored("openai", "web_search", "normal"))]) as server:
        outputs = OPENAI.adapter(server).evaluate(prompt, session=Session()).hosted_outputs
        assert server.requests[0].json["tools"] == [{"type": "web_search"}]
    assert outputs["web_search"] == outputs["lookup"]


def test_a_hosted_tool_stays_when_another_section_brings_its_name() -> None:
    cached = web_search_tool(WebSearchConfig(allow_live_access=False))
    closed = MarkdownSection(
        title="A", key="a", template="A.", summary="a", visibility=SectionVisibility.SUMMARY, hosted_tools=(cached,)
    )
    prompt = Prompt(PromptTemplate(ns="t", key="t", sections=[closed, WebSearchSection()]))
    adapter = ScriptedAdapter([call_tool("read_section", section_key="a"), "Done."], hosted_tool_codecs=CODECS)
    adapter.evaluate(prompt, session=Session())
    assert [tool.config for tool in adapter.requests[1].hosted_tools] == [WebSearchConfig()]
    assert adapter.requests[1].revoked == frozenset()


def test_outputs_are_found_by_the_names_of_their_tools() -> None:
    section = MarkdownSection(
        title="A", key="a", template="A.", hosted_tools=(oracle_tool(name="left"), oracle_tool(name="right"))
    )
    prompt = Prompt(PromptTemplate(ns="t", key="t", sections=[section]))
    adapter = ScriptedAdapter([oracle_reply("Beware.")], hosted_tool_codecs={"oracle": OracleCodec()})
    assert list(adapter.evaluate(prompt, session=Session()).hosted_outputs) == ["left", "right"]


@dataclass(slots=True, frozen=True)
class TideConfig(HostedToolConfig):
    harbour: str = "Whitby"


@dataclass(slots=True, frozen=True)
class TideResult(HostedToolOutput):
    heights: tuple[float, ...]


class OpenAITideCodec(HostedToolCodec[TideConfig, TideResult]):
    @property
    def kind(self) -> str:
        return "tide"

    def serialize(self, tool: HostedTool[TideConfig]) -> dict[str, Any]:
        return {"type": "tide", "harbour": tool.config.harbour}

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[TideConfig]) -> TideResult | None:
        heights = tuple(item["height"] for item in response_items if item["type"] == "tide_call")
        return TideResult(heights) if heights else None


def test_a_new_kind_takes_a_config_an_output_a_factory_and_a_codec() -> None:
    tide = HostedTool(kind="tide", name="tide", description="Tell the tide.", config=TideConfig())
    section = MarkdownSection(title="Harbour", key="harbour", template="Sail?", hosted_tools=(tide,))
    prompt = Prompt(PromptTemplate(ns="t", key="t", sections=[section]))
    with OPENAI.server([Turn("Yes.", items=({"type": "tide_call", "height": 3.2},))]) as server:
        adapter = OPENAI.adapter(server, hosted_tool_codecs={"tide": OpenAITideCodec()})
        response = adapter.evaluate(prompt, session=Session())
        assert server.requests[0].json["tools"] == [{"type": "tide", "harbour": "Whitby"}]
    assert response.hosted_outputs == {"tide": TideResult((3.2,))}


class SampleWebSearchCodec(HostedToolCodec[WebSearchConfig, WebSearchResult]):
    """OpenAI Responses API codec for web_search."""

    @property
    def kind(self) -> str:
        return "web_search"

    def serialize(
        self,
        tool: HostedTool[WebSearchConfig],
    ) -> dict[str, Any]:
        spec: dict[str, Any] = {"type": "web_search"}
        config = tool.config

        if config.domain_filter:
            filters: dict[str, Any] = {}
            if config.domain_filter.allowed:
                filters["allowed_domains"] = list(config.domain_filter.allowed)
            if config.domain_filter.blocked:
                filters["blocked_domains"] = list(config.domain_filter.blocked)
            if filters:
                spec["filters"] = filters

        if config.geo_hint:
            location: dict[str, Any] = {"type": "approximate"}
            if config.geo_hint.country_code:
                location["country"] = config.geo_hint.country_code
            if config.geo_hint.city:
                location["city"] = config.geo_hint.city
            if config.geo_hint.region:
                location["region"] = config.geo_hint.region
            if config.geo_hint.timezone:
                location["timezone"] = config.geo_hint.timezone
            spec["user_location"] = location

        if not config.allow_live_access:
            spec["external_web_access"] = False

        return spec

    def parse_output(
        self,
        response_items: Sequence[Any],
        tool: HostedTool[WebSearchConfig],
    ) -> WebSearchResult | None:
        # Find web_search_call items and message with annotations
        web_search_call = None
        message_content = None

        for item in response_items:
            item_type = getattr(item, "type", None)
            if item_type == "web_search_call":
                web_search_call = item
            elif item_type == "message":
                message_content = item

        if web_search_call is None:
            return None

        # Extract text and citations from message
        text = ""
        citations: list[Citation] = []

        if message_content:
            content = getattr(message_content, "content", [])
            for part in content:
                if getattr(part, "type", None) == "output_text":
                    text = getattr(part, "text", "")
                    for ann in getattr(part, "annotations", []):
                        if getattr(ann, "type", None) == "url_citation":
                            citations.append(
                                Citation(
                                    url=getattr(ann, "url", ""),
                                    title=getattr(ann, "title", ""),
                                    span=(
                                        getattr(ann, "start_index", 0),
                                        getattr(ann, "end_index", 0),
                                    ),
                                )
                            )

        return WebSearchResult(
            text=text,
            citations=tuple(citations),
            source_urls=(),  # Requires include=["web_search_call.action.sources"]
        )


RUNS: list[Callable[[Any, Prompt[Any]], Any]] = [
    lambda adapter, prompt: adapter.evaluate(prompt, session=Session()),
    lambda adapter, prompt: [*adapter.stream(prompt, session=Session())][-1].response,
    lambda adapter, prompt: asyncio.run(adapter.evaluate_async(prompt, session=Session())),
    lambda adapter, prompt: asyncio.run(last_of(adapter.stream_async(prompt, session=Session()))).response,
]


async def last_of(events: AsyncIterator[Any]) -> Any:
    last = None
    async for event in events:
        last = event
    return last


@pytest.mark.parametrize("run", RUNS, ids=["run", "stream", "async run", "async stream"])
def test_the_sample_codec_reads_items_by_attribute(run: Callable[[Any, Prompt[Any]], Any]) -> None:
    prompt = Prompt(PromptTemplate(ns="t", key="t", sections=[WebSearchSection()]))
    turn = Turn(items=tuple(json.loads(stored("openai", "web_search", "normal"))["output"]))
    with OPENAI.server([turn, turn]) as server:
        sample = OPENAI.adapter(server, hosted_tool_codecs={"web_search": SampleWebSearchCodec()})
        found = run(sample, prompt).hosted_outputs["web_search"]
        expected = run(OPENAI.adapter(server), prompt).hosted_outputs["web_search"]
    assert (found.text, found.citations) == (expected.text, expected.citations)
    assert found.citations


class LookingCodec:
    """Keeps what it is given."""

    kind = "web_search"

    def __init__(self, declaration: dict[str, Any]) -> None:
        self._declaration = declaration
        self.items: list[Any] = []

    def serialize(self, tool: HostedTool[WebSearchConfig]) -> dict[str, Any]:
        return self._declaration

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[WebSearchConfig]) -> None:
        self.items.extend(response_items)


@pytest.mark.parametrize("vendor", HOSTING, ids=str)
def test_every_item_is_a_mapping_and_can_be_read_by_attribute(vendor: Vendor) -> None:
    with vendor.server([Raw(body=stored(vendor.name, "web_search", "normal"))]) as server:
        codec = LookingCodec({"type": "web_search_20250305", "name": "web_search"})
        prompt = Prompt(PromptTemplate(ns="t", key="t", sections=[WebSearchSection()]))
        vendor.adapter(server, hosted_tool_codecs={"web_search": codec}).evaluate(prompt, session=Session())
    assert codec.items
    for item in codec.items:
        assert_reads_both_ways(item)


def assert_reads_both_ways(value: Any) -> None:
    if isinstance(value, list):
        for part in value:
            assert_reads_both_ways(part)
    if isinstance(value, Mapping):
        assert {name: getattr(value, name) for name in value} == value == json.loads(json.dumps(value))
        assert not hasattr(value, "no_such_field") and value.get("no_such_field") is None
        for part in value.values():
            assert_reads_both_ways(part)
