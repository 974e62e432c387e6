"""Packages import only what stands to their left in the design, type-only imports included, and never in a circle."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = SOURCE / "weakincentives"
TESTS = SOURCE.parent / "tests"

GROUND = frozenset({"errors", "clock", "content", "redaction", "_base"})
DATA = frozenset({"serde", "limits", "filesystem", "resources"})
LOOP = GROUND | DATA | {"session", "prompt", "runtime"}
OUTER = LOOP | {"tools", "guards", "skills", "adapters", "telemetry", "durable", "mcp"}
FRONT = frozenset({""})

MAY_IMPORT: dict[str, frozenset[str]] = {
    "": OUTER | {"contrib"},
    "_base": GROUND,
    "errors": GROUND,
    "clock": GROUND,
    "content": GROUND,
    "redaction": GROUND,
    "serde": GROUND | DATA,
    "limits": GROUND | DATA,
    "filesystem": GROUND | DATA,
    "resources": GROUND | DATA,
    "session": GROUND | DATA,
    "prompt": GROUND | DATA | {"session"},
    "tools": GROUND | DATA | {"session", "prompt"},
    "guards": LOOP,
    "skills": GROUND | DATA | {"session", "prompt"},
    "runtime": GROUND | DATA | {"session", "prompt"},
    "adapters": LOOP | {"tools"},
    "adapters.local": LOOP | {"tools", "adapters", "telemetry"},
    "adapters.litellm": LOOP | {"tools", "adapters", "telemetry"},
    "adapters.claude_agent_sdk": LOOP | {"tools", "adapters", "telemetry", "mcp"},
    "telemetry": LOOP,
    "durable": LOOP | {"telemetry"},
    "mcp": LOOP | {"skills", "telemetry"},
    "contrib": OUTER | FRONT,
    "ui": OUTER | FRONT,
    "evals": OUTER | FRONT,
    "viewer": OUTER | FRONT | {"contrib", "evals"},
    "cli": OUTER | FRONT | {"contrib", "evals", "viewer"},
    "demo": OUTER | FRONT | {"contrib", "cli", "evals"},
}

COMPANIONS = (
    "cli",
    "viewer",
    "telemetry",
    "durable",
    "mcp",
    "ui",
    "evals",
    "demo",
    *(name for name in MAY_IMPORT if "." in name),
)


@cache
def modules() -> dict[str, Path]:
    """Every module of the library by its dotted name; a package is its front."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """The library's modules that a module names in an import statement, wherever it stands."""
    path = modules()[module]
    home = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = home.split(".")[: len(home.split(".")) - node.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                found.add(submodule if submodule in modules() else base)
    return frozenset(name for name in found if name in modules() and name != module)


def top(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def companion(module: str) -> str:
    """The companion that a module belongs to; empty for a module of the core."""
    return next((name for name in COMPANIONS if f"{module}.".startswith(f"weakincentives.{name}.")), "")


def test_a_module_imports_only_what_stands_to_its_left() -> None:
    wrong = []
    for module in modules():
        own = top(module)
        allowed = MAY_IMPORT.get(companion(module), MAY_IMPORT[own]) | ({own} if own else set())
        wrong += [f"{module} imports {name}" for name in imports(module) if top(name) not in allowed]
    assert wrong == []


def test_the_core_imports_no_companion() -> None:
    core = [module for module in modules() if not companion(module) and top(module)]
    wrong = [f"{module} imports {name}" for module in core for name in imports(module) if companion(name)]
    assert len(core) > 100 and wrong == []


def test_the_modules_import_each_other_in_no_circle() -> None:
    try:
        TopologicalSorter({module: imports(module) for module in modules()}).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_no_module_imports_from_a_test_module() -> None:
    wrong = []
    for path in TESTS.rglob("*.py"):
        text = "" if "node_modules" in path.parts else path.read_text(encoding="utf-8")
        # Few files have to be parsed: those with a program in a string that imports so.
        for node in ast.walk(ast.parse(text)) if re.search(r"^ *from \S*\btest_\w+ import", text, re.M) else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_"):
                wrong.append(f"{path.name} imports {node.module}")
    assert wrong == []


# Beside fronts: the runtime's seam for sibling packages, and modules that are a front of their own.
SEAMS = frozenset(
    f"weakincentives.{name}"
    for name in (
        "runtime.spi",
        "prompt.overrides",
        "serde.pattern",
        "tools.web_search",
        "mcp.server",
        "adapters.local.models",
    )
)


def test_a_companion_imports_fronts_and_seams_alone() -> None:
    """Adapters share their wires with each other, and the demo is a program of the command line."""
    wrong = []
    for module in modules():
        own = companion(module)
        if not own:
            continue
        family = "adapters" if own.startswith("adapters") else "cli" if own == "demo" else own
        others = {name for name in imports(module) if top(name) != family and companion(name) != own}
        wrong += [f"{module} imports {name}" for name in others if not is_front(name)]
    assert wrong == []


def is_front(module: str) -> bool:
    """True for packages, modules that are part of none, seams, and a module that its package has a name for."""
    package, _, name = module.rpartition(".")
    path = modules()[module]
    listed = package.count(".") and re.search(rf'"{name}"|\b{name} as {name}\b', modules()[package].read_text("utf-8"))
    alone = package in ("weakincentives", "weakincentives._base")
    return path.name == "__init__.py" or alone or module in SEAMS or bool(listed)
