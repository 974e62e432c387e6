"""Records runs, reads them back, derives advice from them, and reports to OpenTelemetry.

An agent that records loads only the recorder; the modules that read and advise are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.redaction import Redactor
from weakincentives.runtime.spi import AS_OF, prices_for
from weakincentives.telemetry.continuation import continuation_file
from weakincentives.telemetry.reader import RunFileError, open_for_writing
from weakincentives.telemetry.recorder import Recorder, record
from weakincentives.telemetry.runfile import prune, question_in
from weakincentives.telemetry.values import UnknownType, Unreadable, Unserialisable, asked_question, plain

if TYPE_CHECKING:
    from weakincentives.telemetry.advice import MIN_RUNS, Advice, PromptAdvice, SectionAdvice, advise
    from weakincentives.telemetry.bill import Bill, bill_of
    from weakincentives.telemetry.forks import session_at
    from weakincentives.telemetry.otel import Instrumentation, instrument
    from weakincentives.telemetry.reader import RecordedEvent
    from weakincentives.telemetry.store import ChildRuns, RunNotFoundError, RunStore, RunSummary, like_pattern, read_run
    from weakincentives.telemetry.turns import Turn

__all__ = [
    "AS_OF",
    "MIN_RUNS",
    "Advice",
    "Bill",
    "ChildRuns",
    "Instrumentation",
    "PromptAdvice",
    "RecordedEvent",
    "Recorder",
    "Redactor",
    "RunFileError",
    "RunNotFoundError",
    "RunStore",
    "RunSummary",
    "SectionAdvice",
    "Turn",
    "UnknownType",
    "Unreadable",
    "Unserialisable",
    "advise",
    "asked_question",
    "bill_of",
    "continuation_file",
    "instrument",
    "like_pattern",
    "open_for_writing",
    "plain",
    "prices_for",
    "prune",
    "question_in",
    "read_run",
    "record",
    "session_at",
]

__getattr__ = lazy_front(
    __name__,
    {
        "advice": ["MIN_RUNS", "Advice", "PromptAdvice", "SectionAdvice", "advise"],
        "bill": ["Bill", "bill_of"],
        "forks": ["session_at"],
        "otel": ["Instrumentation", "instrument"],
        "reader": ["RecordedEvent"],
        "store": ["ChildRuns", "RunNotFoundError", "RunStore", "RunSummary", "like_pattern", "read_run"],
        "turns": ["Turn"],
    },
)
