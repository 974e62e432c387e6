"""Histories that branch: every session, snapshot and view behaves as if it had its own copy."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from tests.rounds import rounds
from weakincentives.session import Append, Session, SessionError, Snapshot


@dataclass(frozen=True, slots=True)
class Item:
    number: int


@dataclass(frozen=True, slots=True)
class Bad:
    pass


class Model:
    """Sessions, snapshots and views beside plain lists of what they must hold."""

    def __init__(self) -> None:
        self.sessions = [(Session(), [])]
        self.kept: list[tuple[object, list[Item]]] = []
        self.snapshots: list[tuple[Snapshot, list[Item]]] = []
        self.count = 0

    def step(self, name: str, choice: int) -> None:
        index = choice % len(self.sessions)
        session, expected = self.sessions[index]
        self.count += 1
        item = Item(self.count)
        match name:
            case "append":
                session[Item].append(item)
                expected.append(item)
            case "dispatch":
                session.dispatch(item)
                expected.append(item)
            case "fail":
                session[Item].register(Bad, lambda view, event: Append(item))
                session[Item].register(Bad, lambda view, event: None)
                with pytest.raises(SessionError):
                    session.dispatch(Bad())
            case "clear":
                session[Item].clear(lambda other: other.number % 2 == 0)
                expected[:] = [other for other in expected if other.number % 2]
            case "view":
                self.kept.append((session[Item].view(), expected.copy()))
            case "snapshot":
                self.snapshots.append((session.snapshot(), expected.copy()))
            case "restore" if self.snapshots:
                snapshot, then = self.snapshots[choice % len(self.snapshots)]
                session.restore(snapshot)
                expected[:] = then
            case "clone":
                self.sessions.append((session.clone(), expected.copy()))

    def check(self) -> None:
        for session, expected in self.sessions:
            assert list(session[Item].all()) == expected
            assert session[Item].latest() == (expected[-1] if expected else None)
            assert len(session[Item]) == len(expected)
        for view, expected in self.kept:
            assert list(view) == expected
        for snapshot, expected in self.snapshots:
            assert list(snapshot[Item]) == expected


NAMES = ["append", "append", "dispatch", "fail", "clear", "view", "snapshot", "snapshot", "restore", "restore", "clone"]


@settings(max_examples=rounds(60, 300), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 20)), max_size=40))
def test_no_history_reaches_into_another(steps):
    model = Model()
    for name, choice in steps:
        model.step(name, choice)
    model.check()
