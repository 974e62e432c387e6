"""Tests wait for what must happen, and not for a time."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A pause is the subject here: a server that answers piece by piece, a store or a visitor that takes its time, a program
# that hangs; and what waits for a condition.
PAUSES = {
    "attacks/test_network.py",
    "attacks/test_patterns.py",
    "contrib/test_commands.py",
    "durable/agent.py",
    "durable/test_conversations.py",
    "filesystem/test_crashes.py",
    "mcp/hostile.py",
    "mcp/test_hostile_servers.py",
    "runtime/test_ending.py",
    "ui/test_durable.py",
    "ui/test_storm.py",
    "waiting.py",
}


def sleeps(path: Path) -> list[int]:
    """The lines in which a test sleeps for a time. A turn of the event loop, `asyncio.sleep(0)`, is none."""
    text = path.read_text(encoding="utf-8")
    lines = []
    for node in ast.walk(ast.parse(text)) if "sleep(" in text else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            is_of_a_clock = not isinstance(node.func.value, ast.Name) or node.func.value.id not in ("asyncio", "time")
            is_a_turn = isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not is_of_a_clock and not is_a_turn:
                lines.append(node.lineno)
    return lines


def test_no_test_sleeps_where_it_could_wait() -> None:
    paths = {path.relative_to(TESTS).as_posix(): path for path in TESTS.rglob("*.py") if "npm" not in path.parts}
    pauses = {name: lines for name, path in paths.items() if (lines := sleeps(path))}
    assert {name: lines for name, lines in pauses.items() if name not in PAUSES} == {}, "see tests/waiting.py"
    assert sorted(PAUSES - set(pauses)) == [], "these do not sleep any more; take them off the list"
