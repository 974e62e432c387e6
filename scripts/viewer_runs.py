"""Runs for screenshots and tests of the viewer: an on-call agent that opens its runbooks as it needs them.

The model is scripted and the clock is fake; everything else is the library, recorded like any run.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

from weakincentives import MainLoop, MarkdownSection, Prompt, PromptTemplate, Session, ToolResult
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import Clock, FakeClock
from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    Disclosure,
    OpenOrRead,
    ReadSections,
    SectionVisibility,
    Tool,
    ToolContext,
    default_tokenizer,
)
from weakincentives.runtime import ModelReply, ModelRequest, ToolCall
from weakincentives.telemetry import record

SUMMARY = SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Alert:
    service: str = "checkout"
    text: str = "p99 latency 4.8 s (limit 800 ms), error rate 6.2 % since 09:12 UTC"


@dataclass(frozen=True)
class Resolution:
    cause: str
    action: str
    customer_impact: str
    follow_up: list[str]


@dataclass(frozen=True)
class LogQuery:
    service: str
    pattern: str
    minutes: int = 30


@dataclass(frozen=True)
class Service:
    service: str


@dataclass(frozen=True)
class Rollback:
    service: str
    version: str


@dataclass(frozen=True)
class Status:
    title: str
    text: str


@dataclass(frozen=True)
class Deployed:
    service: str
    version: str


LOG_LINES = """\
09:12:03 checkout-7f9c WARN  pool exhausted: 20/20 connections in use, 41 waiting
09:12:04 checkout-7f9c ERROR POST /cart/confirm 503 after 4 812 ms (trace 5be1)
09:12:04 checkout-2b1d ERROR POST /cart/confirm 503 after 4 790 ms (trace 91c0)
09:12:09 checkout-7f9c WARN  slow query 3 920 ms: SELECT * FROM coupons WHERE lower(code) = $1
09:12:11 checkout-2b1d WARN  slow query 4 105 ms: SELECT * FROM coupons WHERE lower(code) = $1
… 214 more lines"""


def search_logs(params: LogQuery, *, context: ToolContext) -> ToolResult[None]:
    context.session.clock.sleep(0.42)
    return ToolResult(message=f"219 lines of {params.service} match '{params.pattern}':\n{LOG_LINES}")


def list_deploys(params: Service, *, context: ToolContext) -> ToolResult[None]:
    context.session.clock.sleep(0.18)
    return ToolResult(
        message="2026.11.15-1  09:08 UTC  mira   coupon codes are case-insensitive\n"
        "2026.11.14-3  yesterday  jonas  new receipt layout\n"
        "2026.11.14-1  yesterday  mira   retry payment webhooks"
    )


def roll_back(params: Rollback, *, context: ToolContext) -> ToolResult[Deployed]:
    context.session.dispatch(Deployed(params.service, params.version))
    if params.version == "2026.11.15-1":
        return ToolResult(
            message="Refused: 2026.11.15-1 is the version that is running. Name the version to go back to.",
            success=False,
        )
    context.session.clock.sleep(38)
    return ToolResult(message=f"{params.service} is back on {params.version}; 12 of 12 pods are ready.")


def post_status(params: Status, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(message=f"Published: {params.title}")


def nothing(params: Service, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(message="Nothing to report.")


def tool(name: str, description: str, params_type: type[Any], handler: Callable[..., Any]) -> Tool[Any, Any]:
    return Tool(name=name, description=description, params_type=params_type, handler=handler)


def section(key: str, title: str, text: str, summary: str = "", **options: Any) -> MarkdownSection[None]:
    """A section whose text is wrapped here, and rendered as paragraphs and lists."""
    if summary:
        options |= {"summary": summary, "visibility": SUMMARY}
    unfolded = re.sub(r"(?<!\n)\n *(?!\n|- |\d\. )", " ", dedent(text).strip())
    return MarkdownSection(key=key, title=title, template=unfolded, **options)


def on_call_template(disclosure: Disclosure | None = None) -> PromptTemplate[Resolution]:
    """The agent's prompt: a small core, and sections that wait to be opened."""
    return PromptTemplate[Resolution](
        ns="operations",
        key="on-call",
        name="on-call",
        disclosure=disclosure or ReadSections(),
        sections=[
            section(
                "role",
                "Role",
                """
                You are on call for an online shop. Find the cause of the alert, stop the damage, and leave the
                system in a state that a colleague can take over. Prefer the smallest reversible action.
                """,
            ),
            MarkdownSection[Alert](
                key="alert", title="Alert", template="Service: **${service}**\n\n${text}", default_params=Alert()
            ),
            section(
                "logs",
                "Logs",
                """
                Logs are kept for 14 days and searched with a regular expression. Start with `WARN|ERROR` over the
                last half hour, then narrow down by trace. Times are UTC. Lines of one request share a trace id.

                - `pool exhausted` means that requests wait for a database connection, not that the database is down.
                - `slow query` is logged above 1 s and names the statement.
                - 503 with a duration near 4 800 ms is our own timeout, not the payment provider's.
                """,
                "How to search the logs of every service, and what the usual messages mean.",
                tools=[tool("search_logs", "Search the logs of a service.", LogQuery, search_logs)],
            ),
            section(
                "deployments",
                "Deployments",
                """
                Every service is deployed on its own. A rollback takes about 40 s, keeps the database as it is, and
                is always allowed when a deployment is younger than 24 hours and has no migration.

                Before a rollback, compare the time of the deployment with the time of the alert. After it, wait for
                all pods to be ready before you tell anybody.
                """,
                "What is deployed where, since when, and how to go back.",
                tools=[
                    tool("list_deploys", "The last deployments of a service.", Service, list_deploys),
                    tool("roll_back", "Go back to an earlier version of a service.", Rollback, roll_back),
                ],
            ),
            section(
                "runbooks",
                "Runbooks",
                "One runbook per service that has paged more than twice this year.",
                "Known failure patterns of checkout, search and payments.",
                children=[
                    section(
                        "checkout",
                        "Checkout",
                        """
                        1. Pool exhausted, slow `coupons` query: an expression on `code` defeats its index. Roll back.
                        2. Pool exhausted, no slow query: a leak. Restart one pod and watch its pool for 5 minutes.
                        3. 502 from payments only: switch to the second provider, see the payments runbook.
                        """,
                        "Pool exhaustion, coupon queries, payment timeouts.",
                    ),
                    section(
                        "search",
                        "Search",
                        """
                        Reindexing starves queries when it runs by day. Pause it with the feature flag
                        `search.reindex` and let it run at night. Stale results for an hour are acceptable.
                        """,
                        "Reindexing, stale results, slow facets.",
                    ),
                    section(
                        "payments",
                        "Payments",
                        """
                        Timeouts of the first provider above 2 % for 5 minutes: switch to the second. Never switch
                        back within the hour. Webhooks are retried for 3 days, so nothing is lost.
                        """,
                        "Provider timeouts, webhooks, switching providers.",
                    ),
                ],
            ),
            section(
                "communication",
                "Communication",
                """
                Tell customers what they notice, never what we guess. One sentence on the effect, one on what we do,
                one on when we write again. Do not name colleagues or suppliers.
                """,
                "When and how to write on the status page.",
                tools=[tool("post_status", "Publish a message on the status page.", Status, post_status)],
            ),
            section(
                "escalation",
                "Escalation",
                """
                Wake the database team only for data loss or a failover that does not finish. Wake the duty manager
                when customers cannot pay for more than 30 minutes. Everything else waits until 08:00.
                """,
                "Whom to wake, and when not to.",
            ),
            section(
                "architecture",
                "Architecture",
                """
                Requests enter through the edge, which terminates TLS and routes by path: `/` to the storefront,
                `/cart` and `/order` to checkout, `/find` to search. Every service has its own database schema and
                reads those of others only through their interfaces.

                - **storefront** renders pages from the catalogue and keeps nothing of its own. It survives without
                  search (an empty result) and without checkout (the cart is kept in the browser).
                - **checkout** owns carts, coupons and orders. It holds a database connection for as long as a
                  request lasts: 20 per pod, 12 pods. A request that waits for one fails after 4 800 ms.
                - **payments** talks to two providers and is the only service that may. It answers within 2 s or
                  says that it will answer later; webhooks finish what was left open.
                - **search** reads the catalogue by events and is at most a minute behind, an hour when it reindexes.
                - **mail** sends what others queue. Nothing waits for it; a queue of 50 000 is normal on Mondays.

                Deployments go pod by pod and take 6 minutes. Feature flags take effect within 10 s everywhere.
                """,
                "What the services are, what each owns, and how they fail.",
            ),
            section(
                "database",
                "Database",
                """
                One primary, two replicas, 40 schemas. Replicas lag below 200 ms; above 5 s reads go to the primary.
                Failover is automatic and takes 25 s, in which writes fail and are retried by every service.

                Before you cancel a query, look at who runs it: `report_*` users may be cancelled at any time,
                services never without their owner. Adding an index on a table of more than 10 million rows is a
                change for the day, not for a night: it holds the write-ahead log and fills the disk of the replicas.
                """,
                "Replication, failover, long queries and locks.",
                tools=[
                    tool("list_queries", "Queries that run for longer than a second, longest first.", Service, nothing),
                    tool("cancel_query", "Cancel one query by its process id.", Service, nothing),
                    tool("replica_lag", "How far each replica is behind the primary.", Service, nothing),
                ],
            ),
            section(
                "flags",
                "Feature flags",
                """
                A flag has an owner, a default and an expiry date. Switching one off is always allowed; switching one
                on needs its owner. `checkout.express`, `search.reindex` and `payments.second` matter most at night.
                """,
                "Switches that change behaviour without a deployment.",
                tools=[
                    tool("list_flags", "All flags of a service with their state and owner.", Service, nothing),
                    tool("switch_off", "Switch a flag off for everybody.", Service, nothing),
                ],
            ),
            section("answer", "Answer", "Answer with the cause, the action taken, the impact, and what is left to do."),
        ],
    )


