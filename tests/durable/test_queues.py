"""How much runs at once: per worker, per tenant, per second."""

import threading
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from tests.durable.desk import Question, prompt_with
from tests.waiting import PATIENCE
from weakincentives import ScriptedAdapter
from weakincentives.durable import DurableError, DurableMainLoop, QueueLimits
from weakincentives.durable.database import status_table as status
from weakincentives.runtime import ModelRequest


class Gauge:
    """A model that counts how many of its calls run at the same time, by the last word of the prompt.

    Calls wait until `together` calls of one tenant run, and a moment longer to see one too many.
    """

    def __init__(self, together: int) -> None:
        self.most: Counter[str] = Counter()
        self._together = together
        self._now: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __call__(self, request: ModelRequest) -> str:
        tenant = request.messages[0].text.split("tenant ")[1].split()[0]
        with self._changed:
            for name in (tenant, "all"):
                self._now[name] += 1
                self.most[name] = max(self.most[name], self._now[name])
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most[tenant] >= self._together, PATIENCE)
            self._changed.wait_for(lambda: self.most[tenant] > self._together, 0.05)
            self._now.subtract([tenant, "all"])
        return "done"


def work_off(database_url: str, limits: QueueLimits, tenants: str, together: int = 2) -> tuple[Gauge, list[int]]:
    """Run work for these tenants ("-": none); returns what the model saw, and when each run started in milliseconds."""
    gauge = Gauge(together)
    loop: DurableMainLoop[Any, Any]
    with DurableMainLoop("gauge", prompt_with(), ScriptedAdapter(gauge), database_url) as loop:
        loop.start(limits=limits)
        for number, tenant in enumerate(tenants):
            loop.submit(Question(f"tenant {tenant}"), key=f"{number}", tenant=tenant.strip("-"))
        for number in range(len(tenants)):
            assert loop.result(f"{number}").text == "done"
        with loop.store.engine.connect() as connection:
            started = connection.execute(sa.select(status.c.started_at_epoch_ms)).scalars().all()
    return gauge, sorted(started)


def test_a_worker_runs_at_most_its_concurrency_at_once(database_url: str) -> None:
    gauge, _ = work_off(database_url, QueueLimits(concurrency=2), "aaaaaa")
    assert gauge.most["all"] == 2


def test_a_tenant_runs_at_most_its_concurrency_at_once(database_url: str) -> None:
    gauge, _ = work_off(database_url, QueueLimits(concurrency=8, tenant_concurrency=2), "aaaaaabb")
    assert (gauge.most["a"], gauge.most["b"] <= 2) == (2, True)


def test_work_without_a_tenant_is_not_limited_as_if_it_had_one(database_url: str) -> None:
    gauge, _ = work_off(database_url, QueueLimits(concurrency=8, tenant_concurrency=1), "----", together=4)
    assert gauge.most["-"] == 4


@pytest.mark.parametrize("limit", ["concurrency", "tenant_concurrency", "rate"])
def test_a_limit_that_lets_nothing_run_is_refused(limit: str) -> None:
    with pytest.raises(DurableError, match=f"QueueLimits.{limit} must be"):
        QueueLimits(**{limit: 0})


def test_the_rate_limits_how_often_work_starts(postgres_url: str) -> None:
    _, started = work_off(postgres_url, QueueLimits(rate=5.0), "aaaaaaaa", together=1)
    assert all(later - earlier >= 990 for earlier, later in zip(started, started[5:], strict=False))
