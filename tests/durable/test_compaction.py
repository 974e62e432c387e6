"""The summary of a long durable run is a recorded step: a replay asks for none, and sends the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weakincentives import MarkdownSection, Prompt, PromptEvaluationError, PromptTemplate, ScriptedAdapter, tool
from weakincentives.adapters.scripted import call
from weakincentives.durable import DurableMainLoop
from weakincentives.runtime import Compacted, Compaction, ModelRequest
from weakincentives.session import Session


@tool(read_only=True)
def look(n: int) -> str:
    "Look at a row."
    return f"row {n} " + "lorem ipsum dolor sit amet " * 60


TEMPLATE = PromptTemplate[None](
    ns="t", key="k", sections=[MarkdownSection(title="Task", key="task", template="Look.", tools=[look])]
)


def test_a_replay_repeats_a_compaction_without_asking_for_its_summary(tmp_path: Path) -> None:
    requests: list[list[str]] = []
    sessions: list[Session] = []
    asked: list[str] = []

    def model(request: ModelRequest) -> Any:
        last = [each for each in request.messages if each.role in ("user", "tool") and not each.kind][-1:]
        if last and last[0].text.startswith("Summarize"):
            asked.append("summary")
            return "Rows were looked at."
        asked.append("model")
        if len(asked) < 14:
            return call("look", call_id=f"c{len(asked)}", n=len(asked))
        requests.append([message.text for message in request.messages])
        if len(requests) == 1:
            raise PromptEvaluationError("overloaded", prompt_name="k", phase="request")
        return "done"

    def new_session(task: str) -> Session:
        sessions.append(Session())
        return sessions[-1]

    loop = DurableMainLoop(
        "compacts",
        lambda task: Prompt(TEMPLATE),
        ScriptedAdapter(model),
        str(tmp_path / "durable.db"),
        new_session=new_session,
        compaction=Compaction(window=1_500, keep=1),
    )
    with loop:
        with pytest.raises(PromptEvaluationError):
            loop.execute("t", key="a")
        ran = asked.count("summary")
        loop.retry("a")
        assert loop.result("a").text == "done"
    assert ran and asked.count("summary") == ran
    assert requests[0] == requests[1]
    first, second = ([(each.by, each.before, each.after) for each in session[Compacted]] for session in sessions)
    assert first == second and "model" in {by for by, *_ in first}