@dataclass(frozen=True)
class Line:
    """A reply with words and tool calls."""

    words: str
    calls: tuple[ToolCall, ...] = ()


def line(words: str, *calls: ToolCall) -> Line:
    return Line(words, calls)


RESOLUTION = Resolution(
    cause="Deployment 2026.11.15-1 compares lower(code), which defeats the index on coupons.code.",
    action="Rolled checkout back to 2026.11.14-3; all pods are ready and the pool has recovered.",
    customer_impact="6 % of checkouts failed between 09:12 and 09:31 UTC.",
    follow_up=["Add an index on lower(code) before deploying again", "Alert on pool use above 80 %"],
)
STATUS = call(
    "post_status",
    title="Errors at checkout, resolved",
    text="Between 09:12 and 09:31 UTC some orders could not be completed. We have gone back to an earlier "
    "version and orders go through again. We will write once more at 11:00 UTC.",
)
LOOK = call("search_logs", service="checkout", pattern="WARN|ERROR", minutes=30)
REFUSED = call("roll_back", service="checkout", version="2026.11.15-1")
DONE = call("roll_back", service="checkout", version="2026.11.14-3")
INVESTIGATION: list[Any] = [
    line("The alert names no cause; the logs since 09:12 should show one.", call("read_section", section_key="logs")),
    line("", LOOK),
    line(
        "Pool exhausted with a slow coupons query. Is it a known pattern, and was something deployed at 09:08?",
        call("read_section", section_key="runbooks.checkout"),
        call("read_section", section_key="deployments"),
    ),
    line("", call("list_deploys", service="checkout")),
    line("The runbook says to roll back.", REFUSED),
    line("I named the running version. The one before it is 2026.11.14-3.", DONE),
    line(
        "Check that the pool recovers, and read how customers are told.",
        call("search_logs", service="checkout", pattern="pool exhausted|slow query", minutes=2),
        call("read_section", section_key="communication"),
    ),
    line("", STATUS),
    RESOLUTION,
]
RESTARTING: list[Any] = [
    line("", call("open_sections", section_keys=["logs"], reason="Find the first error after 09:12.")),
    line("", LOOK),
    line(
        "",
        call(
            "open_sections",
            section_keys=["deployments", "communication"],
            reason="A deployment at 09:08 fits; roll it back and tell customers.",
        ),
    ),
    line("", REFUSED, DONE),
    line("", call("read_section", section_key="escalation")),
    line("", STATUS),
    RESOLUTION,
]
UNSURE: list[Any] = [
    line("Look for the first error.", call("read_section", section_key="logs")),
    line("", call("search_logs", service="search", pattern="ERROR", minutes=60)),
    RuntimeError("The provider answered 529 three times: overloaded"),
]


