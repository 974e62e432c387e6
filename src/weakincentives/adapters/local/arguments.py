"""Finds what a message asks to be done, and tool arguments: a small model may copy both but should not make them up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt import Tool
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


@dataclass(frozen=True, slots=True)
class Grounding:
    """`given` holds the arguments found in the question; `missing` names those still to be written."""

    given: Mapping[str, Any]
    missing: tuple[str, ...]


def requested(tool: Tool[Any, Any], message: str) -> tuple[str, str]:
    """The sentences that ask a tool to do something, requests first, and the others; neither holds what is forbidden.

    Questions about a change, conditions and reports are no requests.
    """
    wanted: list[str] = []
    beside: list[str] = []
    for sentence in _SENTENCE.split(_NUMERO.sub("", message.replace("\u2019", "'"))):
        parts = [part for part in _TURN.split(sentence) if not _FORBIDS.search(_HAPPENED.sub("", part.lower()))]
        clauses = [clause.strip() for part in parts for clause in _CLAUSE.split(part)]
        conditional, is_question = _CONDITION.search(sentence.lower()), sentence.rstrip().endswith("?")
        asking = [] if conditional else [clause for clause in clauses if _asks(tool, clause.lower(), is_question)]
        (wanted if asking else beside).extend([*asking, *(clause for clause in clauses if clause not in asking)])
    return "\n".join(wanted), "\n".join(beside)


def _asks(tool: Tool[Any, Any], clause: str, is_question: bool) -> bool:
    if re.search(rf"\b{_INFORMS}", clause):
        return False
    begins = re.split(r"\b(?:an?|the|of|for|to|where)\b", tool.description.lower())[0]
    verbs = _VERBS.union(re.findall("[a-z]+", begins), re.findall("^[a-z]+", tool.name))
    found = [_POLITE.search(clause)]
    if not is_question:
        found += [_WISH.search(clause), _COMMAND.match(clause)]
    return any(match[1] is None or {match[1], f"{match[1]}s"} & verbs for match in found if match)


def ground(tool: Tool[Any, Any], question: str) -> Grounding | None:
    """Find a tool's arguments in the question; None if a required number, code or choice is missing."""
    schema = tool.strict_schema
    definitions = schema.get("$defs", {})
    given: dict[str, Any] = {}
    missing: list[str] = []
    taken: list[tuple[int, int]] = []
    for name, declared in schema["properties"].items():
        node, optional = _resolve(declared, definitions)
        found, value = _find(node, question, taken)
        if found:
            given[name] = value
        elif optional:
            given[name] = None
        elif "enum" in node or _form(node) or node.get("type") in ("number", "integer"):
            return None
        else:
            missing.append(name)
    return Grounding(given, tuple(missing))


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
    if "const" in node:
        return True, node["const"]
    if "enum" in node:
        said = [value for value in node["enum"] if isinstance(value, str) and _mentions(question, value)]
        return (True, max(said, key=len)) if said else (False, None)
    if form := _form(node):
        span = _first(form, question)
        if span is not None:
            taken.append(span)
        return span is not None, question[slice(*span)] if span else None
    if node.get("type") in ("number", "integer"):
        for found in _NUMBER.finditer(question):
            text = found[0].replace(",", ".")
            if any(start < found.end() and found.start() < end for start, end in taken) or (
                node["type"] == "integer" and "." in text
            ):
                continue
            taken.append(found.span())
            return True, int(text) if "." not in text else float(text)
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
