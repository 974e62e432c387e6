"""Reading and writing `session[Type]`."""

from dataclasses import dataclass

import pytest

from weakincentives.session import Session, SessionError


@dataclass(frozen=True, slots=True)
class Note:
    text: str


@dataclass(frozen=True, slots=True)
class Urgent(Note):
    pass


def test_every_dispatched_event_is_kept_in_the_slice_of_its_type():
    session = Session()
    session.dispatch(Note("a"))
    session.broadcast(Urgent("b"))
    assert session[Note].all() == (Note("a"),)
    assert session[Urgent].all() == (Urgent("b"),)


def test_an_untouched_slice_is_empty():
    session = Session()
    assert (session[Note].all(), session[Note].latest(), len(session[Note])) == ((), None, 0)


def test_where_picks_items_in_order():
    session = Session()
    session[Note].seed([Note("a"), Note("bb"), Note("c")])
    assert session[Note].where(lambda note: len(note.text) == 1) == (Note("a"), Note("c"))


def test_seed_replaces_what_was_there_with_many_or_one():
    session = Session()
    session[Note].append(Note("old"))
    session[Note].seed([Note("a"), Note("b")])
    assert session[Note].all() == (Note("a"), Note("b"))
    session[Note].seed(Note("c"))
    assert session[Note].latest() == Note("c")


def test_clear_drops_everything_or_what_matches():
    session = Session()
    session[Note].seed([Note("a"), Note("b")])
    session[Note].clear(lambda note: note.text == "a")
    assert session[Note].all() == (Note("b"),)
    session[Note].clear()
    assert session[Note].all() == ()


def test_an_item_of_another_type_is_refused():
    session = Session()
    with pytest.raises(SessionError, match="Items of slice 'Note' must be of that type, got 'x'"):
        session[Note].append("x")
    with pytest.raises(SessionError, match="must be of that type, got 3"):
        session[Note].seed([Note("a"), 3])
    assert session[Note].all() == ()


def test_a_slice_is_named_by_its_class():
    with pytest.raises(SessionError, match="must be given a class, got 'Note'"):
        Session()["Note"]


def test_a_view_is_a_sequence_that_later_changes_do_not_reach():
    session = Session()
    session[Note].seed([Note("a"), Note("b"), Note("c")])
    view = session[Note].view()
    session[Note].append(Note("d"))
    assert list(view) == [Note("a"), Note("b"), Note("c")]
    assert (len(view), view[0], view[-1]) == (3, Note("a"), Note("c"))
    assert (view[1:], view[-2:], view[::-1]) == (view.all()[1:], view.all()[-2:], view.all()[::-1])
    assert (view.latest(), Note("d") in view) == (Note("c"), False)
    assert view.where(lambda note: note.text > "a") == (Note("b"), Note("c"))
    with pytest.raises(IndexError):
        view[3]


def test_a_view_keeps_its_items_when_the_session_goes_back():
    session = Session()
    before = session.snapshot()
    session[Note].seed([Note("a")])
    view = session[Note].view()
    session.restore(before)
    session[Note].append(Note("other"))
    assert view.all() == (Note("a"),)


def test_iterating_a_slice_while_it_grows_ends():
    session = Session()
    session[Note].seed([Note("a"), Note("b")])
    for note in session[Note]:
        session[Note].append(note)
    assert len(session[Note]) == 4


def test_an_event_that_no_slice_can_keep_is_refused():
    with pytest.raises(SessionError, match="must be a dataclass or have a reducer, got a 'str'"):
        Session().dispatch("hello")
    with pytest.raises(SessionError, match="got a 'type'"):
        Session().dispatch(Note)


def test_apply_of_an_own_event_appends_it_to_that_slice_only():
    session = Session()
    session[Note].apply(Urgent("b"))
    assert (session[Note].all(), session[Urgent].all()) == ((Urgent("b"),), ())
