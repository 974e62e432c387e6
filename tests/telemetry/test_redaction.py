from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import pytest

import weakincentives
from tests.telemetry.agents import prompt, run
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult, tool
from weakincentives.runtime import Message, ModelReply, PromptRendered, ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import Redactor, RunStore, Unreadable, read_run, record

KEY = "sk-" + "ant-api03-" + "Zx81" * 8
SECRETS = [
    KEY,
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "ghp_" + "a1B2" * 9,
    "AIza" + "Sy" * 16 + "abc",
    "hf_" + "abcdEFGH" * 5,
    "xoxb-" + "123456789012-abcdef",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
]


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:6])
def test_a_secret_is_replaced_wherever_it_stands(secret: str) -> None:
    assert Redactor().text(f"use {secret} please") == "use [redacted] please"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [redacted]"),
        ("x-api-key: 0123456789abcdef", "x-api-key: [redacted]"),
        ('{"api_key": "0123456789"}', '{"api_key": "[redacted]"}'),
        (json.dumps('{"X-API-Key": "0123456789"}'), json.dumps('{"X-API-Key": "[redacted]"}')),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = [redacted]"),
        ("?access_token=abcdef123456&x=1", "?access_token=[redacted]&x=1"),
        ("OPENAI_API_KEY=abcdef123456", "OPENAI_API_KEY=[redacted]"),
        ("GITHUB_TOKEN = abcdef123456", "GITHUB_TOKEN = [redacted]"),
        ("postgresql://bob:hunter2@db:5432/x", "postgresql://bob:[redacted]@db:5432/x"),
        ('{"db_password": "correct horse, battery"}', '{"db_password": "[redacted]"}'),
        ('{"secret": "a\\"b", "x": "y"}', '{"secret": "[redacted]", "x": "y"}'),
        ("{'accessToken': 'abc'}", "{'accessToken': '[redacted]'}"),
        (json.dumps('{"Authorization": "abc def"}'), json.dumps('{"Authorization": "[redacted]"}')),
        (
            json.dumps(json.dumps({"password": 'a"b', "x": 1})),
            json.dumps(json.dumps({"password": "[redacted]", "x": 1})),
        ),
    ],
)
def test_what_names_a_secret_stays_and_the_secret_goes(text: str, clean: str) -> None:
    assert Redactor().text(text) == clean


def test_plain_data_is_redacted_in_texts_keys_and_under_names_of_secrets() -> None:
    data = {"password": "swordfish", KEY: 1, "rows": [f"use {KEY}", 7, None], "inner": {"api_key": 42, "note": "x"}}
    assert Redactor().data(data) == {
        "password": "[redacted]",
        "[redacted]": 1,
        "rows": ["use [redacted]", 7, None],
        "inner": {"api_key": "[redacted]", "note": "x"},
    }


