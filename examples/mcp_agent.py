"""An agent with five MCP servers:  python examples/mcp_agent.py [--adapter openai:gpt-5.6] [--folder .] ["task"]

`examples/mcp_servers.json` names them, in the format of Claude Code and other hosts. Each server is a section: the
model first sees a line with the names of its tools, which come from the lock file beside the config, and a server
starts when its section is opened. Needs Node (`npx`) and uv (`uvx`), which download the servers the first time.
Without `--adapter`, a script plays the model; servers and their answers are real.

After changing the config:  WORK=. wink mcp lock examples/mcp_servers.json
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from weakincentives import (
    Budget,
    Conversation,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    adapter_for,
    call,
    mcp_sections,
)
from weakincentives.runtime import ProviderAdapter, ToolInvoked

CONFIG = Path(__file__).with_name("mcp_servers.json")


def template(config: Path = CONFIG) -> PromptTemplate[None]:
    task = MarkdownSection(key="task", title="Task", template="Do what the user asks with the servers below.")
    # What a server lists and answers comes from outside: `trusted` stays off, so no tool of theirs runs in parallel.
    servers = mcp_sections(config, start_timeout=120)
    return PromptTemplate(ns="examples", key="mcp", sections=[task, *servers])


def agent(folder: Path, adapter: ProviderAdapter) -> Conversation[None]:
    """A conversation whose servers work on this folder. Use it in a `with` block, which keeps them running."""
    # The config says ${WORK}; variables are read when a server starts.
    os.environ["WORK"] = str(folder)
    return Conversation(Prompt(template()), adapter=adapter, budget=Budget(max_turns=30))


def script(folder: Path) -> list[object]:
    note = str(folder / "note.txt")
    milk = {"name": "milk", "entityType": "errand", "observations": ["buy two bottles"]}
    return [
        # One turn may open several sections; both servers start. Several servers could list the same
        # name, so each tool has the name of its section before its own.
        [call("read_section", section_key="time"), call("read_section", section_key="files")],
        call("time_convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
        call("files_write_file", path=note, content="Call Tokyo at 21:00.\n"),
        call("read_section", section_key="git"),
        call("git_git_status", repo_path=str(folder)),
        call("read_section", section_key="memory"),
        call("memory_create_entities", entities=[milk]),
        call("read_section", section_key="database"),
        call("database_create_table", query="CREATE TABLE calls (who TEXT, at TEXT)"),
        call("database_write_query", query="INSERT INTO calls VALUES ('Tokyo', '21:00')"),
        call("database_read_query", query="SELECT who, at FROM calls"),
        "The call to Tokyo is at 21:00; it is in note.txt and in the database.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", help="for example openai:gpt-5.6; without it, a script plays the model")
    parser.add_argument("--folder", type=Path, help="a git repository to work on; without it, a temporary one")
    parser.add_argument("task", nargs="?", default="When is noon UTC in Tokyo? Note it down everywhere.")
    arguments = parser.parse_args()
    if missing := [command for command in ("npx", "uvx") if shutil.which(command) is None]:
        sys.exit(f"needs {' and '.join(missing)}: npx comes with Node.js, uvx with uv (pip install uv)")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        if arguments.folder is None:
            subprocess.run(["git", "init", "-q", str(folder)], check=True)
        adapter = adapter_for(arguments.adapter) if arguments.adapter else ScriptedAdapter(script(folder))
        with agent(folder, adapter) as chat:
            answer = chat.send(arguments.task).text
            for event in chat.session[ToolInvoked].all():
                print(f"  {event.name}: {event.result.render().splitlines()[0]}")
            if arguments.adapter is None and not all(event.success for event in chat.session[ToolInvoked].all()):
                sys.exit("A call failed, so the script's answer would not be true.")
    print(answer)


if __name__ == "__main__":
    main()
