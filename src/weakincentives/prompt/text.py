"""Template text, split once into literals and placeholders by the rules of `string.Template`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import dedent

from weakincentives.errors import PromptValidationError

_DOLLAR = re.compile(r"\$(?:(?P<escaped>\$)|(?P<named>[A-Za-z_][A-Za-z0-9_]*)|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}|)")


@dataclass(frozen=True, slots=True)
class TemplateText:
    """`literals[0] names[0] literals[1] names[1] ... literals[-1]`, ready to be filled."""

    literals: tuple[str, ...]
    names: tuple[str, ...]

    def fill(self, values: dict[str, str]) -> str:
        parts = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            parts += (values[name], literal)
        return "".join(parts)


def split_text(source: str, *, where: str, strict: bool = True, literal: bool = False) -> TemplateText:
    """Split dedented, stripped `source`; a stray `$` is an error if strict, else a literal.

    If `literal`, no `$` means anything and the text is one literal.
    """
    if not isinstance(source, str):
        raise PromptValidationError(f"{where} must be text, got {source!r}.")
    text = dedent(source).strip()
    if literal:
        return TemplateText((text,), ())
    literals: list[str] = []
    names: list[str] = []
    piece, position = "", 0
    for match in _DOLLAR.finditer(text):
        dollar = match.start()
        piece, position = piece + text[position:dollar], match.end()
        if name := match["named"] or match["braced"]:
            names.append(name)
            literals.append(piece)
            piece = ""
        elif match["escaped"] or not strict:
            piece += "$"
        else:
            line = text.count("\n", 0, dollar) + 1
            raise PromptValidationError(
                f"{where}: the '$' in {text[dollar : dollar + 12]!r} (line {line}) starts no placeholder; "
                "write '$$' for a dollar sign."
            )
    return TemplateText((*literals, piece + text[position:]), tuple(names))
