"""The session as a whole: observers, claims, clones, threads, the bus."""

import logging
from dataclasses import dataclass, replace
from threading import Thread

import pytest

from weakincentives.clock import FakeClock
from weakincentives.session import Append, Bus, Session, SessionBusyError, observing, reducer


@dataclass(frozen=True, slots=True)
class Hit:
    by: int = 1


@dataclass(frozen=True, slots=True)
class Hits:
    total: int = 0

    @reducer(on=Hit)
    def add(self, event: Hit) -> "Hits":
        return replace(self, total=self.total + event.by)


@dataclass(frozen=True, slots=True)
class Note:
    text: str


def test_sessions_have_ids_of_their_own_or_the_given_one():
    clock = FakeClock()
    assert Session().session_id != Session().session_id
    session = Session(session_id="mine", clock=clock)
    assert (session.session_id, session.clock, repr(session)) == ("mine", clock, "Session('mine')")


def test_observers_hear_events_after_they_were_reduced_until_they_leave():
    session, heard = Session(), []
    leave = session.observe(lambda event: heard.append((event, session[Hits].latest())))
    session.dispatch(Hit(2))
    session[Hits].apply(Hit(3))
    leave()
    leave()
    session.dispatch(Hit(4))
    assert heard == [(Hit(2), Hits(2)), (Hit(3), Hits(5))]


def test_an_observer_that_raises_is_logged_and_the_others_still_hear(caplog):
    session, heard = Session(), []

    def broken(event: object) -> None:
        raise RuntimeError("broken observer")

    session.observe(broken)
    session.observe(heard.append)
    with caplog.at_level(logging.ERROR):
        session.dispatch(Hit())
    assert heard == [Hit()]
    assert "failed on Hit" in caplog.text and "broken observer" in caplog.text


def test_a_failed_dispatch_is_not_heard():
    session, heard = Session(), []
    session[Note].register(Hit, lambda view, event: Append(Note(event.nothing)))
    session.observe(heard.append)
    with pytest.raises(Exception, match="nothing"):
        session.dispatch(Hit())
    assert heard == []


def test_an_observer_may_dispatch():
    session = Session()
    session.observe(lambda event: session.dispatch(Note("seen")) if isinstance(event, Hit) else None)
    session.dispatch(Hit())
    assert session[Note].all() == (Note("seen"),)


def test_observers_that_compare_as_equal_are_told_apart():
    @dataclass
    class Collector:
        heard: list[object]

        def __call__(self, session: Session, event: object) -> None:
            self.heard.append(event)

    first, second = Collector([]), Collector([])
    with observing(first):
        with observing(second):
            Session().dispatch(Note("both"))
        Session().dispatch(Note("first"))
    assert (first.heard, second.heard) == ([Note("both"), Note("first")], [Note("both")])


def test_observing_hears_every_session_of_the_process():
    first, second, heard = Session(), Session(), []
    with observing(lambda session, event: heard.append((session, event))):
        with observing(lambda session, event: 1 / 0):
            first.dispatch(Hit())
        second[Hits].apply(Hit(2))
    first.dispatch(Hit(3))
    assert heard == [(first, Hit()), (second, Hit(2))]


def test_a_claimed_session_refuses_a_second_run_and_names_the_way_out():
    session = Session(session_id="s")
    with session.claim("first run"):
        refused = pytest.raises(
            SessionBusyError, match=r"'s' is in use by 'first run', so 'second'.*session\.clone\(\)"
        )
        with refused, session.claim("second"):
            pass
        with session.clone().claim("second"):
            pass
    with session.claim("third"):
        pass


def test_a_claim_ends_with_its_block_even_by_an_error():
    session = Session()
    with pytest.raises(ZeroDivisionError), session.claim("run"):
        _ = 1 / 0
    with session.claim("again"):
        pass


def test_a_clone_starts_equal_and_goes_its_own_way():
    session = Session(clock=FakeClock())
    session.dispatch(Hit(2))
    clone = session.clone(session_id="clone")
    clone.dispatch(Hit(3))
    session.dispatch(Hit(10))
    assert (session[Hits].latest(), clone[Hits].latest()) == (Hits(12), Hits(5))
    assert (session[Hit].all(), clone[Hit].all()) == ((Hit(2), Hit(10)), (Hit(2), Hit(3)))
    assert (clone.session_id, clone.clock) == ("clone", session.clock)


def test_a_clone_keeps_function_reducers_and_initial_values():
    session = Session()
    session[Note].register(Hit, lambda view, event: Append(Note("hit")))
    session.install(Hits, initial=lambda: Hits(100))
    clone = session.clone()
    clone.dispatch(Hit())
    clone[Hits].clear()
    assert (clone[Note].all(), clone[Hits].latest()) == ((Note("hit"),), Hits(100))
    assert session[Note].all() == ()


def test_a_clone_copies_observers_only_when_asked():
    session, heard = Session(), []
    session.observe(heard.append)
    session.clone().dispatch(Hit())
    assert heard == []
    session.clone(observers=True).dispatch(Hit())
    assert heard == [Hit()]


def test_no_update_is_lost_between_threads():
    session, heard = Session(), []
    session.observe(heard.append)
    session[Note].register(Hit, lambda view, event: Append(Note(str(len(view)))))

    def hit() -> None:
        for _ in range(250):
            session.dispatch(Hit())
            session[Note].latest()

    threads = [Thread(target=hit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session[Hits].latest() == Hits(2000)
    assert [note.text for note in session[Note]] == [str(number) for number in range(2000)]
    assert len(session[Hit]) == len(heard) == 2000


def test_clones_that_share_a_history_do_not_write_into_each_other():
    session = Session()
    session[Note].seed([Note("root")])
    clones = [session.clone() for _ in range(8)]

    def write(number: int) -> None:
        for _ in range(200):
            clones[number][Note].append(Note(str(number)))

    threads = [Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session[Note].all() == (Note("root"),)
    assert all(clone[Note].all() == (Note("root"), *[Note(str(n))] * 200) for n, clone in enumerate(clones))


def test_a_bus_delivers_by_type_and_survives_a_bad_handler(caplog):
    bus, hits, everything = Bus(), [], []
    bus.subscribe(Hit, hits.append)
    bus.subscribe(Hit, lambda event: 1 / 0)
    leave = bus.subscribe(object, everything.append)
    bus.dispatch(Hit())
    bus.dispatch(Note("n"))
    leave()
    bus.dispatch(Note("unheard"))
    assert (hits, everything) == ([Hit()], [Hit(), Note("n")])
    assert "ZeroDivisionError" in caplog.text
