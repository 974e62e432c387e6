"""Texts quoted for a model in one message, so that none of them can pass for another, or for an instruction."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

_MARKUP = re.compile(r"[<>\s]+")
MAX_LABEL = 200


class Quotation(NamedTuple):
    """Texts between lines with a tag that none of them contains."""

    tag: str
    text: str


def quote(texts: Iterable[tuple[str, str]]) -> Quotation:
    """Quote texts, each under a label, such as the role of who wrote it.

    The tag is a digest of all of them: nobody can write it into a text beforehand, and the same texts are always quoted
    alike, so that requests can be repeated byte for byte.
    """
    labelled = [(_MARKUP.sub(" ", label).strip()[:MAX_LABEL], text) for label, text in texts]
    digest = hashlib.blake2b(digest_size=8)
    for label, text in labelled:
        for part in (label, text):
            digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    tag = f"text-{digest.hexdigest()}"
    blocks = [f"<{tag} {label}>\n{text}\n</{tag} {label}>" for label, text in labelled]
    return Quotation(tag, "\n\n".join(blocks))
