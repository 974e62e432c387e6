"""What comes back from the network, and what does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(slots=True)
class Response:
    """A status, headers with lower-case names, and the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray


class Failure(Exception):
    """No usable answer: the connection broke, or the vendor said that it failed. `retryable` means: ask again."""

    def __init__(
        self,
        message: str,
        *,
        phase: Literal["request", "response"] = "request",
        payload: object = None,
        retryable: bool = True,
        wait: float | None = None,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.payload = payload
        self.retryable = retryable
        self.wait = wait


class Stream(Protocol):
    """An answer that is still arriving."""

    def read(self, timeout: float | None) -> list[bytes] | None:
        """The data of the next events, or None at the end."""
        ...

    def close(self) -> None: ...


class AsyncStream(Protocol):
    """An answer that is still arriving, awaited."""

    async def read(self, timeout: float | None) -> list[bytes] | None: ...

    async def close(self) -> None: ...
