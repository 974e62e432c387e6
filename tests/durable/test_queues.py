"""How much runs at once: per worker, per tenant, per second."""

import threading
import time
from collections import Counter
from typing import Any

from tests.durable.test_loop import Question, prompt_with
from weakincentives import ScriptedAdapter
from weakincentives.durable import DurableMainLoop, QueueLimits
from weakincentives.runtime import ModelRequest


class Gauge:
    """A model that counts how many of its calls run at the same time, by the last word of the prompt."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.started: list[float] = []
        self._now: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: ModelRequest) -> str:
        tenant = request.messages[0].text.split("tenant ")[1].split()[0]
        with self._lock:
            self.started.append(time.monotonic())
            for name in (tenant, "all"):
                self._now[name] += 1
                self.most[name] = max(self.most[name], self._now[name])
        time.sleep(0.05)
        with self._lock:
            self._now.subtract([tenant, "all"])
        return "done"


def work_off(database_url: str, limits: QueueLimits, tenants: str) -> Gauge:
    gauge = Gauge()
    loop: DurableMainLoop[Any, Any]
    with DurableMainLoop("gauge", prompt_with(), ScriptedAdapter(gauge), database_url) as loop:
        loop.start(limits=limits)
        for number, tenant in enumerate(tenants):
            loop.submit(Question(f"tenant {tenant}"), key=f"{number}", tenant=tenant)
        for number in range(len(tenants)):
            assert loop.result(f"{number}").text == "done"
    return gauge


def test_a_worker_runs_only_so_many_at_once(database_url: str) -> None:
    assert work_off(database_url, QueueLimits(concurrency=2), "aaaaaa").most["all"] == 2


def test_a_tenant_takes_only_its_share(database_url: str) -> None:
    most = work_off(database_url, QueueLimits(concurrency=8, tenant_concurrency=2), "aaaaaabb").most
    assert (most["a"], most["b"] <= 2) == (2, True)


def test_starts_are_spread_over_time(postgres_url: str) -> None:
    started = work_off(postgres_url, QueueLimits(rate=5.0), "aaaaaaaa").started
    assert all(later - earlier > 0.8 for earlier, later in zip(started, started[5:], strict=False))
