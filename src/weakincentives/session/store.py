"""The slices of one session and the lock under which they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from weakincentives._fence import check_fence
from weakincentives.session.column import BadResult, Column, FunctionReducer, Mark
from weakincentives.session.errors import SessionError
from weakincentives.session.reducer import DECLARED, makeable

logger = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What happens to events of one type: which slice keeps them and which reducers run."""

    own: Column | None
    steps: tuple[tuple[Column, Callable[[Any], object]], ...]
    touched: tuple[Column, ...]


class Store:
    """Slices by type. Every change happens under one lock, wholly or not at all."""

    __slots__ = ("_columns", "_declared", "_plans", "_reducing", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._columns: dict[type, Column] = {}
        self._plans: dict[type, Plan] = {}
        self._declared = DECLARED.version
        self._reducing = False

    def __contains__(self, slice_type: type) -> bool:
        return slice_type in self._columns

    def column(self, slice_type: type) -> Column:
        """The slice of this type, installed if it was not there; hold the lock."""
        return self._columns.get(slice_type) or self._add(slice_type)

    def writable(self, slice_type: type) -> Column:
        """The same, to be changed."""
        check_fence()
        self._refuse_in_reducer()
        return self.column(slice_type)

    def reduce(self, event: object) -> None:
        """Append the event to the slice of its type and run every reducer that listens to it."""
        with self.lock:
            check_fence()
            if self._reducing:
                self._refuse_in_reducer()
            if self._declared != DECLARED.version:
                self._declared = DECLARED.version
                self._plans.clear()
            event_type = type(event)
            plan = self._plans.get(event_type) or self._plan(event_type)
            if plan.steps:
                self._run(plan, event)
            elif plan.own is not None:
                plan.own.append(event)

    def reduce_in(self, slice_type: type, event: object) -> None:
        """Run the reducers of one slice only."""
        with self.lock:
            column = self.writable(slice_type)
            steps = tuple((column, step) for step in column.reducers(type(event)))
            if not steps and not isinstance(event, slice_type):
                raise SessionError(
                    f"Slice '{slice_type.__qualname__}' has no reducer for event '{type(event).__qualname__}'; "
                    f"add @reducer(on={type(event).__name__}) to it or call register()"
                )
            if column.methods_for(type(event)) and not column.length:
                raise SessionError(
                    f"Slice '{slice_type.__qualname__}' holds no value and cannot be made without arguments; "
                    f"call session.install({slice_type.__name__}, initial=...) or seed it first"
                )
            own = column if isinstance(event, slice_type) else None
            self._run(Plan(own, steps, (column,)), event)

    def install(self, slice_type: type, initial: Callable[[], Any] | None) -> None:
        with self.lock:
            column = self.writable(slice_type)
            if initial is not None:
                self._install(column, initial)
            elif not column.initial:
                if not makeable(slice_type):
                    raise SessionError(
                        f"Slice '{slice_type.__qualname__}' cannot be made without arguments; pass initial=lambda: ..."
                    )
                self._install(column, slice_type)

    def register(self, slice_type: type, event_type: type, function: FunctionReducer) -> None:
        with self.lock:
            column = self.writable(slice_type)
            column.functions = (*column.functions, (event_type, function))
            self._plans.clear()

    def mark(self) -> dict[type, Mark]:
        with self.lock:
            self._refuse_in_reducer()
            return {slice_type: column.mark() for slice_type, column in self._columns.items()}

    def reset(self, marks: dict[type, Mark], *, preserve_logs: bool) -> None:
        with self.lock:
            check_fence()
            self._refuse_in_reducer()
            for slice_type in marks:
                self.column(slice_type)
            for slice_type, column in self._columns.items():
                if preserve_logs and column.is_log and column.length:
                    continue
                mark = marks.get(slice_type)
                if mark is None:
                    column.clear()
                else:
                    column.reset(mark)

    def clone(self) -> Store:
        store = Store()
        with self.lock:
            self._refuse_in_reducer()
            store._columns = {slice_type: column.clone() for slice_type, column in self._columns.items()}
        return store

    def _add(self, slice_type: type) -> Column:
        if not isinstance(slice_type, type):
            raise SessionError(f"session[{slice_type!r}]: a slice is named by its class")
        column = Column(slice_type)
        if column.methods:
            if makeable(slice_type):
                try:
                    self._install(column, slice_type)
                except SessionError as error:
                    logger.warning("%s; call session.install(%s, initial=...)", error, slice_type.__name__)
            self._plans.clear()
        self._columns[slice_type] = column
        return column

    def _install(self, column: Column, initial: Callable[[], Any]) -> None:
        name = column.type.__qualname__
        reducing, self._reducing = self._reducing, True
        try:
            value = initial()
        except Exception as error:
            raise SessionError(f"Slice '{name}' could not make its initial value: {error!r}") from error
        finally:
            self._reducing = reducing
        if not isinstance(value, column.type):
            raise SessionError(f"Slice '{name}' got the initial value {value!r}; initial= must return a {name}")
        column.install(value)

    def _plan(self, event_type: type) -> Plan:
        for slice_type in DECLARED.reducing(event_type):
            if slice_type not in self._columns and makeable(slice_type):
                self._add(slice_type)
        own = None
        if is_dataclass(event_type):
            own = self.column(event_type)
        steps = tuple((column, step) for column in self._columns.values() for step in column.reducers(event_type))
        if own is None and not steps:
            raise SessionError(
                f"Event of type '{event_type.__qualname__}' is no dataclass and no reducer listens to it; "
                "dispatch an instance of a dataclass"
            )
        touched: Iterable[Column] = (column for column, _ in steps)
        plan = Plan(own, steps, tuple(dict.fromkeys((own, *touched) if own else touched)))
        self._plans[event_type] = plan
        return plan

    def _run(self, plan: Plan, event: object) -> None:
        before = [(column, column.mark_briefly()) for column in plan.touched]
        self._reducing = True
        try:
            if plan.own is not None:
                plan.own.append(event)
            for column, step in plan.steps:
                try:
                    column.take(step(event))
                except BadResult as error:
                    raise SessionError(f"{_reducer_of(column, event)} {error}") from None
                except Exception as error:
                    message = f"{_reducer_of(column, event)} raised {error!r}; the session is unchanged"
                    raise SessionError(message) from error
        except BaseException:
            for column, mark in before:
                column.reset(mark)
            raise
        finally:
            self._reducing = False

    def _refuse_in_reducer(self) -> None:
        if self._reducing:
            raise SessionError(
                "A reducer tried to change its own session; reducers only compute, "
                "so return the change or dispatch from session.observe(...)"
            )


def _reducer_of(column: Column, event: object) -> str:
    return f"Reducer of slice '{column.type.__qualname__}' for event '{type(event).__qualname__}'"
