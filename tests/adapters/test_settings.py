"""Neutral settings in each vendor's fields, and what is refused before a request; counting, and a full context."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.models import ALWAYS, MINIMAL, PLAIN, UP_TO_HIGH
from tests.adapters.tools import SYSTEM, ask, tool
from tests.adapters.vendors import ANTHROPIC, LITELLM, OPENAI, ROUTED, VENDORS, Vendor
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.errors import ContextOverflowError, PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Conversation, Settings
from weakincentives.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")


def prompt() -> Prompt[Any]:
    return Prompt(PromptTemplate(ns="t", key="k", sections=[MarkdownSection(title="A", key="a", template="x")]))


def fields(adapter: Any, **settings: Any) -> dict[str, Any]:
    """The fields of a request that settings add."""
    plain, chosen = (
        json.loads(adapter._wire().encode_request(ask([SYSTEM], tools=(tool("first"),), settings=made)).body())
        for made in (Settings(), Settings(**settings))
    )
    return {name: value for name, value in chosen.items() if plain.get(name) != value}


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ("gpt-5.6", {"effort": "low"}, {"reasoning": {"effort": "low"}}),
        ("gpt-5.6", {"effort": "none", "temperature": 0.5}, {"reasoning": {"effort": "none"}, "temperature": 0.5}),
        ("gpt-5.6", {"effort": "max", "show_reasoning": True}, {"reasoning": {"effort": "max", "summary": "auto"}}),
        (MINIMAL, {"effort": "none"}, {"reasoning": {"effort": "minimal"}}),
        (PLAIN, {"temperature": 0.2, "show_reasoning": True}, {"temperature": 0.2}),
        (PLAIN, {"effort": "none"}, {}),
        ("gpt-5.6", {"max_output_tokens": 50}, {"max_output_tokens": 50}),
        ("gpt-5.6", {"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        (
            "my-gateway-model",
            {"effort": "high", "temperature": 1.0},
            {"reasoning": {"effort": "high"}, "temperature": 1},
        ),
    ],
)
def test_openai(model: str, settings: Any, expected: Any) -> None:
    assert fields(OpenAIAdapter(model), **settings) == expected


ADAPTIVE = {"type": "adaptive"}


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ("claude-opus-5", {"effort": "low"}, {"thinking": ADAPTIVE, "output_config": {"effort": "low"}}),
        ("claude-opus-5", {"effort": "none"}, {"thinking": {"type": "disabled"}}),
        ("claude-sonnet-5-5", {"effort": "none"}, {"thinking": {"type": "between_tools"}}),
        ("claude-opus-5-5", {"show_reasoning": True}, {"thinking": {**ADAPTIVE, "display": "summarized"}}),
        ("claude-opus-4-6", {"show_reasoning": True}, {}),
        ("claude-haiku-4-5", {"effort": "high"}, {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("claude-opus-4-5", {"effort": "high"}, {"output_config": {"effort": "high"}}),
        ("claude-opus-5", {"max_output_tokens": 50}, {"max_tokens": 50}),
        (
            "claude-opus-5",
            {"parallel_tool_calls": False},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
    ],
)
def test_anthropic(model: str, settings: Any, expected: Any) -> None:
    assert fields(AnthropicAdapter(model), **settings) == expected


def test_litellm() -> None:
    chosen = fields(
        LiteLLMAdapter("gemini/gemini-3-pro"),
        effort="low",
        temperature=0.1,
        max_output_tokens=9,
        parallel_tool_calls=False,
    )
    expected = {"reasoning_effort": "low", "temperature": 0.1, "max_tokens": 9, "parallel_tool_calls": False}
    assert chosen == expected
    assert fields(LiteLLMAdapter("claude-opus-5"), effort="none") == {"thinking": {"type": "disabled"}}
    for model in ("gpt-5.6", "ft:gpt-5.2:acme"):
        assert fields(LiteLLMAdapter(model), effort="low") == {"reasoning_effort": "low", "store": False}


@pytest.mark.parametrize(
    ("adapter", "settings", "problem"),
    [
        (OpenAIAdapter("gpt-5.6"), {"temperature": 0.5}, "model 'gpt-5.6' does not accept temperature"),
        (
            OpenAIAdapter(PLAIN),
            {"effort": "high"},
            f"'{PLAIN}' does not accept effort='high': it does not reason",
        ),
        (
            OpenAIAdapter(ALWAYS),
            {"effort": "none"},
            f"'{ALWAYS}' does not accept effort='none': its lowest effort is 'low'",
        ),
        (OpenAIAdapter("gpt-6-astra"), {"effort": "none"}, "its lowest effort is 'low'"),
        (OpenAIAdapter(UP_TO_HIGH), {"effort": "xhigh"}, "its highest effort is 'high'"),
        (OpenAIAdapter("gpt-5.4"), {"effort": "max"}, "its highest effort is 'xhigh'"),
        (AnthropicAdapter("claude-opus-5"), {"temperature": 1.0}, "model 'claude-opus-5' does not accept temperature"),
        (AnthropicAdapter("claude-opus-5-5"), {"effort": "none"}, "it always thinks; its lowest effort is 'low'"),
        (AnthropicAdapter("claude-opus-4-6"), {"effort": "xhigh"}, "does not accept effort='xhigh'"),
        (AnthropicAdapter("claude-haiku-4-5", max_tokens=900), {"effort": "low"}, "max_output_tokens of at least 1025"),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_name(adapter: Any, settings: Any, problem: str) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        fields(adapter, **settings)
    assert problem in str(caught.value) and caught.value.phase == "request"


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_settings_of_a_run_add_to_those_of_the_adapter(vendor: Vendor) -> None:
    short = Settings(max_output_tokens=50)
    with vendor.server([Turn("a"), Turn("b")]) as server, vendor.adapter(server, settings=short) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("a")
        chat.send("b", settings=Settings(max_output_tokens=70))
    name = "max_output_tokens" if vendor is OPENAI else "max_tokens"
    assert [request.json[name] for request in server.requests] == [50, 70]


def test_a_setting_of_a_run_that_says_no_counts_too() -> None:
    both = Settings(effort="low", show_reasoning=True).merged(Settings(parallel_tool_calls=False))
    assert both == Settings(effort="low", show_reasoning=True, parallel_tool_calls=False)
    assert both.merged(Settings(show_reasoning=False)).show_reasoning is False


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
def test_the_vendor_counts_the_tokens_of_a_prompt_and_of_a_conversation(vendor: Vendor) -> None:
    script = [Turn(input_tokens=321), Turn("Hi."), Turn(input_tokens=654)]
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        assert adapter.count(prompt()) == 321
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("Hello.")
        assert adapter.count(chat.prompt, chat.session) == 654
    assert server.requests[2].target.endswith(("input_tokens", "count_tokens"))
    assert b"Hi." in server.requests[2].body


def test_other_adapters_estimate() -> None:
    with LITELLM.server([]) as server, LITELLM.adapter(server) as adapter:
        assert adapter.count(prompt()) > 5
    assert server.requests == []


OVERFLOWS = [
    (OPENAI, b'{"error":{"code":"context_length_exceeded","message":"too long","type":"invalid_request_error"}}'),
    (ANTHROPIC, b'{"error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}'),
    (ANTHROPIC, b'{"error":{"message":"input length and `max_tokens` exceed context limit: 9 + 1 > 8"}}'),
    (LITELLM, b'{"error":{"code":"context_length_exceeded","message":"Your input exceeds the context window"}}'),
]


@pytest.mark.parametrize(("vendor", "body"), OVERFLOWS)
def test_a_full_context_is_an_error_of_its_own(vendor: Vendor, body: bytes) -> None:
    with (
        vendor.server([Raw(400, body)]) as server,
        vendor.adapter(server) as adapter,
        pytest.raises(ContextOverflowError),
    ):
        adapter.evaluate(prompt(), session=Session())
    assert len(server.requests) == 1


def test_a_full_context_in_a_stream_is_one_too() -> None:
    event = {"type": "error", "sequence_number": 2, "error": {"code": "context_length_exceeded", "message": "full"}}
    broken = Raw(200, f"data: {json.dumps(event)}\n\n".encode())
    with OPENAI.server([broken]) as server, OPENAI.adapter(server) as adapter, pytest.raises(ContextOverflowError):
        list(adapter.stream(prompt(), session=Session()))