class Narrated(ScriptedAdapter):
    """A scripted model that takes its time, counts tokens and caches prefixes about as a provider does."""

    def __init__(self, script: Sequence[Any], clock: Clock, *, model: str = "gpt-5.2", **options: Any) -> None:
        super().__init__(script, model=model, **options)
        self._clock = clock
        self._cached = 0

    def reply(self, request: ModelRequest) -> ModelReply:
        reply = super().reply(request)
        count = default_tokenizer().count
        said = [f"{m.text} {' '.join(made.arguments for made in m.tool_calls)}" for m in request.messages]
        sent = sum(map(count, said)) + sum(count(offered.definition) for offered in request.tools)
        cached = 0 if len(request.messages) == 1 else min(self._cached, sent) // 128 * 128
        self._cached = sent
        spent = count(reply.text) + sum(count(made.arguments) + 12 for made in reply.tool_calls)
        usage = TokenUsage(input_tokens=sent, output_tokens=spent, cached_tokens=cached)
        self._clock.sleep(0.6 + (sent - cached) / 2_000 + spent / 60)
        return replace(reply, usage=usage, model=self.model)

    def _as_reply(self, line: Any, request: ModelRequest) -> ModelReply:
        if not isinstance(line, Line):
            return super()._as_reply(line, request)
        return replace(super()._as_reply(line.calls, request), text=line.words)


