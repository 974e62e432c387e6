"""Draw what real runs print on a terminal: `python -m scripts.pictures` writes docs/images/*.svg; `--check` compares.

Everything runs on the embedded model, which answers the same each time; times, ids and ports are not compared.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS = 100
CHARACTER, LINE, MARGIN = 8.43, 19, 18
# What the line editor writes and erases again.
_ERASED = re.compile(r"[^\n]*\n[^\n]*\x1b\[1A\x1b\[2K|[^\n]*\x1b\[2K|\x1b\[(?:\?\d+[lh]|\d*A)|\r")
_VARIES = re.compile(
    r"\d+\.\d( s\b| seconds)|\b[0-9a-f]{16}\b|127\.0\.0\.1:\d+(?:/\?token=[\w-]+)?|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
)
BACKGROUND, FOREGROUND, DIM = "#16181d", "#d7dae0", "#8b919c"


@dataclass(frozen=True, slots=True)
class Picture:
    """A command as a person types it, the arguments it is run with, and what is typed once it asks."""

    command: str
    arguments: tuple[str, ...]
    typed: tuple[str, ...] = ()
    until: str = ""


DEMO = ("-m", "weakincentives.demo", "--port", "0")
WINK = ("-m", "weakincentives.cli")
DESK = "weakincentives.demo.desk:chat"
PICTURES = {
    "run": Picture("./run", DEMO, until="stop with Ctrl+C."),
    "story": Picture("wink runs show", (*WINK, "runs", "show")),
    "chat": Picture(
        f"wink chat {DESK}",
        (*WINK, "chat", DESK),
        (
            "There is a burnt smell coming from the power supply, what should I do?",
            "Where is order FH-20417 right now?",
        ),
    ),
    "explain": Picture(f"wink explain {DESK}", (*WINK, "explain", DESK)),
}


def main(argv: list[str]) -> int:
    stale = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, picture in PICTURES.items():
            target = IMAGES / f"{name}.svg"
            lines = f"$ {picture.command}\n{''.join(recorded(picture, Path(folder)))}".rstrip().split("\n")
            if argv != ["--check"]:
                target.write_text(drawn(lines, picture.command), encoding="utf-8")
                print(f"wrote {target.relative_to(ROOT)}")
            elif words(drawn(lines, "")) != words(target.read_text(encoding="utf-8")):
                print(f"{target.relative_to(ROOT)} is out of date; run python -m scripts.pictures", file=sys.stderr)
                stale = 1
    return stale


def words(svg: str) -> list[str]:
    """The words of a picture, without what varies from run to run."""
    return _VARIES.sub("", unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)))).split()


def recorded(picture: Picture, folder: Path) -> Iterator[str]:
    """All that the command writes to a terminal of this width, colours included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    here = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINK_", "NO_COLOR", "COLUMNS"))}
    environment = {**kept, "TERM": "xterm-256color", "PATH": f"{here}{os.pathsep}{kept.get('PATH', '')}"}
    process = subprocess.Popen(
        [sys.executable, *picture.arguments], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    typed, seen = list(picture.typed), ""
    decoder = codecs.getincrementaldecoder("utf-8")()
    while part := _read(ours):
        seen += decoder.decode(part)
        if picture.typed and re.search(r"(^|\n)\S*( {2})?> (\x1b\[\?2004h)?$", seen.replace("\r", "")):
            yield seen
            seen = ""
            os.write(ours, (typed.pop(0) + "\n" if typed else "\x04").encode())
        if picture.until and picture.until in seen:
            process.send_signal(signal.SIGINT)
            break
    yield seen
    if process.wait() != 0:
        raise SystemExit(f"{picture.command} failed: {seen}")
    os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # The program has ended.
        return b""


def drawn(written: list[str], command: str) -> str:
    """The terminal's text as SVG, one `text` element per line."""
    text = _ERASED.sub("", "\n".join(written)).rstrip()
    clean = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:7410", text).split("\n")
    lines = [part for line in map(Text.from_ansi, clean) for part in line.divide(range(COLUMNS, len(line), COLUMNS))]
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    body = "\n".join(_line(line, MARGIN + (index + 0.75) * LINE) for index, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="A terminal that shows what {escape(command)} prints">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" '
        f'fill="{FOREGROUND}" style="white-space: pre">\n{body}\n</g>\n</svg>\n'
    )


def _line(line: Text, y: float) -> str:
    spans, column = [], 0
    for segment in line.render(Console(color_system="truecolor", width=COLUMNS)):
        if not segment.text:
            continue
        style, attributes = segment.style, ""
        if style is not None and style.color is not None:
            attributes += f' fill="{_hex(style.color)}"'
        if style is not None and style.bold:
            attributes += ' font-weight="bold"'
        if style is not None and style.dim:
            attributes += f' fill="{DIM}"'
        shown = segment.text.strip()
        x = MARGIN + (column + segment.text.find(shown)) * CHARACTER
        if shown:
            length = len(shown) * CHARACTER
            # Browsers collapse ordinary spaces.
            written = escape(shown).replace("  ", "\u00a0\u00a0")
            spans.append(f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}"{attributes}>{written}</text>')
        column += len(segment.text)
    return "".join(spans)


def _hex(color: Color) -> str:
    return color.get_truecolor(SVG_EXPORT_THEME).hex


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
