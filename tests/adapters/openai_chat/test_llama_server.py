"""A real server: llama.cpp's own, with the small model of the extra [local]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import pytest

from weakincentives import Budget, MarkdownSection, OpenAIChatAdapter, Prompt, PromptTemplate, Session, Settings, tool
from weakincentives.errors import BudgetExceededError, ContextOverflowError, PromptEvaluationError
from weakincentives.runtime import Conversation, ModelCalled, TextDelta, ToolInvoked

pytestmark = [pytest.mark.slow, pytest.mark.limit(240)]
KEY = "llama-0123456789"
BRIEF = Settings(max_output_tokens=12, temperature=0.0)
# The format of Hermes, for which llama.cpp has a parser; the model's own template has no tools.
TEMPLATE = """{%- if tools %}<|im_start|>system
You may call functions: <tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
For a call, answer <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class Mood:
    mood: Literal["glad", "sad"]


@tool
def ring(times: Literal[1, 2]) -> str:
    """Ring the bell."""
    return f"rang {times}"


def serve(template: str = "") -> Any:
    import xllamacpp

    from weakincentives.adapters.local import LocalAdapter

    params = xllamacpp.CommonParams()
    params.model.path = str(LocalAdapter().path)
    params.n_ctx, params.n_parallel, params.n_threads_http = 1024, 1, 2
    params.warmup, params.ui, params.use_jinja, params.verbosity = False, False, True, -1
    params.cache_ram_mib = 64
    params.api_keys = [KEY]
    if template:
        params.chat_template = template
    return xllamacpp.Server(params)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    if find_spec("xllamacpp") is None:
        pytest.skip("needs the extra [local]")
    try:
        yield serve(TEMPLATE)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def adapter_on(server: Any, **options: Any) -> OpenAIChatAdapter:
    options = {"api_key": KEY, "settings": BRIEF, **options}
    return OpenAIChatAdapter("smollm2", base_url=f"{server.listening_address}/v1", **options)


def prompt(output: Any = None, *tools: Any) -> Prompt[Any]:
    made: Any = PromptTemplate if output is None else PromptTemplate[output]
    section = MarkdownSection(title="Task", key="task", template="Be brief.", tools=tools)
    return Prompt(made(ns="tests", key="llama", sections=[section]))


def test_a_conversation_is_streamed_and_its_beginning_read_from_the_cache(server: Any) -> None:
    with adapter_on(server, parameters={"stop": [" "], "ignore_eos": True}) as adapter:
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


def test_a_tool_is_called_and_its_result_goes_back(server: Any) -> None:
    session = Session()
    options: Any = {
        "parameters": {"tool_choice": "required"},
        "settings": Settings(max_output_tokens=60, temperature=0),
    }
    with adapter_on(server, **options) as adapter, pytest.raises(BudgetExceededError):
        adapter.evaluate(prompt(None, ring), session=session, budget=Budget(max_turns=2))
    assert {(event.name, event.success) for event in session[ToolInvoked].all()} == {("ring", True)}


def test_a_full_context_and_a_wrong_key_are_told_apart(server: Any) -> None:
    with adapter_on(server) as adapter, pytest.raises(ContextOverflowError):
        Conversation(prompt(), adapter=adapter).send("word " * 2000)
    with adapter_on(server, api_key="wrong") as adapter, pytest.raises(PromptEvaluationError, match="answered 401"):
        adapter.evaluate(prompt(), session=Session())
