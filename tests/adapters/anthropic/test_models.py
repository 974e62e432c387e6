"""Models that are not in our table: the vendor is asked what they accept, once, and a run never depends on it."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx2
import pytest

from tests.adapters.sums import DONE, OPEN, USE, prompt
from tests.adapters.vendors import ANTHROPIC, KEY
from tests.servers.anthropic_messages import MessagesServer
from tests.servers.loopback import Answer
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime import Conversation, Settings
from weakincentives.session import Session

NEW = "claude-opus-6"


def supported(**names: bool) -> dict[str, Any]:
    return {name: {"supported": value} for name, value in names.items()}


def described(*, adaptive: bool = True, efforts: bool = True, **fields: Any) -> dict[str, Any]:
    """A model as the endpoint describes it: without the effort `max`, and without thinking that can be turned off."""
    levels = supported(low=efforts, medium=efforts, high=efforts, max=False, xhigh=False)
    kinds = supported(adaptive=adaptive, between_tools=False, disabled=False, enabled=not adaptive)
    capabilities = {"effort": {"supported": efforts, **levels}, "thinking": {"supported": True, "types": kinds}}
    return {
        "id": NEW,
        "type": "model",
        "max_input_tokens": 90_000,
        "max_tokens": 8_000,
        "capabilities": capabilities,
    } | fields


def evaluate(server: MessagesServer, **options: Any) -> Any:
    with ANTHROPIC.adapter(server, model=NEW, **options) as adapter:
        adapter.evaluate(prompt(), session=Session())
        return adapter


def test_an_unlisted_model_is_asked_for_once_and_written_for() -> None:
    with ANTHROPIC.server([OPEN, USE, DONE, DONE]) as server:
        server.models[NEW] = described()
        with ANTHROPIC.adapter(server, model=NEW) as adapter:
            for _ in range(2):
                adapter.evaluate(prompt(), session=Session(), settings=Settings(effort="high"))
            assert (adapter.context_window, len(server.looked_up)) == (90_000, 1)
            assert server.looked_up[0].target == f"/v1/models/{NEW}"
            assert {received.json["max_tokens"] for received in server.requests} == {8_000}
            for effort in ("max", "none"):
                with pytest.raises(PromptEvaluationError, match=f"does not accept effort='{effort}'"):
                    adapter.evaluate(prompt(), session=Session(), settings=Settings(effort=effort))


def test_a_model_with_thinking_budgets_gets_them() -> None:
    with ANTHROPIC.server([DONE]) as server:
        server.models[NEW] = described(adaptive=False, efforts=False)
        evaluate(server, settings=Settings(effort="low"))
    assert server.requests[0].json["thinking"] == {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize("model", ["claude-opus-5", "gateway/claude-sonnet-5", "my-deployment"])
def test_a_model_in_the_table_or_of_a_gateway_is_not_asked_for(model: str) -> None:
    with ANTHROPIC.server([DONE]) as server, ANTHROPIC.adapter(server, model=model) as adapter:
        adapter.evaluate(prompt(), session=Session())
    assert server.looked_up == []


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Answer(500, b"{}"),
        Answer(200, b"no json"),
        Answer(200, b"[]"),
        Answer(200, b'{"capabilities": {"effort": 3}}'),
        Answer(200, b'{"capabilities": null}'),
        Answer(reset=True),
        Answer(200, b"{}" * 99, cut=True),
        Answer(307, b"", {"location": "/elsewhere"}),
        described(max_input_tokens="many", max_tokens=-1),
    ],
    ids=str,
)
def test_an_endpoint_that_fails_harms_no_run(answer: Any) -> None:
    with ANTHROPIC.server([OPEN, USE, DONE]) as server:
        server.models[NEW] = answer
        adapter = evaluate(server)
        assert (adapter.context_window, len(server.looked_up), len(server.requests)) == (None, 1, 3)


def test_an_endpoint_that_hangs_takes_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weakincentives.adapters.network.adapter.ASK_SECONDS", 0.05)
    with ANTHROPIC.server([DONE]) as server:
        server.models[NEW] = Answer(delay=30)
        with ANTHROPIC.adapter(server, model=NEW) as adapter:
            deadline = Deadline.after(20)
            assert adapter.evaluate(prompt(), session=Session(), deadline=deadline).text == "3"


@pytest.mark.parametrize("kind", ["async", "own"])
def test_whatever_sends_the_requests_asks_too(kind: str) -> None:
    async def converse(server: MessagesServer, given: Any) -> None:
        client = anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url, **given)
        with AnthropicAdapter(NEW, client=client) as adapter:
            assert (await adapter.evaluate_async(prompt(), session=Session())).text == "3"
            assert (adapter.context_window, len(server.looked_up)) == (90_000, 1)
            assert adapter.uses_own_connections is (kind == "async")
        await client.close()

    with MessagesServer([DONE]) as server:
        server.models[NEW] = described()
        own = {"http_client": httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport())} if kind == "own" else {}
        asyncio.run(converse(server, own))


def test_the_window_of_an_unlisted_model_is_that_of_its_conversations() -> None:
    with ANTHROPIC.server([DONE, DONE]) as server, ANTHROPIC.adapter(server, model=NEW) as adapter:
        server.models[NEW] = described(max_input_tokens=1_000)
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("Hi.")
        assert chat.adapter.context_window == 1_000
