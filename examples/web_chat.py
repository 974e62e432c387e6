"""Chat in the browser:  python examples/web_chat.py [port]

The page, `web_chat.html`, reads Vercel's message stream by hand; `/agent` is for the clients of AG-UI.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

from examples.shop import any_adapter, template
from weakincentives import Conversation, Prompt
from weakincentives.runtime import ProviderAdapter
from weakincentives.ui import Threads, ag_ui, vercel_ai


def page(request: Request) -> FileResponse:
    return FileResponse(Path(__file__).with_suffix(".html"))


def application(adapter: ProviderAdapter) -> Starlette:
    threads = Threads(lambda thread: Conversation(Prompt(template), adapter=adapter))
    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/chat", vercel_ai(threads), methods=["POST"]),
            Route("/agent", ag_ui(threads), methods=["POST"]),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(application(any_adapter()), port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
