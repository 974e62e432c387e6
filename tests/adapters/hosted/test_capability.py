"""Provider support, read from the codecs: refusals that name an alternative, tables, and the SDKs' own types."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from scripts.hosted_docs import all_settings, table
from tests.helpers.hosted_tools import CASES, FIXTURES, OracleConfig, stored
from weakincentives.adapters.hosted import HONOURED, Rule, SettingsCodec, codecs_by_kind, used_settings
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool
from weakincentives.runtime.spi import adapter_spec, adapter_specs
from weakincentives.tools.advisor import AdvisorConfig
from weakincentives.tools.code_interpreter import CodeInterpreterConfig, code_interpreter_tool
from weakincentives.tools.file_search import Comparison, FileSearchConfig
from weakincentives.tools.web_fetch import WebFetchConfig
from weakincentives.tools.web_search import DomainFilter, GeoHint, WebSearchConfig, web_search_tool

KINDS = codecs_by_kind()
SETTINGS = {kind: all_settings(next(iter(codecs.values())).config_type) for kind, codecs in KINDS.items()}


def codec(adapter: str, kind: str) -> Any:
    spec = adapter_spec(adapter)
    assert spec is not None
    return spec.codecs()[kind]


def test_settings_are_the_fields_of_a_config_by_dotted_name() -> None:
    assert all_settings(WebSearchConfig) == (
        "domain_filter.allowed",
        "domain_filter.blocked",
        "geo_hint.country_code",
        "geo_hint.city",
        "geo_hint.region",
        "geo_hint.timezone",
        "allow_live_access",
    )


def test_only_settings_that_differ_from_their_defaults_are_used() -> None:
    config = WebSearchConfig(DomainFilter(blocked=("who.int",)), GeoHint(city="London"))
    assert used_settings(config) == {"domain_filter.blocked": ("who.int",), "geo_hint.city": "London"}
    assert used_settings(WebSearchConfig(DomainFilter(), GeoHint())) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_codecs_honour_only_settings_that_exist(kind: str) -> None:
    for rules in [codec.honours for codec in KINDS[kind].values()]:
        assert set(rules) <= set(SETTINGS[kind])
        assert {other for rule in rules.values() for other in rule.without} <= set(rules)


# The specification has it, no provider does yet.
UNSUPPORTED = {"code_interpreter": {"timeout_seconds"}}


@pytest.mark.parametrize("kind", KINDS)
def test_every_other_setting_is_honoured_by_some_adapter(kind: str) -> None:
    honoured = {setting for codec in KINDS[kind].values() for setting in codec.honours}
    assert honoured == set(SETTINGS[kind]) - UNSUPPORTED.get(kind, set())


def test_the_adapters_have_these_kinds() -> None:
    assert {kind: tuple(codecs) for kind, codecs in KINDS.items()} == {
        "web_search": ("anthropic", "litellm", "openai"),
        "code_interpreter": ("anthropic", "openai"),
        "file_search": ("openai",),
        "web_fetch": ("anthropic",),
        "advisor": ("anthropic",),
    }


def test_a_table_says_who_honours_what_and_how_far() -> None:
    assert table(KINDS["code_interpreter"]).splitlines() == [
        "| setting | anthropic | litellm | openai |",
        "| --- | --- | --- | --- |",
        "| (the tool itself) | yes | no | yes |",
        "| `allowed_languages` | no | no | ('python',) |",
        "| `timeout_seconds` | no | no | no |",
        "| `container_id` | no | no | yes |",
        "| `file_ids` | no | no | yes |",
        "| `memory_gb` | no | no | 1, 4, 16, 64 |",
        "| `allowed_domains` | no | no | yes |",
    ]


@pytest.mark.parametrize(
    ("adapter", "tool", "message"),
    [
        (
            "anthropic",
            web_search_tool(WebSearchConfig(allow_live_access=False), name="cached"),
            "Hosted tool 'cached': the anthropic adapter cannot honour allow_live_access=False; openai can.",
        ),
        (
            "anthropic",
            web_search_tool(WebSearchConfig(DomainFilter(("a.org",), ("b.a.org",)))),
            "Hosted tool 'web_search': the anthropic adapter cannot honour domain_filter.allowed together with "
            "domain_filter.blocked; openai can.",
        ),
        (
            "anthropic",
            code_interpreter_tool(CodeInterpreterConfig(memory_gb=4)),
            "Hosted tool 'code_interpreter': the anthropic adapter cannot honour memory_gb=4; openai can.",
        ),
        (
            "anthropic",
            code_interpreter_tool(CodeInterpreterConfig(memory_gb=5)),
            "Hosted tool 'code_interpreter': the anthropic adapter cannot honour memory_gb=5; no adapter can.",
        ),
        (
            "openai",
            code_interpreter_tool(CodeInterpreterConfig(timeout_seconds=30)),
            "Hosted tool 'code_interpreter': the openai adapter cannot honour timeout_seconds=30; no adapter can.",
        ),
        (
            "anthropic",
            code_interpreter_tool(CodeInterpreterConfig(allowed_languages=("python",))),
            "Hosted tool 'code_interpreter': the anthropic adapter cannot honour allowed_languages=('python',); "
            "openai can.",
        ),
        (
            "openai",
            HostedTool("web_search", "web", "Searches.", OracleConfig()),
            "Hosted tool 'web': kind 'web_search' takes a WebSearchConfig, got OracleConfig.",
        ),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_named_with_who_can(adapter: str, tool: Any, message: str) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        codec(adapter, tool.kind).serialize(tool)
    assert (str(caught.value), caught.value.phase) == (message, "render")


@dataclass(frozen=True, slots=True)
class TideConfig:
    harbour: str = ""
    metres: bool = True


class TideCodec(SettingsCodec[TideConfig, Any]):
    kind = "tide"
    adapter = "test"
    config_type = TideConfig
    honours: ClassVar[dict[str, Rule]] = {"harbour": HONOURED}

    def declare(self, tool: HostedTool[TideConfig]) -> dict[str, Any]:
        return {"type": "tide", "harbour": tool.config.harbour}

    def parse_output(self, response_items: Any, tool: HostedTool[TideConfig]) -> Any:
        return None


def test_a_codec_of_ones_own_gets_refusals_from_its_data() -> None:
    def tide(config: TideConfig) -> HostedTool[TideConfig]:
        return HostedTool("tide", "tide", "Tells the tide.", config)

    assert TideCodec().serialize(tide(TideConfig("Whitby"))) == {"type": "tide", "harbour": "Whitby"}
    with pytest.raises(PromptEvaluationError, match=r"test adapter cannot honour metres=False; no adapter can\."):
        TideCodec().serialize(tide(TideConfig(metres=False)))


def test_a_spec_lists_the_kinds_that_the_codecs_of_its_package_encode() -> None:
    for spec in adapter_specs():
        assert spec.hosted_tools == tuple(spec.codecs())
        assert [codec.kind for codec in spec.codecs().values()] == list(spec.hosted_tools)


def test_making_an_adapter_loads_no_codec() -> None:
    script = (
        "import sys; from weakincentives.adapters.openai import OpenAIAdapter; OpenAIAdapter(client=object());"
        "print(*[name for name in sys.modules if name.startswith('weakincentives.tools')])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == []


def test_there_is_a_stored_answer_for_every_kind_adapter_and_case() -> None:
    wanted = {f"{adapter}/{kind}/{case}" for kind in KINDS for adapter in KINDS[kind] for case in CASES}
    assert {str(path.relative_to(FIXTURES).with_suffix("")) for path in FIXTURES.rglob("*.json")} == wanted


VALID = [
    (adapter, kind, case)
    for kind in KINDS
    for adapter in KINDS[kind]
    if adapter != "litellm"
    for case in ("normal", "many_calls", "error_inside", "no_call")
]


@pytest.mark.parametrize(("adapter", "kind", "case"), VALID)
def test_stored_answers_have_the_form_that_the_sdk_knows(adapter: str, kind: str, case: str) -> None:
    if adapter == "openai":
        from openai.types.responses import Response as Form
    else:
        from anthropic.types.beta import BetaMessage as Form  # type: ignore[assignment]
    Form.model_validate(json.loads(stored(adapter, kind, case)))


FULL: dict[str, Any] = {
    "web_search": WebSearchConfig(
        DomainFilter(("who.int",)), GeoHint("GB", "London", "England", "Europe/London"), allow_live_access=False
    ),
    "web_fetch": WebFetchConfig(DomainFilter(blocked=("who.int",)), 3, 900, citations=True, allow_cache=False),
    "advisor": AdvisorConfig("claude-opus-5", 2, 900, use_cache=True),
    "code_interpreter": CodeInterpreterConfig(file_ids=("f1",), memory_gb=4, allowed_domains=("who.int",)),
    "file_search": FileSearchConfig(("vs_1",), 5, 0.5, Comparison("year", "gt", 2020)),
}


def form_of(adapter: str, kind: str) -> Any:
    """The SDK's type of a tool's declaration."""
    if adapter == "anthropic":
        from anthropic import types
        from anthropic.types import beta

        if kind == "advisor":
            return beta.BetaAdvisorTool20260301Param
        names = {
            "web_search": "WebSearchTool20260318Param",
            "web_fetch": "WebFetchTool20260318Param",
            "code_interpreter": "CodeExecutionTool20260521Param",
        }
        return getattr(types, names[kind])
    from openai.types.responses import file_search_tool_param, tool_param, web_search_tool_param

    return {
        "web_search": web_search_tool_param.WebSearchToolParam,
        "code_interpreter": tool_param.CodeInterpreter,
        "file_search": file_search_tool_param.FileSearchToolParam,
    }[kind]


@pytest.mark.parametrize(("adapter", "kind"), [(a, k) for k in KINDS for a in KINDS[k] if a != "litellm"])
def test_declarations_have_the_fields_that_the_sdk_knows(adapter: str, kind: str) -> None:
    config = FULL[kind]
    if adapter == "anthropic" and kind == "web_search":
        config = replace(config, allow_live_access=True)
    elif adapter == "anthropic" and kind == "code_interpreter":
        config = CodeInterpreterConfig()
    declared = codec(adapter, kind).serialize(HostedTool(kind, "tool", "A tool.", config))
    form = form_of(adapter, kind)
    assert set(declared) <= set(form.__annotations__)
    assert declared["type"] in str(form.__annotations__["type"])
