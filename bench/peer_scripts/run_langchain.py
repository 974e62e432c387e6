"""The work with LangChain."""

from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from work import CALLS, KEY, NAMES, URL, made, measure


@dataclass
class Report:
    title: str
    score: int
    confident: bool
    ratio: float
    tags: list[str]
    summary: str


model = ChatOpenAI(model="gpt-5.6", base_url=f"{URL}/v1", api_key=KEY, use_responses_api=False)
agent = create_agent(
    model,
    tools=[tool(made(name)) for name in NAMES],
    system_prompt="You work.",
    response_format=ProviderStrategy(Report),
)
asked = {"messages": [{"role": "user", "content": "Work."}]}
config: Any = {"recursion_limit": 4 * CALLS + 20}


def run() -> Any:
    result = agent.invoke(asked, config)
    assert result["structured_response"].score == 7
    return result


async def run_async() -> Any:
    return await agent.ainvoke(asked, config)


measure(run, run_async)
