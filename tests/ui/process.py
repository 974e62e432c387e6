"""A server process with threads in a SQLite file:  python -m tests.ui.process FILE  (prints its address)"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from contextlib import closing
from typing import Any

import uvicorn

from tests.disclosure.desk import desk
from tests.ui.server import application
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import Prompt, PromptTemplate, TextSection, tool
from weakincentives.runtime import Conversation, ModelRequest
from weakincentives.ui import StaleThreadError, Threads


class Store:
    def __init__(self, path: str) -> None:
        self._path = path
        self._do("CREATE TABLE IF NOT EXISTS threads (thread TEXT PRIMARY KEY, snapshot TEXT, version INTEGER)")

    def load(self, thread: str) -> tuple[str, int] | None:
        rows, _ = self._do("SELECT snapshot, version FROM threads WHERE thread = ?", thread)
        return rows[0] if rows else None

    def save(self, thread: str, chat: Conversation[Any], version: int | None) -> int:
        snapshot, new = chat.session.snapshot().to_json(), (version or 0) + 1
        if version is None:
            _, changed = self._do("INSERT OR IGNORE INTO threads VALUES (?, ?, ?)", thread, snapshot, new)
        else:
            update = "UPDATE threads SET snapshot = ?, version = ? WHERE thread = ? AND version = ?"
            _, changed = self._do(update, snapshot, new, thread, version)
        if changed != 1:
            raise StaleThreadError(thread)
        return new

    def _do(self, statement: str, *values: object) -> tuple[list[Any], int]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as database:
            cursor = database.execute(statement, values)
            return cursor.fetchall(), cursor.rowcount


@tool(approval="call")
def act(what: str) -> str:
    "Act."
    return f"{what} at {os.getpid()}"


def answer(request: ModelRequest) -> Any:
    text = request.messages[-1].text
    return call("act", what="done", call_id="c") if text == "act" else f"{text}!"


def main() -> None:
    store = Store(sys.argv[1])
    acting = TextSection(key="act", title="Act", text="x", tools=[act])
    template = PromptTemplate(ns="tests", key="acting", sections=[*desk().sections, acting])
    threads = Threads(
        lambda thread, request: Conversation(Prompt(template), adapter=ScriptedAdapter(answer)),
        store.load,
        store.save,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(application(threads), lifespan="off", ws="none", log_level="critical")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