@pytest.mark.parametrize(
    "text",
    [
        "The task-oriented sky-high risk",
        "max_tokens=4096",
        "Bearer of bad news",
        "token counts: 12345678",
        "The secret: always be kind.",
        "http://localhost:8080/a?mail=me@example.org and git@example.org:us/it",
        '{"properties": {"password": {"type": "string"}}, "required": ["password", "secret"]}',
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert Redactor(variables={}).text(text) == text


def test_values_of_secret_environment_variables_are_known() -> None:
    variables = {
        "MY_SERVICE_TOKEN": "plain-looking-word",
        "DB_PWD": "another-plain-word",
        "PWD": "/somewhere/quite/long",
    }
    text = "plain-looking-word and another-plain-word at /somewhere/quite/long"
    assert Redactor(variables=variables).text(text) == "[redacted] and [redacted] at /somewhere/quite/long"


def everything(path: Path) -> str:
    with RunStore(path) as store:
        rows = [*store.query("SELECT payload FROM events"), *store.query("SELECT text FROM texts")]
        rows += store.query("SELECT error, prompt_name FROM runs")
    return "\n".join(str(row) for row in rows)


@dataclass(frozen=True)
class Headers:
    pairs: tuple[tuple[str, str], ...]
    more: dict[Any, Any]


def login(params: None, *, context: Any) -> ToolResult[dict[str, Any]]:
    return ToolResult("Logged in.", {"headers": {"x-api-key": "short1"}, "note": KEY})


def test_no_secret_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    bound = prompt(Tool[None, Any](name="login", description="Log in.", handler=login), intro=f"Key: {KEY}")
    with record(path):
        Session().dispatch(Headers((("x-api-key", "short2"),), {"client_secret": "short3", 1: 2}))
        run(call("login"), ModelReply(text=f"It is {KEY}, {'so ' * 500}"), bound=bound)
    text = everything(path) + path.read_bytes().decode("latin-1")
    assert [secret for secret in (KEY, "short1", "short2", "short3") if secret in text] == []
    assert "[redacted]" in text


@dataclass(frozen=True)
class Job:
    env: list[dict[str, str]]


def test_a_value_goes_where_another_field_names_it_a_secret(tmp_path: Path) -> None:
    path, session = tmp_path / "runs.db", Session()
    with record(path):
        session.dispatch(Job([{"name": "API_KEY", "value": "short"}, {"key": "REGION", "value": "eu"}]))
    with RunStore(path) as store:
        job = store.session_events(session.session_id)[0].event
    assert job == Job([{"name": "API_KEY", "value": "[redacted]"}, {"key": "REGION", "value": "eu"}])


@dataclass(frozen=True)
class Vault:
    secret: bytes
    api_key: list[str]
    blob: bytes
    picture: bytes


def test_secrets_in_bytes_and_lists_go_too(tmp_path: Path) -> None:
    path, session = tmp_path / "runs.db", Session()
    with record(path):
        session.dispatch(Vault(b"short4", ["short5"], f"key {KEY}".encode(), b"\xff\x00" * 400))
    with RunStore(path) as store:
        vault = store.session_events(session.session_id)[0].event
    assert vault == Vault("[redacted]", ["[redacted]"], b"key [redacted]", b"\xff\x00" * 400)  # type: ignore[arg-type]


def test_the_name_of_a_prompt_is_redacted_in_the_list_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    bound = Prompt(ns="t", key="t", name=f"for {KEY}", sections=[MarkdownSection(title="A", key="a", template="a")])
    run("Done.", bound=bound, recorder=record(path))
    with RunStore(path) as store:
        assert store.list_runs()[0].prompt_name == "for [redacted]"


@pytest.mark.parametrize("text", ["\\" * 200_000, "a." * 100_000, "'" * 100_000, "a_" * 100_000])
def test_long_texts_without_a_secret_come_back_unchanged(text: str) -> None:
    assert Redactor(variables={}).text(text) == text


def test_spans_still_fit_a_redacted_prompt(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    response = run(bound=prompt(intro=f"Key: {KEY}. " + "Go on. " * 100), recorder=record(path))
    rendered = next(event for event in read_run(path, response.run_id) if isinstance(event, PromptRendered))
    parts = {span.path[0]: rendered.text[span.start : span.end] for span in rendered.spans}
    assert parts["intro"].startswith("## 1. Intro\n\nKey: [redacted]. Go on.") and parts["intro"].endswith("Go on.")
    assert parts["guide"].startswith("## 2. Guide\n\nA guide.") and parts["sums"].startswith("## 3. Sums")


def test_own_patterns_come_on_top(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    response = run(f"Customer 4711-X, {KEY}", recorder=record(path, redact=[r"\d{4}-X"]))
    said = [event.text for event in read_run(path, response.run_id) if isinstance(event, Message)]
    assert said[-1] == "Customer [redacted], [redacted]"


def test_redaction_can_be_turned_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    response = run(f"It is {KEY}", recorder=record(path, redact=None))
    assert any(isinstance(event, Message) and KEY in event.text for event in read_run(path, response.run_id))


def test_a_second_recorder_may_ask_for_more_and_never_for_less(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with record(path, redact=None), record(path):
        response = run(f"It is {KEY}")
    assert KEY not in str(read_run(path, response.run_id))


def test_arguments_that_the_model_wrote_are_redacted(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    response = run(call("add", a=1, b=2, password="hunter2-long"), "Done.", recorder=record(path))
    invoked = [event for event in read_run(path, response.run_id) if isinstance(event, ToolInvoked)]
    assert json.loads(invoked[0].arguments)["password"] == "[redacted]"


@pytest.mark.parametrize("pattern", ["section", "user|tool", "(?i)summary", "[0-9a-f]+", "(?i)[a-z]+", r"\d{4}"])
def test_a_pattern_of_ones_own_changes_texts_but_leaves_the_recording_whole(tmp_path: Path, pattern: str) -> None:
    def when(params: None, *, context: Any) -> ToolResult[date]:
        return ToolResult("Then.", date(2026, 11, 16))

    tool = Tool[None, date](name="when", description="Tell the date.", handler=when)
    script = (call("read_section", section_key="guide"), call("when"), "Done with section 4711.")
    response = run(*script, bound=prompt(tool), recorder=record(tmp_path / "runs.db", redact=[pattern]))
    with RunStore(tmp_path / "runs.db") as store:
        assert len(store.history(response.run_id).turns) == 3
        assert [message.role for message in store.turn(response.run_id, 2).messages] == ["system", "assistant", "tool"]
        assert [event.kind for event in store.all_events(response.run_id) if isinstance(event.event, Unreadable)] == []
        assert store.problems == []


def test_a_pattern_of_ones_own_is_looked_for_in_short_texts_too(tmp_path: Path) -> None:
    response = run("Ann", recorder=record(tmp_path / "runs.db", redact=["Ann"]))
    assert read_run(tmp_path / "runs.db", response.run_id)[-1].text == "[redacted]"


@pytest.mark.parametrize(
    ("patterns", "error", "message"),
    [
        ("acme", TypeError, "must be a list, got 'acme'"),
        (["a", "("], ValueError, r"The pattern '\(' to redact must be a regular expression: missing \)"),
        (["x*"], ValueError, "The pattern 'x\\*' to redact must not match an empty text"),
    ],
)
def test_patterns_that_would_ruin_the_recording_are_refused(
    tmp_path: Path, patterns: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        record(tmp_path / "runs.db", redact=patterns)


def test_a_secret_that_is_a_key_of_data_is_replaced(tmp_path: Path) -> None:
    path, session = tmp_path / "runs.db", Session()
    with record(path):
        session.dispatch(Headers((), {SECRETS[2]: "alice"}))
    assert SECRETS[2].encode() not in path.read_bytes()


WIDE = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
KNOWN = "kN0wn-v4lue-Zq93kdLwPx-77"
FOREIGN = "päßwörd-€-langer-schlüssel"


def wide_texts() -> Iterator[tuple[str, str]]:
    """Texts of random surroundings with a secret in it, and the secret."""
    random = Random(11)
    around = ["", "Hello, world. ", "\r\n", "key: ", "密钥", "ключ ", "x\u0100", "é", "\U0001f511", " \u3000"]
    secrets = [*SECRETS, KNOWN, FOREIGN, 'password = "hunter2-secret-pw"', "postgres://bob:hunter2-secret-pw@db/x"]
    for secret in secrets:
        for _ in range(4):
            text = "".join(random.choices(around, k=3)) + " " + secret + " " + "".join(random.choices(around, k=3))
            yield text, "hunter2-secret-pw" if "hunter2" in secret else secret


@pytest.mark.parametrize("encoding", WIDE)
def test_a_secret_in_a_wide_encoding_is_replaced_in_that_encoding(encoding: str) -> None:
    redactor = Redactor(variables={"SHOP_API_KEY": KNOWN, "OTHER_TOKEN": FOREIGN})
    for text, secret in wide_texts():
        clean = redactor.content(text.encode(encoding)).decode(encoding)
        assert "[redacted]" in clean and secret not in clean
        # What stands before and after it stays.
        assert clean.split("[redacted]")[0] in text and clean.rsplit("[redacted]")[-1] in text


@pytest.mark.parametrize("encoding", WIDE)
def test_a_secret_in_a_wide_encoding_is_replaced_however_its_bytes_are_written(encoding: str) -> None:
    redactor = Redactor(variables={"SHOP_API_KEY": KNOWN, "OTHER_TOKEN": FOREIGN})
    for text, _ in wide_texts():
        data = text.encode(encoding)
        for written in (b64encode(data).decode(), repr(data), json.dumps(data.decode("latin-1"))):
            assert redactor.text(f"see {written} there") != f"see {written} there", (text, written)


@pytest.mark.parametrize("encoding", WIDE)
def test_no_file_in_a_wide_encoding_brings_a_secret_into_a_recording(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", KNOWN)

    @tool
    def write(context: ToolContext) -> str:
        "Write."
        assert context.filesystem is not None
        context.filesystem.write("keys.txt", f"ключ {KEY} and {KNOWN}".encode(encoding))
        return "Written."

    section = MarkdownSection(key="task", title="Task", template="Write.", tools=[write])
    made = Prompt(ns="tests", key="wide", sections=[section]).bind(resources={Filesystem: InMemoryFilesystem()})
    with record(tmp_path / "runs.db"):
        response = weakincentives.run(made, ScriptedAdapter([call("write"), "Done."]))
    assert response.session is not None
    with RunStore(tmp_path / "runs.db") as store:
        (run,) = store.list_runs()
        (recorded,) = store.of_kinds(run.run_id, ["FilesChanged"])
    event: Any = recorded.event
    assert event.changes[0].after.decode(encoding) == "ключ [redacted] and [redacted]"


@pytest.mark.parametrize(
    "data", [b"\0" * 99, b"a\0" * 50, Random(1).randbytes(5000), "Schöne Grüße\n".encode("utf-16")]
)
def test_other_bytes_stay_as_they_are(data: bytes) -> None:
    assert Redactor().content(data) == data
    assert Redactor().text(data.decode("latin-1")) == data.decode("latin-1")
