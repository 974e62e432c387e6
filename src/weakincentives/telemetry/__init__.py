"""What was recorded and what it says: recorder, reading runs back, advice, OpenTelemetry.

An agent that records loads the recorder alone; what reads and advises is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
from weakincentives.telemetry.placeholder import UnknownType, Unserialisable
from weakincentives.telemetry.recorder import Recorder, record
from weakincentives.telemetry.redaction import Redactor
from weakincentives.telemetry.schema import RunFileError

if TYPE_CHECKING:
    from weakincentives.telemetry.advice import Advice, PromptAdvice, SectionAdvice, advise
    from weakincentives.telemetry.pruning import prune
    from weakincentives.telemetry.store import RecordedEvent, RunNotFoundError, RunStore, RunSummary, read_run
    from weakincentives.telemetry.turns import Turn, TurnSection

__all__ = [
    "Advice",
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
    "TurnSection",
    "UnknownType",
    "Unserialisable",
    "advise",
    "prune",
    "read_run",
    "record",
]

_HOMES = {
    "Advice": "advice",
    "PromptAdvice": "advice",
    "RecordedEvent": "store",
    "RunNotFoundError": "store",
    "RunStore": "store",
    "RunSummary": "store",
    "SectionAdvice": "advice",
    "Turn": "turns",
    "TurnSection": "turns",
    "advise": "advice",
    "prune": "pruning",
    "read_run": "store",
}


__getattr__ = lazy_front(__name__, _HOMES)
