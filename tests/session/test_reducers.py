"""Reducers: methods of a slice, functions, what they may return and what happens when they fail."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from weakincentives.session import Append, Clear, Extend, Replace, Session, SessionError, reducer


@dataclass(frozen=True, slots=True)
class Added:
    step: str


@dataclass(frozen=True, slots=True)
class AddedTwice(Added):
    pass


@dataclass(frozen=True, slots=True)
class Dropped:
    pass


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[str, ...] = ()

    @reducer(on=Added)
    def add(self, event: Added) -> "Plan":
        if event.step == "bad":
            raise ValueError("no such step")
        return replace(self, steps=(*self.steps, event.step))

    @reducer(on=Dropped)
    def drop(self, event: Dropped) -> Clear:
        return Clear()


@dataclass(frozen=True)
class Named:
    name: str
    steps: int = 0

    @reducer(on=Added)
    def count(self, event: Added) -> "Named":
        return replace(self, steps=self.steps + 1)


@dataclass(frozen=True, slots=True)
class Note:
    text: str


def test_dispatching_an_event_installs_the_slices_that_reduce_it():
    session = Session()
    session.dispatch(Added("a"))
    session.dispatch(Added("b"))
    assert session[Plan].all() == (Plan(("a", "b")),)
    assert session[Added].all() == (Added("a"), Added("b"))


def test_touching_a_slice_installs_its_default():
    assert Session()[Plan].latest() == Plan()


def test_a_reducer_hears_subclasses_of_its_event():
    session = Session()
    session.dispatch(AddedTwice("a"))
    assert session[Plan].latest() == Plan(("a",))


def test_clear_brings_the_initial_value_back():
    session = Session()
    session.install(Plan, initial=lambda: Plan(("first",)))
    session.dispatch(Added("a"))
    session.dispatch(Dropped())
    assert session[Plan].all() == (Plan(("first",)),)


def test_a_slice_that_needs_arguments_starts_with_what_it_is_given():
    session = Session()
    session.dispatch(Added("unheard"))
    session.install(Named, initial=lambda: Named("n"))
    session.dispatch(Added("a"))
    assert session[Named].latest() == Named("n", steps=1)


def test_a_slice_that_needs_arguments_may_be_seeded():
    session = Session()
    session[Named].seed(Named("n"))
    session.dispatch(Added("a"))
    assert session[Named].latest() == Named("n", steps=1)


def test_installing_without_a_way_to_make_the_value_is_refused():
    session = Session()
    with pytest.raises(SessionError, match=r"'Named' needs arguments; pass initial="):
        session.install(Named)
    with pytest.raises(SessionError, match=r"'Named' is empty.*session\.install\(Named, initial="):
        session[Named].apply(Added("a"))


def test_installing_keeps_what_was_already_reduced():
    session = Session()
    session.dispatch(Added("a"))
    session.install(Plan, initial=lambda: Plan(("fresh",)))
    assert session[Plan].latest() == Plan(("a",))


def test_installing_after_a_mere_look_sets_the_value():
    session = Session()
    assert session[Plan].latest() == Plan()
    assert session.install(Plan, initial=lambda: Plan(("fresh",))).latest() == Plan(("fresh",))


@pytest.mark.parametrize("initial", [lambda: "x", lambda: 1 / 0])
def test_an_initial_value_that_cannot_be_made_is_reported_by_slice(initial):
    with pytest.raises(SessionError, match=r"[Ss]lice 'Plan'"):
        Session().install(Plan, initial=initial)


def test_a_slice_whose_default_is_invalid_waits_to_be_installed(caplog):
    @dataclass(frozen=True)
    class Ping:
        pass

    @dataclass(frozen=True)
    class Picky:
        names: tuple[str, ...] = ()

        def __post_init__(self) -> None:
            if not self.names:
                raise ValueError("no names")

        @reducer(on=Ping)
        def ping(self, event: Ping) -> "Picky":
            return Picky((*self.names, "ping"))

    session = Session()
    session.dispatch(Ping())
    assert (session[Ping].all(), session[Picky].latest()) == ((Ping(),), None)
    assert "session.install(Picky, initial=...)" in caplog.text
    session.install(Picky, initial=lambda: Picky(("a",)))
    session.dispatch(Ping())
    assert session[Picky].latest() == Picky(("a", "ping"))


def test_a_predicate_or_an_iterable_that_raises_is_reported_like_the_reducer():
    for result in (Clear(lambda note: 1 / 0), Extend(Note(1 / 0) for _ in "a")):
        session = Session()
        session[Note].seed([Note("a")])
        session[Note].register(Added, lambda view, event, result=result: result)
        with pytest.raises(SessionError, match="'Note' for event 'Added' raised ZeroDivisionError"):
            session.dispatch(Added("x"))
        assert session[Note].all() == (Note("a"),)


def test_apply_sends_an_event_to_one_slice_only():
    session = Session()
    session[Plan].apply(Added("a"))
    assert (session[Plan].latest(), session[Added].all()) == (Plan(("a",)), ())


def test_applying_an_event_that_the_slice_does_not_reduce_is_refused():
    with pytest.raises(SessionError, match="Slice 'Plan' has no reducer for event 'Note'"):
        Session()[Plan].apply(Note("x"))


def test_a_class_known_by_one_name_is_installed_once():
    @dataclass(frozen=True, slots=True)
    class Ping:
        pass

    @dataclass(frozen=True, slots=True)
    class Pings:
        count: int = 0

        @reducer(on=Ping)
        def ping(self, event: Ping) -> "Pings":
            return replace(self, count=self.count + 1)

    session = Session()
    session.dispatch(Ping())
    assert session[Pings].all() == (Pings(1),)
    assert [kind.__name__ for kind in session.snapshot().slices].count("Pings") == 1


def test_a_slice_defined_after_the_first_dispatch_is_known_too():
    @dataclass(frozen=True)
    class Ping:
        pass

    session = Session()
    session.dispatch(Ping())

    @dataclass(frozen=True)
    class Late:
        count: int = 0

        @reducer(on=Ping)
        def ping(self, event: Ping) -> "Late":
            return replace(self, count=self.count + 1)

    session.dispatch(Ping())
    assert session[Late].latest() == Late(1)


def test_a_slice_class_that_is_gone_is_forgotten():
    @dataclass(frozen=True)
    class Ping:
        pass

    def define() -> None:
        @dataclass(frozen=True)
        class Gone:
            @reducer(on=Ping)
            def ping(self, event: Ping) -> "Gone":
                return self

    define()
    gc.collect()
    session = Session()
    session.dispatch(Ping())
    assert session.snapshot().slices == (Ping,)


def test_one_method_may_reduce_several_events_and_is_still_a_method():
    @dataclass(frozen=True)
    class Seen:
        count: int = 0

        @reducer(on=Added)
        @reducer(on=Dropped)
        def see(self, event: object) -> "Seen":
            """Count anything."""
            return replace(self, count=self.count + 1)

    session = Session()
    session.dispatch(Added("a"))
    session.dispatch(Dropped())
    assert session[Seen].latest() == Seen(2) == Seen(1).see(Dropped())


def test_an_inherited_reducer_runs_on_the_subclass():
    @dataclass(frozen=True)
    class LongPlan(Plan):
        def add(self, event: Added) -> "LongPlan":
            return LongPlan((*self.steps, event.step * 2))

    session = Session()
    session[LongPlan].apply(Added("a"))
    assert session[LongPlan].latest() == LongPlan(("aa",))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Append(Note("n")), ("a", "b", "n")),
        (Extend([Note("n"), Note("m")]), ("a", "b", "n", "m")),
        (Replace((Note("n"), Note("m"))), ("n", "m")),
        (Replace(Note("n")), ("n",)),
        (Clear(), ()),
        (Clear(lambda note: note.text == "a"), ("b",)),
        (Note("n"), ("n",)),
        ((Note("n"), Note("m")), ("n", "m")),
        ((), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_function_reducer_returns_becomes_the_slice(result, expected):
    session = Session()
    session[Note].seed([Note("a"), Note("b")])
    session[Note].register(Added, lambda view, event: result)
    session.dispatch(Added("x"))
    assert tuple(note.text for note in session[Note].all()) == expected


@pytest.mark.parametrize(
    "result", [None, "text", 3, Added("x"), Append("text"), Replace(3), [Note("n"), "text"]], ids=repr
)
def test_any_other_result_is_an_error_and_changes_nothing(result):
    session = Session()
    session[Note].seed([Note("a")])
    session[Note].register(Added, lambda view, event: result)
    with pytest.raises(SessionError, match="Reducer of slice 'Note' for event 'Added'"):
        session.dispatch(Added("x"))
    assert (session[Note].all(), session[Added].all()) == ((Note("a"),), ())


def test_a_function_reducer_sees_the_items_so_far():
    session = Session()
    session[Note].register(Added, lambda view, event: Append(Note(f"{len(view)}:{event.step}")))
    session.dispatch(Added("a"))
    session.dispatch(Added("b"))
    assert session[Note].all() == (Note("0:a"), Note("1:b"))


def test_a_reducer_on_the_slice_of_its_own_event_can_bound_the_slice():
    session = Session()
    session[Note].register(Note, lambda view, event: (*view[-1:], event))
    for text in "abc":
        session.dispatch(Note(text))
    assert session[Note].all() == (Note("b"), Note("c"))


def test_a_reducer_may_turn_events_that_are_no_dataclass_into_items():
    session = Session()
    session[Note].register(str, lambda view, event: Append(Note(event)))
    session.dispatch("hello")
    assert session[Note].all() == (Note("hello"),)


def test_a_reducer_that_raises_is_named_and_the_whole_dispatch_is_undone():
    session = Session()
    session[Note].register(Added, lambda view, event: Append(Note(event.step)))
    session.dispatch(Added("a"))
    with pytest.raises(SessionError, match=r"'Plan' for event 'Added' raised ValueError\('no such step'\)") as caught:
        session.dispatch(Added("bad"))
    assert isinstance(caught.value.__cause__, ValueError)
    assert session[Plan].latest() == Plan(("a",))
    assert (session[Note].all(), session[Added].all()) == ((Note("a"),), (Added("a"),))
    session.dispatch(Added("b"))
    assert session[Plan].latest() == Plan(("a", "b"))


def test_an_interrupt_inside_a_reducer_changes_nothing_and_goes_through():
    session = Session()

    def interrupted(view: object, event: Added) -> Note:
        raise KeyboardInterrupt

    session[Note].register(Added, interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.dispatch(Added("a"))
    assert session[Added].all() == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session.dispatch(Note("x")),
        lambda session: session[Note].append(Note("x")),
        lambda session: session[Plan].apply(Added("x")),
        lambda session: session.restore(session.snapshot()),
        lambda session: session.install(Plan),
    ],
)
def test_a_reducer_that_changes_its_own_session_is_refused(change):
    session = Session()
    session[Plan].register(Dropped, lambda view, event: change(session))
    with pytest.raises(SessionError, match="A reducer must not change its own session"):
        session.dispatch(Dropped())
    assert session[Dropped].all() == ()
    session.dispatch(Note("after"))
    assert session[Note].all() == (Note("after"),)


def test_a_reducer_may_read_its_session():
    session = Session()
    session[Note].seed([Note("a")])
    session[Plan].register(Note, lambda view, event: Plan((f"{len(session[Note])}",)))
    session.dispatch(Note("b"))
    assert session[Plan].latest() == Plan(("2",))


def test_a_value_with_a_mapping_is_reduced_like_any_other():
    @dataclass(frozen=True, slots=True)
    class Opened:
        path: tuple[str, ...]

    @dataclass(frozen=True, slots=True)
    class Visibility:
        overrides: Mapping[tuple[str, ...], str] = field(default_factory=dict)

        @reducer(on=Opened)
        def open(self, event: Opened) -> "Visibility":
            return Visibility({**self.overrides, event.path: "full"})

    session = Session()
    session.dispatch(Opened(("a", "b")))
    assert session[Visibility].latest() == Visibility({("a", "b"): "full"})


def test_the_decorator_needs_a_class():
    with pytest.raises(SessionError, match=r"must be given an event class, got 'Added'"):
        reducer(on="Added")


@dataclass(frozen=True)
class Fact:
    key: str
    value: int = 0


def newest_of_each_key(facts, fact):
    return (*(other for other in facts if other.key != fact.key), fact)


def test_a_reducer_for_a_slice_s_own_type_takes_the_place_of_the_append():
    session = Session()
    session[Fact].register(Fact, newest_of_each_key)
    for fact in (Fact("a", 1), Fact("b", 1), Fact("a", 2)):
        session.dispatch(fact)
    assert session[Fact].all() == (Fact("b", 1), Fact("a", 2))
    session[Fact].apply(Fact("b", 3))
    assert session[Fact].all() == (Fact("a", 2), Fact("b", 3))


def test_an_own_type_reducer_may_keep_nothing_and_observers_still_hear_the_event():
    session, heard = Session(), []
    session[Fact].register(Fact, lambda facts, fact: Append(fact) if fact not in facts else tuple(facts))
    session.observe(heard.append)
    for _ in range(3):
        session.dispatch(Fact("a"))
    assert (session[Fact].all(), len(heard)) == ((Fact("a"),), 3)


def test_reducers_of_other_slices_run_beside_an_own_type_reducer():
    session = Session()
    session[Fact].register(Fact, newest_of_each_key)
    session[Added].register(Fact, lambda items, fact: Append(Added(fact.key)))
    session.dispatch(Fact("a"))
    session.dispatch(Fact("a"))
    assert (session[Fact].all(), session[Added].all()) == ((Fact("a"),), (Added("a"), Added("a")))


def test_an_own_type_reducer_that_raises_changes_nothing():
    session = Session()
    session[Fact].seed([Fact("a")])
    session[Fact].register(Fact, lambda facts, fact: 1 / 0)
    with pytest.raises(SessionError, match="Reducer of slice 'Fact' for event 'Fact' raised ZeroDivisionError"):
        session.dispatch(Fact("b"))
    assert session[Fact].all() == (Fact("a"),)


def test_a_reducer_registered_for_a_base_class_leaves_the_append_alone():
    @dataclass(frozen=True)
    class Detail(Fact):
        more: str = ""

    session = Session()
    session[Detail].register(Fact, lambda items, fact: Append(Detail(fact.key, more="copy")))
    session.dispatch(Detail("a"))
    assert session[Detail].all() == (Detail("a"), Detail("a", more="copy"))


def test_a_clone_and_a_rollback_keep_the_own_type_reducer():
    session = Session()
    session[Fact].register(Fact, newest_of_each_key)
    session.dispatch(Fact("a", 1))
    before = session.snapshot()
    session.dispatch(Fact("a", 2))
    session.restore(before)
    clone = session.clone()
    clone.dispatch(Fact("a", 3))
    assert (session[Fact].all(), clone[Fact].all()) == ((Fact("a", 1),), (Fact("a", 3),))
