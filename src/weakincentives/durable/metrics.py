"""The metrics of a worker for OpenTelemetry: what waits, for how long, and what was run, used and spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weakincentives._base.imports import import_extra
from weakincentives.durable.process import DurableWorker
from weakincentives.durable.work import DurableError
from weakincentives.runtime import ModelCalled, RunEnded, SectionsRanked
from weakincentives.runtime.spi import prices_for
from weakincentives.session import Session, observing

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

SCOPE = "weakincentives.durable"
# After these, the run goes on, here or elsewhere.
_NOT_OVER = ("restarted", "recovered", "suspended", "halted")


@contextmanager
def measured(worker: DurableWorker, meter_provider: MeterProvider | None = None) -> Iterator[None]:
    """Report the metrics of a worker while the block runs, to the global provider if none is given.

    Gauges: `wink.work.queued` and `wink.work.oldest`, the age in seconds of the oldest in the queue, of all workers
    together; `wink.work.running` in this one. Counters: `wink.work.runs` by status, `wink.work.tokens` by type, and
    `wink.work.cost` in US dollars, for models whose prices are known.
    """
    metrics = import_extra("opentelemetry.metrics", "otel", "measured()")
    meter, labels = metrics.get_meter(SCOPE, meter_provider=meter_provider), {"wink.loop": worker.name}
    is_open = True

    def gauge(name: str, unit: str, read: Callable[[], float]) -> None:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            try:
                if is_open:
                    yield metrics.Observation(read(), labels)
            except DurableError:
                pass  # Without a database there is nothing to report; the worker logs that.

        meter.create_observable_gauge(name, [observe], unit=unit)

    gauge("wink.work.queued", "{run}", lambda: worker.store.backlog(worker.name)[0])
    gauge("wink.work.oldest", "s", lambda: worker.store.backlog(worker.name)[1])
    gauge("wink.work.running", "{run}", lambda: worker.health().running)
    runs = meter.create_counter("wink.work.runs", unit="{run}")
    tokens = meter.create_counter("wink.work.tokens", unit="{token}")
    cost = meter.create_counter("wink.work.cost", unit="USD")

    def see(session: Session, event: Any) -> None:
        if isinstance(event, RunEnded) and event.status not in _NOT_OVER and not event.parent_run_id:
            runs.add(1, {**labels, "wink.status": event.status})
        elif isinstance(event, ModelCalled | SectionsRanked):
            tokens.add(event.usage.input_tokens, {**labels, "gen_ai.token.type": "input"})
            tokens.add(event.usage.output_tokens, {**labels, "gen_ai.token.type": "output"})
            prices = prices_for(event.model)
            spent = event.cost if isinstance(event, SectionsRanked) else prices and prices.cost(event.usage)
            if spent is not None:
                cost.add(spent, {**labels, "gen_ai.request.model": event.model})

    try:
        with observing(see):
            yield
    finally:
        is_open = False
