"""The slices of one session, changed under one lock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from weakincentives._base.fence import check_fence
from weakincentives.errors import SessionError
from weakincentives.serde import declare_type
from weakincentives.session.slices import (
    Column,
    FunctionReducer,
    InvalidResult,
    Mark,
    declared_slices,
    has_default_constructor,
)

logger = logging.getLogger(__name__)


class DispatchPlan(NamedTuple):
    """The slice that stores events of one type, the reducers to run, and the slices that may change."""

    own: Column | None
    steps: tuple[tuple[Column, Callable[[Any], object]], ...]
    touched: tuple[Column, ...]


class SliceStore:
    """Slices by type. Each change happens under the lock, completely or not at all."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._columns: MutableMapping[type, Column] = {}
        self._plans: dict[type, DispatchPlan] = {}
        self._declared = declared_slices.version
        self._reducing = False

    def __contains__(self, slice_type: type) -> bool:
        return slice_type in self._columns

    def has_items(self, slice_type: type) -> bool:
        column = self._columns.get(slice_type)
        return column is not None and bool(column.items)

    def column(self, slice_type: type) -> Column:
        """The slice of this type, installed on first use. The caller holds the lock."""
        return self._columns.get(slice_type) or self._add(slice_type)

    def writable(self, slice_type: type) -> Column:
        """Like `column`, for a slice about to be changed."""
        check_fence(self)
        self._check_not_reducing()
        return self.column(slice_type)

    def reduce(self, event: object) -> None:
        """Run the event's reducers in all slices, and append it to its own slice unless that has a reducer for it."""
        with self.lock:
            check_fence(self)
            if self._reducing:
                self._check_not_reducing()
            if self._declared != declared_slices.version:
                self._declared = declared_slices.version
                self._plans.clear()
            event_type = type(event)
            plan = self._plans.get(event_type) or self._plan(event_type)
            if plan.steps:
                self._run(plan, event)
            elif plan.own is not None:
                plan.own.items.append(event)

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
            if column.methods_for(type(event)) and not column.items:
                raise SessionError(
                    f"Slice '{slice_type.__qualname__}' is empty and its class needs arguments; "
                    f"call session.install({slice_type.__name__}, initial=...) or seed it first"
                )
            own = column if isinstance(event, slice_type) and not column.reduces_itself else None
            self._run(DispatchPlan(own, steps, (column,)), event)

    def install(self, slice_type: type, initial: Callable[[], Any] | None) -> None:
        declare_type(slice_type)
        with self.lock:
            column = self.writable(slice_type)
            if initial is not None:
                self._install(column, initial)
            elif not column.initial:
                if not has_default_constructor(slice_type):
                    raise SessionError(f"Slice '{slice_type.__qualname__}' needs arguments; pass initial=lambda: ...")
                self._install(column, slice_type)

    def register(self, slice_type: type, event_type: type, function: FunctionReducer) -> None:
        for cls in (slice_type, event_type):
            declare_type(cls)
        with self.lock:
            column = self.writable(slice_type)
            column.functions = (*column.functions, (event_type, function))
            self._plans.clear()

    def mark(self, *, logs: bool = True) -> dict[type, Mark]:
        with self.lock:
            self._check_not_reducing()
            columns = self._columns.items()
            return {slice_type: column.mark() for slice_type, column in columns if logs or not column.is_log}

    def reset(self, marks: dict[type, Mark], *, preserve_logs: bool, keep: Collection[type] = ()) -> None:
        with self.lock:
            check_fence(self)
            self._check_not_reducing()
            for slice_type in marks:
                self.column(slice_type)
            for slice_type, column in self._columns.items():
                if slice_type in keep or (preserve_logs and column.is_log and column.items):
                    continue
                mark = marks.get(slice_type)
                if mark is None:
                    column.clear()
                else:
                    column.reset(mark)

    def clone(self) -> SliceStore:
        store = SliceStore()
        with self.lock:
            self._check_not_reducing()
            store._columns = {slice_type: column.clone() for slice_type, column in self._columns.items()}
        return store

    def _add(self, slice_type: type) -> Column:
        if not isinstance(slice_type, type):
            raise SessionError(f"session[...] must be given a class, got {slice_type!r}")
        column = Column(slice_type)
        if column.methods:
            if has_default_constructor(slice_type):
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
            raise SessionError(f"Slice '{name}' failed to create its initial value: {error!r}") from error
        finally:
            self._reducing = reducing
        if not isinstance(value, column.type):
            raise SessionError(f"initial= of slice '{name}' must return a {name}, got {value!r}")
        column.install(value)

    def _plan(self, event_type: type) -> DispatchPlan:
        for slice_type in declared_slices.reducing(event_type):
            if slice_type not in self._columns and has_default_constructor(slice_type):
                self._add(slice_type)
        own = None
        if is_dataclass(event_type) and not (column := self.column(event_type)).reduces_itself:
            own = column
        reducing = [column for column in self._columns.values() if column.methods or column.functions]
        steps = tuple((column, step) for column in reducing for step in column.reducers(event_type))
        if own is None and not steps:
            raise SessionError(
                f"An event must be a dataclass or have a reducer, got a '{event_type.__qualname__}'; "
                "dispatch an instance of a dataclass"
            )
        touched: Iterable[Column] = (column for column, _ in steps)
        plan = DispatchPlan(own, steps, tuple(dict.fromkeys((own, *touched) if own else touched)))
        self._plans[event_type] = plan
        return plan

    def _run(self, plan: DispatchPlan, event: object) -> None:
        before = [(column, (column.items, len(column.items))) for column in plan.touched]
        self._reducing = True
        try:
            if plan.own is not None:
                plan.own.items.append(event)
            for column, step in plan.steps:
                try:
                    column.apply_result(step(event))
                except InvalidResult as error:
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

    def child(self, is_own: Callable[[type], bool]) -> ChildStore:
        return ChildStore(self, is_own)

    def _check_not_reducing(self) -> None:
        if self._reducing:
            raise SessionError(
                "A reducer must not change its own session; return the change, or dispatch from session.observe(...)"
            )


