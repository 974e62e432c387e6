"""Secrets of every usual kind, in every usual place, must not reach a recording."""

from __future__ import annotations

import base64
import json
import os
import quopri
import random
import re
import string
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.rounds import rounds
from tests.telemetry.agents import prompt, run
from weakincentives.adapters.scripted import call
from weakincentives.prompt import Tool, ToolResult
from weakincentives.redaction import REDACTED, KnownSecrets, encodings
from weakincentives.redaction.tokens import TOKENS
from weakincentives.telemetry import Redactor, RunStore, record

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def some(length: int, alphabet: str = LETTERS) -> str:
    """Characters that look random, the same in every run."""
    return "".join(random.Random(f"{length}{alphabet}").choices(alphabet, k=length))


PASSWORD = "hunter2-Tr0ub4dor"
KEY = "sk-" + "proj-" + some(48)
# A kind of secret, the secret, and a text in which it stands.
KINDS: dict[str, tuple[str, str]] = {
    # payment
    "stripe secret key": (secret := "sk_" + "live_" + some(24), f"charge with {secret}"),
    "stripe restricted key": (secret := "rk_" + "live_" + some(99), f"STRIPE: {secret}"),
    "stripe webhook secret": (secret := "whsec_" + some(32), f'endpoint_secret = "{secret}"'),
    "square": (secret := "sq0" + "csp-" + some(43), f"{secret} expires"),
    "shopify": (secret := "shp" + "at_" + some(32, HEX), f"X-Shopify-Access-Token: {secret}"),
    # forges
    "github": (secret := "ghp_" + some(36), f"git clone https://{secret}@github.com/us/it"),
    "github fine-grained": (secret := "github_" + "pat_" + some(82), f"remote: {secret}"),
    "gitlab": (secret := "glpat-" + some(20), f"PRIVATE-TOKEN: {secret}"),
    "bitbucket": (secret := "ATBB" + some(24) + some(8, "0123456789ABCDEF"), f"app password {secret}"),
    # registries
    "npm": (secret := "npm_" + some(36), f"//registry.npmjs.org/:_authToken={secret}"),
    "pypi": (secret := "pypi-" + "AgEIcHlwaS5vcmc" + some(150), f"password = {secret}"),
    "docker": (secret := "dckr_" + "pat_" + some(27), f"docker login -u us -p {secret}"),
    "docker config": (
        secret := base64.b64encode(f"us:{PASSWORD}".encode()).decode(),
        json.dumps({"auths": {"ghcr.io": {"auth": secret}}}),
    ),
    # mail and messages
    "sendgrid": (secret := "SG." + some(22) + "." + some(43), f"mail with {secret}"),
    "mailgun": (secret := "key-" + some(32, HEX), f"curl -s --user 'api:{secret}' https://api.mailgun.net"),
    "mailchimp": (secret := some(32, HEX) + "-us14", f"mailchimp {secret}"),
    "telegram": (secret := "1234567890:AA" + some(33), f"https://api.telegram.org/bot{secret}/getMe"),
    "slack webhook": (
        secret := "T0123ABCD/B0123ABCD/" + some(24),
        f"POST https://hooks.slack.com/services/{secret}",
    ),
    "discord webhook": (
        secret := "123456789012345678/" + some(68),
        f"https://discord.com/api/webhooks/{secret}",
    ),
    "discord bot": (secret := some(38), f"bot MTIzNDU2Nzg5MDEyMzQ1Njc4.GhIjKl.{secret}"),
    # clouds
    "aws secret": (secret := some(40), f"AWS_SECRET_ACCESS_KEY={secret}"),
    "aws pair in a table": (secret := some(40, LETTERS + "/+"), f"ci,AKIA{some(16, string.ascii_uppercase)},{secret}"),
    "azure storage": (
        secret := some(86, LETTERS + "+/") + "==",
        f"DefaultEndpointsProtocol=https;AccountName=us;AccountKey={secret};EndpointSuffix=core.windows.net",
    ),
    "azure client secret": (secret := "abc8Q~" + some(34), f"client {secret}"),
    "google": (secret := "AIza" + some(35), f"https://maps.example/?key={secret}"),
    "google service account": (
        secret := some(64, LETTERS + "+/"),
        json.dumps({"private_key": f"-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n"}),
    ),
    "digital ocean": (secret := "dop_" + "v1_" + some(64, HEX), f"token {secret}"),
    "vault": (secret := "hvs." + some(95), f"VAULT: {secret}"),
    "alibaba pair": (secret := some(30), f"LTAI{some(16)}, {secret}"),
    "salesforce session": (secret := "00D" + some(12) + "!" + some(60), f"sid {secret}"),
    "nats seed": (secret := "SU" + some(56, string.ascii_uppercase + "234567"), f"// {secret}"),
    "composio": (secret := "ak_" + "x4" + some(18), f"composio login {secret}"),
    "dropbox": (secret := some(11, "xyz123") + "A" * 10 + some(43), f"var g = '{secret}'"),
    "grafana": (
        secret := base64.b64encode(
            json.dumps({"k": some(40, HEX), "n": "ci", "id": 1}, separators=(",", ":")).encode()
        ).decode(),
        f"Grafana: {secret}",
    ),
    "json web key": (secret := some(43), json.dumps({"kty": "EC", "crv": "P-256", "x": some(42), "d": secret})),
    "base64 in a path": (
        secret := base64.b64encode(f"123456789012:{some(20)}".encode()).decode()[:44],
        f"https://wiki.internal/api/token/{secret}",
    ),
    # in a terminal
    "key after a colour": (secret := KEY, f"key: \x1b[1;32m{secret}\x1b[0m"),
    "key after an escaped line break": (secret := KEY, json.dumps(f"the key:\n{secret}")),
    # connection strings
    "postgres address": (PASSWORD, f"postgresql://app:{PASSWORD}@db.internal:5432/app"),
    "address of a login that is an address": (PASSWORD, f"smtps://us@mail.example:{PASSWORD}@smtp.mail.example:465"),
    "address of a password with an at": (secret := "hunt@r2-x", f"amqp://app:{secret}@queue.internal"),
    "redis address": (PASSWORD, f"rediss://:{PASSWORD}@cache.internal:6380"),
    "ado connection string": (
        secret := "correct horse, battery",
        f"Server=tcp:db,1433;User ID=app;Password={secret};Encrypt=True",
    ),
    # signed addresses
    "aws signed url": (
        secret := some(64, HEX),
        f"https://b.s3.amazonaws.com/o?X-Amz-Date=20261115T000000Z&X-Amz-Signature={secret}",
    ),
    "azure sas": (
        secret := urllib.parse.quote(some(43) + "=", safe=""),
        f"https://us.blob.core.windows.net/c/b?sv=2026-01-01&sp=r&sig={secret}",
    ),
    # command lines
    "curl -u": (PASSWORD, f"curl -sS -u admin:{PASSWORD} https://internal/api"),
    "option with one dash": (PASSWORD, f"Connect-Server -Domain here -Password '{PASSWORD}'"),
    "option at the beginning": (PASSWORD, f"--db-pass {PASSWORD}"),
    "options in a list": (secret := some(20), json.dumps(["deploy", "--api_key", secret])),
    "openssl": (PASSWORD, f'openssl req -passin "pass:{PASSWORD}" -in server.csr'),
    "powershell": (PASSWORD, f'ConvertTo-SecureString "{PASSWORD}" -AsPlainText -Force'),
    "netrc": (PASSWORD, f"machine api.internal login bot password {PASSWORD}"),
    # names and values
    "assignment": (secret := some(24), f"github_token = '{secret}'"),
    "short name": (PASSWORD, f"login bot, pw: {PASSWORD}"),
    "name in camel case": (PASSWORD, f"dbPassword={PASSWORD}"),
    "name with a suffix": (secret := some(30), f"SECRET_KEY_BASE: {secret}"),
    "name of two words": (secret := some(24), f"Access key: {secret}"),
    "name with a type": (PASSWORD, f'def connect(password: str = "{PASSWORD}") -> None: ...'),
    "comparison": (PASSWORD, f'if password == "{PASSWORD}":'),
    "definition": (PASSWORD, f'#define PASSWORD "{PASSWORD}"'),
    "ruby": (PASSWORD, f'"password" => "{PASSWORD}"'),
    "default of a variable": (PASSWORD, f'os.environ.get("API_SECRET", "{PASSWORD}")'),
    "pair": (secret := some(20), str([("x-api-key", secret)])),
    "name and value as json": (secret := some(20), json.dumps({"env": [{"name": "API_KEY", "value": secret}]})),
    "name and value as yaml": (secret := some(20), f"env:\n  - name: API_KEY\n    value: {secret}"),
    "xml": ("correct horse", '<server><password kind="x">correct horse</password></server>'),
    "html": (secret := some(20), f"<a title='token: &quot;{secret}&quot;'>x</a>"),
    "sql": (PASSWORD, f"CREATE USER 'app'@'%' IDENTIFIED WITH mysql_native_password BY '{PASSWORD}';"),
    "sql without quotes": (PASSWORD, f"alter user app identified by {PASSWORD};"),
    "sql function": (PASSWORD, f"SET PASSWORD FOR app = PASSWORD('{PASSWORD}')"),
    "otp address": (secret := some(16, "ABCDEFGH234567"), f"otpauth://totp/us?secret={secret}&issuer=us"),
    # encoded
    "base64 of a key": (
        secret := base64.b64encode(f"OPENAI_API_KEY={KEY}".encode()).decode(),
        f"kubectl get secret: data: {{env: {secret}}}",
    ),
    "percent-encoded address": (
        secret := urllib.parse.quote(f"mongodb://app:{PASSWORD}@db/app", safe=""),
        f"https://internal/connect?to={secret}&retry=1",
    ),
    "json in json in json": (
        PASSWORD,
        json.dumps({"body": json.dumps({"config": json.dumps({"db_password": PASSWORD})})}),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_of_this_kind_is_redacted(kind: str) -> None:
    secret, text = KINDS[kind]
    assert secret in text or json.dumps(secret)[1:-1] in text
    clean = Redactor(variables={}).text(text)
    assert secret not in clean and "[redacted]" in clean


def test_no_kind_of_secret_reaches_a_recording(tmp_path: Path) -> None:
    def leak(params: None, *, context: Any) -> ToolResult[dict[str, str]]:
        return ToolResult("\n".join(text for _, text in KINDS.values()), {k: text for k, (_, text) in KINDS.items()})

    path = tmp_path / "runs.db"
    bound = prompt(Tool[None, Any](name="leak", description="Leak.", handler=leak))
    run(call("leak"), "Done.", bound=bound, recorder=record(path))
    written = path.read_bytes().decode("latin-1")
    assert [kind for kind, (secret, _) in KINDS.items() if secret in written] == []


@pytest.mark.parametrize("name", [name for name, *_ in TOKENS])
def test_every_token_that_the_scanner_knows_is_redacted(name: str) -> None:
    (rule,) = [rule for rule in TOKENS if rule[0] == name]
    _, needles, _, _, expression = rule
    redactor = Redactor(variables={})

    @settings(max_examples=rounds(5, 30), deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.from_regex(expression.replace("(?P<keep>", "(?:"), fullmatch=True), st.sampled_from(PLACES))
    def check(token: str, place: str) -> None:
        if any(needle in token for needle in needles):
            assert token not in redactor.text(place.format(token))

    check()


PLACES = ["use {} now", '{{"value": "{}"}}', "{}", "line one\\n{}\\nline three", "value={}", "https://us.example/{}"]


# A character on its own, in the ways that programs write one.
CHARACTERS = {
    "percent": "%{:02x}",
    "percent, upper case": "%{:02X}",
    "JSON": "\\u{:04x}",
    "JSON, upper case": "\\u{:04X}",
    "JSON in JSON": "\\\\u{:04x}",
    "JavaScript": "\\u{{{:x}}}",
    "Python": "\\U{:08x}",
    "C": "\\x{:02x}",
    "octal": "\\{:03o}",
    "HTML": "&#{};",
    "HTML with zeros": "&#{:05};",
    "HTML without semicolons": "&#{}",
    "HTML, hexadecimal": "&#x{:x};",
    "HTML, hexadecimal, upper case": "&#X{:X};",
    "HTML in a URL": "%26%23{}%3B",
    "twice percent": "%25{:02x}",
}
WHOLE = {
    "slashes": lambda value: value.replace("/", "\\/"),
    "slashes in JSON": lambda value: value.replace("/", "\\\\/"),
    "Markdown": lambda value: re.sub(r"[^\w\s]|_", r"\\\g<0>", value),
    "named entities": lambda value: value.replace("/", "&sol;").replace("+", "&plus;").replace("ö", "&ouml;"),
    "quoted-printable": lambda value: quopri.encodestring(value.encode()).decode(),
    "base64 with slashes": lambda value: base64.b64encode(f"??{value}??".encode()).decode().replace("/", "\\/"),
    "base64 in a URL": lambda value: quote(base64.b64encode(f"user:{value}".encode()).decode(), safe=""),
    "base64 of a pair": lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
}


def hidden(value: str) -> dict[str, str]:
    each = {name: "".join(form.format(ord(character)) for character in value) for name, form in CHARACTERS.items()}
    every_other = "".join(f"&#{ord(letter)};" if place % 2 else letter for place, letter in enumerate(value))
    whole = {name: form(value) for name, form in WHOLE.items()}
    listed = {f"encoding {place}": form for place, form in enumerate(encodings(value))}
    return {**each, **whole, **listed, "mixed": every_other}


VALUE = "plain-looking/wörd+42"


@pytest.mark.parametrize("form", hidden(VALUE).values(), ids=hidden(VALUE))
def test_a_known_value_is_redacted_in_any_encoding(form: str) -> None:
    for redactor in (Redactor(variables={"MY_TOKEN": VALUE}), KnownSecrets(variables={"MY_TOKEN": VALUE})):
        clean = redactor.text(f"Bad request: key={form}, see above")
        assert form not in clean and "[redacted]" in clean and clean.endswith(" see above")


RAW = b"plain-looking\xff/w\xc3\xb6rd\x80"


@pytest.mark.parametrize(
    "form",
    [
        *(RAW.decode("utf-8", way) for way in ("surrogateescape", "replace", "ignore", "backslashreplace")),
        RAW.decode("latin-1"),
        json.dumps(RAW.decode("utf-8", "surrogateescape")),
        repr(RAW),
        quote(RAW),
        quote(RAW, safe=""),
        RAW.hex(),
        base64.b64encode(RAW).decode(),
        base64.urlsafe_b64encode(b"user:" + RAW).decode(),
    ],
    ids=ascii,
)
def test_a_known_value_that_is_no_utf_8_is_redacted_in_any_encoding(form: str) -> None:
    for redactor in (
        Redactor(variables={"MY_TOKEN": RAW.decode("utf-8", "surrogateescape")}),
        Redactor(variables={}, values=[RAW.decode("utf-8", "surrogateescape")]),
        KnownSecrets([RAW.decode("utf-8", "surrogateescape")], variables={}),
    ):
        clean = redactor.text(f"Bad request: {form} is wrong")
        assert form not in clean and "[redacted]" in clean and clean.endswith(" is wrong")


@pytest.mark.parametrize("value", ["\udcff" * 12, "\ud800" * 12, "a\udcff" * 6, "\x00\udcff\n" * 4])
def test_no_value_of_the_environment_stops_a_recording(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "MY_TOKEN": value})
    response = run("An answer.", recorder=record(tmp_path / "runs.db"))
    with RunStore(tmp_path / "runs.db") as store:
        assert store.turn(response.run_id, 1).reply is not None
    assert Redactor().text("An ordinary text.") == "An ordinary text."


@dataclass(frozen=True)
class Ordinary:
    text: str


ORDINARY = [
    "The basic understanding of bearer tokens is taught in basic training.",
    "Use --password to pass it, and --token for a token.",
    "See https://docs.example.org/guide/secrets?page=2&key=orders#token-rotation",
    "commit 2351a95f0e2b4d1c8a7e6f5d4c3b2a1908f7e6d5, image sha256:" + some(64, HEX),
    "0b6f8c1e-8a7d-4c1b-9f0e-2d3c4b5a6978 is the id of the run",
    "src/weakincentives/telemetry/payload.py and a-very-long-kebab-case-name-of-a-section",
    '{"input_tokens": 1200, "next_page_token": "orders-2", "section_key": "refunds", "primary_key": "order_id"}',
    "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 4).decode(),
    "The password field is required; the secret is to rest. Authorization: required for all calls.",
    "Task-oriented sky-high risk-averse disk-bound desk-top",
    "--- PASS: TestParse2Lines (0.01s)",
    "PASS src/pages/login2.test.js",
    'token = read_token("file-2"); secret: ${{ secrets.DEPLOY_KEY_2 }}',
    "password == other_password; api_key := readKey(); const hashed = password => hash(password)",
    '{"nextToken": "orders-page-2", "OLDPWD": "/srv/us/project2"}',
    "pwd: /srv/us/project2 and PWD=/srv/us/project2",
    "`password`: required, see https://docs.example.org/token/rotation2",
    "<label for='password'>Password:</label> --token <your token>",
    'prompt.password("New password: ", "utf8")',
    "The defect was identified by release-2.4.1 and resolved with password resets.",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor(variables={}).text(text) == text


def hostile() -> list[str]:
    """Long texts made of what the rules look for: an expression that goes back over them would not come to an end."""
    needles = sorted({needle for _, needles, *_ in TOKENS for needle in needles})
    words = [*needles, "eyJ", "eyJa.", '"password": "', "password=", "curl -u ", "://a:", "Basic ", "%41", "\\u0041"]
    words += [
        "-----BEGIN PRIVATE KEY-----",
        "mysql -",
        " --token ",
        "machine a login b ",
        "AKIA" + "A" * 16 + " ",
        "1|",
        "token=a1",
        "token=a1.a1(",
        "-a-token ",
        '("a_a.a-',
        "name: a_token value: ",
        "<a.password a>",
        "password: a ",
        "identified with a ",
        "to-securestring -a ",
        '"kty" "d": "',
    ]
    texts = [word * (100_000 // len(word)) for word in words]
    texts += [(word + "a" * 40) * (100_000 // (len(word) + 40)) for word in words]
    return [*texts, "\\" * 200_000, "a." * 100_000, "'" * 100_000, "A_" * 100_000, "a" * 1_000_000, " " * 1_000_000]


@pytest.mark.slow
def test_the_beginnings_of_secrets_in_any_number_are_searched_to_the_end() -> None:
    redactor = Redactor(variables={"MY_TOKEN": "a" * 40})
    for text in hostile():
        assert redactor.text(f"{text} {KEY}").endswith((" [redacted]", "[redacted]"))


def test_a_recording_of_hostile_text_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    response = run("\n".join(text[:2_000] for text in hostile()), recorder=record(path))
    with RunStore(path) as store:
        assert store.turn(response.run_id, 1).reply is not None


@pytest.mark.parametrize("length", [10, 900, pytest.param(20_000, marks=pytest.mark.slow)])
def test_secrets_of_any_length_and_with_common_beginnings_are_removed(length: int) -> None:
    key = ("k7Qm2ZpX9vLr4TnB" * length)[:length]
    names = [f"{key}{ending}" for ending in ("", "AbCd", "AbCdEf", "AbXy", "z")]
    known = KnownSecrets(names, variables={})
    assert known.text("; ".join(names)) == "; ".join([REDACTED] * len(names))
