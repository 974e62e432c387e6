"""A real server: llama.cpp's own, with a small model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tests.helpers.embedded import small_model
from weakincentives import (
    MarkdownSection,
    OpenAIChatAdapter,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    Settings,
    call,
    tool,
)
from weakincentives.errors import ContextOverflowError, PromptEvaluationError
from weakincentives.runtime import Conversation, ModelCalled, TextDelta, ToolInvoked

pytestmark = [pytest.mark.slow, pytest.mark.limit(240)]
KEY = "llama-0123456789"
ONE_WORD = {"stop": [" "], "ignore_eos": True}
BRIEF = Settings(max_output_tokens=12, temperature=0.0)
# The way of Hermes and Qwen to write calls, which llama.cpp knows; the model's own template has no tools.
TEMPLATE = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
{{- "\\n\\n# Tools\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\\n</tools>\\n\\nFor each function call, return a json object within <tool_call></tool_call> XML tags:\\n" }}
{{- "<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == "assistant" %}
{{- '<|im_start|>' + message.role }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == "tool" %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


@dataclass(frozen=True)
class Mood:
    mood: Literal["glad", "sad"]


@tool
def ring(times: Literal[1, 2]) -> str:
    """Ring the bell."""
    return f"rang {times}"


def serve() -> Any:
    model = small_model()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.n_threads_http = 1024, 1, 2
    params.warmup, params.ui, params.use_jinja, params.verbosity = False, False, True, -1
    params.cache_ram_mib = 64
    params.api_keys = [KEY]
    params.chat_template = TEMPLATE
    return xllamacpp.Server(params)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    yield serve()


def adapter_on(server: Any, **options: Any) -> OpenAIChatAdapter:
    options = {"api_key": KEY, "settings": BRIEF, **options}
    return OpenAIChatAdapter("smollm2", base_url=f"{server.listening_address}/v1", **options)


def prompt(output: Any = None, *tools: Any) -> Prompt[Any]:
    made: Any = PromptTemplate if output is None else PromptTemplate[output]
    section = MarkdownSection(title="Task", key="task", template="Be brief.", tools=tools)
    return Prompt(made(ns="tests", key="llama", sections=[section]))


def test_a_conversation_is_streamed_and_its_beginning_read_from_the_cache(server: Any) -> None:
    with adapter_on(server, parameters=ONE_WORD) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        with chat.stream("Say hello.") as events:
            shown = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert chat.messages[-1].text == shown != ""
        chat.send("Say it again.")
    first, second = (event.usage for event in chat.session[ModelCalled].all())
    assert (first.output_tokens > 0, second.cached_tokens >= first.input_tokens) == (True, True)


@pytest.mark.asyncio
async def test_a_typed_answer_is_enforced_by_the_server(server: Any) -> None:
    session = Session()
    with adapter_on(server, settings=Settings(max_output_tokens=60, temperature=0.0)) as adapter:
        blocking = adapter.evaluate(prompt(Mood), session=session).output
        awaited = (await adapter.evaluate_async(prompt(Mood), session=Session())).output
    assert isinstance(blocking, Mood) and isinstance(awaited, Mood)
    called = session[ModelCalled].latest()
    assert called is not None and called.usage.input_tokens > 20 and called.usage.output_tokens > 3


def test_tools_and_the_calls_of_another_model_are_accepted(server: Any) -> None:
    """The small model makes no calls of its own."""
    chat = Conversation(prompt(None, ring), adapter=ScriptedAdapter([call("ring", times=2), "Rung."]))
    chat.send("Ring twice.")
    with adapter_on(server, parameters=ONE_WORD) as adapter:
        later = Conversation(prompt(None, ring), adapter=adapter, session=chat.session)
        assert later.send("Thanks.").text
    called = later.session[ModelCalled].latest()
    assert called is not None and called.usage.input_tokens > 100
    assert [event.result.value for event in later.session[ToolInvoked].all()] == ["rang 2"]


def test_a_full_context_and_a_wrong_key_are_told_apart(server: Any) -> None:
    with adapter_on(server) as adapter, pytest.raises(ContextOverflowError):
        Conversation(prompt(), adapter=adapter).send("word " * 2000)
    with adapter_on(server, api_key="wrong") as adapter, pytest.raises(PromptEvaluationError, match="answered 401"):
        adapter.evaluate(prompt(), session=Session())
