"""Random trees of sections, and random steps in them, for property tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.disclosure.desk import FULL, SUMMARY, a_tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    ClearAllVisibilityOverrides,
    CollapseSection,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SetVisibilityOverride,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import MainLoop, ModelRequest
from weakincentives.session import Session, Snapshot


@tool
def poke(what: str, key: str, fail: bool, *, context: ToolContext) -> ToolResult[None]:
    """Change visibility from inside a handler, and maybe fail."""
    path = context.view.find(key)
    if path is None:
        return ToolResult("no such section", success=False)
    if what == "open":
        context.session.dispatch(SetVisibilityOverride(path, FULL))
    elif what == "close" and context.view.outline.by_path[path].summary is not None:
        context.session.dispatch(CollapseSection(path))
    else:
        context.session.dispatch(ClearAllVisibilityOverrides())
    return ToolResult("poked", success=not fail)


def build(shape: Any, numbers: Iterator[int]) -> MarkdownSection[None]:
    closed, has_tool, enabled, children = shape
    number = next(numbers)
    return MarkdownSection(
        title=f"S{number}",
        key=f"s{number}",
        template=f"Full {number}.",
        summary=f"Short {number}.",
        visibility=SUMMARY if closed else FULL,
        tools=[a_tool(f"tool{number}")] if has_tool else [],
        enabled=None if enabled else lambda: False,
        children=[build(child, numbers) for child in children],
    )


mostly = st.sampled_from([True, True, True, False])


trees = st.recursive(
    st.tuples(st.booleans(), st.booleans(), mostly, st.just(())),
    lambda inner: st.tuples(st.booleans(), st.booleans(), mostly, st.lists(inner, max_size=3).map(tuple)),
    max_leaves=6,
)


steps = st.tuples(
    st.sampled_from(["read", "open", "collapse", "poke open", "poke close", "poke clear", "poke fail"]),
    st.integers(0, 30),
)


def line(step: tuple[str, int], keys: list[str], request: ModelRequest) -> Any:
    action, number = step
    key = keys[number % len(keys)]
    offered = {offer.name for offer in request.tools}
    if action == "read" and "read_section" in offered:
        return call("read_section", section_key=key)
    if action == "open" and "open_sections" in offered:
        return call("open_sections", section_keys=[key], reason="")
    if action == "collapse" and "collapse_section" in offered:
        return call("collapse_section", section_key=key)
    what = action.removeprefix("poke ") if action.startswith("poke ") else "clear"
    return call("poke", what="open" if what == "fail" else what, key=key, fail=what == "fail")


def check_resume(
    template: PromptTemplate[Any], session: Session, request: ModelRequest, dynamic: bool, *params: Any
) -> None:
    """A copy that went through JSON asks the same next request."""
    check_same_request(template, session.snapshot().to_json(), request, dynamic, *params)


def check_same_request(
    template: PromptTemplate[Any], snapshot: str, request: ModelRequest, dynamic: bool, *params: Any
) -> None:
    """A run that goes on from a snapshot in another process asks this request next, maybe after calls and a restart."""
    session = Session()
    session.restore(Snapshot.from_json(snapshot, types=[object]))
    adapter = ScriptedAdapter(["done"], supports_dynamic_tools=dynamic)
    loop = MainLoop(max_expansions=20)
    loop.execute(Prompt(template).bind(*params), session=session, adapter=adapter, decisions={})
    (resumed,) = adapter.requests
    assert tuple(resumed.messages) == tuple(request.messages)
    assert (resumed.tools, resumed.revoked, resumed.initial_tools) == (
        request.tools,
        request.revoked,
        request.initial_tools,
    )
