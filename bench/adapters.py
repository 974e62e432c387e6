"""CPU per run of the network adapters, beside the floor, the vendor's own SDK and other frameworks.

The same work each time: K tool calls that alternate between two tools, then a validated answer of six fields, from a
scripted server in another process. `WINK_BENCH_FULL=1` also runs what takes minutes: K=200 on the others.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.floor import Floor, Report
from bench.measure import compare, cpu
from bench.model_server import serving
from bench.peers import PEERS
from bench.row import Row
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.session import Session

SLOW = True
KEY = "sk-bench-0123456789"
GOALS = {1: None, 10: 3.0, 50: 14.0, 200: 60.0}
TIMES_CHEAPER = {10: 25.0, 50: 60.0}
CROWD = 200


@dataclass(frozen=True, slots=True)
class Words:
    text: str
    count: int


def done(params: Words, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("done")


async def done_async(params: Words, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("done")


def template(tools: int = 2, handler: Callable[..., Any] = done) -> PromptTemplate[Report]:
    names = ["alpha", "beta", *(f"spare_{number}" for number in range(tools - 2))]
    offered: list[Tool[Any, Any]] = [
        Tool(name=name, description="A tool.", handler=handler, params_type=Words) for name in names
    ]
    section = MarkdownSection(title="Task", key="task", template="You work.", tools=offered)
    made: PromptTemplate[Report] = PromptTemplate[Report](ns="bench", key="run", sections=[section])
    return made


def openai_adapter(url: str) -> Any:
    import openai

    from weakincentives.adapters.openai import OpenAIAdapter

    return OpenAIAdapter("gpt-5.6", client=openai.OpenAI(api_key=KEY, base_url=f"{url}/v1"))


def anthropic_adapter(url: str) -> Any:
    import anthropic

    from weakincentives.adapters.anthropic import AnthropicAdapter

    return AnthropicAdapter("claude-opus-5", client=anthropic.Anthropic(api_key=KEY, base_url=url))


def openai_chat_adapter(url: str) -> Any:
    from weakincentives.adapters.openai_chat import OpenAIChatAdapter

    return OpenAIChatAdapter("scripted", base_url=f"{url}/v1", api_key=KEY)


ADAPTERS = {
    "OpenAIAdapter": openai_adapter,
    "AnthropicAdapter": anthropic_adapter,
    "OpenAIChatAdapter": openai_chat_adapter,
}


def run(adapter: Any, prompts: PromptTemplate[Report]) -> None:
    response = adapter.evaluate(Prompt(prompts), session=Session(), budget=Budget(max_turns=None))
    assert isinstance(response.output, Report)


def rows() -> Iterator[Row]:
    with serving() as url:
        ours: dict[int, float] = {}
        for calls, goal in GOALS.items():
            yield from _by_calls(url, calls, goal, ours)
        yield from _awaited(url)
        yield from _turns(url)
        yield from _tools(url)
        yield from _crowd(url)
        yield from _others(url, ours)


def _by_calls(url: str, calls: int, goal: float | None, ours: dict[int, float]) -> Iterator[Row]:
    floor, prompts = Floor(url), template()
    adapters = [make(f"{url}/k{calls}") for make in ADAPTERS.values()]
    works = [partial(run, adapter, prompts) for adapter in adapters]
    for work in works:
        work()
    # Short works need more rounds to meet a moment in which the machine is not busy with something else.
    least, *measured = compare(lambda: floor.run(calls), *works, rounds=9 if calls > 10 else 60)
    floor.close()
    yield Row(f"K={calls}: raw socket, encoded history (the floor)", least * 1e3, "ms")
    for name, seconds in zip(ADAPTERS, measured, strict=True):
        yield Row(f"K={calls}: {name}", seconds * 1e3, "ms", goal=goal, ratio=seconds / least, baseline="the floor")
    ours[calls] = measured[0]


def _awaited(url: str) -> Iterator[Row]:
    """What a model call costs on an event loop, beside a blocking one."""
    for name, make in ADAPTERS.items():
        adapter, loop = make(f"{url}/k10"), asyncio.new_event_loop()

        def on_loop(prompts: PromptTemplate[Report], adapter: Any = adapter, loop: Any = loop) -> None:
            loop.run_until_complete(adapter.evaluate_async(Prompt(prompts), session=Session()))

        works = {
            "sync": partial(run, adapter, template()),
            "async": partial(on_loop, template(handler=done_async)),
            "async, sync tools in threads": partial(on_loop, template()),
        }
        for work in works.values():
            work()
        blocking, *awaited = compare(*works.values(), rounds=60)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        adapter.close()
        yield Row(f"a model call of {name}, sync", blocking / 11 * 1e3, "ms")
        for kind, seconds in zip(list(works)[1:], awaited, strict=True):
            goal = 1.4 if kind == "async" else None
            ratio = seconds / blocking
            label = f"a model call of {name}, {kind}"
            yield Row(label, seconds / 11 * 1e3, "ms", ratio=ratio, ratio_goal=goal, baseline="sync")


def _turns(url: str) -> Iterator[Row]:
    """What a turn costs early and late in one run of 210 calls."""
    for name, make in ADAPTERS.items():
        moments: list[float] = []

        def note(params: Words, *, context: ToolContext, moments: list[float] = moments) -> ToolResult[None]:
            moments.append(time.process_time())
            return ToolResult("done")

        adapter, prompts = make(f"{url}/k210"), template(handler=note)
        early = late = float("inf")
        for _ in range(15):
            moments.clear()
            run(adapter, prompts)
            early = min(early, (moments[20] - moments[0]) / 20)
            late = min(late, (moments[209] - moments[189]) / 20)
        yield Row(f"turn 200 of {name}", late * 1e6, "µs", ratio=late / early, ratio_goal=1.2, baseline="turn 10")


def _tools(url: str) -> Iterator[Row]:
    """What a registered tool adds to a request."""
    for name, make in ADAPTERS.items():
        adapter = make(f"{url}/k10")
        sizes = (10, 100, 500)
        prompts = [template(size) for size in sizes]
        works = [partial(run, adapter, one) for one in prompts]
        few, some, many = compare(*works, rounds=40)
        for size, seconds in zip(sizes, (few, some, many), strict=True):
            yield Row(f"T={size} tools, K=10: {name}", seconds * 1e3, "ms")
        per_tool = (many - few) / (sizes[-1] - sizes[0]) / 11
        yield Row(f"per registered tool and request: {name}", per_tool * 1e6, "µs", goal=0.5)


def _crowd(url: str) -> Iterator[Row]:
    handlers = {"async tools": done_async, "sync tools": done}
    works = {
        f"{kind}: {name}": (make(f"{url}/k10/d20"), template(handler=handler))
        for name, make in ADAPTERS.items()
        for kind, handler in handlers.items()
    }
    # In turn, since the machine has slow moments.
    rounds = [{name: asyncio.run(crowd(*work)) for name, work in works.items()} for _ in range(8)]
    for name in works:
        wall, spent = (min(each[name][at] for each in rounds) for at in (0, 1))
        yield Row(f"{CROWD} runs at once, 20 ms server, {name}, wall", wall, "s", goal=1.2)
        yield Row(f"{CROWD} runs at once, 20 ms server, {name}, CPU per run", spent * 1e3, "ms", goal=5.0)


async def crowd(adapter: Any, prompts: PromptTemplate[Report]) -> tuple[float, float]:
    """Wall seconds of the crowd, and CPU seconds of each run.

    Garbage collection stays on, but objects from before (two SDKs, leftovers of other rows) are frozen, so it does not
    scan them.
    """
    await adapter.evaluate_async(Prompt(prompts), session=Session())
    gc.collect()
    gc.freeze()
    wall, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(adapter.evaluate_async(Prompt(prompts), session=Session()) for _ in range(CROWD)))
    wall, spent = time.perf_counter() - wall, time.process_time() - spent
    gc.unfreeze()
    return wall, spent / CROWD


def _others(url: str, ours: dict[int, float]) -> Iterator[Row]:
    full = bool(os.environ.get("WINK_BENCH_FULL"))
    sizes = (1, 10, 50, 200) if full else (1, 10, 50)
    for calls in sizes:
        seconds = cpu(partial(raw_sdk, f"{url}/k{calls}"), rounds=2 if calls < 200 else 1)
        yield Row(f"K={calls}: hand-written loop on the raw OpenAI SDK", seconds * 1e3, "ms")
    for calls in sizes:
        seconds = cpu(partial(run, through_client(f"{url}/k{calls}"), template()), rounds=3)
        yield Row(f"K={calls}: OpenAIAdapter, through a client with a transport of its own", seconds * 1e3, "ms")
    missing = [peer.name for peer in PEERS if not peer.installed]
    if missing:
        print(f"skipped {', '.join(missing)}: python -m bench.peers install", file=sys.stderr)
    present = [peer for peer in PEERS if peer.installed]
    for calls in sizes:
        rounds = 3 if calls < 200 else 1
        spent = {peer.name: peer.measure(f"{url}/k{calls}", calls=calls, rounds=rounds) for peer in present}
        for name, seconds in spent.items():
            yield Row(f"K={calls}: {name}", seconds * 1e3, "ms", ratio=seconds / ours[calls], baseline="ours")
        if spent:
            times = min(spent.values()) / ours[calls]
            yield Row(
                f"K={calls}: times cheaper than the cheapest", times, "x", TIMES_CHEAPER.get(calls), better="more"
            )
    for peer in present:
        wall, seconds = peer.measure_crowd(f"{url}/k10/d20", calls=10, runs=CROWD)
        yield Row(f"{CROWD} runs at once: {peer.name}, wall", wall, "s")
        yield Row(f"{CROWD} runs at once: {peer.name}, CPU per run", seconds * 1e3, "ms")


def through_client(url: str) -> Any:
    """The adapter with a client that has to send by itself."""
    import httpx2
    import openai

    from weakincentives.adapters.openai import OpenAIAdapter

    own = httpx2.Client(transport=httpx2.HTTPTransport())
    return OpenAIAdapter("gpt-5.6", client=openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", http_client=own))


def raw_sdk(url: str) -> Report:
    """What one would write by hand on the vendor's client."""
    import openai

    client = _clients.setdefault(url, openai.OpenAI(api_key=KEY, base_url=f"{url}/v1"))
    schema = {"type": "object", "properties": {}, "additionalProperties": True}
    tools: Any = [
        {"type": "function", "name": name, "description": "A tool.", "parameters": schema, "strict": False}
        for name in ("alpha", "beta")
    ]
    history: list[Any] = [{"role": "developer", "content": "You work."}]
    while True:
        response = client.responses.create(model="gpt-5.6", input=history, tools=tools, store=False)
        history += [item.to_dict() for item in response.output]
        wanted = [item for item in response.output if item.type == "function_call"]
        if not wanted:
            return Report(**json.loads(response.output_text))
        for item in wanted:
            json.loads(item.arguments)
            history.append({"type": "function_call_output", "call_id": item.call_id, "output": "done"})


_clients: dict[str, Any] = {}
