"""What a user has set on the vendor's client holds, whichever way a request takes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import KEY
from tests.servers.anthropic_messages import MessagesServer
from tests.servers.loopback import CERTIFICATE, Received, server_tls
from tests.servers.openai_responses import ResponsesServer
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.errors import PromptEvaluationError

SYNC = [
    pytest.param(OpenAIAdapter, openai.OpenAI, ResponsesServer, "/v1", id="openai"),
    pytest.param(AnthropicAdapter, anthropic.Anthropic, MessagesServer, "", id="anthropic"),
]
BOTH = [
    *SYNC,
    pytest.param(OpenAIAdapter, openai.AsyncOpenAI, ResponsesServer, "/v1", id="async openai"),
    pytest.param(AnthropicAdapter, anthropic.AsyncAnthropic, MessagesServer, "", id="async anthropic"),
]


def hello(received: Any) -> Turn:
    return Turn("hello")


def ways(adapter: Any) -> list[str]:
    """The text of one request, sent in all four ways."""

    async def collect() -> str:
        return [piece async for piece in adapter.channel().stream_async(ask([SYSTEM]))][-1].text

    return [
        adapter.channel().call(ask([SYSTEM])).text,
        list(adapter.channel().stream(ask([SYSTEM])))[-1].text,
        asyncio.run(adapter.channel().call_async(ask([SYSTEM]))).text,
        asyncio.run(collect()),
    ]


def keys(api: Any) -> list[str]:
    return [received.headers["authorization"] for received in api.requests]


@pytest.mark.parametrize(("adapter", "client", "server", "base"), BOTH)
def test_address_key_headers_and_query_are_the_clients(adapter: Any, client: Any, server: Any, base: str) -> None:
    with server(hello) as api:
        made = client(
            api_key=KEY,
            base_url=f"{api.url}/proxy{base}",
            default_headers={"x-team": "blue"},
            default_query={"tag": "a b"},
        )
        with adapter("m", client=made) as plain:
            assert plain.uses_own_connections
            assert ways(plain) == ["hello"] * 4
    for received in api.requests:
        assert received.target.startswith(f"/proxy{base}/") and received.target.endswith("?tag=a+b")
        assert (received.headers["authorization"], received.headers["x-team"]) == (f"Bearer {KEY}", "blue")


@pytest.mark.parametrize(("adapter", "client", "server", "base"), SYNC)
def test_a_key_that_is_changed_later_is_used_from_then_on(adapter: Any, client: Any, server: Any, base: str) -> None:
    with server(hello) as api:
        made = client(api_key=KEY, base_url=api.url + base)
        with adapter("m", client=made) as plain:
            plain.channel().call(ask([SYSTEM]))
            made.api_key = "sk-another-one"
            plain.channel().call(ask([SYSTEM]))
    assert keys(api) == [f"Bearer {KEY}", "Bearer sk-another-one"]


@pytest.mark.parametrize(("adapter", "client", "server", "base"), SYNC)
def test_a_timeout_of_the_client_holds(adapter: Any, client: Any, server: Any, base: str) -> None:
    with server([Turn("late", delay=30)]) as api:
        made = client(api_key=KEY, base_url=api.url + base, timeout=0.1)
        with adapter("m", client=made, max_retries=0) as plain:
            assert plain.uses_own_connections
            with pytest.raises(PromptEvaluationError, match="did not answer in time"):
                plain.channel().call(ask([SYSTEM]))


@pytest.mark.parametrize(("adapter", "client", "server", "base"), SYNC)
def test_a_transport_of_the_users_own_sends_every_request(adapter: Any, client: Any, server: Any, base: str) -> None:
    api, seen = server(hello), []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        api.requests.append(request)
        answer = api.render(Turn("hello"), Received("POST", request.url.path, {}, request.content))
        return httpx2.Response(200, content=b"".join(answer.events or ()) or answer.body)

    made = client(api_key=KEY, http_client=httpx2.Client(transport=httpx2.MockTransport(handle)))
    with adapter("m", client=made) as custom:
        assert not custom.uses_own_connections
        assert ways(custom) == ["hello"] * 4
    assert [request.headers["authorization"] for request in seen] == [f"Bearer {KEY}"] * 4


@pytest.mark.parametrize(("adapter", "client", "server", "base"), SYNC)
def test_a_proxy_of_the_client_is_used(adapter: Any, client: Any, server: Any, base: str) -> None:
    with server(hello) as proxy, httpx2.Client(proxy=proxy.url) as http:
        made = client(api_key=KEY, base_url=f"http://api.example.test{base}", http_client=http)
        assert ways(adapter("m", client=made)) == ["hello"] * 4
    assert all(received.target.startswith("http://api.example.test/") for received in proxy.requests)


@pytest.mark.parametrize(("adapter", "client", "server", "base"), BOTH)
def test_a_proxy_of_the_environment_is_used(
    adapter: Any, client: Any, server: Any, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(hello) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        made = client(api_key=KEY, base_url=f"http://api.example.test{base}")
        proxied = adapter("m", client=made)
        assert not proxied.uses_own_connections
        assert asyncio.run(_awaited(proxied, made)) == "hello"
    assert proxy.requests[0].target.startswith("http://api.example.test/")


async def _awaited(adapter: Any, client: Any) -> str:
    reply = await adapter.channel().call_async(ask([SYSTEM]))
    closing = client.close()
    if closing is not None:
        await closing
    return str(reply.text)


@pytest.mark.parametrize(("adapter", "client", "server", "base"), SYNC)
def test_a_certificate_authority_of_the_client_is_trusted(adapter: Any, client: Any, server: Any, base: str) -> None:
    with server(hello, tls=server_tls()) as api:
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        with httpx2.Client(verify=context) as http:
            made = client(api_key=KEY, base_url=api.url + base, http_client=http)
            assert ways(adapter("m", client=made)) == ["hello"] * 4


@pytest.mark.parametrize(("adapter", "client", "server", "base"), BOTH)
def test_a_certificate_authority_of_the_environment_is_trusted_by_our_connections(
    adapter: Any, client: Any, server: Any, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with (
        server(hello, tls=server_tls()) as api,
        adapter("m", client=client(api_key=KEY, base_url=api.url + base)) as plain,
    ):
        assert plain.uses_own_connections
        assert ways(plain) == ["hello"] * 4
    assert api.connections == 3


@pytest.mark.parametrize(("adapter", "client", "server", "base"), BOTH)
def test_a_server_that_is_not_trusted_is_refused(adapter: Any, client: Any, server: Any, base: str) -> None:
    with (
        server(hello, tls=server_tls()) as api,
        adapter("m", client=client(api_key=KEY, base_url=api.url + base), max_retries=0) as plain,
    ):
        with pytest.raises(PromptEvaluationError, match=r"(?i)certificate"):
            plain.channel().call(ask([SYSTEM]))
        with pytest.raises(PromptEvaluationError, match=r"(?i)certificate"):
            asyncio.run(plain.channel().call_async(ask([SYSTEM])))


def test_event_hooks_key_providers_middleware_and_subclasses_go_through_the_client() -> None:
    class Mine(openai.OpenAI):
        pass

    hooked = httpx2.Client(event_hooks={"request": [lambda request: None]})
    clients = [
        Mine(api_key=KEY),
        openai.OpenAI(api_key=KEY, http_client=hooked),
        openai.OpenAI(api_key=lambda: KEY),
        openai.OpenAI(api_key=KEY, base_url="http://user:secret@127.0.0.1:1"),
        openai.AzureOpenAI(api_key=KEY, azure_endpoint="https://x.openai.azure.com", api_version="2026-01-01"),
    ]
    assert [OpenAIAdapter("m", client=client).uses_own_connections for client in clients] == [False] * 5
    watched = anthropic.Anthropic(api_key=KEY, middleware=[lambda request, call_next: call_next(request)])
    assert not AnthropicAdapter("m", client=watched).uses_own_connections


def test_a_key_provider_is_asked_for_every_request() -> None:
    provided = iter(["sk-first-key", "sk-second-key"])
    with ResponsesServer(hello) as api, openai.OpenAI(api_key=lambda: next(provided), base_url=f"{api.url}/v1") as made:
        adapter = OpenAIAdapter("m", client=made)
        for _ in range(2):
            adapter.channel().call(ask([SYSTEM]))
    assert keys(api) == ["Bearer sk-first-key", "Bearer sk-second-key"]


def test_an_error_through_the_client_has_its_payload_and_no_key() -> None:
    body = f'{{"error":{{"message":"bad key {KEY}"}}}}'.encode()
    transport = httpx2.MockTransport(lambda request: httpx2.Response(400, content=body))
    adapter = OpenAIAdapter("m", client=openai.OpenAI(api_key=KEY, http_client=httpx2.Client(transport=transport)))
    with pytest.raises(PromptEvaluationError, match="answered 400") as caught:
        adapter.channel().call(ask([SYSTEM]))
    assert caught.value.payload == {"error": {"message": "bad key [redacted]"}}


def test_an_async_client_with_a_transport_of_its_own_cannot_be_called_blocking() -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(500))
    client = openai.AsyncOpenAI(api_key=KEY, http_client=httpx2.AsyncClient(transport=transport))
    with pytest.raises(PromptEvaluationError, match="call evaluate_async"):
        OpenAIAdapter("m", client=client).channel().call(ask([SYSTEM]))


def test_parameters_that_the_prompt_decides_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot set input, tools"):
        OpenAIAdapter("m", parameters={"tools": [], "input": [], "temperature": 0})


def test_an_option_that_does_not_exist_says_where_it_belongs() -> None:
    with pytest.raises(TypeError, match=r"no option 'temperature'; pass settings=Settings\(temperature="):
        OpenAIAdapter("m", temperature=0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no option 'api_key'; .* as client=Anthropic\(\.\.\.\)"):
        AnthropicAdapter("m", api_key=KEY)  # type: ignore[call-arg]


def test_a_client_of_another_kind_is_refused() -> None:
    with httpx2.Client() as http, pytest.raises(TypeError, match=r"such as OpenAI\(\.\.\.\).*http_client="):
        OpenAIAdapter("m", client=http).channel()


def test_a_redirect_is_followed_by_the_client() -> None:
    with ResponsesServer(hello) as target:
        moved = Raw(307, b"", {"location": f"{target.url}/v1/responses"})
        with (
            ResponsesServer([moved, moved]) as api,
            openai.OpenAI(api_key=KEY, base_url=f"{api.url}/v1") as made,
            OpenAIAdapter("m", client=made) as adapter,
        ):
            assert adapter.channel().call(ask([SYSTEM])).text == "hello"


def test_without_a_client_the_sdk_reads_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    with ResponsesServer(hello) as api:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{api.url}/v1")
        monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
        with OpenAIAdapter("m") as adapter:
            assert adapter.channel().call(ask([SYSTEM])).text == "hello"
    assert api.requests[0].headers["openai-organization"] == "org-1"


def test_a_missing_key_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PromptEvaluationError, match=r"OPENAI_API_KEY.*client=OpenAI") as caught:
        OpenAIAdapter("m").channel()
    assert caught.value.phase == "request"


def test_a_missing_key_that_the_sdk_would_notice_late_is_noticed_before_the_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # The SDK reads a login from there.
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PromptEvaluationError, match=r"^Set ANTHROPIC_API_KEY, or pass client=Anthropic"):
        AnthropicAdapter("m").channel()
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token")
    with AnthropicAdapter("m") as adapter:
        assert adapter.channel()


def test_a_missing_key_that_the_client_notices_late_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with (
        anthropic.Anthropic(base_url="http://127.0.0.1:9") as made,
        AnthropicAdapter("m", client=made) as adapter,
        pytest.raises(PromptEvaluationError, match="set ANTHROPIC_API_KEY or pass client=") as caught,
    ):
        adapter.channel().call(ask([SYSTEM]))
    assert caught.value.phase == "request"
