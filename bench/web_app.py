"""The application that `bench.web` measures, on `weakincentives.ui`: `python -m bench.web_app MODEL_URL`."""

from __future__ import annotations

import socket
import sys
import time

import openai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from weakincentives import Conversation, MarkdownSection, OpenAIAdapter, Prompt, PromptTemplate, tool
from weakincentives.ui import Threads, vercel_ai


@tool
async def alpha(text: str, count: int) -> str:
    "A tool."
    return "done"


@tool
async def beta(text: str, count: int) -> str:
    "A tool."
    return "done"


def application(url: str) -> Starlette:
    task = MarkdownSection(key="task", title="Task", template="You help.", tools=[alpha, beta])
    template = PromptTemplate(ns="bench", key="web", sections=[task])
    client = openai.AsyncOpenAI(api_key="sk-bench-0123456789", base_url=f"{url}/v1")
    adapter = OpenAIAdapter("gpt-5.6", client=client)

    def make(thread: str, request: Request | None = None) -> Conversation[None]:
        return Conversation(Prompt(template), adapter=adapter)

    chat = vercel_ai(Threads(make))
    return Starlette(routes=[Route("/api/chat", chat, methods=["POST"]), Route("/cpu", cpu)])


async def cpu(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(time.process_time()))


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listening.getsockname()[1], flush=True)
    app = application(sys.argv[1])
    # Named, since uvicorn takes faster ones where they happen to be installed.
    config = uvicorn.Config(app, loop="asyncio", http="h11", ws="none", lifespan="off", log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])
