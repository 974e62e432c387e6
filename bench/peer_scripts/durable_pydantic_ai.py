"""Seconds of a durable exchange with Pydantic AI on DBOS, by the median: a model call, a tool call, a model call."""

import asyncio
import statistics
import sys
import time

from dbos import DBOS
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.durable_exec.dbos import DBOSAgent
from pydantic_ai.models.function import AgentInfo, FunctionModel

ROUNDS = 30


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(f"I have booked {last.content} as you asked.")])
    return ModelResponse(parts=[ToolCallPart("book", {"text": str(last.content)})])


async def main(url: str) -> None:
    agent = Agent(FunctionModel(model), name="clerk")

    @agent.tool_plain
    @DBOS.step()
    def book(text: str) -> str:
        return f"booked {text}"

    durable = DBOSAgent(agent)
    DBOS(config={"name": "clerk", "system_database_url": url, "log_level": "WARNING"})
    DBOS.launch()
    history: list[ModelMessage] = []
    took = []
    for number in range(ROUNDS + 1):
        began = time.perf_counter()
        result = await durable.run(f"{number}", message_history=history)
        took.append(time.perf_counter() - began)
        history = result.all_messages()
    DBOS.destroy()
    print(statistics.median(took[1:]))


asyncio.run(main(sys.argv[1].replace("postgresql://", "postgresql+psycopg://")))
