"""The work with the OpenAI Agents SDK."""

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel
from work import CALLS, KEY, NAMES, URL, made, measure


class Report(BaseModel):
    title: str
    score: int
    confident: bool
    ratio: float
    tags: list[str]
    summary: str


set_tracing_disabled(True)
model = OpenAIChatCompletionsModel(model="gpt-5.6", openai_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY))
agent = Agent(
    name="worker",
    instructions="You work.",
    model=model,
    tools=[function_tool(made(name)) for name in NAMES],
    output_type=Report,
)


def run() -> Any:
    result = Runner.run_sync(agent, "Work.", max_turns=CALLS + 5)
    assert isinstance(result.final_output, Report)
    return result


async def run_async() -> Any:
    return await Runner.run(agent, "Work.", max_turns=CALLS + 5)


measure(run, run_async)
