"""Make a starter project: an agent with sections and a tool, a test for it, and the commands to try."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from weakincentives.cli.output import UsageError, print_line, progress

AGENT = '''\
"""A support desk: the model sees summaries, and opens the section that it needs."""

from weakincentives import MarkdownSection, PromptTemplate, SectionVisibility, tool

ORDERS = {7: "shipped on Monday", 8: "waiting for the supplier"}


@tool
def order_status(order: int) -> str:
    "Look up where an order is."
    return f"Order {order} is {ORDERS.get(order, 'unknown')}."


@tool
def refund(order: int) -> str:
    "Refund an order."
    return f"Order {order} is refunded."


template = PromptTemplate(ns="NAME", key="desk", sections=[
    MarkdownSection(
        key="task",
        title="Task",
        template="You answer customers of a shop, in one or two sentences, from what the sections below say.",
    ),
    MarkdownSection(
        key="orders",
        title="Orders",
        summary="Where an order is and when it arrives.",
        template="Orders leave within a day. Look up the order before you say where it is.",
        visibility=SectionVisibility.SUMMARY,
        tools=[order_status],
    ),
    MarkdownSection(
        key="refunds",
        title="Refunds",
        summary="When and how we give money back.",
        template="Orders under 14 days are refunded in full. Refund the order, then say so.",
        visibility=SectionVisibility.SUMMARY,
        tools=[refund],
    ),
])
'''

TEST = """\
from agent import template

from weakincentives import Conversation, Prompt, ScriptedAdapter, ToolInvoked
from weakincentives.adapters.scripted import call


def test_a_refund_opens_its_section_and_uses_the_tool_that_comes_with_it():
    script = [call("read_section", section_key="refunds"), call("refund", order=7), "Order 7 is refunded."]
    chat = Conversation(Prompt(template), adapter=ScriptedAdapter(script))
    assert chat.send("Please refund order 7.").text == "Order 7 is refunded."
    assert [called.name for called in chat.session[ToolInvoked].all()] == ["read_section", "refund"]
"""

README = """\
# NAME

```sh
wink chat agent:template                            # talk to it, on the embedded model
wink run agent:template "Please refund order 7."    # one question
wink runs show                                      # what the model saw, opened and called
wink view                                           # the same in the browser
wink explain agent:template                         # what is shown, hidden, and what opening costs
python -m pytest                                    # the test, on a scripted model
```

Another model is `--model openai:gpt-5.6`, or `WINK_ADAPTER=openai:gpt-5.6` for all commands.
"""

PROJECT = """\
[project]
name = "NAME"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["weakincentives[local,viewer,cli]"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

FILES = {"agent.py": AGENT, "test_agent.py": TEST, "README.md": README, "pyproject.toml": PROJECT}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the folder to make, which is also the project's name")


def run(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.name)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name:
        raise UsageError(f"NAME must have letters or digits, got {arguments.name!r}")
    taken = [file for file in FILES if (folder / file).exists()]
    if taken:
        raise UsageError(f"{folder / taken[0]} exists already; choose another NAME")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in FILES.items():
            (folder / file).write_text(text.replace("NAME", name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    progress(f"made {folder} with {', '.join(FILES)}; next:")
    print_line(f"cd {folder}\nwink chat agent:template")
    return 0
