"""A hostile MCP server: `python hostile.py MODE [FILE]`. It uses no SDK, so that it can break every rule."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

MODE, *REST = sys.argv[1:]
STUBBORN = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def tools() -> list[dict[str, Any]]:
    tool: dict[str, Any] = {"name": "go", "description": "Goes.", "inputSchema": SCHEMA}
    match MODE:
        case "output-schema":
            text = {"type": "string", "pattern": "^(a+)+$"}
            return [{**tool, "outputSchema": {"type": "object", "properties": {"text": text}}}]
        case "many-tools":
            return [{**tool, "name": f"go{number}"} for number in range(5_000)]
        case "long-text":
            return [{**tool, "name": f"go{number}", "description": "x" * 90_000} for number in range(60)]
        case "long-description":
            return [tool, {**tool, "name": "long", "description": "x" * 2_000_000}]
        case "bad-names":
            names = ["\x1b[2J\x1b]0;owned\x07", "two\nlines", "bell\x07", "\u202eright"]
            return [tool, *({**tool, "name": name} for name in names)]
    return [tool]


def called() -> dict[str, Any]:
    match MODE:
        case "endless-line":
            write_endlessly(b"x" * 65536)
        case "endless-values":
            sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "result": {"content": [')
            write_endlessly(b"[]," * 20_000)
        case "endless-errors":
            for _ in range(1_000):
                sys.stderr.write("x" * 65536)
        case "output-schema":
            return {"content": [], "structuredContent": {"text": "a" * 40 + "!"}}
        case "bad-base64":
            picture = {"type": "image", "data": "no base64!", "mimeType": "image/png"}
            blob = {"uri": "shop://blob", "mimeType": "application/pdf", "blob": "%%%"}
            texts = [{"type": "text", "text": text} for text in ("before", "after")]
            return {"content": [texts[0], picture, {"type": "resource", "resource": blob}, texts[1]]}
        case "failing":
            return {"content": [{"type": "text", "text": "No."}], "isError": True}
    return {"content": [{"type": "text", "text": "done"}]}


def write_endlessly(piece: bytes) -> None:
    sys.stdout.flush()
    while True:
        os.write(1, piece)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            if MODE == "hangs":
                time.sleep(120)
            info = {"name": "hostile", "version": "1"}
            return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            return {"result": {"tools": tools()}}
        case "tools/call":
            return {"result": called()}
    return {"error": {"code": -32601, "message": "unknown method"}}


def start_descendant(*, detached: bool) -> None:
    """A process that ignores SIGTERM, started by one that is gone; its id is written to the file."""
    descendant = f"subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.DEVNULL)"
    start = f"import subprocess, sys; print({descendant}.pid)"
    found = subprocess.run(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, check=True, start_new_session=detached
    )
    with open(REST[0], "w") as file:
        file.write(found.stdout)


def main() -> None:
    if MODE in ("hangs", "stubborn", "failing"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE in ("descendant", "detached-descendant"):
        start_descendant(detached=MODE.startswith("detached"))
    if MODE == "endless-start":
        write_endlessly(b"x" * 65536)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer(request)}), flush=True)
    if MODE in ("stubborn", "failing"):
        time.sleep(120)


if __name__ == "__main__":
    main()
