"""Draw what `./run` prints on a terminal: `python scripts/picture.py` runs it and writes docs/images/run.svg."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from html import escape
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "run.svg"
COLUMNS = 100
CHARACTER, LINE, MARGIN = 8.43, 19, 18
_ERASED = re.compile(r"[^\n]*\n[^\n]*\x1b\[1A\x1b\[2K|[^\n]*\x1b\[2K|\x1b\[(?:\?25[lh]|\d*A)")
BACKGROUND, FOREGROUND = "#16181d", "#d7dae0"


def main(arguments: list[str]) -> int:
    command = ["./run", *arguments]
    text = f"$ {' '.join(command)}\n{recorded(command)}".rstrip()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(drawn(text), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


def recorded(command: list[str]) -> str:
    """All that the command writes to a terminal of this width, colours included."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "40", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stdin=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return _ERASED.sub("", b"".join(parts).decode().replace("\r\n", "\n"))


def drawn(text: str) -> str:
    """The terminal's text as SVG, one `text` element per line."""
    lines = [Text.from_ansi(line) for line in text.split("\n")]
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    body = "\n".join(_line(line, MARGIN + (index + 0.75) * LINE) for index, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="A terminal in which ./run answers a question">\n'
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
        shown = segment.text.strip()
        x = MARGIN + (column + segment.text.find(shown)) * CHARACTER
        if shown:
            length = len(shown) * CHARACTER
            spans.append(f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}"{attributes}>{escape(shown)}</text>')
        column += len(segment.text)
    return "".join(spans)


def _hex(color: Color) -> str:
    return color.get_truecolor(SVG_EXPORT_THEME).hex


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
