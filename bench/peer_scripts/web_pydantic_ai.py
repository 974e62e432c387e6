"""The web application of `bench.web` with Pydantic AI's adapter for the same protocol."""

import socket
import sys
import time

import uvicorn
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="sk-bench-0123456789")
agent = Agent(OpenAIResponsesModel("gpt-5.6", provider=provider), instructions="You help.")


@agent.tool_plain
async def alpha(text: str, count: int) -> str:
    """A tool."""
    return "done"


@agent.tool_plain
async def beta(text: str, count: int) -> str:
    """A tool."""
    return "done"


async def chat(request: Request) -> Response:
    return await VercelAIAdapter.dispatch_request(request, agent=agent)


async def cpu(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(time.process_time()))


app = Starlette(routes=[Route("/api/chat", chat, methods=["POST"]), Route("/cpu", cpu)])
listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(listening.getsockname()[1], flush=True)
config = uvicorn.Config(app, loop="asyncio", http="h11", ws="none", lifespan="off", log_level="warning")
uvicorn.Server(config).run(sockets=[listening])
