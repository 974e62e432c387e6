"""Events as JSON that includes their types, with long texts stored separately under their hash.

Four tags extend those of `serde.tagged`: `{"$": "text", "v": hash}` is a long text, `texts` one cut into pieces (a
rendered prompt, section by section), `rows` a table of spans, of sections or of what the model has of them, and `json`
a part of the event that is itself stored as a text because other events repeat it.
"""

from __future__ import annotations

import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from weakincentives.content import Blob
from weakincentives.errors import SerdeError
from weakincentives.prompt import SectionPath, SectionVisibility, Span
from weakincentives.redaction import REDACTED, Redactor, is_secret_name
from weakincentives.runtime import ModelCalled, PromptRendered, SectionsExposed
from weakincentives.serde import OWN_NAMES, Upgrades, load_tagged, stored_name, upgrade_tagged
from weakincentives.telemetry.values import EVENTS, MAPPINGS, FrozenEvent, UnknownType, Unreadable, dump, placeholder

logger = logging.getLogger("weakincentives.telemetry")

_BY_KIND = {cls.__name__: cls for cls in EVENTS}
MISSING_TEXT = "[this text is missing in the run file]"
LONG = 512
# The minimum length at which a part that most events of a kind repeat is stored as a separate text.
REPEATED = 96
CACHED_TEXTS = 512


