"""The private attributes of the SDKs that the library reads: these tests fail when an SDK update changes them."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from weakincentives.adapters.network.endpoint import PRIVATE_ATTRIBUTES, endpoint

KEY = "sk-endpoint-0123456789"
CLIENTS = [openai.OpenAI, openai.AsyncOpenAI, anthropic.Anthropic, anthropic.AsyncAnthropic]


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_sdk_still_has_the_attributes_we_read(kind: Any) -> None:
    own, *unset = PRIVATE_ATTRIBUTES[kind.__module__.partition(".")[0]]
    client = kind(api_key=KEY)
    assert {name: vars(client)[name] for name in unset} == dict.fromkeys(unset)
    assert type(vars(client)[own]).__name__ in ("SyncHttpxClientWrapper", "AsyncHttpxClientWrapper")


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_that_only_carries_settings_has_an_endpoint(kind: Any) -> None:
    found = endpoint(kind(api_key=KEY, base_url="https://gateway.example/api"), (kind,), "/v1/x")
    assert found is not None
    assert (found.host, found.port, found.tls is None) == ("gateway.example", 443, False)
    assert found.head.startswith(b"POST /api/v1/x HTTP/1.1\r\nhost: gateway.example\r\n")
    assert f"authorization: Bearer {KEY}\r\n".encode() in found.head


def test_the_sdk_still_keeps_a_key_provider_where_we_look() -> None:
    client = openai.OpenAI(api_key=lambda: KEY)
    assert vars(client)["_api_key_provider"] is not None


def test_a_client_without_the_attributes_we_know_sends_by_itself() -> None:
    client = openai.OpenAI(api_key=KEY)
    del client._api_key_provider
    assert endpoint(client, (openai.OpenAI,), "/responses") is None
