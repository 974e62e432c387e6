"""Real workers that die under durable conversations: streams begin again, and nothing is lost, doubled or reordered."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.chaos import Plan, restart, run_round
from bench.clerk import answer_to, chats
from tests import warm
from tests.durable.fleet import PRELOAD, Worker
from tests.durable.postgres import new_database, running_server
from tests.rounds import rounds
from tests.waiting import PATIENCE, until
from weakincentives.durable import DeadLetterError, DurableConversations
from weakincentives.runtime import Completed, Restarted, TextDelta

pytestmark = pytest.mark.slow


@contextmanager
def worker(control: Path, database_url: str, attempts: int = 5) -> Iterator[Worker]:
    started = Worker(control, database_url, loop="bench.clerk:chats", attempts=attempts)
    try:
        started.wait_for("works on")
        yield started
    finally:
        started.discard()


@pytest.fixture
def clerk(database_url: str) -> Iterator[DurableConversations[None]]:
    """The clerk's conversations, as a client has them."""
    chats.database_url = database_url
    with chats:
        yield chats


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_another_worker_goes_on_with_an_answer_and_its_stream_is_read_once(
    clerk: DurableConversations[None], database_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    (tmp_path / "hold").write_text("letter")
    with worker(tmp_path, database_url) as first:
        stream = clerk.stream("ann", "letter 1")
        later = clerk.stream("ann", "parcel 2")
        begun = [next(stream)]
        while not isinstance(begun[-1], TextDelta):
            begun.append(next(stream))
        first.signal(how)
        (tmp_path / "hold").unlink()
        first.end()
    with worker(tmp_path, database_url):
        rest = list(stream)
        if how == signal.SIGKILL:
            assert isinstance(rest[0], Restarted)
        again = max((at for at, event in enumerate(rest) if isinstance(event, Restarted)), default=None)
        events = rest[again + 1 :] if again is not None else [*begun, *rest]
        shown = "".join(event.text for event in events if isinstance(event, TextDelta))
        end = events[-1]
        assert isinstance(end, Completed) and shown == end.response.text == answer_to("letter 1")
        assert list(clerk.stream("ann"))[-1] == list(later)[-1]
        assert clerk.send("ann", "note 3", timeout=PATIENCE).text == answer_to("note 3")
    booked = [line.split(" ", 1) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [text for _, text in booked] == ["letter 1", "parcel 2", "note 3"]


def test_a_run_that_kills_its_workers_is_given_up_and_its_conversation_goes_on(tmp_path: Path) -> None:
    chats.database_url = database_url = str(tmp_path / "durable.db")
    (tmp_path / "hold").write_text("poison")
    with chats:
        stream = chats.stream("ann", "poison 1")
        for _ in range(2):
            (tmp_path / "held").unlink(missing_ok=True)
            with worker(tmp_path, database_url, attempts=2) as victim:
                until((tmp_path / "held").exists, "the answer to begin")
                os.kill(victim.pid, signal.SIGKILL)
        with worker(tmp_path, database_url, attempts=2):
            with pytest.raises(DeadLetterError, match="'clerk/ann:1' was given up"):
                list(stream)
            assert chats.send("ann", "note 2", timeout=PATIENCE).text == answer_to("note 2")


def test_nothing_is_lost_doubled_or_reordered_while_workers_die_and_the_database_restarts(tmp_path: Path) -> None:
    plan = Plan(conversations=rounds(8, 24), exchanges=4, kill_every=1.0, restarts=(2.0,), latency=0.05)
    start = partial(warm.start, preload=PRELOAD)
    with running_server() as server:
        report = run_round(plan, new_database(server.get_uri()), tmp_path, restart(server), start=start)
    assert (report.problems, report.killed > 0, report.restarted) == ((), True, 1)
