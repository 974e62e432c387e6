"""What was recorded and what it says: recorder, reading runs back, advice, OpenTelemetry."""

from weakincentives.telemetry.advice import Advice, PromptAdvice, SectionAdvice, advise
from weakincentives.telemetry.placeholder import UnknownType, Unserialisable
from weakincentives.telemetry.prune import prune
from weakincentives.telemetry.recorder import Recorder, record
from weakincentives.telemetry.redaction import Redactor
from weakincentives.telemetry.schema import RunFileError
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
