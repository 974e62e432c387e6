"""What a step changed is recorded as contents and applied on replay."""

from dataclasses import dataclass

from weakincentives.durable.journal import TaggedSerializer, apply_change, record_change
from weakincentives.resources import ResourceRegistry
from weakincentives.session import LogEntry, Replace, Session, reducer


@dataclass(frozen=True, slots=True)
class Added:
    amount: int


@dataclass(frozen=True, slots=True)
class Noted(LogEntry):
    text: str


@dataclass(frozen=True, slots=True)
class Total:
    value: int = 0

    @reducer(on=Added)
    def add(self, event: Added) -> "Total":
        return Total(self.value + event.amount)


class Shelf:
    def __init__(self) -> None:
        self.books: tuple[str, ...] = ()

    def snapshot(self) -> tuple[str, ...]:
        return self.books

    def restore(self, snapshot: tuple[str, ...]) -> None:
        self.books = snapshot


class Machine(Shelf):
    def snapshot(self) -> object:
        return object()


def pair() -> tuple[Session, object]:
    session = Session(session_id="s")
    session.dispatch(Added(1))
    return session, ResourceRegistry.build({Shelf: Shelf(), Machine: Machine()}).create_context()


def through_the_database(change: object) -> object:
    serializer = TaggedSerializer()
    return serializer.deserialize(serializer.serialize(change))


def carried_over(work) -> tuple[Session, Session, object]:  # type: ignore[no-untyped-def]
    """A session on which `work` ran, and one to which the recorded change was applied."""
    live, resources = pair()
    _, change = record_change(live, resources, lambda: work(live, resources))
    other, other_resources = pair()
    apply_change(through_the_database(change), other, other_resources)
    return live, other, other_resources


def test_events_and_reduced_slices_come_back() -> None:
    live, other, _ = carried_over(lambda session, _: (session.dispatch(Added(2)), session.dispatch(Noted("n"))))
    assert other.snapshot() == live.snapshot()
    assert other[Total].latest() == Total(3)


def test_a_slice_that_shrank_comes_back() -> None:
    def work(session: Session, _: object) -> None:
        session[Added].clear()
        session[Added].register(Noted, lambda view, event: Replace((Added(9),)))
        session.dispatch(Noted("n"))

    live, other, _ = carried_over(work)
    assert other[Added].all() == live[Added].all() == (Added(9),)


def test_what_was_rolled_back_does_not_come_back() -> None:
    def work(session: Session, _: object) -> None:
        before = session.snapshot()
        session.dispatch(Added(5))
        session.dispatch(Noted("kept"))
        session.restore(before)
        session.dispatch(Added(7))

    live, other, _ = carried_over(work)
    assert other.snapshot() == live.snapshot()
    assert other[Added].all() == (Added(1), Added(7))
    assert other[Noted].all() == (Noted("kept"),)


def test_a_resource_comes_back_if_its_snapshot_can_be_serialised() -> None:
    def work(_: Session, resources) -> None:  # type: ignore[no-untyped-def]
        resources.get(Shelf).books = ("a", "b")
        resources.get(Machine).books = ("c",)

    *_, resources = carried_over(work)
    assert resources.get(Shelf).books == ("a", "b")
    assert resources.get(Machine).books == ()


def test_a_step_that_changed_nothing_records_nothing() -> None:
    session, resources = pair()
    resources.get(Machine).snapshot = tuple  # type: ignore[method-assign]
    result, change = record_change(session, resources, lambda: 42)
    assert (result, change.slices, change.resources) == (42, (), ())
