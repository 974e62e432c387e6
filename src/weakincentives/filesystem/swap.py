"""Exchanging two names of a directory in one step, where the system can."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache

RENAME_EXCHANGE = 2
"""The flag has the same value for Linux' renameat2 and for macOS' renameatx_np (RENAME_SWAP)."""
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def swap_names(fd: int, first: str, second: str) -> bool:
    """Exchange two names in a directory; False if the system or the file system cannot."""
    rename = _system_call()
    if rename is None:
        return False
    number = rename(fd, os.fsencode(first), os.fsencode(second))
    if number == 0:
        return True
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


@cache
def _system_call() -> Callable[[int, bytes, bytes], int] | None:
    """A function that exchanges two names and returns the number of an error, or 0."""
    # Imported here because it takes long, and most programs never replace a file of others.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameatx_np" if sys.platform == "darwin" else "renameat2", None)
    if call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

    def rename(fd: int, first: bytes, second: bytes) -> int:
        return 0 if call(fd, first, fd, second, RENAME_EXCHANGE) == 0 else ctypes.get_errno()

    return rename
