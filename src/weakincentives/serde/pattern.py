"""Patterns of foreign schemas, matched in bounded time.

Python's `re` can take exponential time, holds the interpreter lock while it runs, and cannot be interrupted. This
matcher follows all ways through a pattern at once, one character of the text after the other, and counts its steps.
`re` still parses the pattern and tests single characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

MAX_STEPS = 1_000_000
"""The most work that may go into reading the arguments of one call: about half a second."""
MAX_PATTERN_LENGTH = 5_000
# A state has a counter for each, so more of them make every step slower.
MAX_NESTED_COUNTS = 8
# `re` enumerates the characters of a class up to U+FFFF to compile it.
MAX_CLASSES = 1 << 20
_OPCODES: Any = _parser
_REPEATS = (_OPCODES.MAX_REPEAT, _OPCODES.MIN_REPEAT)
_SINGLE = (_OPCODES.LITERAL, _OPCODES.NOT_LITERAL, _OPCODES.ANY, _OPCODES.IN)
_UNSUPPORTED = {
    _OPCODES.GROUPREF: "a back-reference",
    _OPCODES.GROUPREF_EXISTS: "a condition on a group",
    _OPCODES.ATOMIC_GROUP: "an atomic group",
    _OPCODES.POSSESSIVE_REPEAT: "a possessive repetition",
}
_CHARACTER, _POSITION, _SPLIT, _LOOK, _ENTER, _COUNT, _LOOP, _FOUND = range(8)

_PIECE = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\(\?<(?=\w)|\$", re.DOTALL)
_PYTHON_PIECES = {"$": r"\Z", "(?<": "(?P<", r"\p{L}": r"[^\W\d_]", r"\p{N}": r"\d", r"\p{Nd}": r"\d"}


class TooManyStepsError(Exception):
    """Raised by `Steps.take` when nothing is left."""


class Steps:
    """A number of steps that may be taken."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManyStepsError


class PatternError(ValueError):
    """Text that is not a regular expression, or one that cannot be matched in bounded time."""


