"""A call of a hosted tool that failed at the provider, in words that all providers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureCode = Literal[
    "failed",
    "incomplete",
    "invalid_input",
    "limit_reached",
    "malformed",
    "not_allowed",
    "not_found",
    "rate_limited",
    "timeout",
    "too_large",
    "unavailable",
    "unsupported",
]


@dataclass(frozen=True, slots=True)
class HostedToolFailure:
    """One call that failed: `code` is neutral, `provider_code` what the provider said.

    `malformed` marks an item of the provider that could not be read; the rest of the output is there.
    """

    code: FailureCode
    provider_code: str = ""
    message: str = ""
    call_id: str = ""
