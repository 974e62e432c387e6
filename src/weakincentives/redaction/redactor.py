"""Keeps secrets out of what is recorded, logged and shown.

It looks for tokens with a fixed form (`tokens.py` has the rules of a scanner), for secrets in the forms people write
them (assignments, headers, URLs, command lines), and for both in base64, hexadecimal and escapes. Every search takes
time linear in the text: repeats are bounded, or possessive or atomic and at the end of their group.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from weakincentives.redaction.known import MIN_TEXT, REDACTED, KnownSecrets, any_of
from weakincentives.redaction.tokens import TOKENS

# Results for short texts are cached, since events repeat them.
SHORT = 200
MAX_CACHED = 10_000

# What a secret is called; in prose, a word such as "secret" or "token" alone means nothing.
_KEYS = "access|account|api|auth|authentication|encryption|master|private|secret|signing|storage|subscription"
_TOKENS = "access|api|auth|bearer|bot|id|refresh|sas|security|session"
_NAMES = (
    rf"(?:(?:{_KEYS}|shared[-_]?access)[-_]?key(?![-_]?(?:id|name))|(?:{_TOKENS})[-_]?token"
    r"|(?:api|client)[-_]?secret|(?:pg)?password|passwd|passphrase)"
)
# What may follow: "password2", "api_key_prod".
_SUFFIX = r"(?:[-_]?(?:\d{1,3}|base|confirm(?:ation)?|dev|live|new|old|prod(?:uction)?|staging|test|value))?"
_FIELDS = (
    r"(?:(?:proxy-)?authorization|(?:set-)?cookie"
    rf"|(?:[a-z0-9]{{1,32}}[-_.]){{0,6}}[a-z0-9]{{0,32}}?(?:{_NAMES}|secret|(?<!old)pwd|(?<!page)(?<!page[-_])(?<!next)(?<!next[-_])token){_SUFFIX})"
)
# A value that is hardly a word: it has letters and digits, and is neither a variable nor a call.
_PLAIN = r"[0-9A-Za-z!#$%*+./=?@^_~-]"
_STRONG = rf"(?![$<*]|[\w.]{{0,99}}[(\[])(?={_PLAIN}{{0,64}}[0-9])(?={_PLAIN}{{0,64}}[A-Za-z]){_PLAIN}{{8,}}"
_QUOTE = r"\\{0,7}(?:[\"']|&quot;)?"
# What separates a name from its value, including "name: str = '...'".
_IS = rf"{_QUOTE}\s{{0,20}}(?:(?:[=!:]=?=|=>|:[&\w .?|<>\[\]]{{1,34}}=)(?=\s?\\{{0,7}}[\"'])|[:=])\s{{0,80}}{_QUOTE}"
SECRET_NAMES = re.compile(rf"(?i)^_?{_FIELDS}$")


class Redactor(KnownSecrets):
    """Replaces secrets in text.

    `patterns` are added to the built-in ones; if one has the group `keep`, that part of the match stays. `variables`
    are environment variables, whose values are secret if their names say so, and `values` are further secrets, found in
    any encoding.
    """

    enabled = True

    def __init__(
        self,
        patterns: Iterable[str | re.Pattern[str]] = (),
        *,
        variables: Mapping[str, str] | None = None,
        values: Iterable[str] = (),
    ) -> None:
        super().__init__(values, variables=variables)
        self._patterns: tuple[re.Pattern[str], ...] = ()
        self._cache: dict[str, str] = {}
        self.add(patterns)

    def add(self, patterns: Iterable[str | re.Pattern[str]]) -> None:
        """Also look for these patterns."""
        self._patterns = tuple(dict.fromkeys((*self._patterns, *compile_patterns(patterns))))
        self._cache = {}

    def text(self, text: str) -> str:
        """The text with each secret replaced."""
        if len(text) >= SHORT:
            return self._clean(text)
        clean = self._cache.get(text)
        if clean is None:
            if len(self._cache) >= MAX_CACHED:
                self._cache = {}
            clean = self._cache[text] = self._clean(text)
        return clean

    def data(self, value: Any) -> Any:
        """Plain JSON data with each secret replaced: in texts and keys, and the value of a name that suggests one."""
        match value:
            case str():
                return self.text(value)
            case list() | tuple():
                return [self.data(item) for item in value]
            case dict():
                return {self.text(key): self._field(key, item) for key, item in value.items()}
        return value

    def content(self, data: bytes) -> bytes:
        """The content of a file with each secret replaced.

        In what is not UTF-8, only text in UTF-16 and UTF-32 is looked for: anything else would match by chance.
        """
        try:
            return self.text(data.decode()).encode()
        except UnicodeDecodeError:
            return self._only_wide(data, 0).encode("latin-1", "replace")

    def _only_wide(self, data: bytes, depth: int) -> str:
        """Bytes as text, without secrets in UTF-16 or UTF-32."""
        text = data.decode("latin-1")
        return self._clean_wide(text, depth) if "\0" in text else text

    def _field(self, key: str, value: Any) -> Any:
        return REDACTED if isinstance(value, str | int) and is_secret_name(key) else self.data(value)

    def _find(self, text: str) -> str:
        text = super()._find(text)
        for pattern in self._patterns:
            text = pattern.sub(_replacement, text)
        if len(text) < MIN_TEXT:
            return text
        lower = text.lower()
        hints = {hint for hint in _HINTS if hint in lower}
        if hints:
            for needed, pattern in _forms():
                if not hints.isdisjoint(needed):
                    text = pattern.sub(_replacement, text)
        return _without_tokens(text)

    def _unescape(self, text: str, depth: int) -> str:
        """The text without secrets hidden in base64, hexadecimal or escapes."""

        def clean_run(match: re.Match[str]) -> str:
            run, before = match[0], match.string[max(0, match.start() - 8) : match.start()]
            if self._hides_secret(run, before, depth):
                return REDACTED
            # It may be a path with a secret hidden in one part.
            return "/".join(REDACTED if self._hides_secret(part, "", depth) else part for part in run.split("/"))

        return super()._unescape(_RUN.sub(clean_run, text), depth)

    def _hides_secret(self, run: str, before: str, depth: int) -> bool:
        if _BARE.fullmatch(run):
            return True
        data = _decode(run) if _RUN.fullmatch(run) else None
        if data is None:
            return False
        if _PRIVATE_KEY.match(data) or (len(run) == 44 and _ATLASSIAN.match(data)):
            return True
        if not data.isascii():
            return self._only_wide(data, depth + 1) != data.decode("latin-1")
        if before.rstrip().lower().endswith("basic") and b":" in data:
            return True
        plain = data.decode()
        return self._clean(plain, depth + 1) != plain


class NoRedaction(Redactor):
    """Leaves everything as it is."""

    enabled = False

    def __init__(self) -> None:
        super().__init__(variables={})

    def text(self, text: str) -> str:
        return text

    def content(self, data: bytes) -> bytes:
        return data


def compile_patterns(patterns: Iterable[str | re.Pattern[str]]) -> tuple[re.Pattern[str], ...]:
    """The patterns, compiled; refuses those that would ruin every text."""
    if isinstance(patterns, str | re.Pattern):
        raise TypeError(f"The patterns to redact must be a list, got {patterns!r}; write [...] around it.")
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
            matches_nothing = any(not match[0] for text in ("", "a b") for match in found[-1].finditer(text))
        except (re.error, TypeError) as error:
            raise ValueError(f"The pattern {pattern!r} to redact must be a regular expression: {error}.") from None
        if matches_nothing:
            raise ValueError(f"The pattern {pattern!r} to redact must not match an empty text.")
    return tuple(found)


def is_secret_name(name: Any) -> bool:
    """True if a field of this name holds a secret, whatever its value looks like."""
    return isinstance(name, str) and len(name) < 64 and SECRET_NAMES.match(name) is not None


def _replacement(match: re.Match[str]) -> str:
    return (match.groupdict().get("keep") or "") + REDACTED


# Where a token that must begin a word may begin: not inside a word, except after an escape.
_WORD_START = (
    r"(?:(?<![0-9A-Za-z+_-])|(?<=\\[0abfnrtv])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})"
    r"|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m)|(?<=\x1b\[[0-9];[0-9]{2}m))"
)


def _after(words: str, gap: str, end: str, before: str = "(?<![0-9a-z])") -> str:
    """An expression for the position after one of these words and this end of a name."""
    return "|".join(f"(?<={before}{word}{between}{end})" for word in words.split("|") for between in ("", gap))


# Each form of a secret, with lower-case texts of which at least one must occur.
_FORMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("private key",),
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----[\s\S]*?"
        r"(?:-----END [A-Z0-9 ]{0,40}KEY[A-Z ]{0,20}-----|\Z)",
    ),
    (("putty-user-key",), r"(?P<keep>PuTTY-User-Key-File-\d: )[\s\S]*?(?:Private-MAC: \w+|\Z)"),
    (("eyj",), _WORD_START + r"eyJ[0-9A-Za-z_-]{8,}+(?:={0,2}\.[0-9A-Za-z_-]*+){2,4}={0,2}"),
    # In JSON, and in JSON nested in a JSON string, the whole value up to its closing quote.
    (
        ("auth", "cookie", "key", "pass", "pwd", "secret", "token"),
        rf"(?P<keep>(?P<name>\\{{0,7}}[\"'])(?i:_?{_FIELDS})(?P=name)\s{{0,20}}(?::|=>)\s{{0,20}}(?P<value>\\{{0,7}}[\"']))"
        # Not "(?:...)++", which CPython before 3.11.5 matches too far.
        r"(?>(?:(?!(?P=value))(?:\\++[^\\]|[^\\]))+)",
    ),
    (("auth",), r"(?P<keep>[\"']_?auth\\{0,7}[\"']\s{0,20}:\s{0,20}\\{0,7}[\"'])[0-9A-Za-z+/=_-]{12,}"),
    # For speed, the end of a name is found first, then what precedes it. A name that says too little on its own needs a
    # more telling value; "PASS: TestOne2" is the outcome of a test.
    (
        ("credential", "key", "pass", "pw", "secret", "token"),
        r"(?P<keep>[ckpstCKPST](?:[eE](?i:y|cret)|[oO](?i:ken)|[aA](?i:ss(?:words?|wd|phrase)?)|[wW][dD]?|[rR](?i:edential))"
        rf"(?i:(?P<sure>(?<=[-_]secret)|(?<=(?<![0-9a-z])passwd)|(?<=(?<![0-9a-z])password)|(?<=(?<![0-9a-z])passphrase)"
        rf"|{_after(_KEYS, '[-_]', 'key')}|{_after(_TOKENS, '[-_]', 'token')}){_IS}"
        r"|(?:(?<=password)|(?<=passwords)|(?<=passwd)|(?<=[0-9a-z_.,;/-]pass)(?<!bypass)|(?-i:(?<=pass))|(?<=pass)(?==)"
        r"|(?<=token)(?<!page[-_]token)(?<!pagetoken)(?<!next[-_]token)(?<!nexttoken)|(?<=secret)|(?<=credential)|(?<=pw)"
        rf"|(?<=pwd)(?![\"']?\s?[:=]\s?[\"']?[/~])|{_after(_KEYS, '[-_ ]', 'key', '')}){_SUFFIX}"
        rf"(?:{_IS}|\s{{1,4}}\\{{0,7}}[\"'])))(?(sure)(?!<)[^\s\"'\\,;&}}]{{6,}}|{_STRONG})",
    ),
    # A name and its value, each under a key: {"name": "API_KEY", "value": "..."}; or a pair: getenv("API_KEY", "...").
    (
        ("value",),
        rf"(?P<keep>\b(?i:name|key){_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}(?i:{_FIELDS}){_QUOTE}(?:[\s,]|\\{{1,7}}[nrt]){{0,44}}{_QUOTE}"
        rf"(?i:value){_QUOTE}\s{{0,4}}(?::\s{{0,4}}{_QUOTE}|=\s{{0,4}}\\{{0,7}}[\"']))[^\s\"'\\,}}<>]{{4,}}",
    ),
    (
        ("(",),
        rf"(?P<keep>\(\s{{0,4}}\\{{0,7}}[\"'](?i:{_FIELDS})\\{{0,7}}[\"']\s{{0,4}},\s{{0,4}}b?\\{{0,7}}[\"'])"
        r"(?=[^\"'\\]{0,64}[0-9!@#$%^&*])[^\"'\\]{6,}",
    ),
    (("</",), rf"(?P<keep><(?i:{_FIELDS})(?:\s[^<>]{{0,200}})?>\s{{0,20}})[^<>\s][^<>]{{2,400}}(?=</)"),
    # JSON Web Keys and Grafana keys, which are JSON in base64.
    (
        ("kty", '{"k":'),
        r"(?P<keep>[\"'](?:[dkpq]|d[pq]|qi)\\{0,7}[\"']\s{0,20}:\s{0,20}\\{0,7}[\"'])[0-9A-Za-z_-]{22,}",
    ),
    (
        ("credential", "pass", "pwd", "secret", "token"),
        r"(?P<keep>\b[A-Z0-9_]{0,60}(?:TOKEN|SECRET|PASSWORD|PASSWD|PASS|_PWD|CREDENTIALS?)\s{0,4}=\s{0,4}[\"']?)[^\s\"']{6,}",
    ),
    # "Server=...;Password=...;": here a password may contain spaces.
    (
        ("key", "password", "pwd", "signature"),
        r"(?P<keep>(?:^|;)\s{0,4}(?i:password|pwd|account ?key|shared ?access ?(?:key|signature))\s{0,4}=\s{0,4})"
        r"[^;\s\"'=][^;\"'\r\n]{0,400}",
    ),
    (("://",), r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/:\"']{0,99}:)[^\s/?#\"']{1,256}(?=@)"),
    (("://",), r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)[A-Za-z0-9_.-]{20,256}(?=@)"),
    (
        ("amz-", "auth", "goog-", "hmac", "key", "secret", "sig", "token"),
        r"(?P<keep>(?:[?&;]|\\u0026)(?i:x-(?:amz|goog)-(?:signature|security-token|credential)|signature|sig|hmac|auth"
        r"|(?:[a-z]{1,16}_)?(?:token|secret)|api[-_]?key|(?:[a-z]{1,16}[-_]){0,2}key(?==[^&\s\"'<>#\\]{20}))=)[^&\s\"'<>#\\]{8,}",
    ),
    (
        ("authorization",),
        r"(?P<keep>(?i:authorization)\\{0,7}[\"']?\s{0,8}[:=]\s{0,8}\\{0,7}[\"']?"
        r"(?i:bearer|basic|token|bot|apikey|negotiate)\s{1,8})[^\s\"'\\,;]{6,}",
    ),
    (
        ("authorization",),
        r"(?P<keep>(?i:authorization)\\{0,7}[\"']?\s{0,8}[:=]\s{0,8}\\{0,7}[\"']?(?i:digest|aws4-hmac-sha256)\s{1,8})"
        r"[^\"'\\\r\n]{6,}",
    ),
    (
        ("authorization",),
        r"(?P<keep>(?i:authorization)\s{0,8}[:=]\s{0,8})(?=[^\s\"'\\,;0-9]{0,256}[0-9])[^\s\"'\\,;]{8,}",
    ),
    (("bearer",), r"(?P<keep>\b(?i:bearer)\s{1,8})(?=[A-Za-z_~+/=-]{0,256}[0-9.])[A-Za-z0-9._~+/=-]{8,}"),
    (("cookie",), r"(?P<keep>\b(?i:(?:set-)?cookie):\s{0,8}[^\s=;\"']{1,64}=)[^\r\n\"']{4,}"),
    (
        ("curl",),
        r"(?P<keep>\bcurl\b[^\n]{0,300}?\s(?:-u|-U|--user|--proxy-user)[= ]?\s{0,4}\\{0,3}[\"']?[^\s:\"'\\]{0,64}:)"
        r"[^\s\"'\\]{1,256}",
    ),
    (("sshpass",), r"(?P<keep>\bsshpass\s{1,8}-p\s{0,8}[\"']?)[^\s\"']{1,256}"),
    (("mysql",), r"(?P<keep>\bmysql\w{0,12}\b[^\n]{0,200}?\s-p)[^\s\"'-][^\s\"']{2,256}"),
    (
        ("bearer", "key", "pass", "pw", "secret", "token"),
        r"(?P<keep>-(?<![^\s\"'`(]-)-?(?i:[a-z]{1,16}[-_]){0,3}(?i:pass(?:in|out|word|wd|phrase)?|pw|token|secret|oauth2-bearer"
        r"|(?:api|access|secret)[-_]?key)(?:(?:=|\s{1,8})\\{0,3}[\"']?|\\{0,3}[\"'],\s{0,8}\\{0,3}[\"'])(?:pass:)?)(?!(?:env|fd|file):)"
        r"(?=[A-Za-z]{0,256}[^\sA-Za-z\"'])[^\s\"'\\<-][^\s\"'\\]{3,256}",
    ),
    (("machine",), r"(?P<keep>\bmachine\s{1,8}\S{1,200}\s{1,8}login\s{1,8}\S{1,200}\s{1,8}password\s{1,8})\S{1,256}"),
    (
        ("passphrase", "password", "pwd"),
        r"(?P<keep>\b(?i:password|passphrase|pwd)(?:\s{1,4}(?:for|of|in)\s{1,4}\S{1,64})?\s{1,4}(?i:is|was)\s{0,4}:?\s{1,4}[\"'`]?)"
        r"(?=[A-Za-z]{0,256}[0-9!@#$%^&*_])[^\s\"'`]{4,256}",
    ),
    (
        ("identified", "password"),
        r"(?P<keep>\b(?i:identified(?:\s{1,8}with\s{1,8}\S{1,64})?\s{1,8}(?:by|as)|(?<!\.)password)(?:\s{1,8}|\s{0,8}\(\s{0,8})')"
        r"[^'\r\n]{1,256}(?=')",
    ),
    (
        ("identified", "password"),
        rf"(?P<keep>(?i:(?:user|role) \S{{1,64}} [a-z ]{{0,40}}?(?:identified by|password) )){_STRONG}",
    ),
    (("securestring",), r"(?P<keep>(?i:securestring)(?:\s-\w+){0,4}\s\\{0,3}[\"']?)[^\s\"'\\$(-][^\s\"'\\]{3,}"),
    (("webhook", "zapier"), r"(?P<keep>(?:office\.com/webhookb2|hooks\.zapier\.com/hooks)/)[^\s\"'<>]{8,}"),
    (("sk-",), _WORD_START + r"sk-[0-9A-Za-z_-]{16,}"),
    (("cio",), r"(?<![0-9A-Za-z])cio[0-9A-Za-z]{32}(?![0-9A-Za-z])"),
    # The id of an AWS or Alibaba key and, on the same line, the secret that belongs to it.
    (
        ("akia", "asia", "ltai"),
        r"(?P<keep>\b(?:A(?:KIA|SIA)[0-9A-Z]{16}|LTAI[0-9A-Za-z]{12,20})(?:[^0-9A-Za-z/+\r\n][^\r\n]{0,60}?)?"
        r"[^0-9A-Za-z/+\r\n])(?:[0-9A-Za-z/+]{40}|[0-9A-Za-z]{30})(?![0-9A-Za-z/+])",
    ),
    # Tokens of Discord bots and Facebook apps.
    ((".",), r"(?<![0-9A-Za-z_-])[MNO][0-9A-Za-z_-]{23,27}\.[0-9A-Za-z_-]{6}\.[0-9A-Za-z_-]{27,}"),
    (("|",), r"(?<!\d)\d{12,18}\|[0-9A-Za-z_-]{24,28}(?![0-9A-Za-z_-])"),
)
_HINTS = frozenset(hint for hints, _ in _FORMS for hint in hints)


@cache
def _forms() -> tuple[tuple[frozenset[str], re.Pattern[str]], ...]:
    return tuple((frozenset(hints), re.compile(pattern)) for hints, pattern in _FORMS)


_REST = re.compile(r"[0-9A-Za-z_-]*+")


@cache
def _tokens() -> tuple[re.Pattern[str], dict[str, list[tuple[re.Pattern[str], int]]]]:
    """A search for the texts that identify tokens, and for each the expressions to try and how far before it."""
    found: dict[str, list[tuple[re.Pattern[str], int]]] = {}
    for _, needles, offsets, starts_word, expression in TOKENS:
        pattern = re.compile((_WORD_START if starts_word else "") + expression)
        for needle in needles:
            found.setdefault(needle, []).extend((pattern, offset) for offset in offsets)
    return re.compile(any_of(found)), found


def _without_tokens(text: str) -> str:
    finder, rules = _tokens()
    needle = finder.search(text)
    if needle is None:
        return text
    pieces: list[str] = []
    done = 0
    while needle is not None:
        token = _token_at(text, needle, rules[needle[0]], done)
        if token is None:
            needle = finder.search(text, needle.start() + 1)
            continue
        pieces += [text[done : token.start()], _replacement(token)]
        rest = _REST.match(text, token.end())
        done = rest.end() if rest else token.end()
        needle = finder.search(text, done)
    return "".join([*pieces, text[done:]])


def _token_at(
    text: str, needle: re.Match[str], rules: list[tuple[re.Pattern[str], int]], done: int
) -> re.Match[str] | None:
    for pattern, offset in rules:
        start = needle.start() - offset
        if start >= done and (token := pattern.match(text, start)) is not None:
            return token
    return None


# A run of base64 or hexadecimal.
_RUN = re.compile(r"(?<![0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{16,}+={0,2}")
_HEX = re.compile(r"(?:[0-9a-f]{2})+|(?:[0-9A-F]{2})+")
# Keys of Mailgun, NATS, Composio and Dropbox, recognisable only by their whole form.
_BARE = re.compile(
    r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}|S[ACNOPUX][A-Z2-7]{56}"
    r"|(?:[ou]?a|c)k_(?=[A-Za-z_-]{0,19}[0-9])(?=[0-9a-z_-]{0,19}[A-Z])[0-9A-Za-z_-]{20}"
    r"|(?=[0-9A-Za-z_-]{64}\Z)[0-9A-Za-z_-]{10,13}A{10,12}[0-9A-Za-z_-]+"
)
_ATLASSIAN = re.compile(rb"\d{8,14}:")
# A DER sequence that begins with version 0, as PKCS#1 and PKCS#8 keys do.
_PRIVATE_KEY = re.compile(rb"0\x82..\x02\x01\x00[0\x02]", re.DOTALL)


def _decode(run: str) -> bytes | None:
    if _HEX.fullmatch(run):
        return bytes.fromhex(run)
    body = run.rstrip("=").replace("+", "-").replace("/", "_")
    if len(body) % 4 == 1:
        body = body[:-1]
    try:
        return urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        return None
