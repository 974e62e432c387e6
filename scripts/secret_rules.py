"""Write redaction/tokens.py from the token rules of CredSweeper (MIT), a scanner for leaked credentials.

    pip download --no-deps credsweeper && python scripts/secret_rules.py credsweeper-*.whl

Only rules for tokens with a fixed form are taken. Rules that CredSweeper confirms with a model, that name things which
are no secret (identifiers, domains), or that are too weak without its further checks are left out; so are those that
`redaction.py` covers itself.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

TARGET = Path(__file__).resolve().parents[1] / "src" / "weakincentives" / "redaction" / "tokens.py"

# What may stand before a token: in CredSweeper's rules it is part of the match.
BOUNDARY = (
    r"(?:^|/|[^\\0-9A-Za-z+_-]|\\[0abfnrtv]|(?:%|\\x)[0-9A-Fa-f]{2}|\\[0-7]{3}"
    r"|\\[Uu][0-9A-Fa-f]{4}|\x1B\[[0-9;]{0,80}m)"
)
LEFT_OUT = {
    "UUID": "an identifier",
    "Product Activation Key": "an identifier",
    "Firebase Domain": "a domain",
    "AWS S3 Bucket": "a domain",
    "Tencent WeChat API App ID": "an identifier",
    "Basic Authorization": "covered by redaction.py",
    "Bearer Authorization": "covered by redaction.py",
    "PEM Private Key": "covered by redaction.py",
    "BASE64 encoded PEM Private Key": "covered by redaction.py, which decodes",
    "BASE64 Private Key": "covered by redaction.py, which decodes",
    "JSON Web Token": "covered by redaction.py",
    "JSON Web Key": "covered by redaction.py, which decodes",
    "Azure Access Token": "a JSON Web Token",
    "Grafana Provisioned API Key": "covered by redaction.py, which decodes",
    "OpenAI Token": "covered by redaction.py: sk-",
    "OpenRouter API Key": "covered by redaction.py: sk-",
    "Anthropic API Key": "covered by redaction.py: sk-",
    "DeepSeek API Key": "covered by redaction.py: sk-",
    "Jira / Confluence PAT token": "covered by redaction.py, which decodes",
    "Discord Bot Token": "covered by redaction.py",
    "Facebook App Token": "covered by redaction.py",
    "Dropbox API secret (long term)": "covered by redaction.py",
    "NKEY Seed": "covered by redaction.py",
    "Composio Credentials": "covered by redaction.py",
    "Dropbox App secret": "weak",
    "OTP / 2FA Secret": "weak",
}
# Where in a token the text stands by which it is found, if not at its beginning.
OFFSETS = {
    "Azure Secret Value": (3,),
    "Azure Storage Account Key": (52,),
    "Hashicorp Terraform Token": (14,),
    "MailChimp API Key": (32,),
    "NewRelic Credentials": (0, 36),
    "Stripe Credentials": (0, 1),
    "Telegram Bot API Token": (8, 9, 10),
}
# Rules that need a backtrack over long runs, or whose required texts are too common to search for.
CHANGED = {
    "Groq API Key": (("gsk_",), r"gsk_[0-9A-Za-z]{40}"),
    "MailGun API Key": (("key-",), r"key-[0-9a-z]{32}"),
    "Twilio Credentials": (("AC", "SK"), r"(AC|SK)([0-9A-F]{32}|[0-9a-f]{32})"),
    "PASETO Token": (("v1.", "v2.", "v3.", "v4."), r"v[1-4]\.(public|local)\.[0-9A-Za-z_-]{15}"),
    "PASERK Keys": (("k1.", "k2.", "k3.", "k4."), r"k[1-4]\.(local|secret)(-pw)?\.[0-9A-Za-z_-]{15}"),
    "1Password Account Token": (("ops_eyJ",), r"ops_eyJ[0-9A-Za-z_-]{160}"),
    "Facebook Access Token": (("EAA",), r"EAA[0-9A-Za-z]{80}"),
    "Salesforce Credentials": (("00D",), r"00D[0-9A-Za-z]{9,15}![0-9A-Za-z_.]{24,200}"),
    "Telegram Bot API Token": ((":AA",), r"(?<![0-9])[0-9]{8,10}:AA[0-9A-Za-z_-]{33}"),
}
# In an address the token follows the word "bot".
WITHIN_WORDS = {"Telegram Bot API Token"}


def main(argv: list[str]) -> int:
    wheel = zipfile.ZipFile(argv[0])
    rules = yaml.safe_load(wheel.read("credsweeper/rules/config.yaml"))
    licence = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    version = Path(argv[0]).name.split("-")[1]
    TARGET.write_text("\n".join(lines(rules, version, licence)) + "\n", encoding="utf-8")
    return 0


def lines(rules: list[dict[str, Any]], version: str, licence: str) -> Iterator[str]:
    yield '"""Tokens with a fixed form: a text that occurs in each, and its regular expression. Generated, do not edit.'
    yield ""
    yield f"From the rules of CredSweeper {version} by `scripts/secret_rules.py`. Its licence:"
    yield ""
    yield from (line.rstrip() for line in licence.strip().splitlines())
    yield '"""'
    yield ""
    yield "# Name, texts of which one occurs, at which offsets, whether the token starts a word, and the expression."
    yield "TOKENS: tuple[tuple[str, tuple[str, ...], tuple[int, ...], bool, str], ...] = ("
    for rule in rules:
        if rule["type"] == "pattern" and not rule.get("use_ml") and rule["name"] not in LEFT_OUT:
            yield f"    {converted(rule)!r},"
    yield ")"


def converted(rule: dict[str, Any]) -> tuple[str, tuple[str, ...], tuple[int, ...], bool, str]:
    (value,) = rule["values"]
    starts_word = value.startswith(BOUNDARY) and rule["name"] not in WITHIN_WORDS
    if rule["name"] in CHANGED:
        needles, expression = CHANGED[rule["name"]]
    else:
        needles, expression = tuple(rule["required_substrings"]), value.removeprefix(BOUNDARY)
    expression = re.sub(r"\(\?![^()]*\)$", "", expression)
    expression = expression.replace("(?P<variable>", "(?P<keep>").replace("(?P<value>", "(?:")
    expression = re.sub(r"(?<!\\)\((?!\?)", "(?:", expression)
    offsets = OFFSETS.get(rule["name"], (0,))
    return rule["name"], needles, offsets, starts_word, re.sub(r",(?:8000|800)\}", ",400}", expression)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
