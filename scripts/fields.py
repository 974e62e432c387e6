"""A Griffe extension: the reference lists fields and parameters with a line about each.

The line is the comment `#: ...` behind the field or parameter, a docstring below it, the text of its
`Annotated[type, text]`, the description in its metadata, or else the sentence of the
docstring that names it in backticks. Inherited fields are listed as well, in the order of the constructor,
`Annotated[type, text]` as the type, and `**options: Unpack[Options]` as the parameters that it stands for, with the
defaults of the constructor that takes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from griffe import (
    Attribute,
    Class,
    Docstring,
    DocstringAttribute,
    DocstringParameter,
    DocstringSectionAttributes,
    DocstringSectionParameters,
    Expr,
    ExprSubscript,
    ExprTuple,
    Extension,
    Function,
    Module,
    Object,
    Parameter,
    ParameterKind,
)

# Whose constructor has the defaults of the options that are passed on to it; those of a run are None.
CONSTRUCTORS = {
    "SectionOptions": "weakincentives.prompt.section.Section",
    "ToolOptions": "weakincentives.prompt.tools.Tool",
    "NetworkOptions": "weakincentives.adapters.network.adapter.NetworkAdapter",
}
# Set by a conversation or a main loop, not by their callers.
INTERNAL = ("scope", "beginning", "message")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"])")
UNPACKED = re.compile(r"Unpack\[([\w.]+)")


class FieldDescriptions(Extension):
    """Adds tables of fields and parameters to docstrings."""

    def on_package(self, *, pkg: Module, **_: object) -> None:
        for each in list(members(pkg)):
            if isinstance(each, Function):
                describe_parameters(each)
            elif found := list(fields(each)):
                sections_of(each).append(DocstringSectionAttributes(found, title="Fields:"))
        for each in list(members(pkg)):
            for declared in each.attributes.values() if isinstance(each, Class) else each.parameters:
                declared.annotation = plain_type(declared.annotation)


def members(inside: Object) -> Iterator[Class | Function]:
    for member in inside.members.values():
        if isinstance(member, Class | Function):
            yield member
        if isinstance(member, Module | Class):
            yield from members(member)


def sections_of(each: Class | Function) -> list[object]:
    each.docstring = each.docstring or Docstring("", parent=each)
    return each.docstring.parsed  # type: ignore[return-value]


def fields(made: Class) -> Iterator[DocstringAttribute]:
    """The public fields of a dataclass, or of the dataclasses that a class extends, each with its description."""
    owners = [owner for owner in (made, *made.mro()) if "dataclass" in owner.labels]
    for name, (annotation, line) in described_attributes(owners).items():
        yield DocstringAttribute(name, annotation=annotation, description=line)


def described_attributes(owners: list[Class]) -> dict[str, tuple[str | Expr | None, str]]:
    """Annotation and description of the fields that these classes declare, the base class last."""
    found: dict[str, tuple[str | Expr | None, str]] = {}
    for owner in reversed(owners):
        for name, member in owner.attributes.items():
            if is_field(member):
                own = member.docstring.value if member.docstring else ""
                own = own or comment(owner, name, member.endlineno or 0) or annotated(member) or metadata(member)
                own = own or naming(name, prose(owner)) or found.get(name, ("", ""))[1]
                found[name] = plain_type(member.annotation), own
    return found


def describe_parameters(function: Function) -> None:
    """Expand `**options: Unpack[...]`, and add a table if comments or options describe the parameters.

    Of an overloaded function, the overload with options is described.
    """
    owner = function.parent if function.name == "__init__" and isinstance(function.parent, Class) else function
    text = f"{prose(owner)}\n\n{prose(function)}"
    declared, options = function.parameters, expand(function)
    for overload in function.overloads or ():
        if found := expand(overload):
            declared, options = overload.parameters, found
    comments = {each.name: comment(function, each.name) for each in declared}
    lines = {
        each.name: comments[each.name] or options.get(each.name, "") or naming(each.name, text)
        for each in declared
        if each.name not in ("self", "cls") and each.name[0] != "_" and not each.kind.name.startswith("var_")
    }
    if (options or any(comments.values())) and all(lines.values()):
        named = [(declared[name], line) for name, line in lines.items()]
        table = [
            DocstringParameter(each.name, annotation=each.annotation, value=each.default, description=line)
            for each, line in named
        ]
        sections_of(function).append(DocstringSectionParameters(table))


def expand(function: Function) -> dict[str, str]:
    """Replace `**options: Unpack[Options]` by the keys of `Options`; their descriptions."""
    for each in list(function.parameters):
        if each.kind is ParameterKind.var_keyword and (unpacked := UNPACKED.match(str(each.annotation))):
            options = function.modules_collection[function.resolve(unpacked[1])]
            described = described_attributes([options, *options.mro()])
            del function.parameters[each.name]
            defaults = defaults_of([options, *options.mro()])
            for name, (annotation, _) in described.items():
                if name not in function.parameters and name not in INTERNAL:
                    default = defaults.get(name) or usual_default(str(annotation))
                    added = Parameter(name, annotation=annotation, kind=ParameterKind.keyword_only, default=default)
                    function.parameters.add(added)
            return {name: line for name, (_, line) in described.items()}
    return {}


def defaults_of(options: list[Class]) -> dict[str, str | Expr]:
    """The defaults of options by their names, from the constructor that they are passed on to."""
    defaults: dict[str, str | Expr] = {}
    for owner in options:
        constructor = CONSTRUCTORS.get(owner.name)
        if constructor is None:
            continue
        made = owner.modules_collection[constructor]
        for base in (made, *made.mro()):
            for parameter in base.parameters:
                if parameter.default is not None:
                    defaults.setdefault(parameter.name, parameter.default)
    return defaults


def usual_default(annotation: str) -> str:
    """The default of an option of this type that no constructor declares."""
    if annotation.endswith("| None"):
        return "None"
    if annotation == "bool":
        return "False"
    if annotation.startswith("Sequence["):
        return "()"
    if annotation == "str":
        return '""'
    return "..."


def is_field(member: Attribute) -> bool:
    return (
        member.annotation is not None
        and "instance-attribute" in member.labels
        and "property" not in member.labels
        and not member.name.startswith("_")
    )


def comment(inside: Class | Function, name: str, line: int = 0) -> str:
    """The comment `#: ...` of a field or parameter, as a sentence."""
    lines = inside.lines_collection[inside.filepath]  # type: ignore[index]
    first, last = (line, line) if line else (inside.lineno or 1, inside.endlineno or 0)
    declared = re.compile(rf"\s+(?:{name}: .*|\].*|\).*)  #: (.*)" if line else rf"\s+{name}: .*  #: (.*)")
    found = (declared.fullmatch(each) for each in lines[first - 1 : last])
    words = next((each[1].strip() for each in found if each), "")
    return words[:1].upper() + words[1:] + ("." if words[-1:] not in ("", ".", "?", "!") else "")


def annotated(member: Attribute) -> str:
    """The text of `Annotated[type, text]`; `{NAME}` in an f-string is the value of that constant."""
    text = re.fullmatch(r"Annotated\[.*, f?(['\"])(.*)\1\]", str(member.annotation))
    return filled_in(member, text[2]) if text else ""


def metadata(member: Attribute) -> str:
    """The text of `field(metadata={"description": text})`."""
    text = re.search(r"""['"]description['"]: f?(['"])(.*)\1\}""", str(member.value), re.DOTALL)
    return filled_in(member, text[2]) if text else ""


def filled_in(member: Attribute, text: str) -> str:
    """The text with the value of each constant that it names as `{NAME}`."""

    def value(constant: re.Match[str]) -> str:
        return str(member.modules_collection[member.resolve(constant[1])].value)

    return re.sub(r"\{([A-Z_]+)\}", value, text)


def plain_type(annotation: str | Expr | None) -> str | Expr | None:
    """The type in `Annotated[type, text]`, else the annotation."""
    match annotation:
        case ExprSubscript(left=left, slice=ExprTuple(elements=[kind, *_])) if str(left) == "Annotated":
            return kind
    return annotation


def prose(owner: Object) -> str:
    return owner.docstring.value if owner.docstring else ""


def naming(name: str, prose: str) -> str:
    """The first sentence that has the name in backticks."""
    sentences = (" ".join(each.split()) for part in prose.split("\n\n") for each in SENTENCE.split(part.strip()))
    return next((each for each in sentences if re.search(rf"`{name}[`=(]", each)), "")
