"""The error for a command that was called wrongly."""

from __future__ import annotations

from weakincentives.errors import WinkError


class UsageError(WinkError):
    """What was typed cannot be meant; the message says what can."""