class Packer:
    """Turns events into redacted JSON text; `texts` and `blobs` hold what the last event stores under a hash."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.texts: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self._known: dict[str, tuple[Any, dict[str, str]]] = {}

    def pack(self, event: object) -> str:
        self.texts = {}
        media = event.blobs if isinstance(event, FrozenEvent) else {}
        try:
            if isinstance(event, PromptRendered):
                data = self._rendered(event)
            elif isinstance(event, ModelCalled):
                data = self._called(event)
            elif isinstance(event, SectionsExposed):
                data = self._walk(dump(replace(event, changes={})))
                data["v"]["changes"] = self._keep_rows(event.changes)
            else:
                data = self._walk(event.data if isinstance(event, FrozenEvent) else dump(event, media))
            self.blobs = {digest: self.redactor.content(blob.data) for digest, blob in media.items()}
            return msgspec.json.encode(data).decode()
        except Exception:
            whole = event.event if isinstance(event, FrozenEvent) else event
            logger.exception("An event %s could not be recorded.", type(whole).__qualname__)
            data = placeholder(whole)
            data["v"]["text"] = self.redactor.text(data["v"]["text"])
            return msgspec.json.encode(data).decode()

    def _rendered(self, event: PromptRendered) -> Any:
        """A render, with each section's text stored separately and spans that match the redacted text."""
        starts = sorted({0, *(span.start for span in event.spans), len(event.text)})
        pieces = [self.redactor.text(event.text[start:end]) for start, end in pairwise(starts)]
        moved, position = {}, 0
        for start, piece in zip(starts, pieces, strict=False):
            moved[start] = position
            position += len(piece)
        spans = event.spans
        if position != len(event.text):
            spans = tuple(_moved(span, starts, pieces, moved) for span in spans)
        elsewhere = ("text", "spans", "sections", "definitions", "exposed")
        data = self._walk(dump(replace(event, text="", spans=(), sections=(), definitions=(), exposed={})))
        data["v"] = {name: item for name, item in data["v"].items() if name not in elsewhere} | {
            "text": self._keep_pieces(event.text, pieces),
            "spans": self._keep_rows(spans),
            "sections": self._keep_rows(event.sections),
            "exposed": self._keep_rows(event.exposed),
            "definitions": self._keep_json(self._walk(dump(event.definitions)), self.texts),
        }
        return data

    def _called(self, event: ModelCalled) -> Any:
        """A model call, whose tools and overrides are mostly the same as in the call before."""
        data = self._walk(dump(event))
        for name in ("tools", "overrides"):
            data["v"][name] = self._keep_json(data["v"][name], self.texts, shortest=REPEATED)
        return data

    def _keep_pieces(self, text: str, pieces: list[str]) -> Any:
        if len(text) < LONG or storable(text) != text:
            return self._walk(dump("".join(pieces)))
        kept = {_hash(piece): piece for piece in pieces}
        self.texts.update(kept)
        reference = self._keep_json({"$": "texts", "v": [_hash(piece) for piece in pieces]}, kept)
        return self._remember(text, reference, kept)

    def _keep_rows(self, items: Sequence[Any] | Mapping[SectionPath, Any]) -> Any:
        if not items:
            return dump({} if isinstance(items, Mapping) else ())
        return self._keep_json({"$": "rows", "v": pack_rows(items, self._cell)}, self.texts)

    def _cell(self, name: str, value: Any) -> Any:
        return dump(value) if name in _FIXED else self._walk(dump(value))

    def _keep_json(self, data: Any, kept: dict[str, str], *, shortest: int = LONG) -> Any:
        text = msgspec.json.encode(data).decode()
        if len(text) < shortest:
            return data
        key = _hash(text)
        self.texts[key] = kept[key] = text
        return {"$": "json", "v": key}

    def _keep(self, text: str) -> Any:
        known = self._known.get(text)
        if known is not None:
            self.texts.update(known[1])
            return known[0]
        clean = self.redactor.text(text)
        if len(clean) < LONG:
            return clean
        kept = {_hash(clean): clean}
        self.texts.update(kept)
        return self._remember(text, {"$": "text", "v": next(iter(kept))}, kept)

    def _remember(self, text: str, reference: Any, kept: dict[str, str]) -> Any:
        if len(self._known) >= CACHED_TEXTS:
            self._known.clear()
        self._known[text] = (reference, kept)
        return reference

    def _walk(self, data: Any, fixed: frozenset[str] | None = None) -> Any:
        """The data without secrets; `fixed` are the fields of a record that stay as they are, None for a mapping."""
        if isinstance(data, str):
            return self._keep(data) if len(data) >= LONG else self.redactor.text(data)
        if isinstance(data, list):
            return [self._walk(item) for item in data]
        if not isinstance(data, dict):
            return data
        tag = data.get("$")
        if tag == "str":
            return self._encoded(data, "utf-8", "surrogatepass")
        if tag in _BYTES:
            return self._encoded(data, "latin-1", "replace")
        if tag in _KEPT:
            return data
        if tag in MAPPINGS:
            return {"$": tag, "v": [self._pair(pair) for pair in data["v"]]}
        if tag == "tuple":
            return {"$": tag, "v": self._pair(data["v"])}
        if tag is not None:
            inner = data["v"]
            if isinstance(inner, str) and self.redactor.text(inner) != inner:
                return self._walk(inner)  # A date or a path with something redacted in it is only a text.
            return {"$": tag, "v": self._walk(inner, _FIXED if tag.startswith(OWN_NAMES) else frozenset())}
        # In {"name": "API_KEY", "value": "..."} the name of the secret is itself a value.
        named = ("value",) if is_secret_name(data.get("name", data.get("key"))) else ()
        return {
            self.redactor.text(key) if fixed is None else key: item
            if fixed and key in fixed
            else self._secret(item)
            if key in named or is_secret_name(key)
            else self._walk(item)
            for key, item in data.items()
        }

    def _pair(self, items: list[Any]) -> list[Any]:
        """A name and its value, as in a mapping or in headers."""
        if len(items) == 2 and is_secret_name(items[0]):
            return [items[0], self._secret(items[1])]
        return [self._walk(item) for item in items]

    def _secret(self, data: Any) -> Any:
        """The value stored under a secret's name: its texts and bytes are redacted, whatever they look like."""
        if not self.redactor.enabled:
            return self._walk(data)
        if isinstance(data, str):
            return data and REDACTED
        if isinstance(data, list):
            return [self._secret(item) for item in data]
        if isinstance(data, dict) and data.get("$") in _TEXTS:
            return REDACTED
        if isinstance(data, dict) and data.get("$") in _ITEMS:
            return {"$": data["$"], "v": self._secret(data["v"])}
        return self._walk(data)

    def _encoded(self, data: Any, encoding: str, errors: str) -> Any:
        """Text or bytes in base64, redacted only in decoded form: a match in the base64 itself would be mere chance."""
        text = b64decode(data["v"]).decode(encoding, errors)
        clean = self.redactor.text(text)
        kept = data["v"] if clean == text else b64encode(clean.encode(encoding, errors)).decode()
        if len(kept) >= LONG:
            key = _hash(kept)
            self.texts[key] = kept
            kept = {"$": "text", "v": key}
        return {"$": data["$"], "v": kept}


