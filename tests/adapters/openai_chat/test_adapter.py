"""Addresses, keys and names of chat servers, and the failures that they report with the status 200."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.scenarios import prompt
from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import KEY, OPENAI_CHAT
from tests.servers.chat_completions import ChatServer
from tests.servers.loopback import CERTIFICATE, server_tls
from tests.servers.turn import Call, Raw, Turn
from weakincentives import OpenAIChatAdapter, adapter_for
from weakincentives.clock import FakeClock
from weakincentives.content import Image
from weakincentives.errors import ContextOverflowError, PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.runtime import Conversation, ToolInvoked
from weakincentives.runtime.spi import adapter_spec
from weakincentives.session import Session

URL = "http://127.0.0.1:1/v1"


def hello(received: Any) -> Turn:
    return Turn("hello")


@pytest.mark.parametrize(
    ("name", "model", "url"),
    [
        ("openai-chat:some/model@https://llm.example/v1", "some/model", "https://llm.example/v1"),
        ("openai-chat:@cf/meta/llama@http://[::1]:8080", "@cf/meta/llama", "http://[::1]:8080"),
        ("ollama:qwen3:8b", "qwen3:8b", "http://127.0.0.1:11434/v1"),
        ("ollama:qwen3:8b@http://gpu.example:11434/v1", "qwen3:8b", "http://gpu.example:11434/v1"),
        ("vllm:Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1"),
        ("openrouter:qwen/qwen3-8b:free", "qwen/qwen3-8b:free", "https://openrouter.ai/api/v1"),
        ("groq:openai/gpt-oss-20b", "openai/gpt-oss-20b", "https://api.groq.com/openai/v1"),
        ("deepseek:deepseek-chat", "deepseek-chat", "https://api.deepseek.com"),
    ],
)
def test_a_server_has_a_name_or_an_address(name: str, model: str, url: str) -> None:
    adapter = adapter_for(name)
    assert isinstance(adapter, OpenAIChatAdapter)
    assert (adapter.model, adapter.base_url, adapter.tool_route) == (model, url, "append")


def test_an_address_may_be_given_as_an_option() -> None:
    adapter: Any = adapter_for("openai-chat:m", base_url=URL)
    assert adapter.base_url == URL


@pytest.mark.parametrize("name", ["some-model", "some-model@localhost:8080"])
def test_without_an_address_the_error_says_where_it_goes(name: str) -> None:
    with pytest.raises(ValueError, match="needs the address of a server, as in 'openai-chat:MODEL@http://HOST/v1'"):
        adapter_for(f"openai-chat:{name}")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"base_url": "localhost:11434"}, "base_url must be an address such as"),
        ({"base_url": "ftp://host/v1"}, "base_url must be an address such as"),
        ({"base_url": "http://host:port/v1"}, "base_url must be an address such as"),
        ({"base_url": f"{URL}/chat/completions"}, "without '/chat/completions'"),
        ({"base_url": "http://user:secret@host/v1"}, "pass api_key="),
        ({"base_url": URL, "headers": {"x-team": "a\r\nb"}}, "the header 'x-team' must be ASCII"),
        ({"base_url": URL, "api_key": "schlüssel"}, "the header 'authorization' must be ASCII"),
        ({"base_url": URL, "parameters": {"messages": []}}, "parameters cannot set messages"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_any_request(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        OpenAIChatAdapter("m", **options)


def test_key_headers_and_parameters_reach_the_server() -> None:
    with ChatServer(hello) as server:
        options: Any = {"headers": {"X-Team": "blue"}, "parameters": {"top_p": 0.5}}
        with OPENAI_CHAT.adapter(server, **options) as adapter:
            assert adapter.channel().call(ask([SYSTEM])).text == "hello"
    (received,) = server.requests
    assert (received.method, received.target) == ("POST", "/v1/chat/completions")
    assert (received.headers["authorization"], received.headers["x-team"]) == (f"Bearer {KEY}", "blue")
    assert received.json == {
        "model": "scripted",
        "top_p": 0.5,
        "messages": [{"role": "system", "content": "You help."}, {"role": "user", "content": "Begin."}],
    }


def authorization(adapter: OpenAIChatAdapter) -> str | None:
    return adapter._sent.get("authorization")


def test_a_key_of_the_environment_goes_only_to_the_host_it_belongs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "GROQ_API_KEY"):
        monkeypatch.setenv(name, name.lower())
    monkeypatch.delenv("OPENAI_CHAT_API_KEY", raising=False)
    hosts = {"api.openai.com/v1": "openai_api_key", "openrouter.ai/api/v1": "openrouter_api_key"}
    for place, key in hosts.items():
        assert authorization(OpenAIChatAdapter("m", base_url=f"https://{place}")) == f"Bearer {key}"
        assert authorization(OpenAIChatAdapter("m", base_url=f"http://{place}")) is None
    assert authorization(OpenAIChatAdapter("m", base_url=URL)) is None
    monkeypatch.setenv("OPENAI_CHAT_API_KEY", "mine")
    assert authorization(OpenAIChatAdapter("m", base_url=URL)) == "Bearer mine"
    assert authorization(OpenAIChatAdapter("m", base_url=URL, api_key="")) is None


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openrouter:m", "OPENROUTER_API_KEY"),
        ("groq:m", "GROQ_API_KEY"),
        ("deepseek:m", "DEEPSEEK_API_KEY"),
        ("openai-chat:m@https://llm.example/v1", "OPENAI_CHAT_API_KEY"),
    ],
)
def test_a_named_server_has_a_key_of_its_own(name: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("OPENROUTER_API_KEY", "GROQ_API_KEY", "DEEPSEEK_API_KEY", "OPENAI_CHAT_API_KEY"):
        monkeypatch.setenv(other, other.lower())
    adapter: Any = adapter_for(name)
    assert authorization(adapter) == f"Bearer {variable.lower()}"
    spec = adapter_spec(name.partition(":")[0])
    assert spec is not None and spec.key_variables in ((variable,), ())


@pytest.mark.parametrize(
    ("environment", "options", "hint"),
    [
        ("", {}, "; set OPENAI_CHAT_API_KEY or pass api_key="),
        ("", {"api_key": ""}, "; set OPENAI_CHAT_API_KEY or pass api_key="),
        ("wrong-key-of-the-environment", {}, "; check the key in OPENAI_CHAT_API_KEY, or pass api_key="),
        ("wrong-key-of-the-environment", {"api_key": KEY}, "; check the key that is passed as api_key="),
    ],
)
@pytest.mark.parametrize("status", [401, 400])
def test_an_error_of_authentication_says_where_the_key_comes_from(
    environment: str, options: Any, hint: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_CHAT_API_KEY", environment)
    with ChatServer([Raw(status, b'{"error":{"message":"no"}}')]) as server:
        adapter = OpenAIChatAdapter("m", base_url=server.url, **options)
        with pytest.raises(PromptEvaluationError, match=f"answered {status}: no") as caught:
            adapter.channel().call(ask([SYSTEM]))
    assert str(caught.value).endswith(hint) is (status == 401)


@pytest.mark.parametrize("model", ["", " ", None])
def test_a_model_must_have_a_name(model: Any) -> None:
    with pytest.raises(ValueError, match=f"OpenAIChatAdapter needs the name of a model, got {model!r}"):
        OpenAIChatAdapter(model, base_url=URL)


@pytest.mark.parametrize("options", [{}, {"api_key": "", "headers": {"Api-Key": KEY}}])
def test_no_error_shows_a_key(options: dict[str, Any]) -> None:
    refused = Raw(401, f'{{"error":{{"message":"no such key {KEY}"}}}}'.encode())
    with ChatServer([refused]) as server:
        adapter = OpenAIChatAdapter("m", base_url=server.url, **{"api_key": KEY, **options})
        with pytest.raises(PromptEvaluationError, match="no such key") as caught:
            adapter.channel().call(ask([SYSTEM]))
    assert KEY not in f"{caught.value} {caught.value.payload}"


def test_a_proxy_of_the_environment_is_refused_except_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(PromptEvaluationError, match=r"add llm\.example to NO_PROXY"):
        OpenAIChatAdapter("m", base_url="http://llm.example/v1").channel()
    with ChatServer(hello) as server, OPENAI_CHAT.adapter(server) as adapter:
        assert adapter.channel().call(ask([SYSTEM])).text == "hello"


@pytest.mark.parametrize("extras", [True, False], ids=["with httpx2", "without"])
def test_a_certificate_of_the_environment_is_trusted(
    extras: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(CERTIFICATE.read_bytes())
    with ChatServer(hello, tls=server_tls()) as server:
        refused = pytest.raises(PromptEvaluationError, match=r"TLS|cert")
        with OPENAI_CHAT.adapter(server, max_retries=0) as stranger, refused:
            stranger.channel().call(ask([SYSTEM]))
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        if not extras:
            monkeypatch.setitem(sys.modules, "httpx2", None)
        with OPENAI_CHAT.adapter(server) as adapter:
            assert adapter.channel().call(ask([SYSTEM])).text == "hello"


def test_a_redirect_is_an_error_that_says_where_to() -> None:
    moved = Raw(308, b"", {"location": "https://new.example/v1/chat/completions"})
    error = pytest.raises(PromptEvaluationError, match=r"redirects to https://new\.example")
    with ChatServer([moved]) as server, OPENAI_CHAT.adapter(server) as adapter, error:
        adapter.channel().call(ask([SYSTEM]))
    assert len(server.requests) == 1


def reply(raw: bytes, *, stream: bool, then: Turn | None = None) -> Any:
    headers = {"content-type": "text/event-stream"} if stream else {}
    with ChatServer([Raw(200, raw, headers), *([then] if then else [])]) as server:
        channel = OPENAI_CHAT.adapter(server, clock=FakeClock()).channel()
        return list(channel.stream(ask([SYSTEM])))[-1] if stream else channel.call(ask([SYSTEM]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        {"error": {"code": 502, "message": "provider is down"}},
        {"choices": [{"error": {"code": 429, "message": "busy"}, "finish_reason": "error"}]},
        {"choices": [{"message": {"content": "One"}, "delta": {}, "finish_reason": "insufficient_system_resource"}]},
        {"choices": [{"message": {"content": "One"}, "delta": {}, "finish_reason": "abort"}]},
    ],
)
def test_a_failure_with_status_200_is_retried_if_it_may_pass(failure: Any, stream: bool) -> None:
    text = json.dumps(failure).encode()
    raw = b"data: " + text + b"\n\ndata: [DONE]\n\n" if stream else text
    found = reply(raw, stream=stream, then=Turn("Fine."))
    assert (found.text, found.retries) == ("Fine.", 1)


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens"])
def test_a_server_cannot_give_back_what_a_budget_has_spent(field: str) -> None:
    answer = {"choices": [{"message": {"content": "Hi"}}], "usage": {field: -1_000_000}}
    assert reply(json.dumps(answer).encode(), stream=False).usage == TokenUsage()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", ["model requires more memory", {"code": 403, "message": "flagged"}])
def test_any_other_failure_with_status_200_is_an_error(error: Any, stream: bool) -> None:
    text = json.dumps({"error": error}).encode()
    with pytest.raises(PromptEvaluationError, match=r"could not answer: (model requires|flagged)") as caught:
        reply(b"data: " + text + b"\n\n" if stream else text, stream=stream)
    assert caught.value.phase == "response"


@pytest.mark.parametrize(
    "message",
    [
        {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."},
        {"type": "exceed_context_size_error", "message": "request (5031 tokens) exceeds the available context size"},
        {"code": "context_length_exceeded", "message": "Please reduce the length of the messages."},
    ],
    ids=["vllm", "llama.cpp", "groq"],
)
def test_a_full_context_is_known_by_each_servers_words(message: dict[str, Any]) -> None:
    full = Raw(400, json.dumps({"error": message}).encode())
    with ChatServer([full]) as server, OPENAI_CHAT.adapter(server) as adapter, pytest.raises(ContextOverflowError):
        adapter.channel().call(ask([SYSTEM]))


def test_malformed_arguments_are_told_to_the_model_but_not_sent_back() -> None:
    session = Session()
    with ChatServer([Turn(calls=(Call("note", '{"text": '),)), Turn("Sorry.")]) as server:
        assert OPENAI_CHAT.adapter(server).evaluate(prompt(), session=session).text == "Sorry."
    (asked,) = [message for message in server.requests[1].json["messages"] if message.get("tool_calls")]
    assert asked["tool_calls"][0]["function"]["arguments"] == "{}"
    invoked = session[ToolInvoked].latest()
    assert invoked is not None and not invoked.success


def test_pieces_of_reasoning_and_signatures_are_put_together_again() -> None:
    def chunk(**delta: Any) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"

    signed = {"id": "c1", "index": 0, "function": {"name": "f", "arguments": "{}"}, "extra_content": {"g": "sig"}}
    pieces = (
        chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "Let "}]),
        chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "me.", "signature": "s"}]),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "x"}]),
        chunk(tool_calls=[signed]),
        b"data: [DONE]\n\n",
    )
    found = reply(b"".join(pieces), stream=True)
    assert found.reasoning == "Let me."
    assert json.loads(found.items[0]) == {
        "role": "assistant",
        "content": None,
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "Let me.", "signature": "s"},
            {"type": "reasoning.encrypted", "index": 1, "data": "x"},
        ],
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "f", "arguments": "{}"},
                "extra_content": {"g": "sig"},
            }
        ],
    }


WORDS = "stream_options, strict: true and 'response_format'\nof json_schema, with reasoning_content"


@pytest.mark.parametrize(
    "content",
    [WORDS, Image.from_url("https://example.com/stream_options/strict/response_format/reasoning.png")],
    ids=["text", "url"],
)
def test_an_error_that_quotes_a_user_teaches_nothing_about_the_server(content: Any) -> None:
    def model(received: Any) -> Any:
        said = received.json["messages"][-1]["content"]
        if said == "Hello.":
            return Turn("hello")
        quoted = said if isinstance(said, str) else said[0]["image_url"]["url"]
        return Raw(400, json.dumps({"error": {"message": f"Cannot use {quoted}."}}).encode())

    with ChatServer(model) as server, OPENAI_CHAT.adapter(server) as adapter:
        for _ in range(3):
            with pytest.raises(PromptEvaluationError, match="answered 400"):
                Conversation(prompt(), adapter=adapter).send(content)
        for _ in Conversation(prompt(), adapter=adapter).stream("Hello."):
            pass
    assert len(server.requests) == 4
    sent = server.requests[-1].json
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["tools"][0]["function"]["strict"] is True
