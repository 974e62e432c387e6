"""The work with Pydantic AI."""

from dataclasses import dataclass
from typing import Any

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from work import CALLS, KEY, NAMES, URL, made, measure


@dataclass
class Report:
    title: str
    score: int
    confident: bool
    ratio: float
    tags: list[str]
    summary: str


provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
agent = Agent(OpenAIChatModel("gpt-5.6", provider=provider), output_type=NativeOutput(Report), instructions="You work.")
for name in NAMES:
    agent.tool_plain(made(name))
limits = UsageLimits(request_limit=None)


def run() -> Any:
    result = agent.run_sync("Work.", usage_limits=limits)
    assert isinstance(result.output, Report) and CALLS >= 0
    return result


async def run_async() -> Any:
    return await agent.run("Work.", usage_limits=limits)


measure(run, run_async)