def pack_rows(items: Sequence[Any] | Mapping[SectionPath, Any], dump: Callable[[str, Any], Any]) -> Any:
    """Instances of one dataclass as a table: field names once, each distinct value once, then indexes.

    Fields that all instances have in common are in `same`. Paths are lists: `paths` has those of a field, `keys` those
    of a mapping. `dump` turns a field, given its name, into data.
    """
    by_path = isinstance(items, Mapping)
    rows = list(items.values()) if isinstance(items, Mapping) else items
    cls = type(rows[0])
    names = [field.name for field in fields(cls)]
    table: dict[str, Any] = {"class": stored_name(cls), "same": {}}
    if by_path or "path" in names:
        paths = items if by_path else [row.path for row in rows]
        table["keys" if by_path else "paths"] = [dump("path", path)["v"] for path in paths]
    values: dict[bytes, tuple[int, Any]] = {}
    columns: dict[str, list[int]] = {}
    for name in names if by_path else [name for name in names if name != "path"]:
        column = [dump(name, getattr(row, name)) for row in rows]
        encoded = list(map(msgspec.json.encode, column))
        if len(set(encoded)) == 1:
            table["same"][name] = column[0]
        else:
            found = zip(encoded, column, strict=True)
            columns[name] = [values.setdefault(key, (len(values), value))[0] for key, value in found]
    places = list(zip(*columns.values(), strict=True)) if columns else [()] * len(rows)
    return {**table, "names": list(columns), "values": [value for _, value in values.values()], "rows": places}


def unpack_rows(table: Any) -> Any:
    """The values as `tagged.dump` writes a tuple of them, or a dict of them by path."""
    values, same = table["values"], table.get("same", {})
    paths = [{"$": "tuple", "v": path} for path in table.get("paths", table.get("keys", ()))]
    rows = []
    for at, row in enumerate(table["rows"]):
        found = {name: values[place] for name, place in zip(table["names"], row, strict=True)}
        own = {"path": paths[at]} if "paths" in table else {}
        rows.append({"$": table["class"], "v": {**same, **own, **found}})
    if "keys" not in table:
        return {"$": "tuple", "v": rows}
    return {"$": "dict", "v": [[key, row] for key, row in zip(paths, rows, strict=True)]}


def references(payload: str) -> tuple[set[str], set[str]]:
    """The hashes of the `json` parts and of the texts that packed JSON refers to."""
    parts: set[str] = set()
    texts: set[str] = set()
    for tag, key, keys in _REFERENCE.findall(payload):
        if tag == "json":
            parts.add(key)
        else:
            texts.update(_HASH.findall(keys) if keys else (key,))
    return parts, texts


def is_packed(payload: str) -> bool:
    """True if the JSON contains anything to unpack; most events do not."""
    return _PACKED.search(payload) is not None


def unpack(data: Any, texts: Mapping[str, str], shared: Mapping[str, Any]) -> Any:
    """The data as it was before its long texts were stored separately; `shared` holds the loaded `json` parts."""
    if isinstance(data, list):
        return [unpack(item, texts, shared) for item in data]
    if not isinstance(data, dict):
        return data
    tag = data.get("$")
    if tag == "text":
        return texts.get(data["v"], MISSING_TEXT)
    if tag == "texts":
        return "".join(texts.get(key, MISSING_TEXT) for key in data["v"])
    if tag == "json":
        return shared[data["v"]]
    if tag == "rows":
        return unpack(unpack_rows(data["v"]), texts, shared)
    return {key: unpack(item, texts, shared) for key, item in data.items()}


def blob_digests(payload: str) -> list[str]:
    """The digests of the media that packed JSON refers to."""
    return _BLOB.findall(payload)


def load(
    data: Any, blobs: dict[str, Blob], unknown: set[str], text: str, upgrades: Upgrades = MappingProxyType({})
) -> Any:
    """`load_tagged`, with an `UnknownType` for each value of a class that this process has not, or no longer so.

    A failed lookup takes milliseconds, so `unknown` collects the names of missing classes over many loads; `text` is
    what the data was decoded from.
    """
    with suppress(SerdeError):
        data = upgrade_tagged(data, upgrades, blobs)
    if not any(tag in text for tag in unknown):
        try:
            return load_tagged(data, blobs)
        except SerdeError:
            pass
    try:
        return load_tagged(_known_types(data, unknown, blobs), blobs)
    except SerdeError:
        return UnknownType(str(data["$"]), data.get("v")) if isinstance(data, dict) and "$" in data else data


