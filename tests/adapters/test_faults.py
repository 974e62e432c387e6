"""What each thing that can go wrong on the way to a model comes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import KEY, LEAN, LITELLM, OPENAI_CHAT, VENDORS, Vendor
from tests.servers.turn import Raw, Turn
from weakincentives.clock import FakeClock
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime import ModelReply, ModelRequest, TextDelta

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

GARBAGE = Raw(200, b"<html>502 Bad Gateway</html>")
CUT = Turn("hello there", cut_after=0)
RESET = Raw(reset=True)


class Naps(FakeClock):
    """A clock that records its sleeps, awaited or not."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.taken.append(seconds)
        super().sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


def called(channel: Any, request: ModelRequest) -> ModelReply:
    reply: ModelReply = channel.call(request)
    return reply


def called_async(channel: Any, request: ModelRequest) -> ModelReply:
    reply: ModelReply = asyncio.run(channel.call_async(request))
    return reply


def streamed(channel: Any, request: ModelRequest) -> ModelReply:
    reply: ModelReply = list(channel.stream(request))[-1]
    return reply


def streamed_async(channel: Any, request: ModelRequest) -> ModelReply:
    async def collect() -> list[Any]:
        return [piece async for piece in channel.stream_async(request)]

    reply: ModelReply = asyncio.run(collect())[-1]
    return reply


WAYS = [called, called_async, streamed, streamed_async]
Way = Callable[[Any, ModelRequest], ModelReply]


def attempt(vendor: Vendor, script: list[Any], way: Way = called, **options: Any) -> tuple[Any, Any, Naps]:
    """One request against a script: the reply or the error, the server, and the pauses."""
    naps = Naps()
    with (
        vendor.server(script) as server,
        vendor.adapter(server, clock=naps, **options) as adapter,
    ):
        try:
            return way(adapter.channel(), ask([SYSTEM])), server, naps
        except PromptEvaluationError as error:
            return error, server, naps


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vendor", LEAN, ids=str)
@pytest.mark.parametrize("fault", [GARBAGE, CUT, RESET, Raw(503, b"{}"), Raw(529, b"{}")], ids=str)
def test_what_may_pass_is_asked_again(vendor: Vendor, fault: Any, way: Way) -> None:
    reply, server, naps = attempt(vendor, [fault, Turn("better")], way)
    assert (reply.text, reply.retries) == ("better", 1)
    assert (len(server.requests), len(naps.taken)) == (2, 1)
    assert 0.375 <= naps.taken[0] <= 0.5


@pytest.mark.parametrize("fault", [GARBAGE, CUT, RESET, Raw(503, b"{}")], ids=str)
def test_litellm_asks_again_too(fault: Any) -> None:
    reply, server, _ = attempt(LITELLM, [fault, Turn("better")])
    assert (reply.text, reply.retries, len(server.requests)) == ("better", 1, 2)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "2500"}, 2.5),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:07 GMT"}, 7.0),
        ({"retry-after": "soon"}, 0.5),
    ],
)
@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_the_pause_is_the_one_the_provider_asks_for(vendor: Vendor, headers: Any, seconds: float) -> None:
    reply, _, naps = attempt(vendor, [Raw(429, b"{}", headers), Turn("ok")])
    assert reply.text == "ok"
    assert naps.taken[0] == pytest.approx(seconds, abs=0.13)


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_after_the_last_retry_the_error_has_the_providers_payload(vendor: Vendor) -> None:
    busy = Raw(429, b'{"error":{"message":"slow down"}}', {"retry-after": "1"})
    error, server, naps = attempt(vendor, [busy] * 3)
    assert (type(error), error.phase, error.prompt_name) == (PromptEvaluationError, "request", "demo")
    assert "slow down" in str(error) and "after 3 attempts" in str(error)
    assert "slow down" in str(error.payload)
    assert (len(server.requests), len(naps.taken)) == (3, 2)


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_retries_can_be_turned_off(vendor: Vendor) -> None:
    error, server, _ = attempt(vendor, [Raw(500, b"{}")], max_retries=0)
    assert (error.phase, len(server.requests)) == ("request", 1)


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_a_pause_longer_than_a_minute_is_not_taken(vendor: Vendor) -> None:
    error, _, naps = attempt(vendor, [Raw(429, b"{}", {"retry-after": "3600"})])
    assert "asks to wait 3600 s" in str(error)
    assert naps.taken == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_request_that_is_wrong_is_not_sent_again_and_shows_no_key(vendor: Vendor, way: Way) -> None:
    body = f'{{"error":{{"message":"bad key {KEY}"}}}}'.encode()
    error, server, _ = attempt(vendor, [Raw(401, body)], way)
    assert (error.phase, len(server.requests)) == ("request", 1)
    assert KEY not in f"{error} {error.payload} {error.__cause__!r}"
    assert "bad key [redacted]" in str(error)
    assert ("api_key=" in str(error)) is (vendor in LEAN)


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_garbage_to_the_end_is_a_response_error(vendor: Vendor) -> None:
    error, _, _ = attempt(vendor, [GARBAGE] * 3)
    assert (error.phase, error.payload) == ("response", "<html>502 Bad Gateway</html>")


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_json_of_another_shape_is_a_response_error_at_once(vendor: Vendor) -> None:
    error, server, _ = attempt(vendor, [Raw(200, b'{"hello": "world"}')])
    assert (error.phase, error.payload, len(server.requests)) == ("response", {"hello": "world"}, 1)
    assert "unexpected shape" in str(error)


