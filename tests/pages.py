"""The examples of a page: Python runs block by block, and shown output is compared with what was printed.

An `output` block is what the Python block before it printed. A `console` block has lines that begin with `$ wink` or
`$ python -m pytest`, each followed by what the command prints; it runs in a folder of the page, with the Python blocks
that begin with a comment such as `# shop.py`. Those of tests (`# test_shop.py`) are only run there. In both,
`...` stands for anything, such as the id of a run.

`python -m tests.pages docs/PAGE.md ...` writes the output that differs into the pages; lines that still match stay,
also those with `...`.
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
from itertools import product
from pathlib import Path

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

PRINTED, FOLDER, FAILED = "__printed__", "__folder__", "__failed__"
_python = PythonEvaluator()


class OutputDiffers(AssertionError):
    """The page shows another output than was printed; `block` is what it should show."""

    def __init__(self, shown: str, block: str) -> None:
        example = doctest.Example("", _tidy(shown))
        super().__init__(doctest.OutputChecker().output_difference(example, _tidy(block), doctest.ELLIPSIS))
        self.block = block


def run_python(example: Example) -> None:
    __tracebackhide__ = True
    if named := re.match(r"# ([\w/]+\.py)\n", example.parsed):
        path = _folder(example) / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.parsed, encoding="utf-8")
        if path.name.startswith("test_"):
            return
    example.namespace.pop(PRINTED, None)
    try:
        with redirect_stdout(io.StringIO()) as printed:
            _python(example)
    except Exception as error:
        # A name may be missing because an earlier block of the page failed, such as for want of an extra.
        cause = example.namespace.get(FAILED) if isinstance(error, NameError) else None
        example.namespace[FAILED] = error
        if cause is None:
            raise
        raise error from cause
    example.namespace[PRINTED] = printed.getvalue()


def compare_output(example: Example) -> None:
    __tracebackhide__ = True
    if PRINTED not in example.namespace:
        raise AssertionError("the block before this output has not run") from example.namespace.get(FAILED)
    printed = example.namespace.pop(PRINTED)
    if not _is_shown(example.parsed, printed):
        raise OutputDiffers(example.parsed, merged(example.parsed, printed))


def run_console(example: Example) -> None:
    __tracebackhide__ = True
    differing, block = [], []
    for command, shown in _commands(example.parsed):
        program, *words = shlex.split(command.replace("\\\n", " "))
        if program == "wink":
            words = ["-m", "weakincentives.cli", *words]
        assert program == "wink" or words[:2] == ["-m", "pytest"], (
            f"a console block runs wink or pytest, got {command!r}"
        )
        done = subprocess.run(
            [sys.executable, *words],
            cwd=_folder(example),
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        same = _is_shown(shown, done.stdout)
        if not same:
            differing.append(done.stdout)
        block.append(f"$ {command}\n{_tidy(shown if same else merged(shown, done.stdout))}")
    if differing:
        # All that was printed, which may name an extra that is not installed.
        raise OutputDiffers(example.parsed, "\n".join(block)) from AssertionError("\n".join(differing))


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


def corrected(page: Path) -> str:
    """The text of a page with the output that its blocks print."""
    text = page.read_text(encoding="utf-8")
    document = Document.parse(str(page), *PARSERS)
    shift = 0
    for example in document.examples():
        try:
            example.evaluate()
        except OutputDiffers as difference:
            start = shift + example.start + text[shift + example.start :].index("\n") + 1
            end = shift + example.end - len("```")
            text = f"{text[:start]}{difference.block}{text[end:]}"
            shift += len(difference.block) - (end - start)
    return text


def merged(shown: str, printed: str) -> str:
    """The printed output, with as many lines of the block that was shown as still match, in order."""
    old, new = _tidy(shown).splitlines(), _tidy(printed).splitlines()
    text = _tidy("\n".join(_kept_lines(old, new)))
    return text if _is_shown(text, printed) else _tidy(printed)


def _kept_lines(old: list[str], new: list[str]) -> list[str]:
    """The merge with the highest score: lines that stay count most, changed and covered ones cost a little."""
    best: dict[tuple[int, int], tuple[float, tuple[str, ...]]] = {}
    for row, column in product(reversed(range(len(old) + 1)), reversed(range(len(new) + 1))):
        merges = [(0.0, ())] if (row, column) == (len(old), len(new)) else []
        if row < len(old):
            merges.append(_extended(best[row + 1, column], -1))
        if column < len(new):
            merges.append(_extended(best[row, column + 1], -1, new[column]))
        if row < len(old) and column < len(new):
            merges.append(_extended(best[row + 1, column + 1], -1, new[column]))
            covers = old[row] == "..."
            if covers or _is_shown(old[row], new[column]):
                # A line of dots stands for any number of lines, empty ones too, the others for one.
                last = len(new) if covers else column + 1
                for end in range(column + 1, last + 1):
                    score = 100 - 0.1 * (end - column)
                    merges.append(_extended(best[row + 1, end], score, old[row]))
        best[row, column] = max(merges)
    return list(best[0, 0][1])


def _extended(merge: tuple[float, tuple[str, ...]], score: float, *line: str) -> tuple[float, tuple[str, ...]]:
    return merge[0] + score, (*line, *merge[1])


def _folder(example: Example) -> Path:
    if FOLDER not in example.namespace:
        example.namespace[FOLDER] = tempfile.TemporaryDirectory()
    return Path(example.namespace[FOLDER].name)


def _commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints; a backslash continues a command."""
    for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command = re.match(r"(?:.*\\\n)*.*", each)
        assert command is not None
        yield command[0], each[command.end() :]


def _is_shown(shown: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(_tidy(shown), _tidy(printed), doctest.ELLIPSIS)


def _tidy(text: str) -> str:
    return "\n".join([*map(str.rstrip, text.strip("\n").splitlines()), ""])


if __name__ == "__main__":
    os.environ["HOME"] = tempfile.mkdtemp()
    for name in sys.argv[1:]:
        Path(name).write_text(corrected(Path(name)), encoding="utf-8")