def checked(kind: str, event: Any) -> Any:
    """The event if it matches its kind and its fields have the declared types, else an `Unreadable`."""
    # The kind may be what is damaged: then the event's own class tells what its fields must be.
    cls = _BY_KIND.get(kind) or _BY_KIND.get(type(event).__name__)
    if cls is None or check_for(cls)(event):
        return event
    found = event.type if isinstance(event, UnknownType) else type(event).__name__
    return Unreadable(kind, f"the payload is no well-formed {kind} ({found})")


Check = Callable[[Any], bool]


@cache
def check_for(hint: Any) -> Check:
    """A function that checks whether a value has this type; supports the types that events use."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return lambda value: True
    if hint is float:
        return lambda value: isinstance(value, int | float)
    if origin is Literal:
        return lambda value: isinstance(value, str)
    if origin is tuple and args[-1] is not ...:
        items = [check_for(arg) for arg in args]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(items)
            and all(check(item) for check, item in zip(items, value, strict=True))
        )
    if origin is tuple:
        item = check_for(args[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin in (Union, UnionType):
        choices = [check_for(arg) for arg in args]
        return lambda value: any(check(value) for check in choices)
    if origin is not None and issubclass(origin, Mapping):
        key, item = map(check_for, args)
        return lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())
    cls = origin or hint
    if not is_dataclass(cls):
        return lambda value: isinstance(value, cls)
    hints = get_type_hints(cls)
    checks = [(field.name, check_for(hints[field.name])) for field in fields(cls)]
    return lambda value: type(value) is cls and all(check(getattr(value, name)) for name, check in checks)


def _known_types(data: Any, unknown: set[str], blobs: dict[str, Blob]) -> Any:
    if isinstance(data, list):
        return [_known_types(item, unknown, blobs) for item in data]
    if not isinstance(data, dict):
        return data
    inner = {key: _known_types(item, unknown, blobs) if key != "$" else item for key, item in data.items()}
    tag = data.get("$")
    if tag == "type" and not _is_readable(inner, blobs):
        return {"$": _UNKNOWN, "v": {"type": str(data.get("v")), "value": None}}
    if not isinstance(tag, str) or ":" not in tag or "v" not in data:
        return inner
    if tag in unknown or not _is_known(tag):
        unknown.add(tag)
    elif tag.startswith(OWN_NAMES) or _is_readable(inner, blobs):
        return inner
    return {"$": _UNKNOWN, "v": {"type": tag, "value": inner["v"]}}


def _is_readable(data: Any, blobs: dict[str, Blob]) -> bool:
    try:
        load_tagged(data, blobs)
    except SerdeError:
        return False
    return True


def _is_known(tag: str) -> bool:
    return _is_readable({"$": "type", "v": tag}, {})


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _moved(span: Span, starts: list[int], pieces: list[str], moved: Mapping[int, int]) -> Span:
    """The span after redaction; what separates it from the next span is whitespace and words of ours, which stay."""
    index = starts.index(span.start)
    between = starts[index + 1] - span.end
    start = moved[span.start]
    return replace(span, start=start, end=start + len(pieces[index]) - between)


def storable(text: str) -> str:
    """The text in a form SQLite can store: lone surrogates cannot be encoded as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# In a JSON string the quotes would be escaped, so these match only tags.
_PACKED = re.compile(r'"\$":"(?:text|texts|json|rows)"')
_REFERENCE = re.compile(r'"\$":"(json|texts?)","v":(?:"(\w+)"|\[([^\[\]]*)\])')
_HASH = re.compile(r"\w+")
_BLOB = re.compile(r'"\$":"blob","v":\{"sha256":"([0-9a-f]{64})"')
# Whatever a user's patterns match, these stay as they are, or the event could not be read: digests of media, and in our
# own values the fields that are ids or one of a few words.
_KEPT = frozenset({"blob", stored_name(SectionVisibility)})
_IDS = {"call_id", "continues", "conversation_id", "id", "response_id", "run_id"}
_FIXED = frozenset(_IDS | {"action", "decided_by", "role", "stop_reason"})
_ITEMS = frozenset({"tuple", "set", "frozenset"})
_BYTES = frozenset({"bytes", "bytearray"})
_TEXTS = _BYTES | {"str"}
_UNKNOWN = stored_name(UnknownType)
