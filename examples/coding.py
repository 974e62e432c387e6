"""A coding agent on a folder:  python examples/coding.py [--adapter anthropic:claude-opus-5] [--folder .] ["task"]

It lists, searches, reads and edits files, renames across files, and runs the tests. Every call is a transaction: an
edit that fails half-way, over several files or by a program that the call started, leaves the folder as it was.
Without `--adapter`, a script plays the model on a small project in a temporary folder.

`run_tests` runs code that the model wrote, with your rights. Use a container or a machine of its own for tasks that you
do not watch.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from weakincentives import (
    Budget,
    Conversation,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    ToolContext,
    adapter_for,
    call,
    tool,
)
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.runtime import ProviderAdapter, ToolInvoked

MOST_OUTPUT = 8_000


@dataclass(frozen=True)
class Project:
    """The folder that the agent works on, and the command that tests it: a resource of the tools."""

    root: Path
    test_command: tuple[str, ...] = (sys.executable, "-B", "-m", "unittest", "discover")
    seconds: float = 120


# The typed answer: your program knows what happened without reading prose.
@dataclass(frozen=True)
class Report:
    summary: str
    changed: list[str]
    tests_pass: bool


def files(context: ToolContext) -> Filesystem:
    return context.resources.get(Filesystem)


@tool(read_only=True)
def find_definition(name: Annotated[str, "of a function or class"], *, context: ToolContext) -> str:
    "Where Python functions and classes of this name are defined."
    found = files(context).grep(rf"^\s*(async def|def|class) {re.escape(name)}\b", glob="*.py")
    return "\n".join(f"{match.path}:{match.line_number}: {match.line}" for match in found) or f"No {name}; try grep."


@tool
def rename(old: str, new: str, *, context: ToolContext) -> str:
    "Rename an identifier in all Python files."
    changed: list[str] = []
    for path in files(context).glob("**/*.py"):
        text = files(context).read(path)
        renamed = re.sub(rf"\b{re.escape(old)}\b", new, text)
        if renamed != text:
            files(context).write(path, renamed, mode="overwrite")
            changed.append(path)
            try:
                ast.parse(renamed)
            except SyntaxError as error:
                # The files that were written already are restored with this one.
                raise ToolValidationError(f"{path} would no longer be Python: {error}") from None
    if not changed:
        raise ToolValidationError(f"No Python file contains {old}.")
    return f"Renamed in {', '.join(changed)}."


# Async, so that stopping the run stops the tests as well. Failed tests are a result and no failure of the tool: a call
# that fails is undone, and there is nothing to undo.
@tool
async def run_tests(*, context: ToolContext) -> str:
    "Run the project's tests."
    project = context.resources.get(Project)
    process = await asyncio.create_subprocess_exec(
        *project.test_command,
        cwd=project.root,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), project.seconds)
    except TimeoutError:
        raise ToolValidationError(f"The tests took more than {project.seconds:g} seconds and were stopped.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    verdict = "The tests pass." if process.returncode == 0 else "The tests fail:"
    return f"{verdict}\n{output.decode(errors='replace')[-MOST_OUTPUT:]}"


def template(folder: Filesystem) -> PromptTemplate[Report]:
    return PromptTemplate[Report](
        ns="examples",
        key="coding",
        sections=[
            MarkdownSection(
                key="task",
                title="Task",
                template="""
                    You change a Python project for the user. Run the tests first and last. Make the smallest change
                    that does what was asked, and report what you changed.
                """,
                tools=[run_tests],
            ),
            # ls, read, write, edit, glob, grep and rm.
            VfsToolsSection(folder),
            MarkdownSection(
                key="refactoring",
                title="Refactoring",
                summary="Finding definitions, renaming across files.",
                template="Find the definition before you rename, and run the tests after it.",
                visibility=SectionVisibility.SUMMARY,
                tools=[find_definition, rename],
            ),
            MarkdownSection(
                key="style",
                title="Style",
                summary="How code is written here; read it before you write new code.",
                template="Type every signature. Docstrings say why. No new dependencies.",
                visibility=SectionVisibility.SUMMARY,
            ),
        ],
    )


def agent(project: Project, adapter: ProviderAdapter) -> Conversation[Report]:
    # `track_external` also undoes what a program wrote that a failed call had started.
    folder = HostFilesystem(project.root, track_external=True, ignore=(".git", ".venv", "node_modules", "__pycache__"))
    prompt = Prompt(template(folder)).bind(resources={Project: project})
    return Conversation(prompt, adapter=adapter, budget=Budget(max_turns=40))


SAMPLE = {
    "prices.py": "def total(prices: list[int]) -> int:\n    return sum(prices[1:])\n",
    "test_prices.py": """\
import unittest

from prices import total


class TestTotal(unittest.TestCase):
    def test_all_prices_count(self) -> None:
        self.assertEqual(total([1, 2, 3]), 6)
""",
}
SCRIPT = [
    call("run_tests"),
    call("grep", pattern="def total", glob="*.py"),
    call("read", path="prices.py"),
    call("edit", path="prices.py", old="sum(prices[1:])", new="sum(prices)"),
    call("run_tests"),
    Report("`total` left out the first price.", ["prices.py"], tests_pass=True),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", help="for example openai:gpt-5.6; without it, a script plays the model")
    parser.add_argument("--folder", type=Path, help="the project; without it, a sample in a temporary folder")
    parser.add_argument("--tests", default=shlex.join(Project.test_command), help="the command that runs the tests")
    parser.add_argument("task", nargs="?", default="A test fails. Please mend the code.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if arguments.folder is None:
            for name, text in SAMPLE.items():
                (folder / name).write_text(text, encoding="utf-8")
        project = Project(folder.resolve(), tuple(shlex.split(arguments.tests)))
        adapter = adapter_for(arguments.adapter) if arguments.adapter else ScriptedAdapter(SCRIPT)
        with agent(project, adapter) as chat:
            report = chat.send(arguments.task).require_output()
            for event in chat.session[ToolInvoked].all():
                print(f"  {event.name}: {event.result.render().splitlines()[0]}")
    print(report.summary, f"changed: {', '.join(report.changed)}; tests pass: {report.tests_pass}", sep="\n")


if __name__ == "__main__":
    main()
