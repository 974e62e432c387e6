"""Regular expressions that never finish cannot freeze the process."""

from __future__ import annotations

import asyncio

import pytest

from tests.attacks.patterns import CATASTROPHIC, A
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import BadPatternError, Filesystem, HostFilesystem, InMemoryFilesystem, Match
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session

TIMEOUT = 0.2


@pytest.mark.parametrize(("pattern", "line"), CATASTROPHIC)
def test_a_catastrophic_pattern_ends_with_an_error_that_says_what_to_do(pattern: str, line: str) -> None:
    fs = InMemoryFilesystem({"f": f"{line}\n" * 3}, grep_timeout=TIMEOUT)
    with pytest.raises(BadPatternError, match=r"took longer than 0\.2 seconds; use a simpler pattern"):
        fs.grep(pattern)
    assert len(fs.grep(".")) == 3


def test_the_host_filesystem_has_the_same_limit(tmp_path) -> None:
    (tmp_path / "f").write_text(A)
    with pytest.raises(BadPatternError, match="took longer"):
        HostFilesystem(tmp_path, grep_timeout=TIMEOUT).grep("(a+)+$")


@pytest.mark.parametrize("pattern", ["(" * 500 + "a" + ")" * 500, "a" * 5_001, "(?P<n>a)(?P<n>b)", "a{5,2}"])
def test_a_pattern_that_cannot_be_compiled_is_refused(pattern: str) -> None:
    with pytest.raises(BadPatternError):
        InMemoryFilesystem({"f": A}).grep(pattern)


def test_the_event_loop_goes_on_while_a_pattern_is_stuck() -> None:
    async def run() -> tuple[int, ToolInvoked]:
        files = InMemoryFilesystem({"f": A}, grep_timeout=TIMEOUT)
        template = PromptTemplate(ns="tests", key="grep", sections=[VfsToolsSection(files)])
        session, ticks = Session(), 0
        adapter = ScriptedAdapter([call("grep", pattern="(a+)+$"), "It took too long."])
        evaluation = asyncio.ensure_future(adapter.evaluate_async(Prompt(template), session=session))
        while not evaluation.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await evaluation
        return ticks, session[ToolInvoked].all()[0]

    ticks, event = asyncio.run(run())
    assert ticks > 20
    assert not event.success
    assert event.result.message.startswith("Searching for '(a+)+$' took longer than 0.2 seconds")


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("a", [1, 2]),
        ("", [1, 2, 3, 4]),
        ("^a .*b$", [1]),
        (r"(?<!x)b\b", [1, 2]),
        (r"(\w)\1", [2]),
        ("^$", [3]),
        ("c$", [4]),
        ("[", None),
        (r"\.", [4]),
        ("(?i)A", [1, 2]),
        (r"ü\w", [4]),
    ],
)
def test_every_python_pattern_is_matched_line_by_line(pattern: str, numbers: list[int] | None) -> None:
    fs: Filesystem = InMemoryFilesystem({"f": "a b\r\naa b\n\n. üç c\n"})
    if numbers is None:
        with pytest.raises(BadPatternError, match="not a regular expression"):
            fs.grep(pattern)
    else:
        assert [match.line_number for match in fs.grep(pattern)] == numbers


def test_matches_come_in_the_order_of_the_files_however_many_there_are() -> None:
    fs = InMemoryFilesystem({f"{number:04}": "x" * 1_000 + f"\nline {number}\n" for number in range(2_500)})
    assert fs.grep("line 1?[0-9]$") == tuple(Match(f"{n:04}", 2, f"line {n}") for n in range(20))
    assert fs.grep("line [0-9]*", limit=3) == tuple(Match(f"{n:04}", 2, f"line {n}") for n in range(3))