class BoundedPattern:
    """A JavaScript pattern. Back-references have no bound and are rejected. `classes` is the size of its classes.

    A state of the matcher is an instruction and the counters of the repetitions it is in, the innermost first.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise PatternError(f"has {len(pattern)} characters, and at most {MAX_PATTERN_LENGTH} are allowed")
        self._program: list[tuple[int, Any, int]] = [(_FOUND, None, 0)]
        self._tests: dict[tuple[str, int], Any] = {}
        self._nested_counts = 0
        self.classes = 0
        try:
            tree = _parser.parse(_PIECE.sub(lambda piece: _PYTHON_PIECES.get(piece[0], piece[0]), pattern))
            self._start = self._sequence(tree, 0, tree.state.flags)
        except (re.error, RecursionError, OverflowError, Warning) as error:
            raise PatternError(f"is not a regular expression: {error}") from None
        first = tree[0] if len(tree) else None
        self._anchored = first == (_OPCODES.AT, _OPCODES.AT_BEGINNING) and not tree.state.flags & re.MULTILINE

    def search(self, text: str, take_steps: Callable[[int], None]) -> bool:
        """True if the pattern matches anywhere. `take_steps` is called with the work done, and may raise."""
        return any(self._ends(self._start, text, 0, take_steps, anchored=self._anchored))

    def find(self, text: str, take_steps: Callable[[int], None]) -> tuple[int, int] | None:
        """The beginning and end of the first match; of several there, the longest."""
        for begin in range(1 if self._anchored else len(text) + 1):
            ends = list(self._ends(self._start, text, begin, take_steps, anchored=True))
            if ends:
                return begin, ends[-1][0]
        return None

    def _ends(
        self, start: int, text: str, position: int, take_steps: Callable[[int], None], *, anchored: bool
    ) -> Iterator[tuple[int]]:
        """Every place where a match ends that begins at the position, or anywhere after it unless `anchored`.

        Tuples, because the place 0 is a match too.
        """
        program = self._program
        pending: list[tuple[int, Any]] = [(start, ())]
        while True:
            following: list[tuple[int, Any]] = []
            seen: set[tuple[int, Any]] = set()
            while pending:
                state = pending.pop()
                if state in seen:
                    continue
                seen.add(state)
                if not len(seen) & 0x3FF:
                    take_steps(0x400)
                at, counters = state
                kind, given, then = program[at]
                if kind == _CHARACTER:
                    if given(text, position):
                        following.append((then, counters))
                elif kind == _SPLIT:
                    pending += [(target, counters) for target in given]
                elif kind == _POSITION:
                    if given(text, position):
                        pending.append((then, counters))
                elif kind == _LOOK:
                    inner, back, wanted = given
                    found = position >= back and any(
                        self._ends(inner, text, position - back, take_steps, anchored=True)
                    )
                    if found == wanted:
                        pending.append((then, counters))
                elif kind == _ENTER:
                    pending.append((then, (0, counters)))
                elif kind == _COUNT:
                    pending.append((then, (min(counters[0] + 1, given), counters[1])))
                elif kind == _LOOP:
                    body, least, most = given
                    if counters[0] < most:
                        pending.append((body, counters))
                    if counters[0] >= least:
                        pending.append((then, counters[1]))
                else:
                    take_steps(1 + (len(seen) & 0x3FF))  # Now: whoever looks for any match reads no further.
                    yield (position,)
            take_steps(1 + (len(seen) & 0x3FF))
            position += 1
            if position > len(text) or (anchored and not following):
                return
            pending = following if anchored else [*following, (start, ())]

    def _sequence(self, items: Iterable[tuple[Any, Any]], then: int, flags: int) -> int:
        """Add instructions for parsed items; returns where they begin. They end by going to `then`."""
        for item in reversed(list(items)):
            then = self._item(item, then, flags)
        return then

    def _item(self, item: tuple[Any, Any], then: int, flags: int) -> int:
        kind, given = item
        if kind in _SINGLE:
            return self._add(_CHARACTER, self._test(item, flags), then)
        if kind is _OPCODES.AT:
            return self._add(_POSITION, self._test(item, flags), then)
        if kind is _OPCODES.SUBPATTERN:
            return self._sequence(given[3], then, (flags | given[1]) & ~given[2])
        if kind is _OPCODES.BRANCH:
            return self._add(_SPLIT, [self._sequence(option, then, flags) for option in given[1]], 0)
        if kind in _REPEATS:
            return self._repeat(given, then, flags)
        if kind in (_OPCODES.ASSERT, _OPCODES.ASSERT_NOT):
            direction, inner = given
            back = inner.getwidth()[0] if direction < 0 else 0
            return self._add(_LOOK, (self._sequence(inner, 0, flags), back, kind is _OPCODES.ASSERT), then)
        if kind is _OPCODES.FAILURE:
            return self._add(_SPLIT, [], 0)
        raise PatternError(f"has {_UNSUPPORTED.get(kind, kind)}, which cannot be matched in bounded time")

    def _repeat(self, given: tuple[int, Any, Any], then: int, flags: int) -> int:
        least, most, body = given
        if (least, most) == (0, 1):
            return self._add(_SPLIT, [self._sequence(body, then, flags), then], 0)
        if most is _OPCODES.MAXREPEAT and least < 2:
            targets = [then]
            loop = self._add(_SPLIT, targets, 0)
            targets.append(self._sequence(body, loop, flags))
            return loop if least == 0 else targets[1]
        self._nested_counts += 1
        if self._nested_counts > MAX_NESTED_COUNTS:
            raise PatternError(f"has counted repetitions that are nested more than {MAX_NESTED_COUNTS} deep")
        loop = self._add(_LOOP, None, then)
        # Without a maximum, nothing depends on the count once the minimum is reached.
        count = self._add(_COUNT, least if most is _OPCODES.MAXREPEAT else most, loop)
        self._program[loop] = (_LOOP, (self._sequence(body, count, flags), least, most), then)
        self._nested_counts -= 1
        return self._add(_ENTER, None, loop)

    def _add(self, kind: int, given: Any, then: int) -> int:
        self._program.append((kind, given, then))
        return len(self._program) - 1

    def _test(self, item: tuple[Any, Any], flags: int) -> Any:
        """A function that is true if one character, or a position such as the start, is as the item demands."""
        key = (repr(item), flags)
        if key not in self._tests:
            kind, given = item
            ranges = [each[1] for each in given if each[0] is _OPCODES.RANGE] if kind is _OPCODES.IN else []
            self.classes += sum(min(last, 0xFFFF) - min(first, 0xFFFF) for first, last in ranges)
            if self.classes > MAX_CLASSES:
                raise PatternError(f"has character classes with more than {MAX_CLASSES:,} characters")
            state = _parser.State()
            state.flags = flags
            self._tests[key] = _compiler.compile(_parser.SubPattern(state, [item])).match
        return self._tests[key]
