"""LiteLLM's own ways in: a Router, and what its providers insist on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import KEY
from tests.servers.chat_completions import ChatServer
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.errors import PromptEvaluationError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")


def hello(received: Any) -> Turn:
    return Turn("hello")


def test_a_router_is_called_in_place_of_the_package() -> None:
    import litellm

    with ChatServer(hello) as server:
        deployment = {"model": "openai/scripted", "api_base": server.url, "api_key": KEY}
        router = litellm.Router(model_list=[{"model_name": "ours", "litellm_params": deployment}])
        assert LiteLLMAdapter("ours", client=router).channel().call(ask([SYSTEM])).text == "hello"
    assert server.requests[0].json["messages"][-1] == {"role": "user", "content": "Begin."}


def test_parameters_go_to_the_provider() -> None:
    with ChatServer(hello) as server:
        parameters = {"api_base": server.url, "api_key": KEY, "temperature": 0.25}
        LiteLLMAdapter("openai/scripted", parameters=parameters).channel().call(ask([SYSTEM]))
    assert server.requests[0].json["temperature"] == 0.25
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_key_of_the_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    refused = Raw(401, f'{{"error":{{"message":"no such key {KEY}"}}}}'.encode())
    with ChatServer([refused]) as server:
        adapter = LiteLLMAdapter("openai/scripted", parameters={"api_base": server.url})
        with pytest.raises(PromptEvaluationError, match="no such key") as caught:
            adapter.channel().call(ask([SYSTEM]))
    assert KEY not in f"{caught.value} {caught.value.payload}"
