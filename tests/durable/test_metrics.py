"""What a worker reports to OpenTelemetry."""

from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE
from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter
from weakincentives.durable import DurableConversations, measured

TEMPLATE = PromptTemplate[None](
    ns="tests", key="desk", sections=[MarkdownSection(title="Desk", key="desk", template="Answer.")]
)


def test_a_worker_reports_what_waits_and_what_it_has_done(tmp_path: Path) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def figures() -> dict[str, Any]:
        found = reader.get_metrics_data()
        metrics = [
            each for resource in found.resource_metrics for scope in resource.scope_metrics for each in scope.metrics
        ]
        return {each.name: sum(point.value for point in each.data.data_points) for each in metrics}

    adapter = ScriptedAdapter(lambda request: "Hello there.", model="gpt-5.6")
    chats = DurableConversations[None]("desk", lambda name: Prompt(TEMPLATE), adapter, str(tmp_path / "durable.db"))
    with chats, measured(chats, provider):
        for name in ("ann", "bob"):
            chats.stream(name, "Hello.")
        waiting = figures()
        assert (waiting["wink.work.queued"], waiting["wink.work.running"]) == (2, 0)
        chats.start()
        for name in ("ann", "bob"):
            chats.send(name, "And?", timeout=PATIENCE)
        done = figures()
    assert (done["wink.work.queued"], done["wink.work.oldest"], done["wink.work.runs"]) == (0, 0, 4)
    assert done["wink.work.tokens"] > 0 and done["wink.work.cost"] > 0
    provider.shutdown()
