"""How the runs of a session ended."""

from __future__ import annotations

from weakincentives import Session
from weakincentives.runtime import RunEnded


def endings(session: Session, status: str) -> list[RunEnded]:
    """The ends with this status, in order."""
    return [event for event in session[RunEnded] if event.status == status]
