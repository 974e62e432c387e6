"""Our own connections: kept, shared, replaced when they die, and gone when they should be."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import LEAN, OPENAI, Vendor
from tests.servers.turn import Turn
from tests.waiting import until_async
from weakincentives.runtime import TextDelta

ROOT = Path(__file__).parents[3]


def endless(received: Any) -> Turn:
    return Turn("hello")


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_requests_share_one_connection(vendor: Vendor) -> None:
    with vendor.server(endless) as server, vendor.adapter(server) as adapter:
        for _ in range(5):
            adapter.channel().call(ask([SYSTEM]))
            list(adapter.channel().stream(ask([SYSTEM])))
    assert (len(server.requests), server.connections) == (10, 1)


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_each_event_loop_has_a_connection_of_its_own_until_it_ends(vendor: Vendor) -> None:
    async def ask_both_ways(adapter: Any) -> None:
        await adapter.channel().call_async(ask([SYSTEM]))
        async for _ in adapter.channel().stream_async(ask([SYSTEM])):
            pass

    with vendor.server(endless) as server, vendor.adapter(server) as adapter:
        for _ in range(3):
            asyncio.run(ask_both_ways(adapter))
            assert server.wait_for_connections(0)
    assert (len(server.requests), server.connections) == (6, 3)


def test_a_connection_that_died_while_it_waited_is_replaced() -> None:
    with OPENAI.server(endless) as server, OPENAI.adapter(server, max_retries=0) as adapter:
        adapter.channel().call(ask([SYSTEM]))
        server.drop_connections()
        assert adapter.channel().call(ask([SYSTEM])).text == "hello"
    assert server.connections == 2


def test_a_connection_of_an_event_loop_that_died_while_it_waited_is_replaced() -> None:
    async def around_a_drop(adapter: Any) -> str:
        await adapter.channel().call_async(ask([SYSTEM]))
        await asyncio.to_thread(server.drop_connections)
        return str((await adapter.channel().call_async(ask([SYSTEM]))).text)

    with OPENAI.server(endless) as server, OPENAI.adapter(server, max_retries=0) as adapter:
        assert asyncio.run(around_a_drop(adapter)) == "hello"
    assert server.connections == 2


def test_threads_each_have_a_connection_at_a_time() -> None:
    barrier = threading.Barrier(4)

    def work(adapter: Any, texts: list[str]) -> None:
        barrier.wait()
        texts.append(adapter.channel().call(ask([SYSTEM])).text)

    texts: list[str] = []
    with OPENAI.server(lambda received: Turn("hello", delay=0.05)) as server, OPENAI.adapter(server) as adapter:
        threads = [threading.Thread(target=work, args=(adapter, texts)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (texts, server.connections) == (["hello"] * 4, 4)


def test_a_hundred_tasks_are_served_at_once() -> None:
    async def crowd(adapter: Any) -> list[Any]:
        return await asyncio.gather(*(adapter.channel().call_async(ask([SYSTEM])) for _ in range(100)))

    with OPENAI.server(lambda received: Turn("hello", delay=0.02)) as server, OPENAI.adapter(server) as adapter:
        replies = asyncio.run(crowd(adapter))
    assert {reply.text for reply in replies} == {"hello"}


def test_a_cancelled_call_leaves_no_connection_behind() -> None:
    async def give_up(adapter: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(adapter.channel().call_async(ask([SYSTEM])), 0.05)

    with OPENAI.server(lambda received: Turn("late", delay=30)) as server, OPENAI.adapter(server) as adapter:
        asyncio.run(give_up(adapter))
        assert server.wait_for_connections(0)


def test_a_stream_that_is_not_read_to_its_end_is_closed() -> None:
    with OPENAI.server(endless) as server, OPENAI.adapter(server) as adapter:
        stream = adapter.channel().stream(ask([SYSTEM]))
        assert next(stream) == TextDelta("hello")
        stream.close()
        assert adapter.channel().call(ask([SYSTEM])).text == "hello"


def test_connections_go_with_their_adapter() -> None:
    with OPENAI.server(endless) as server:
        adapter = OPENAI.adapter(server)
        adapter.channel().call(ask([SYSTEM]))
        asyncio.run(adapter.channel().call_async(ask([SYSTEM])))
        del adapter
        gc.collect()
        assert server.wait_for_connections(0)


def test_closing_an_adapter_leaves_requests_under_way_alone() -> None:
    async def close_meanwhile(adapter: Any) -> str:
        request = asyncio.create_task(adapter.channel().call_async(ask([SYSTEM])))
        await until_async(lambda: server.requests)
        adapter.close()
        gc.collect()
        return str((await request).text)

    with OPENAI.server(lambda received: Turn("hello", delay=0.2)) as server, OPENAI.adapter(server) as adapter:
        assert asyncio.run(close_meanwhile(adapter)) == "hello"
        assert server.wait_for_connections(0)


def test_without_httptools_a_request_says_what_to_install() -> None:
    script = (
        "import asyncio, sys; sys.modules['httptools'] = None\n"
        "import openai; from tests.adapters.tools import SYSTEM, ask; from weakincentives import OpenAIAdapter\n"
        "client = openai.OpenAI(api_key='sk-0123456789', base_url='http://127.0.0.1:9')\n"
        "asyncio.run(OpenAIAdapter('m', client=client).channel().call_async(ask([SYSTEM])))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "needs the package 'httptools'; run pip install 'weakincentives[openai]'" in done.stderr
