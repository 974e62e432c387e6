"""Keeps secrets out of what is shown, logged and recorded: known values, and what looks like a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.redaction.known import (
    MIN_TEXT,
    MIN_VALUE,
    REDACTED,
    SECRET_VARIABLES,
    KnownSecrets,
    any_of,
    encodings,
)

if TYPE_CHECKING:
    from weakincentives.redaction.redactor import NoRedaction, Redactor, compile_patterns, is_secret_name

__all__ = [
    "MIN_TEXT",
    "MIN_VALUE",
    "REDACTED",
    "SECRET_VARIABLES",
    "KnownSecrets",
    "NoRedaction",
    "Redactor",
    "any_of",
    "compile_patterns",
    "encodings",
    "is_secret_name",
]

__getattr__ = lazy_front(__name__, {"redactor": ["NoRedaction", "Redactor", "compile_patterns", "is_secret_name"]})
