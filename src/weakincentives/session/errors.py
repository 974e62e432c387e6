"""What goes wrong in a session."""

from __future__ import annotations

from weakincentives.errors import WinkError


class SessionError(WinkError):
    """A slice, reducer or snapshot was used wrongly; the session is as it was before."""


class SessionBusyError(SessionError):
    """The session already belongs to a run."""
