"""Typed, append-only state of a run: slices, reducers, observers and snapshots."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives.errors import (
    OutsideEffectsError as OutsideEffectsError,
    SessionBusyError as SessionBusyError,
    SessionError as SessionError,
)
from weakincentives.session.moments import Moment as Moment, Reducible as Reducible
from weakincentives.session.session import (
    Bus as Bus,
    ChildSession as ChildSession,
    Session as Session,
    SessionBranch as SessionBranch,
    Slice as Slice,
    check_tags as check_tags,
    observing as observing,
)
from weakincentives.session.slices import (
    Append as Append,
    Clear as Clear,
    Extend as Extend,
    LogEntry as LogEntry,
    Operation as Operation,
    Replace as Replace,
    SliceView as SliceView,
    extends as extends,
    reducer as reducer,
)
from weakincentives.session.snapshot import Snapshot as Snapshot

if not TYPE_CHECKING:
    __all__ = public_names(globals())
