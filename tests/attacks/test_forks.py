"""A child process, however it was started and whatever it does, leaves the requests of its parent alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.attacks.forking import CHILDREN, KINDS, cases
from tests.attacks.reach import OK
from tests.servers.hostile import Connection, HostileServer, chunked, response
from tests.servers.loopback import CERTIFICATE, server_tls

ROOT = Path(__file__).parents[2]


class CountingServer(HostileServer):
    """Answers with the user's text, notes on which connection it came, and holds `slow` answers until a `release`."""

    def __init__(self, *, secure: bool) -> None:
        super().__init__(self._answer, tls=server_tls() if secure else None)
        self.texts: list[tuple[str, int]] = []
        self._released: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def _answer(self, connection: Connection) -> None:
        number = self.connections
        while (body := connection.receive()) is not None:
            text = json.loads(body)["input"][-1]["content"]
            self.texts.append((text, number))
            kind, _, name = text.partition(" ")
            reply = OK.replace(b"fine", text.encode())
            if kind == "release":
                self._released[name].set()
            if kind != "slow":
                connection.send(response(reply))
                continue
            first = chunked([b'data: {"type":"response.output_text.delta","delta":"slow"}\n\n'])[: -len(b"0\r\n\r\n")]
            done = b'data: {"type":"response.completed","response":' + reply + b"}\n\n"
            connection.send(first)
            self._released[name].wait(20)
            connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))


@pytest.mark.parametrize(
    ("method", "secure"),
    [("os.fork", True), ("fork", False), ("forkserver", False), ("spawn", False)],
)
def test_a_child_neither_disturbs_nor_repeats_the_requests_of_its_parent(method: str, secure: bool) -> None:
    with CountingServer(secure=secure) as server:
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.attacks.forking", method, server.url],
            cwd=ROOT,
            env={**os.environ, "SSL_CERT_FILE": str(CERTIFICATE)},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    names = {f"{kind}: {child} ({moment})": child for kind in KINDS for child, moment in cases(method)}
    expected = [f"{name} {CHILDREN[child]} True" for name, child in names.items()]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")
    where = dict(server.texts)
    assert set(Counter(text for text, _ in server.texts).values()) == {1}
    # The parent goes on with the connection that it had before.
    assert [name for name in names if where[f"before {name}"] != where[f"slow {name}"]] == []


SHARING = """
import os, sys, traceback
import httpx2, openai
from tests.attacks.forking import request
from weakincentives.adapters.openai import OpenAIAdapter

own = httpx2.Client(transport=httpx2.HTTPTransport())
adapter = OpenAIAdapter("m", client=openai.OpenAI(api_key="sk-0123456789", base_url=sys.argv[1], http_client=own))

def ask(text):
    print(adapter.channel().call(request(text)).text, flush=True)

ask("before")
if pid := os.fork():
    os.waitpid(pid, 0)
    ask("after")
else:
    try:
        ask("child")
    except Exception as error:
        print(error, flush=True)
"""


def test_a_client_with_connections_of_its_own_is_refused_in_a_forked_child() -> None:
    with CountingServer(secure=False) as server:
        command = [sys.executable, "-W", "ignore", "-c", SHARING, server.url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    before, child, after = done.stdout.splitlines()
    assert (before, after, done.stderr) == ("before", "after", "")
    assert "create the client and the adapter in the child" in child
    assert [text for text, _ in server.texts] == ["before", "after"]


WITH_A_SERVER = """
import os, sys, time
from tests.mcp.test_sections import SHOP
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.mcp import MCPSection, StdioServer
from weakincentives.prompt import Prompt
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session

shop = MCPSection(key="shop", title="Shop", server=StdioServer(sys.executable, [SHOP]))
prompt, session = Prompt(ns="tests", key="fork", sections=[shop]), Session()

def send(*script):
    with ScriptedAdapter([*script, "Done."]) as adapter:
        adapter.evaluate(prompt, session=session)

with prompt.resources:
    send(call("read_section", section_key="shop"))
    send(call("add_item", item="table"))
    if (child := os.fork()) == 0:
        started = time.monotonic()
        if sys.argv[1] == "call":
            send(call("list_items"))
    else:
        assert os.waitpid(child, 0)[1] == 0
        send(call("list_items"))
print(session[ToolInvoked].all()[-1].result.message, flush=True)
if not child:
    sys.exit(time.monotonic() - started > 5)
"""


@pytest.mark.slow
@pytest.mark.parametrize("child", ["call", "exit"])
def test_a_child_starts_its_own_mcp_server_and_leaves_that_of_its_parent_alone(child: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WITH_A_SERVER, child],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    printed = done.stdout.splitlines()
    assert (done.returncode, printed[-1]) == (0, '{"items": ["chair", "table"]}'), done.stderr
    assert child == "exit" or printed[0] == '{"items": ["chair"]}'


WITH_AN_ASYNC_RESOURCE = """
import os
from contextlib import asynccontextmanager
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, ToolContext, tool
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.session import Session

def say(line):
    os.write(1, f"{line}\\n".encode())  # Whole lines, also from two processes.

class Base: pass
class Unit: pass

@asynccontextmanager
async def base(_):
    yield Base()
    say("base left")

@asynccontextmanager
async def unit(_):
    yield Unit()
    say("unit left")

@tool
async def use(*, context: ToolContext) -> str:
    "Use both."
    await context.resources.get_async(Base)
    await context.resources.get_async(Unit)
    return "used"

prompt = Prompt(
    ns="tests", key="fork", sections=[MarkdownSection(key="t", title="T", template="Go.", tools=[use])],
    resources=ResourceRegistry.of(Binding(Base, base), Binding(Unit, unit, scope=Scope.TOOL_CALL)),
)
with prompt.resources:
    for _ in range(2):
        ScriptedAdapter([call("use"), "Done."]).evaluate(prompt, session=Session())
        child = os.fork() if _ == 0 else child
say("child" if child == 0 else "parent")
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_uses_async_resources_on_a_loop_of_its_own_and_leaves_those_of_its_parent_open() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WITH_AN_ASYNC_RESOURCE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(["unit left"] * 3 + ["base left", "child", "parent"])