def investigate(
    path: Path,
    script: Sequence[Any] = INVESTIGATION,
    alert: Alert | None = None,
    disclosure: Disclosure | None = None,
    ago: float = 0,
    **options: Any,
) -> None:
    """Record one run of the on-call agent, some minutes ago; a script that ends in an error fails the run."""
    prompt = Prompt(on_call_template(disclosure)).bind(alert or Alert())
    clock = FakeClock(datetime.now(UTC) - timedelta(minutes=ago))
    with record(path), suppress(RuntimeError):
        MainLoop().execute(prompt, session=Session(clock=clock), adapter=Narrated(script, clock, **options))


def record_runs(path: Path) -> None:
    """A file with a run that fails, one whose strategy restarts it, and two that add tools in their conversation."""
    facets = Alert("search", "facets time out for 12 % of queries")
    investigate(path, UNSURE, facets, tool_route="append", ago=97)
    investigate(path, RESTARTING, disclosure=OpenOrRead(), model="claude-sonnet-4-6", ago=64)
    investigate(path, tool_route="append", model="gpt-5.4-mini", ago=31)
    investigate(path, tool_route="additional_tools", ago=4)
    keep_session_time(path)


def keep_session_time(path: Path) -> None:
    """Give the recording, which took no time, the times of its sessions' clocks."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE events SET time = (SELECT max(payload ->> '$.v.timestamp') FROM events AS other "
            "WHERE other.run_id = events.run_id AND other.seq <= events.seq)"
        )
        first, last = (f"(SELECT {end}(time) FROM events WHERE run_id = runs.run_id)" for end in ("min", "max"))
        connection.execute(f"UPDATE runs SET started = {first}, updated = {last}, ended = {last}")
