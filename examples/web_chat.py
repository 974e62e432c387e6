"""Chat in the browser:  python examples/web_chat.py [port]

The page, `web_chat.html`, reads Vercel's message stream by hand; `/agent` is for the clients of AG-UI. Each visitor has
an unguessable cookie, so that nobody reads the thread of another. Before the address of an order is changed, the
visitor sees the difference and decides. `web_fleet.py` serves the same page on many processes.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from examples import shop
from weakincentives import Budget, Conversation, Deadline, MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.runtime import ProviderAdapter
from weakincentives.ui import DurableThreads, Threads, ag_ui, vercel_ai


@tool(approval="effects", changes=(Filesystem,))
def change_address(order: int, address: str, *, context: ToolContext) -> str:
    "Change where an order is sent."
    files, path = context.resources.get(Filesystem), f"orders/{order}.txt"
    lines = [f"to: {address}" if line.startswith("to: ") else line for line in files.read(path).splitlines()]
    files.write(path, "\n".join([*lines, ""]))
    return f"Order {order} goes to {address}."


orders = MarkdownSection(
    key="orders", title="Orders", template="The customer has ordered tea, order 7.", tools=[change_address]
)
template = PromptTemplate(ns="examples", key="web_chat", sections=[*shop.template.sections, orders])


def prepare(conversation: str = "") -> Prompt[None]:
    files = InMemoryFilesystem({"orders/7.txt": "tea: sencha\nto: 1 Mill Lane\n"})
    return Prompt(template).bind(resources={Filesystem: files})


def conversation(adapter: ProviderAdapter) -> Conversation[None]:
    return Conversation(prepare(), adapter=adapter, budget=Budget(max_turns=20))


def page(request: Request) -> Response:
    response = FileResponse(Path(__file__).with_suffix(".html"))
    if "visitor" not in request.cookies:
        response.set_cookie("visitor", secrets.token_urlsafe(), httponly=True, samesite="strict")
    return response


def visitor(request: Request) -> str | None:
    return request.cookies.get("visitor")


def may_see(event: Any) -> bool:
    return bool(event.name == "change_address")


def served(threads: Threads | DurableThreads) -> Starlette:
    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/chat", vercel_ai(threads), methods=["GET", "POST", "DELETE"]),
            Route("/api/chat/{id}/stream", vercel_ai(threads)),
            Route("/agent", ag_ui(threads), methods=["GET", "POST", "DELETE"]),
        ]
    )


def application(adapter: ProviderAdapter) -> Starlette:
    threads = Threads(
        lambda thread, request: conversation(adapter),
        owner=visitor,
        show=may_see,
        options=lambda chat, request: {"deadline": Deadline.after(120)},
    )
    return served(threads)


if __name__ == "__main__":
    uvicorn.run(application(shop.any_adapter()), port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
