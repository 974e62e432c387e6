"""Draw the pictures of README and guides: `python -m scripts.pictures` writes docs/images/*.svg; `--check` compares.

Terminals show what real runs print, on the local adapter, which answers the same each time; times, ids and ports are
not compared. Everything is narrow enough to be read on a phone.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
# At 390 pixels a letter of this many columns is 10 pixels high.
COLUMNS = 56
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
    "run": Picture("./run", DEMO, until="stop with Ctrl-C."),
    "chat": Picture(
        f"wink chat {DESK}",
        (*WINK, "chat", DESK),
        (
            "How long does the money take to come back to my PayPal account?",
            "Where is order FH-20417 right now?",
        ),
    ),
}


def main(argv: list[str]) -> int:
    stale = 0
    with tempfile.TemporaryDirectory() as folder:
        pictures = {"idea": idea(LIGHT), "idea-dark": idea(DARK)}
        pictures |= {name: terminal(name, Path(folder)) for name in PICTURES}
        for name, svg in pictures.items():
            target = IMAGES / f"{name}.svg"
            if argv != ["--check"]:
                target.write_text(svg, encoding="utf-8")
                print(f"wrote {target.relative_to(ROOT)}")
            elif words(svg) != words(target.read_text(encoding="utf-8")):
                print(f"{target.relative_to(ROOT)} is out of date; run python -m scripts.pictures", file=sys.stderr)
                stale = 1
    return stale


def terminal(name: str, folder: Path) -> str:
    """A picture of a terminal."""
    picture = PICTURES[name]
    lines = f"$ {picture.command}\n{''.join(recorded(picture, folder))}".rstrip().split("\n")
    return drawn(lines, picture.command)


# What the demo's first question adds to each of its three requests: a text, and what it is.
REQUESTS = (
    (
        "Request 1",
        (
            ("your rules", "rules"),
            ("account: one line", "closed"),
            ("order-status: one line", "closed"),
            ("25 more sections", "closed"),
            ("“Where is my order?”", "said"),
        ),
    ),
    (
        "Request 2",
        (
            ("order-status: all of it", "open"),
            ("its tool lookup_order", "tool"),
        ),
    ),
    (
        "Request 3",
        (
            ("its result: shipped", "tool"),
            ("→ the answer", "said"),
        ),
    ),
)
LIGHT = {
    "paper": ("#fbfcfe", "#dfe3ea"),
    "rules": ("#eef1f6", "#c3cad6"),
    "closed": ("#ffffff", "#c3cad6"),
    "said": ("#eaf3ff", "#8db8ec"),
    "cached": ("#e9f6ec", "#7cc28c"),
    "open": ("#fff3df", "#e5ad4f"),
    "tool": ("#f6ecfb", "#bd8bd6"),
    "text": ("#1d2430", "#2c7a3d"),
}
DARK = {
    "paper": ("#0d1117", "#30363d"),
    "rules": ("#21262d", "#4a525c"),
    "closed": ("#161b22", "#4a525c"),
    "said": ("#12263f", "#3b6ea8"),
    "cached": ("#10261a", "#2f7d46"),
    "open": ("#33240b", "#a8762a"),
    "tool": ("#2a1a33", "#85529d"),
    "text": ("#e6edf3", "#7ee2a0"),
}
# Letters of this size are 10 pixels high where the picture is 390 pixels wide.
IDEA_WIDTH, IDEA_ROW, IDEA_LETTERS = 660, 27, 17


def idea(shades: Mapping[str, tuple[str, str]]) -> str:
    """The idea in one picture: the beginning of a request stays as it is, and what is opened comes after it."""
    gap = 10
    column = (IDEA_WIDTH - gap) // len(REQUESTS)
    ink, cached_ink = shades["text"]
    body: list[str] = []
    rows_before = 0
    for number, (title, parts) in enumerate(REQUESTS):
        x = gap + number * column
        y = 46
        body.append(f'<text x="{x}" y="30" font-weight="bold">{escape(title)}</text>')
        if rows_before:
            height = rows_before * IDEA_ROW
            body.append(_box(x, y, column - gap, height, shades["cached"]))
            middle = y + height / 2
            body.append(f'<text x="{x + 10}" y="{middle - 4:.0f}">the same beginning</text>')
            body.append(f'<text x="{x + 10}" y="{middle + 18:.0f}" fill="{cached_ink}">from the cache</text>')
            y += height
        for text, kind in parts:
            rows = 2 if kind == "open" else 1
            body.append(_box(x, y, column - gap, rows * IDEA_ROW, shades[kind]))
            body.append(f'<text x="{x + 10}" y="{y + rows * IDEA_ROW / 2 + 4:.0f}">{escape(text)}</text>')
            y += rows * IDEA_ROW
            rows_before += rows
    height = 46 + rows_before * IDEA_ROW + gap
    fill, edge = shades["paper"]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{IDEA_WIDTH}" height="{height}" '
        f'viewBox="0 0 {IDEA_WIDTH} {height}" role="img" '
        'aria-label="Three requests: the first has one line of each section; the second has the same beginning, which '
        'is cached, and the section that was opened with its tool; the third also has the result of the tool">\n'
        f'<rect x="0.5" y="0.5" width="{IDEA_WIDTH - 1}" height="{height - 1}" rx="8" fill="{fill}" stroke="{edge}"/>\n'
        f'<g font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="{IDEA_LETTERS}" fill="{ink}">\n'
        + "\n".join(body)
        + "\n</g>\n</svg>\n"
    )


def _box(x: float, y: float, width: float, height: float, shade: tuple[str, str]) -> str:
    fill, edge = shade
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height - 4}" rx="5" fill="{fill}" stroke="{edge}"/>'


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
    # Without the token and the run, which fill a line of their own.
    clean = re.sub(r"127\.0\.0\.1:\d+(?:/\S*)?", "127.0.0.1:7410", text).split("\n")
    lines = [part for line in map(Text.from_ansi, clean) for part in _wrapped(line)]
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    body = "\n".join(_line(line, MARGIN + (index + 0.75) * LINE) for index, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="A terminal that shows what {escape(command)} prints">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" '
        f'fill="{FOREGROUND}" style="white-space: pre">\n{body}\n</g>\n</svg>\n'
    )


def _wrapped(line: Text) -> Iterator[Text]:
    """What is typed may be longer than a line, as is an address; all else is wrapped by the program itself."""
    while len(line) > COLUMNS:
        end = line.plain.rfind(" ", 0, COLUMNS + 1)
        end = end if end > 0 else COLUMNS
        yield line[:end]
        line = line[end:]
        line = line[1:] if line.plain.startswith(" ") else line
    yield line


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