@pytest.mark.parametrize("way", [called, streamed])
@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_an_empty_answer_is_a_response_error(vendor: Vendor, way: Way) -> None:
    error, server, _ = attempt(vendor, [Turn(stop="empty")], way)
    assert (error.phase, len(server.requests)) == ("response", 1)


@pytest.mark.parametrize("way", [called, streamed])
@pytest.mark.parametrize("stop", ["length", "refusal"])
@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_an_answer_that_stops_early_is_still_an_answer(vendor: Vendor, stop: Any, way: Way) -> None:
    reply, _, _ = attempt(vendor, [Turn("so far", stop=stop)], way)
    assert (reply.stop_reason, reply.text) == (stop, "so far")


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_nobody_listening_is_a_request_error(vendor: Vendor) -> None:
    with vendor.server() as gone:
        adapter = vendor.adapter(gone, clock=FakeClock())
    with pytest.raises(PromptEvaluationError, match="Cannot connect") as caught:
        adapter.channel().call(ask([SYSTEM]))
    assert caught.value.phase == "request"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_a_silent_server_runs_into_the_deadline(vendor: Vendor, way: Way) -> None:
    with vendor.server([Turn("late", delay=30)]) as server, vendor.adapter(server) as adapter:
        request = ask([SYSTEM], deadline=Deadline.after(0.15))
        with pytest.raises(DeadlineExceededError) as caught:
            way(adapter.channel(), request)
    assert caught.value.phase == "request"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_a_pause_that_the_deadline_does_not_leave_is_not_taken(vendor: Vendor, way: Way) -> None:
    naps = Naps()
    busy = Raw(429, b'{"error":{"message":"slow down"}}', {"retry-after": "10"})
    with (
        vendor.server([busy]) as server,
        vendor.adapter(server, clock=naps) as adapter,
    ):
        request = ask([SYSTEM], deadline=Deadline.after(5, clock=naps))
        with pytest.raises(DeadlineExceededError, match=r"leaves 5\.000 s.*slow down"):
            way(adapter.channel(), request)
    assert naps.taken == []


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_deadline_that_has_passed_sends_nothing(vendor: Vendor) -> None:
    clock = FakeClock()
    with vendor.server() as server, vendor.adapter(server, clock=clock) as adapter:
        request = ask([SYSTEM], deadline=Deadline.after(-1, clock=clock))
        with pytest.raises(DeadlineExceededError):
            adapter.channel().call(request)
    assert server.requests == []


@pytest.mark.parametrize("way", [streamed, streamed_async])
@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_stream_that_breaks_after_text_is_not_started_again(vendor: Vendor, way: Way) -> None:
    error, server, _ = attempt(vendor, [Turn("one two three", cut_after=4), Turn("again")], way)
    assert (error.phase, len(server.requests)) == ("response", 1)
    assert "after part of the answer had been streamed" in str(error)


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_a_stream_that_breaks_at_the_deadline_is_late(vendor: Vendor) -> None:
    clock = FakeClock()
    with vendor.server([Turn("one two three", cut_after=4)]) as server, vendor.adapter(server, clock=clock) as adapter:
        stream = adapter.channel().stream(ask([SYSTEM], deadline=Deadline.after(5, clock=clock)))
        assert next(stream) == TextDelta("one ")
        clock.advance(6)
        with pytest.raises(DeadlineExceededError):
            list(stream)


@pytest.mark.parametrize("way", [streamed, streamed_async])
@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_a_stream_that_breaks_before_text_is_started_again(vendor: Vendor, way: Way) -> None:
    reply, server, _ = attempt(vendor, [Turn("one two", cut_after=vendor is not OPENAI_CHAT), Turn("again")], way)
    assert (reply.text, reply.retries, len(server.requests)) == ("again", 1, 2)


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_stream_ends_with_the_reply_that_a_call_gives(vendor: Vendor) -> None:
    script = [Turn("one two three"), Turn("one two three")]
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        channel = adapter.channel()
        *deltas, reply = channel.stream(ask([SYSTEM]))
        assert "".join(delta.text for delta in deltas) == reply.text == channel.call(ask([SYSTEM])).text
    assert (len(deltas), reply.usage.input_tokens, reply.stop_reason) == (3, 10, "end")


def test_an_error_event_in_a_stream_is_a_response_error() -> None:
    events = b'data: {"type":"error","code":"invalid_prompt","message":"no"}\n\n'
    error, _, _ = attempt(LEAN[0], [Raw(200, events, {"content-type": "text/event-stream"})], streamed)
    assert (error.phase, error.payload["code"]) == ("response", "invalid_prompt")


def test_an_overloaded_event_before_any_text_is_asked_again() -> None:
    events = b'data: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    reply, _, _ = attempt(LEAN[1], [Raw(200, events), Turn("fine")], streamed)
    assert (reply.text, reply.retries) == ("fine", 1)
