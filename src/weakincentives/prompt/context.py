"""What a tool handler can reach while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt.prompt import Prompt
from weakincentives.resources import ScopedResourceContext
from weakincentives.session import Session


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The session, resources and limits of the run, and which call this is.

    `idempotency_key` is the same for every attempt at this call, also after a crash on the durable engine.
    """

    session: Session
    resources: ScopedResourceContext
    prompt: Prompt[Any]
    call_id: str = ""
    deadline: Deadline | None = None
    budget: Budget | None = None
    idempotency_key: str = ""

    @property
    def filesystem(self) -> Filesystem | None:
        """The prompt's filesystem, if a section or the caller provides one."""
        return self.resources.get_optional(Filesystem)  # type: ignore[type-abstract]
