"""A provider that repeats the key in its error, in any encoding: neither error, recording nor terminal shows it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Wink
from tests.servers.anthropic_messages import MessagesServer
from tests.servers.loopback import Loopback
from tests.servers.openai_responses import ResponsesServer
from tests.servers.turn import Raw
from weakincentives.redaction import encodings
from weakincentives.telemetry import RunStore

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# Nothing in it looks like a key, so that only its value gives it away.
KEY = "plain/looking+word_42"
FORMS = sorted(
    {
        *encodings(KEY),
        base64.b64encode(f"Bearer {KEY}".encode()).decode(),
        base64.b64encode(f"user:{KEY}".encode()).decode(),
        "".join(f"%{ord(character):02X}" for character in KEY),
        "".join(f"\\u{ord(character):04x}" for character in KEY),
        "".join(f"&#{ord(character)};" for character in KEY),
        KEY.replace("/", "\\/"),
    }
)
AGENT = """
import os
import {sdk}
from weakincentives import MarkdownSection, Prompt, {adapter}

def prompt():
    return Prompt(ns="t", key="t", sections=[MarkdownSection(key="task", title="Task", template="Go.")])

adapter = {adapter}("{model}", client={sdk}.{client}(api_key={key!r}, base_url=os.environ["SERVER"]), max_retries=0)
"""
VENDORS = {
    "openai": (ResponsesServer, "/v1", "OpenAIAdapter", "OpenAI", "gpt-5.6"),
    "anthropic": (MessagesServer, "", "AnthropicAdapter", "Anthropic", "claude-opus-5"),
}
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u2028\x9b31m"


@pytest.fixture
def wink(tmp_path: Path) -> Wink:
    return Wink(tmp_path)


def run_against(wink: Wink, sdk: str, body: bytes, status: int = 401) -> tuple[str, str]:
    """Run an agent whose provider answers with this; the terminal's text, and the recorded error."""
    server_type, suffix, adapter, client, model = VENDORS[sdk]
    agent = AGENT.format(sdk=sdk, adapter=adapter, client=client, model=model, key=KEY)
    (wink.folder / "agent.py").write_text(agent, encoding="utf-8")
    server: Loopback
    with server_type([Raw(status, body)]) as server:
        words = ("run", "agent:prompt", "-a", "agent:adapter", "--record", "runs.db")
        done = wink(*words, SERVER=f"{server.url}{suffix}")
    assert done.returncode == 1
    shown = wink("runs", "show", "runs.db").stdout + wink("runs", "export", "runs.db").stdout
    with RunStore(wink.folder / "runs.db") as store:
        (summary,) = store.list_runs()
    written = (wink.folder / "runs.db").read_bytes().decode("latin-1")
    return f"{done.stdout}{done.stderr}{shown}", f"{summary.error}{written}"


@pytest.mark.parametrize("sdk", VENDORS)
@pytest.mark.parametrize("form", FORMS)
def test_a_key_in_an_error_is_never_shown(wink: Wink, sdk: str, form: str) -> None:
    pytest.importorskip(sdk)
    body = json.dumps({"error": {"type": "auth", "message": f"invalid key={form} for this project"}}).encode()
    terminal, recorded = run_against(wink, sdk, body)
    assert form not in terminal and form not in recorded
    assert json.dumps(form)[1:-1] not in terminal and "for this project" in terminal


@pytest.mark.parametrize("sdk", VENDORS)
def test_an_error_cannot_command_the_terminal(wink: Wink, sdk: str) -> None:
    pytest.importorskip(sdk)
    body = json.dumps({"error": {"type": "auth", "message": f"sorry {HOSTILE}"}}).encode()
    terminal, _ = run_against(wink, sdk, body)
    assert "sorry ␛]0;owned␇␛[2J⟨U+202E⟩gnp.exe⟨U+2028⟩⟨U+009B⟩31m" in terminal
    assert not set(HOSTILE) - set("]0;owned[2Jgnp.xe31m") & set(terminal)
