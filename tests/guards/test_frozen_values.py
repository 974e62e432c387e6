"""What is declared is data: nothing assigns to a template, or gives a prompt another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from weakincentives.prompt import BoundPrompt, PromptTemplate

PACKAGE = Path(__file__).parents[2] / "src" / "weakincentives"


def assigned(tree: ast.AST) -> Iterator[tuple[ast.Attribute, bool]]:
    """Every attribute that is assigned, changed or deleted, and whether a constructor sets its own."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                yield node, is_own and function.name == "__init__"


def is_template(node: ast.expr) -> bool:
    """True for an expression that is a template, or what a run takes of a prompt, by its name."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("template", "bound", "_bound", "prompt_template")


def test_nothing_assigns_to_a_template_or_replaces_one() -> None:
    problems: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node, in_constructor in assigned(ast.parse(path.read_text())):
            if is_template(node.value) or (node.attr == "template" and not in_constructor):
                problems.append(f"{path.relative_to(PACKAGE)}:{node.lineno} assigns to {ast.unparse(node)}")
    assert problems == [], "make a variant instead: template.with_(...)"


def test_the_facts_of_a_template_are_not_stored_twice() -> None:
    """A fact that follows from others is computed from them, so that a variant cannot have an outdated one."""
    stored = set(PromptTemplate.__annotations__)
    assert stored.isdisjoint({"view_options", "guards_by_hook", "structured_output", "descriptor"})
    assert "outline" not in BoundPrompt.__dataclass_fields__
