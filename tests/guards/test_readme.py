"""The README's program runs against a server that speaks OpenAI's protocol, and sends what the README shows."""

from __future__ import annotations

import doctest
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.openai_responses import ResponsesServer
from tests.servers.turn import Call, Turn

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").partition("## With your model")[2]
CHAT = [
    Turn(calls=(Call("read_section", {"section_key": "refunds"}),)),
    Turn(calls=(Call("refund", {"order": 7}),)),
    Turn(text="Order 7 is refunded."),
    Turn(text="In three days."),
]


@pytest.fixture
def requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[list[Any]]:
    """The requests of the program, which is run as a reader would."""
    pytest.importorskip("openai", reason="needs the extra [openai]")
    with ResponsesServer(CHAT) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        program = tmp_path / "shop.py"
        program.write_text(block("python"), encoding="utf-8")
        runpy.run_path(str(program), run_name="__main__")
        assert capsys.readouterr().out == "Order 7 is refunded.\nIn three days.\n"
        yield [request.json for request in server.requests]


def test_each_request_is_the_one_before_and_what_is_new(requests: list[Any]) -> None:
    lines = []
    sent_before: list[Any] = []
    for number, request in enumerate(requests[:3], start=1):
        items = request["input"]
        assert items[: len(sent_before)] == sent_before
        for index, item in enumerate(items[len(sent_before) :]):
            label = f"request {number}" if index == 0 else ""
            kind, text = in_words(item)
            lines.append(f"{label:<12}{kind:<23}{text}\n")
        sent_before = items
    assert doctest.OutputChecker().check_output(block("text"), "".join(lines), doctest.ELLIPSIS), "".join(lines)


def test_the_tool_of_a_closed_section_is_not_offered_before_it_is_opened(requests: list[Any]) -> None:
    assert [[tool["name"] for tool in request["tools"]] for request in requests] == [["read_section"]] * 4


def block(language: str) -> str:
    text = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert text is not None
    return text[1]


def in_words(item: dict[str, Any]) -> tuple[str, str]:
    kind = item.get("type", item.get("role", ""))
    match kind:
        case "function_call":
            text = f"{item['name']} {item['arguments']}"
        case "function_call_output":
            text = item["output"]
        case "additional_tools":
            text = ", ".join(tool["name"] for tool in item["tools"])
        case _:
            text = item["content"] if isinstance(item["content"], str) else json.dumps(item["content"])
    return kind, " ".join(text.split())
