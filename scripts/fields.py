"""A Griffe extension: the reference lists the fields of each dataclass with a line about each.

The line is the comment `#: ...` behind the field, the text of its `Annotated[type, text]`, or else the sentence of the
class docstring that names the field in backticks. Inherited fields are listed as well, in the order of the constructor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from griffe import (
    Attribute,
    Class,
    Docstring,
    DocstringAttribute,
    DocstringSectionAttributes,
    Extension,
    Module,
    Object,
)

SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"])")


class FieldDescriptions(Extension):
    """Adds a table of fields to the docstring of each dataclass."""

    def on_package(self, *, pkg: Module, **_: object) -> None:
        for each in list(classes(pkg)):
            found = list(fields(each))
            if found:
                each.docstring = each.docstring or Docstring("", parent=each)
                each.docstring.parsed.append(DocstringSectionAttributes(found, title="Fields:"))


def classes(inside: Object) -> Iterator[Class]:
    for member in inside.members.values():
        if isinstance(member, Module | Class):
            if isinstance(member, Class):
                yield member
            yield from classes(member)


def fields(made: Class) -> Iterator[DocstringAttribute]:
    """The public fields of a dataclass, or of the dataclasses that a class extends, each with its description."""
    owners = [owner for owner in (made, *made.mro()) if "dataclass" in owner.labels]
    declared: dict[str, list[tuple[Class, Attribute]]] = {}
    for owner in reversed(owners):
        for name, member in owner.attributes.items():
            if is_field(member):
                declared.setdefault(name, []).insert(0, (owner, member))
    for name, places in declared.items():
        described = (line for owner, attribute in places if (line := description(owner, attribute)))
        yield DocstringAttribute(name, annotation=places[0][1].annotation, description=next(described, ""))


def is_field(member: object) -> bool:
    return (
        isinstance(member, Attribute)
        and member.annotation is not None
        and "instance-attribute" in member.labels
        and "property" not in member.labels
        and not member.name.startswith("_")
    )


def description(owner: Class, attribute: Attribute) -> str:
    lines = owner.lines_collection[owner.filepath]  # type: ignore[index]
    _, marked, comment = lines[(attribute.endlineno or 0) - 1].partition("  #: ")
    if marked:
        return sentence(comment)
    if annotated := re.fullmatch(r"Annotated\[.*, f?(['\"])(.*)\1\]", str(attribute.annotation)):
        return annotated[2]
    named = re.compile(rf"`{attribute.name}[`=]")
    prose = owner.docstring.value if owner.docstring else ""
    sentences = (" ".join(each.split()) for part in prose.split("\n\n") for each in SENTENCE.split(part.strip()))
    return next((each for each in sentences if named.search(each)), "")


def sentence(comment: str) -> str:
    words = comment.strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "?", "!")) else ".")
