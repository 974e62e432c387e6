"""What the tests of the real CLI share: a small prompt, and how to see which processes a run has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.claude_cli import CliServer
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.session import reducer

MODEL = "claude-opus-5"
# The CLI starts for each run and soon ends: its compilers take more time than the code that they make saves.
LEAN = {"BUN_JSC_useDFGJIT": "0", "BUN_JSC_useFTLJIT": "0", "BUN_JSC_useConcurrentGC": "0"}


@dataclass(frozen=True, slots=True)
class Note:
    text: str


@dataclass(frozen=True, slots=True)
class Notes:
    """A slice that tools write to."""

    texts: tuple[str, ...] = ()

    @reducer(on=Note)
    def add(self, event: Note) -> Notes:
        return Notes((*self.texts, event.text))


@dataclass(frozen=True, slots=True)
class Words:
    text: str = field(metadata={"description": "What to keep."})


@dataclass(frozen=True, slots=True)
class Verdict:
    score: int
    why: str


def keep(params: Words, *, context: ToolContext) -> ToolResult[None]:
    context.session.dispatch(Note(params.text))
    return ToolResult(f"Kept {params.text}.")


def keep_and_fail(params: Words, *, context: ToolContext) -> ToolResult[None]:
    context.session.dispatch(Note(params.text))
    return ToolResult("It went wrong.", success=False)


def tool(name: str, handler: Any = keep) -> Tool[Words, None]:
    return Tool[Words, None](name=name, description=f"{name} some words.", handler=handler)


def section(
    key: str, *, summarized: bool = False, tools: tuple[Tool[Any, Any], ...] = (), **more: Any
) -> MarkdownSection[None]:
    if summarized:
        more |= {"summary": f"About {key}.", "visibility": SectionVisibility.SUMMARY}
    return MarkdownSection(title=key.title(), key=key, template=f"All of {key}.", tools=tools, **more)


def prompt(*sections: MarkdownSection[Any], output: Any = None, **more: Any) -> Prompt[Any]:
    make: Any = Prompt if output is None else Prompt[output]
    made: Prompt[Any] = make(ns="tests", key="claude", sections=list(sections), **more)
    return made


def adapter(api: CliServer, model: str = MODEL, **more: Any) -> ClaudeAgentSDKAdapter:
    env = {**LEAN, **more.pop("env", {})}
    return ClaudeAgentSDKAdapter(model, api_key="not-a-key", base_url=api.url, env=env, **more)


def processes(api: CliServer) -> list[int]:
    """Every process that was told of this server: the CLI and all below it."""
    mark = f"ANTHROPIC_BASE_URL={api.url}\0".encode()
    return [
        int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit() and mark in _environment(folder)
    ]


def _environment(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes() + b"\0" if int(folder.name) != os.getpid() else b""
    except OSError:
        return b""
