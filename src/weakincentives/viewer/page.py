"""The viewer's single HTML page: served with its modules beside it, or exported with everything inside.

Modules are imported by name (`wink/tree.js`, `preact`) and an import map says where they are: on the server, or in the
page itself as `data:` URLs, because browsers load no modules over `file:`.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
STYLE = "style.css"
ICON = "favicon.svg"
MAIN = "wink/main.js"


@cache
def modules() -> dict[str, str]:
    """The file of every module below `static`, by the name it is imported by."""
    found = {f"wink/{path.name}": path.name for path in sorted(STATIC.glob("*.js"))}
    for library in json.loads((STATIC / "vendor" / "lock.json").read_text(encoding="utf-8")):
        found |= {details["import"]: f"vendor/{name}" for name, details in library["files"].items()}
    return found


def served_page() -> tuple[str, str]:
    """The served page and its Content-Security-Policy."""
    imports = import_map({name: f"/static/{file}" for name, file in modules().items()})
    # Load all modules at once instead of each when another imports it.
    preloads = "".join(f'<link rel="modulepreload" href="/static/{file}">' for file in modules().values())
    head = (
        f'<link rel="icon" href="/static/{ICON}"><link rel="stylesheet" href="/static/{STYLE}">'
        f'<script type="importmap">{imports}</script>{preloads}'
        f'<script type="module" src="/static/{modules()[MAIN]}"></script>'
    )
    policy = (
        f"default-src 'none'; script-src 'self' '{_allowed(imports)}'; style-src 'self'; img-src 'self'; "
        "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return _page("wink", head, ""), policy


def exported_page(title: str, data: Any) -> str:
    """A page that loads nothing from anywhere."""
    sources = {name: (STATIC / file).read_bytes() for name, file in modules().items()}
    imports = import_map({name: _data_url("text/javascript", source) for name, source in sources.items()})
    start = f'import "{MAIN}";'
    policy = (
        f"default-src 'none'; script-src data: '{_allowed(imports)}' '{_allowed(start)}'; style-src 'unsafe-inline'; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    icon = _data_url("image/svg+xml", (STATIC / ICON).read_bytes())
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="{icon}">'
        f"<style>{(STATIC / STYLE).read_text(encoding='utf-8')}</style>"
        f'<script type="importmap">{imports}</script>'
    )
    # Turns repeat each other, so that compressed data is a small part of what it would be.
    embedded = b64encode(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6)).decode()
    body = f'<script type="text/plain" id="data">{embedded}</script><script type="module">{start}</script>'
    return _page(_escaped(title), head, body)


def import_map(urls: dict[str, str]) -> str:
    return json.dumps({"imports": urls}, separators=(",", ":"))


def _page(title: str, head: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>{head}</head>'
        f'<body><div id="app"></div><noscript>The viewer needs JavaScript.</noscript>{body}</body></html>\n'
    )


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"


def _allowed(script: str) -> str:
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
