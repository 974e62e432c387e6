"""The state of a run is in its session or in its `LiveRun`: nothing else remembers anything between two effects."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from weakincentives.runtime.spec import RunSpec
from weakincentives.runtime.state import RunState

RUNTIME = Path(__file__).parents[2] / "src" / "weakincentives" / "runtime"

# The classes whose fields may change after they were made, and why they are no state that a snapshot would need.
LIVE = {
    "live.py LiveRun": "a run under way in this process",
    "live.py Attempt": "one attempt of it; the next begins without",
    "live.py LiveCalls": "its calls under way",
    "live.py StreamState": "what its stream has shown",
    "calls/live.py LiveCall": "a call under way, with what can be taken back",
    "calls/difference.py _Comparison": "two values while they are compared",
    "calls/difference.py _Writer": "a difference while it is written",
    "calls/drawing.py _Drawing": "a question while it is drawn",
    "calls/values.py Work": "what is left of the work on one question",
    "delegation.py _Child": "the run inside a call, while the call lasts",
    "loop/bridge.py HandlerCall": "a handler while it runs",
    "loop/bridge.py TimedCall": "a handler while it runs",
    "loop/bridge.py Job": "a function while a thread runs it",
    "loop/bridge.py Workers": "the threads of this process",
    "loop/bridge.py _Batch": "handlers while they run on one event loop",
    "loop/bridge.py _Waiting": "handlers while they run on one event loop",
    "loop/inquiry.py _Replies": "guards while they are asked",
    "loop/streams.py AsyncEventStream": "a stream while it is read",
    "loop/streams.py Emissions": "a stream while it is read",
    "loop/streams.py AsyncEmissions": "a stream while it is read",
    "loop/streams.py PartialParser": "one reply while it arrives",
    "main_loop.py Conversation": "the loaded sections, which are replaced when other resources are bound",
    "past/history.py HistoryBuilder": "a history while it is folded",
    "past/rewind.py WayBack": "a session while it goes back",
    "known/exposure.py Comparison": "two prompts while they are compared",
    "known/exposure.py PromptDifference": "two prompts while they are compared",
    "window/excerpt.py Excerpt": "a cache of what follows from the messages",
}
# What a function of the loop may assign to: the live run and its parts, a live call, errors that it raises.
OWNERS = {
    *("live", "attempt", "stream", "calls", "meter", "handler", "call", "run", "use"),
    *("error", "signal", "problem", "mistake"),
}
CHANGES = {
    "append", "appendleft", "extend", "insert", "update", "setdefault", "add", "discard", "remove", "pop", "popleft",
    "popitem", "clear",
}  # fmt: skip


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(RUNTIME.rglob("*.py")):
        yield path.relative_to(RUNTIME).as_posix(), ast.parse(path.read_text())


def is_own(node: ast.AST) -> bool:
    """True for an attribute of `self`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def is_change(node: ast.AST) -> bool:
    """True for what changes a field of `self`: an assignment, an item that is set, or a call such as `append`."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Store | ast.Del) and is_own(node)
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store | ast.Del) and is_own(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in CHANGES and is_own(node.func.value)
    return False


def changing_methods(node: ast.ClassDef) -> list[str]:
    """The methods of a class, but its constructor, that change its fields."""
    names: list[str] = []
    for function in node.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name == "__init__":
            continue
        if any(map(is_change, ast.walk(function))):
            names.append(function.name)
    return names


def is_open_dataclass(node: ast.ClassDef) -> bool:
    """True for a dataclass whose fields may be assigned."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    return "dataclass" in decorators and "frozen=True" not in decorators


def test_a_class_of_the_runtime_remembers_nothing_unless_it_is_live() -> None:
    problems: list[str] = []
    changing: set[str] = set()
    for name, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = changing_methods(node)
            if methods or is_open_dataclass(node):
                changing.add(f"{name} {node.name}")
                if f"{name} {node.name}" not in LIVE:
                    problems.append(f"{name}: {node.name} may change: {', '.join(methods) or 'it is not frozen'}")
    assert problems == [], "keep it in RunState if a resumed run needs it, in LiveRun or Attempt if it ends with them"
    assert LIVE.keys() <= changing, "take out what is gone"


def test_the_functions_of_the_loop_assign_to_the_live_run_alone() -> None:
    problems: list[str] = []
    for name, tree in modules():
        if not name.startswith(("loop/", "known/", "window/", "calls/")):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store | ast.Del) or is_own(node):
                continue
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            is_step = name == "loop/bridge.py"
            if owner not in OWNERS and not is_step:
                problems.append(f"{name}:{node.lineno} assigns to {ast.unparse(node)}")
    assert problems == []


def test_what_a_run_was_asked_for_and_what_is_stored_of_it_never_change() -> None:
    for kind in (RunSpec, RunState):
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    stored = {field.name for field in dataclasses.fields(RunState)}
    assert {"tools", "shown", "unsent", "loaded", "former_tools", "model", "opening"} <= stored


def test_there_is_no_run_that_is_none() -> None:
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RunState":
                values = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                assert "" not in values, f"{name}:{node.lineno} makes a run without an id"
