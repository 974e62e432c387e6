"""Time zone names, checked against the machine's zone data; where there is none, only their form."""

from __future__ import annotations

import re

_FORM = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")


def is_timezone(name: str) -> bool:
    return _FORM.fullmatch(name) is not None and (_is_known(name) or not _is_known("Etc/UTC"))


def _is_known(name: str) -> bool:
    # Imported when a zone is named: it costs more than all of this package.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
