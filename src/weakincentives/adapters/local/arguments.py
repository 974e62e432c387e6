"""Finds what a message asks to be done, and the arguments of tools: copied from the message, never made up."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import Tool
from weakincentives.prompt.disclosure.ranking import terms
from weakincentives.serde.pattern import MAX_STEPS, BoundedPattern, PatternError, Steps, TooManyStepsError

_NUMBER = re.compile(r"(?<![\w.,-])-?\d+(?:[.,]\d+)?(?![\w-]|[.,]\d)")
_CODE = re.compile(r"\b[A-Za-z]+[-_/#]?\d[\w-]*\b")
# How a message asks for a change, in English. What is unclear is no request: a quotation does no harm, a change may.
_POLITE = re.compile(
    r"(?:\b(?:please|pls|kindly|go ahead|(?:can|could|would|will) (?:you|u))\W+)+(?:(?:and|just|do) )*([a-z]+)"
)
_WISH = re.compile(
    r"(?<!do )(?<!did )\b(?:(?:i|we) (?:want|need|demand|request)|(?:i|we)(?:'d| would) like"
    r"|(?:i'm|i am|we are) asking)\b(?:(?: you)? to(?: please)? ([a-z]+))?"
)
_COMMAND = re.compile(
    r"(?:(?:and|also|hello|hi|instead|just|now|ok|okay|only|so|then|yes|no)\b\W*)*"
    r"([a-z]+)\b(?! (?:of|with)\b)(?!.*\b(?:is|are|was|were|has|had|came|arrived)\b)"
)
_VERBS = frozenset({"give", "send", "issue", "process", "pay", "get", "have"})
_INFORMS = (
    r"(?!asking\b)(?:about|ask|asked|check|describe|explain|help|how|info|information|know|learn|look|policy|rule|said"
    r"|say|see|show|status|tell|told|understand|what|when|where|whether|who|why)(?:s|ing)?\b"
)
_CONDITION = re.compile(r"\b(?:before|if(?! possible)|in case|suppose|unless|until)\b")
_FORBIDS = re.compile(r"\b(?:\w+n't|avoid|cannot|dont|instead of|never|no(?!,)|nobody|not|rather|stop|without)(?!\w)")
_HAPPENED = re.compile(r"\b(?:did|does|has|have|had|is|are|was|were)(?: not|n't| no)\b|'(?:s|re) not\b|\bnever \w+ed\b")
# The "no." of "order no. 7" neither forbids nor ends a sentence.
_NUMERO = re.compile(r"\b(?:no\.|(?<=order )no)\s*(?=\d)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_TURN = re.compile(r"\bbut\b|,\s*(?=(?:instead|just|only|please)\b)")
_CLAUSE = re.compile(rf"[,:]\s|\band (?={_INFORMS})")
_QUOTED = re.compile(r"[\"\u201c]([^\"\u201d]+)[\"\u201d]")


@dataclass(frozen=True, slots=True)
class Grounding:
    """`values` holds the arguments that the question has; `missing` names those that are plain text."""

    values: Mapping[str, Any]
    missing: tuple[str, ...]


def requested(tool: Tool[Any, Any], message: str) -> tuple[str, str]:
    """The sentences that ask a tool to do something, requests first, and the others; neither holds what is forbidden.

    Questions about a change, conditions and reports are no requests.
    """
    requests: list[str] = []
    rest: list[str] = []
    for sentence in _SENTENCE.split(_NUMERO.sub("", message.replace("\u2019", "'"))):
        allowed = [part for part in _TURN.split(sentence) if not _forbids(part)]
        clauses = [clause.strip() for part in allowed for clause in _CLAUSE.split(part)]
        is_conditional = _CONDITION.search(sentence.lower()) is not None
        is_question = sentence.rstrip().endswith("?")
        asking = []
        if not is_conditional:
            asking = [clause for clause in clauses if _asks(tool, clause.lower(), is_question)]
        about = [clause for clause in clauses if clause not in asking]
        if asking:
            requests += [*asking, *about]
        else:
            rest += about
    return "\n".join(requests), "\n".join(rest)


def _forbids(part: str) -> bool:
    return _FORBIDS.search(_HAPPENED.sub("", part.lower())) is not None


def _asks(tool: Tool[Any, Any], clause: str, is_question: bool) -> bool:
    if re.search(rf"\b{_INFORMS}", clause):
        return False
    beginning = re.split(r"\b(?:an?|the|of|for|to|where)\b", tool.description.lower())[0]
    verbs = _VERBS.union(re.findall("[a-z]+", beginning), re.findall("^[a-z]+", tool.name))
    matches = [_POLITE.search(clause)]
    if not is_question:
        matches += [_WISH.search(clause), _COMMAND.match(clause)]
    return any(match is not None and _is_verb(match[1], verbs) for match in matches)


def _is_verb(word: str | None, verbs: Collection[str]) -> bool:
    """True for one of these verbs, and where the words alone ask for something ("I want ...")."""
    return word is None or word in verbs or f"{word}s" in verbs


def ground(tool: Tool[Any, Any], question: str) -> Grounding | None:
    """Find a tool's arguments in the question; None if a required number, code or choice is missing."""
    schema = tool.strict_schema
    definitions = schema.get("$defs", {})
    values: dict[str, Any] = {}
    missing: list[str] = []
    taken: list[tuple[int, int]] = []
    for name, declaration in schema["properties"].items():
        node, is_optional = _resolve(declaration, definitions)
        is_present, value = _find(node, question, taken)
        if is_present:
            values[name] = value
        elif is_optional:
            values[name] = None
        elif "enum" in node or _form(node) or node.get("type") in ("number", "integer"):
            return None
        else:
            missing.append(name)
    return Grounding(values, tuple(missing))


