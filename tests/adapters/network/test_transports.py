"""A transport of one's own: written once, it blocks or waits for an event loop as it is asked to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.adapters.tools import SYSTEM, ask
from weakincentives.adapters.network import EncodedRequest, NetworkChannel, Response, TransportError
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.clock import FakeClock

HELLO = b'{"output":[{"type":"message","content":[{"type":"output_text","text":"hello"}]}]}'


class Busy:
    """Is busy at first, then answers."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.requests: list[bool] = []

    async def open(self, request: EncodedRequest, timeout: float | None, *, whole: bool, awaits: bool) -> Response:
        if awaits or self.waits:
            await asyncio.sleep(0)
        self.requests.append(awaits)
        if len(self.requests) == 1:
            raise TransportError("the line is busy")
        return Response(200, {}, HELLO)


def channel(transport: Any) -> NetworkChannel:
    wire = ResponsesWire("gpt-5.6", codecs={})
    return NetworkChannel(wire, transport, max_retries=1, secrets=tuple, clock=FakeClock())


@pytest.mark.parametrize("awaits", [False, True])
def test_it_gets_retries(awaits: bool) -> None:
    transport = Busy()
    line, request = channel(transport), ask([SYSTEM])
    reply = asyncio.run(line.call_async(request)) if awaits else line.call(request)
    assert (reply.text, reply.retries, transport.requests) == ("hello", 1, [awaits] * 2)


def test_one_that_waits_although_there_is_no_event_loop_is_an_error() -> None:
    async def on_a_loop() -> None:
        channel(Busy(waits=True)).call(ask([SYSTEM]))

    with pytest.raises(RuntimeError, match="waits for an event loop"):
        asyncio.run(on_a_loop())
