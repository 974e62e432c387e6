"""Chat in the browser:  python examples/web_chat.py [port]

The page, `web_chat.html`, reads Vercel's message stream by hand; `/agent` is for the clients of AG-UI. Each visitor has
an unguessable cookie, so that nobody reads the thread of another.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from examples.shop import any_adapter, template
from weakincentives import Budget, Conversation, Deadline, Prompt
from weakincentives.runtime import ProviderAdapter
from weakincentives.ui import Threads, ag_ui, vercel_ai


def page(request: Request) -> Response:
    response = FileResponse(Path(__file__).with_suffix(".html"))
    if "visitor" not in request.cookies:
        response.set_cookie("visitor", secrets.token_urlsafe(), httponly=True, samesite="strict")
    return response


def application(adapter: ProviderAdapter) -> Starlette:
    threads = Threads(
        lambda thread, request: Conversation(Prompt(template), adapter=adapter, budget=Budget(max_turns=20)),
        owner=lambda request: request.cookies.get("visitor"),
        options=lambda chat, request: {"deadline": Deadline.after(120)},
    )
    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/chat", vercel_ai(threads), methods=["GET", "POST"]),
            Route("/agent", ag_ui(threads), methods=["GET", "POST"]),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(application(any_adapter()), port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