class ChildStore(SliceStore):
    """The slices of another store, but slices of its own for those types that are its own."""

    def __init__(self, parent: SliceStore, is_own: Callable[[type], bool]) -> None:
        super().__init__()
        self.lock = parent.lock
        self._parent = parent
        self.own: dict[type, Column] = {}
        self._is_own = is_own
        self._columns = _Overlaid(self.own, parent._columns, is_own)

    def copy_parents(self) -> None:
        """Begin with what the parent has of the child's own types."""
        with self.lock:
            for slice_type, column in self._parent._columns.items():
                if self._is_own(slice_type):
                    self.own[slice_type] = column.clone()

    def own_marks(self) -> dict[type, Mark]:
        with self.lock:
            return {slice_type: column.mark() for slice_type, column in self.own.items()}

    def reset_own(self, marks: dict[type, Mark]) -> None:
        with self.lock:
            for slice_type, mark in marks.items():
                self.column(slice_type).reset(mark)

    def _add(self, slice_type: type) -> Column:
        # Its reducers apply to the events of the parent, too.
        self._parent._plans.clear()
        return super()._add(slice_type)


class _Overlaid(MutableMapping[type, Column]):
    """The columns of a child's own types, and the parent's columns of all others."""

    def __init__(
        self, own: dict[type, Column], others: MutableMapping[type, Column], is_own: Callable[[type], bool]
    ) -> None:
        self._own = own
        self._others = others
        self._is_own = is_own

    def _home(self, slice_type: type) -> MutableMapping[type, Column]:
        return self._own if self._is_own(slice_type) else self._others

    def __getitem__(self, slice_type: type) -> Column:
        return self._home(slice_type)[slice_type]

    def __setitem__(self, slice_type: type, column: Column) -> None:
        self._home(slice_type)[slice_type] = column

    def __delitem__(self, slice_type: type) -> None:
        del self._home(slice_type)[slice_type]

    def __iter__(self) -> Iterator[type]:
        yield from self._own
        yield from (slice_type for slice_type in list(self._others) if not self._is_own(slice_type))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _reducer_of(column: Column, event: object) -> str:
    return f"Reducer of slice '{column.type.__qualname__}' for event '{type(event).__qualname__}'"
