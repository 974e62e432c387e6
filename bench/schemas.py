"""Tool definitions of real servers: how many `Tool.from_schema` accepts, and what validating arguments costs.

They are read from a folder of disclosure data (`--data`, or the variable WINK_BENCH_DATA): `public/*/tree.jsonl.gz`,
one section a line with its `tools` (`name`, `description`, `schema`). Those without a schema are not counted.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import cpu
from bench.row import Row
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import Tool, ToolResult
from weakincentives.serde import is_strict

MAX_REFUSED = 1.0


def definitions(folder: Path) -> Iterator[dict[str, Any]]:
    """The tools that have a schema."""
    for tree in sorted(folder.glob("public/*/tree.jsonl.gz")):
        with gzip.open(tree, "rt", encoding="utf-8") as lines:
            for section in map(json.loads, lines):
                yield from (tool for tool in section["tools"] if tool.get("schema"))


def made(definition: dict[str, Any]) -> Tool[Any, Any] | str:
    """The tool, or why it is refused."""
    try:
        tool = Tool.from_schema(
            name=definition["name"],
            description=definition.get("description") or "",
            schema=definition["schema"],
            handler=lambda params, *, context: ToolResult(str(params)),
        )
        ResponsesWire.tools.encoded(tool)
    except PromptValidationError as error:
        return str(error)
    return tool


def rows() -> Iterator[Row]:
    folder = os.environ.get("WINK_BENCH_DATA")
    if not folder or not Path(folder).is_dir():
        raise ImportError("it needs the folder of disclosure data: python -m bench schemas --data FOLDER")
    found = [made(each) for each in definitions(Path(folder))]
    tools = [tool for tool in found if isinstance(tool, Tool)]
    refused = [reason for reason in found if isinstance(reason, str)]
    share = 100 * len(refused) / len(found)
    note = f"{len(refused)} of {len(found)}" + "".join(f"; {reason}" for reason in refused[:5])
    yield Row("real tool definitions refused", share, "%", goal=MAX_REFUSED, note=note)
    strict = sum(is_strict(tool.schema) for tool in tools)
    yield Row("of them sent as strict", 100 * strict / len(tools), "%", note=f"{strict} of {len(tools)}")
    sample = Tool.from_schema(name="t", description="d", schema=SAMPLE, handler=lambda params, *, context: ToolResult())
    text = json.dumps({f"field_{index}": [{"a": index}, str(index)] for index in range(20)})
    yield Row("validate 20 fields with nested unions", cpu(lambda: sample.parse(text)) * 1e6, "µs", goal=2_000)


_FIELD = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]}}
SAMPLE = {"type": "object", "properties": {f"field_{n}": _FIELD for n in range(20)}, "additionalProperties": False}