def copied(tool: Tool[Any, Any], grounding: Grounding, question: str) -> Mapping[str, Any] | None:
    """All arguments of a call, if only one text is missing: the words that the question adds to the tool's own.

    "What is the weather in Paris?" adds "Paris" to a tool that tells the weather of a city. Quoted words come first.
    """
    if not grounding.missing:
        return grounding.values
    if len(grounding.missing) > 1:
        return None
    (name,) = grounding.missing
    definitions = tool.strict_schema.get("$defs", {})
    node, _ = _resolve(tool.strict_schema["properties"][name], definitions)
    if node.get("type") != "string":
        return None
    quoted = _QUOTED.search(question)
    text = quoted[1] if quoted else _own_words(tool, name, question)
    return {**grounding.values, name: text} if text else None


def _own_words(tool: Tool[Any, Any], name: str, question: str) -> str:
    """The longest stretch of a question without words of the tool, and without common ones."""
    properties = tool.strict_schema["properties"]
    tool_terms = set(terms(f"{tool.name} {tool.description} {name} {properties[name].get('description', '')}"))
    stretches: list[list[str]] = [[]]
    for word in re.findall(r"[\w'-]+", question):
        word_terms = set(terms(word))
        if word_terms and word_terms.isdisjoint(tool_terms):
            stretches[-1].append(word)
        else:
            stretches.append([])
    longest: list[str] = []
    for stretch in stretches:
        if len(stretch) > len(longest):
            longest = stretch
    return " ".join(longest)


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema with references resolved, and whether it also accepts null."""
    if "$ref" in node:
        return _resolve(definitions.get(node["$ref"].rpartition("/")[2], {}), definitions)
    kinds = node.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        rest = [kind for kind in kinds if kind != "null"]
        return {**node, "type": rest[0] if len(rest) == 1 else rest}, True
    forms = node.get("anyOf")
    if forms and any(form.get("type") == "null" for form in forms):
        rest = [form for form in forms if form.get("type") != "null"]
        return (_resolve(rest[0], definitions)[0] if len(rest) == 1 else {"anyOf": rest}), True
    return node, False


def _find(node: Mapping[str, Any], question: str, taken: list[tuple[int, int]]) -> tuple[bool, Any]:
    """Whether the question has the value of an argument, and the value; `taken` are the places of earlier ones."""
    if "const" in node:
        return True, node["const"]
    if "enum" in node:
        mentioned = [value for value in node["enum"] if isinstance(value, str) and _mentions(question, value)]
        return (True, max(mentioned, key=len)) if mentioned else (False, None)
    form = _form(node)
    if form:
        span = _first(form, question)
        if span is None:
            return False, None
        taken.append(span)
        return True, question[slice(*span)]
    if node.get("type") in ("number", "integer"):
        for match in _NUMBER.finditer(question):
            text = match[0].replace(",", ".")
            is_taken = any(start < match.end() and match.start() < end for start, end in taken)
            if is_taken or (node["type"] == "integer" and "." in text):
                continue
            taken.append(match.span())
            return True, float(text) if "." in text else int(text)
    return False, None


def _form(node: Mapping[str, Any]) -> str | None:
    """The format of a code: its pattern, or the format of an example in the description ("such as FH-20417")."""
    if node.get("type") != "string":
        return None
    if "pattern" in node:
        return str(node["pattern"]).removeprefix("^").removesuffix("$")
    example = _CODE.search(node.get("description", ""))
    if example is None:
        return None
    digits = re.sub(r"\d+", lambda _: r"\d+", re.escape(example[0]))
    return rf"\b{digits}\w*\b"


def _first(pattern: str, question: str) -> tuple[int, int] | None:
    """Where a pattern matches, which may be a server's; None also if finding out takes too long."""
    try:
        return BoundedPattern(pattern).find(question, Steps(MAX_STEPS).take)
    except (PatternError, TooManyStepsError):
        return None


def _mentions(question: str, value: str) -> bool:
    spoken = re.escape(value).replace("_", "[ _-]?").replace(r"\-", "[ _-]?")
    return re.search(rf"\b{spoken}s?\b", question, re.IGNORECASE) is not None
