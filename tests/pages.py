"""The examples of a page: Python runs block by block, and the output that a page shows is compared with what was printed.

An `output` block is what the Python block before it printed. A `console` block has lines that begin with `$ wink`, each
followed by what the command prints; it runs in a folder of the page, with the Python blocks that begin with a comment
such as `# shop.py`. In both, `...` stands for anything, such as the id of a run.
"""

from __future__ import annotations

import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

PRINTED, FOLDER = "__printed__", "__folder__"
_python = PythonEvaluator()


def run_python(example: Example) -> None:
    __tracebackhide__ = True
    if named := re.match(r"# ([\w/]+\.py)\n", example.parsed):
        path = _folder(example) / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.parsed, encoding="utf-8")
    with redirect_stdout(io.StringIO()) as printed:
        _python(example)
    example.namespace[PRINTED] = printed.getvalue()


def compare_output(example: Example) -> None:
    __tracebackhide__ = True
    _compare(example.parsed, example.namespace.pop(PRINTED, "nothing was run before this output\n"))


def run_console(example: Example) -> None:
    __tracebackhide__ = True
    for command, shown in _commands(example.parsed):
        program, *words = shlex.split(command)
        assert program == "wink", f"a console block runs wink alone, got {command!r}"
        done = subprocess.run(
            [sys.executable, "-m", "weakincentives.cli", *words],
            cwd=_folder(example),
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        _compare(shown, done.stdout)


class Blocks(CodeBlockParser):
    """The fenced blocks of a language, with or without options such as `hl_lines`."""

    def __call__(self, document: Document) -> Iterator[Region]:
        for region in self.lexers(document):
            if region.lexemes["arguments"].split()[:1] == [self.language]:
                region.parsed, region.evaluator = region.lexemes["source"], self._evaluator
                yield region


PARSERS = (
    Blocks("python", run_python),
    Blocks("output", compare_output),
    Blocks("console", run_console),
    SkipParser(),
)


def _folder(example: Example) -> Path:
    if FOLDER not in example.namespace:
        example.namespace[FOLDER] = tempfile.TemporaryDirectory()
    return Path(example.namespace[FOLDER].name)


def _commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints; a backslash joins lines."""
    first, *rest = re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)
    assert not first and rest, "a console block begins with $"
    for each in rest:
        command, _, shown = each.partition("\n")
        yield command, shown


def _compare(shown: str, printed: str) -> None:
    __tracebackhide__ = True
    want, got = ("\n".join([*map(str.rstrip, text.strip().splitlines()), ""]) for text in (shown, printed))
    checker = doctest.OutputChecker()
    if not checker.check_output(want, got, doctest.ELLIPSIS):
        raise AssertionError(checker.output_difference(doctest.Example("", want), got, doctest.ELLIPSIS))
