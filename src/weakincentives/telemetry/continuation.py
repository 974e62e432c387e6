"""The files beside a run file that keep a run while its calls wait, and the command that continues it.

Both may come from elsewhere with the run file, so the text of the command is data: it is shown only if it does no more
than `wink run` and `wink chat` need to continue the run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# An adapter is PROVIDER:MODEL or module:variable. One with an address (MODEL@URL) would be sent the user's key.
_ADAPTER = re.compile(r"\w[\w.-]*(:[\w./:-]+)?", re.ASCII)
_PARAM = re.compile(r"[A-Za-z_][\w.]*=.*", re.ASCII)
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_ANY = re.compile(r".+")
_VALUES = {
    **dict.fromkeys(("-a", "--adapter", "--model"), _ADAPTER),
    **dict.fromkeys(("-p", "--params"), _PARAM),
    **dict.fromkeys(("--open", "--tag"), _NAME),
    **dict.fromkeys(("--record", "--resume"), _ANY),
}
_FLAGS = {"--json", "--quiet", "-q"}


def continuation_file(path: str | os.PathLike[str], run_id: str) -> Path:
    """The file beside a run file that keeps the session of a run while it waits; the command to continue it is in one
    that ends in `.command`.
    """
    return Path(f"{os.fspath(path)}.waiting") / f"{re.sub(r'[^a-zA-Z0-9_-]', '_', run_id)}.json"


def continuing_command(path: str | os.PathLike[str], run_id: str) -> str:
    """The command that continues a run kept beside the run file; raises OSError if none is kept.

    Words that `wink` would not have needed are not repeated: the person is told to name the prompt instead.
    """
    kept = continuation_file(path, run_id)
    text = kept.with_suffix(".command").read_text("utf-8", "replace")
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not _continues(words):
        words = ["wink", "run", "module:variable"]
    # The folder may have been moved since the command was written.
    for option, file in (("--resume", kept), ("--record", Path(path))):
        if option in words:
            words[words.index(option) + 1] = str(file)
    if "--resume" not in words:
        words += ["--resume", str(kept)]
    return shlex.join(words)


def _continues(words: Sequence[str]) -> bool:
    """True if the words run or chat with one prompt, and have only options that a continuation needs."""
    if len(words) < 3 or words[0] != "wink" or words[1] not in ("run", "chat"):
        return False
    targets = 0
    option = ""  # The one that the next word belongs to.
    for word in words[2:]:
        if not word.isprintable():
            return False
        if word in _VALUES:
            option = word
        elif word in _FLAGS:
            option = ""
        elif option:
            if not _VALUES[option].fullmatch(word):
                return False
            if _VALUES[option] is not _PARAM:  # Several params may follow one option.
                option = ""
        elif _TARGET.fullmatch(word):
            targets += 1
        else:
            return False
    return targets == 1 and (not option or _VALUES[option] is _PARAM)
