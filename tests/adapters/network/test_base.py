"""The base of network adapters: what a subclass must define, and the body that its wire writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weakincentives.adapters.network import NetworkAdapter
from weakincentives.adapters.openai_chat.wire import ChatWire
from weakincentives.runtime import Message, ModelRequest


class Unfinished(NetworkAdapter):
    package = "json"


class FieldsElsewhere(ChatWire):
    """A format with the model in the address, as Gemini's, and no other field of its own."""

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        return {}


def test_an_adapter_without_a_wire_is_refused_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Unfinished("model")  # type: ignore[abstract]


@pytest.mark.parametrize("kind", [ChatWire, FieldsElsewhere])
def test_the_body_of_a_request_is_json_whatever_fields_come_first(kind: type[ChatWire]) -> None:
    wire = kind("model", origin="test", codecs={})
    request = ModelRequest("prompt", (Message("user", "Hello."),))
    body = json.loads(wire.encode_request(request).body())
    assert body["messages"][-1]["content"] == "Hello."
    assert ("model" in body) is (kind is ChatWire)
