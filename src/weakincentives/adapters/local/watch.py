"""When the work on a reply has to stop, and whom to tell how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from weakincentives.errors import DeadlineExceededError
from weakincentives.limits import Deadline
from weakincentives.runtime import Settings

# Called with pieces of the reply's text.
Listener = Callable[[str], None]
# Called with the number of tokens read so far and their total.
Progress = Callable[[int, int], None]


class Stopped(Exception):
    """The caller no longer wants the reply."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A run's options for one reply: when to stop, the model settings, and a progress callback."""

    prompt_name: str
    deadline: Deadline | None = None
    settings: Settings = field(default_factory=Settings)
    progress: Progress | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise if the reply is no longer wanted, or too late."""
        if self.stopped.is_set():
            raise Stopped
        if self.deadline is not None and self.deadline.expired:
            raise DeadlineExceededError(
                f"The deadline of '{self.prompt_name}' passed while the local model was working.",
                prompt_name=self.prompt_name,
                phase="response",
            )

    def reading(self, tokens: int, total: int) -> None:
        """Report how much was read, and raise if no more is wanted."""
        self.check()
        if self.progress is not None:
            self.progress(tokens, total)
