"""Generators of steps, which sync and async code drive alike: each step is performed, and its outcome sent back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar, cast

S = TypeVar("S")
T = TypeVar("T")


class Cursor(Generic[S, T]):
    """A generator of steps, advanced by one outcome at a time; `step` is None once it has ended."""

    __slots__ = ("_error", "_result", "_steps", "step")

    def __init__(self, steps: Generator[S, Any, T]) -> None:
        self._steps = steps
        self._result: T | None = None
        self._error: BaseException | None = None
        self.step: S | None = None
        self.answer(None)

    def answer(self, outcome: Any, error: BaseException | None = None) -> None:
        """Send the outcome of the step, or throw in the error that it raised."""
        try:
            self.step = self._steps.send(outcome) if error is None else self._steps.throw(error)
        except StopIteration as stop:
            self.step, self._result = None, stop.value
        except BaseException as raised:
            self.step, self._error = None, raised

    def fail(self, error: BaseException) -> None:
        self.answer(None, error)

    def result(self) -> T:
        """The value that the generator returned, or the error that it ended with."""
        if self._error is None:
            return cast("T", self._result)
        try:
            raise self._error
        finally:
            # The traceback refers to the frame that refers to this cursor.
            self._error = None


def run_steps(steps: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Drive the generator in this thread."""
    cursor = Cursor(steps)
    while (step := cursor.step) is not None:
        try:
            outcome = perform(step)
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    return cursor.result()


async def run_steps_async(steps: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """`run_steps` on the running event loop."""
    cursor = Cursor(steps)
    while (step := cursor.step) is not None:
        try:
            outcome = await perform(step)
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    return cursor.result()
