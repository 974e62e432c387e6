"""Print a prompt exactly as a model would first see it."""

from __future__ import annotations

import argparse
from typing import Any

from weakincentives.cli import selection
from weakincentives.cli.output import print_json, print_text
from weakincentives.prompt import AnyTool, RenderedPrompt
from weakincentives.serde import dump


def configure(parser: argparse.ArgumentParser) -> None:
    selection.configure(parser)
    parser.add_argument("--tools", action="store_true", help="list the tools below the text")
    parser.add_argument("--json", action="store_true", help="print text, tools and spans as JSON")


def run(arguments: argparse.Namespace) -> int:
    prompt = selection.selected_prompt(arguments)
    rendered = prompt.render(visibility_overrides=selection.opened(arguments, prompt))
    if arguments.json:
        print_json(described(rendered))
        return 0
    print_text(rendered.text)
    if arguments.tools:
        tools: list[AnyTool] = [*rendered.tools, *rendered.hosted_tools]
        for tool in tools:
            print_text(f"\n[tool] {tool.name}: {tool.description}")
    return 0


def described(rendered: RenderedPrompt[Any]) -> dict[str, Any]:
    return {
        "name": rendered.prompt_name,
        "text": rendered.text,
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in rendered.tools
        ],
        "hosted_tools": [{"name": tool.name, "kind": tool.kind} for tool in rendered.hosted_tools],
        "spans": [dump(span) for span in rendered.spans],
        "output_schema": rendered.structured_output and rendered.structured_output.schema,
    }
