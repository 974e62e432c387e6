"""open_sections under its three strategies: validation, signals, files, halting."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from tests.disclosure.desk import FULL, SUMMARY, answers, desk, desk_with_files, play, section, tool_names
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenSectionsParams,
    OpenSectionsResult,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    Section,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    WorkspaceSection,
)
from weakincentives.runtime import MainLoop, ToolInvoked
from weakincentives.session import Session

STRATEGIES = [OpenOrRead(), OpenToFiles(), OpenAndHalt()]


def open_(*keys: str, reason: str = "needed") -> Any:
    return call("open_sections", section_keys=list(keys), reason=reason)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (open_(), "At least one section key must be provided."),
        (open_("nope"), "Section 'nope' does not exist in this prompt."),
        (open_("task"), "Section 'task' is already expanded."),
        (open_("docs", "task"), "Section 'task' is already expanded."),
        (open_("docs", reason="x" * 257), "The reason has 257 characters; at most 256 are allowed."),
    ],
)
def test_wrong_requests_are_answered_and_change_nothing(strategy: Any, request_: Any, message: str) -> None:
    session = Session()
    play(desk_with_files(disclosure=strategy), request_, "done", session=session)
    ((success, text),) = answers(session)
    assert (success, text.startswith(message)) == (False, True)


@pytest.mark.parametrize("strategy", [OpenOrRead(), OpenToFiles()])
def test_sections_with_tools_ask_for_a_new_evaluation_even_on_dynamic_adapters(strategy: Any) -> None:
    session = Session()
    with pytest.raises(VisibilityExpansionRequired) as caught:
        ScriptedAdapter([open_("orders", reason="why")]).evaluate(
            Prompt(desk_with_files(disclosure=strategy)), session=session
        )
    assert caught.value.requested_overrides == {("orders",): FULL}
    assert (caught.value.reason, caught.value.section_keys) == ("why", ("orders",))
    (event,) = session[ToolInvoked].all()
    assert event.disclosure is not None
    assert (event.disclosure.requested_sections, event.disclosure.reason) == (("orders",), "why")
    assert event.disclosure.current_visibility_state[("orders",)] is SUMMARY


@pytest.mark.parametrize("strategy", [OpenOrRead(), OpenToFiles()])
def test_the_main_loop_opens_and_goes_on(strategy: Any) -> None:
    session = Session()
    with ScriptedAdapter([open_("orders"), call("lookup"), "done"]) as adapter:
        MainLoop().execute(Prompt(desk_with_files(disclosure=strategy)), session=session, adapter=adapter)
    assert "lookup" in tool_names(adapter.requests[1].tools)


def test_open_or_read_reads_content_without_changing_state() -> None:
    session = Session()
    adapter = play(desk(disclosure=OpenOrRead()), call("read_section", section_key="docs"), "done", session=session)
    assert answers(session)[0][1].endswith("All of docs.")
    assert tool_names(adapter.requests[1].tools) == ["open_sections", "read_section"]


def test_under_open_or_read_reading_never_brings_tools() -> None:
    session = Session()
    template = desk(disclosure=OpenOrRead())
    adapter = play(
        template, *(call("read_section", section_key=key) for key in ("orders", "guide")), "done", session=session
    )
    assert answers(session)[0] == (
        False,
        "Section 'orders' has tools; call open_sections with key 'orders' to open it.",
    )
    assert answers(session)[1][0]
    assert tool_names(adapter.requests[-1].tools) == ["open_sections", "read_section"]


def files_of(template: PromptTemplate[Any], *lines: Any) -> tuple[dict[str, str], Session]:
    prompt, session = Prompt(template), Session()
    with prompt.resources:
        ScriptedAdapter([*lines, "done"]).evaluate(prompt, session=session)
        files = prompt.resources.get(Filesystem)
        return {path: files.read(path) for path in files.glob("context/*.md")}, session


def test_content_is_written_to_files_for_the_model_to_read() -> None:
    files, session = files_of(desk_with_files(disclosure=OpenToFiles()), open_("docs", "guide.tone"))
    assert files == {
        "context/docs.md": "## Docs\n\nAll of docs.",
        "context/guide.tone.md": "## Tone\n\nAll of tone.",
    }
    ((success, text),) = answers(session)
    assert success
    assert text.startswith("Section content written to: context/docs.md, context/guide.tone.md")
    assert session[ToolInvoked].all()[0].result.value == OpenSectionsResult(
        written_files=("context/docs.md", "context/guide.tone.md")
    )


def test_a_file_holds_all_enabled_descendants_in_full() -> None:
    template = desk_with_files(disclosure=OpenToFiles())
    files, _ = files_of(template, open_("guide"))
    assert files["context/guide.md"] == (
        "## Guide\n\nAll of guide.\n\n### Style\n\nAll of style.\n\n### Tone\n\nAll of tone."
    )


def test_a_content_only_child_of_a_closed_section_with_tools_goes_to_its_own_file() -> None:
    closed = section("ppp", tools=("use",), children=[section("cb")])
    template = PromptTemplate(ns="t", key="k", sections=[closed, WorkspaceSection()], disclosure=OpenToFiles())
    files, session = files_of(template, open_("ppp.cb"))
    assert files == {"context/ppp.cb.md": "## Cb\n\nAll of cb."}
    assert session[VisibilityOverrides].latest() == VisibilityOverrides()


class FullFiles(InMemoryFilesystem):
    def write(self, *given: Any, **options: Any) -> Any:
        raise RuntimeError("no room")


def test_whatever_fails_when_a_file_is_written_the_model_reads_which_section_it_was() -> None:
    session, prompt = Session(), Prompt(desk(disclosure=OpenToFiles()))
    prompt.bind(resources={Filesystem: FullFiles()})
    ScriptedAdapter([open_("docs"), "Done."]).evaluate(prompt, session=session)
    assert answers(session) == [(False, "Failed to write context for 'docs': no room")]


def test_the_parameters_of_open_sections_are_described_where_the_spec_has_it() -> None:
    described = {each.name: each.metadata["description"] for each in fields(OpenSectionsParams)}
    (opening,) = OpenAndHalt().tools(with_tools=True, content_only=True)
    properties = json.loads(opening.definition)["parameters"]["properties"]
    assert described == {name: schema["description"] for name, schema in properties.items()}


def test_files_may_be_opened_again() -> None:
    files, session = files_of(desk_with_files(disclosure=OpenToFiles()), open_("docs"), open_("docs"))
    assert list(files) == ["context/docs.md"]
    assert [success for success, _ in answers(session)] == [True, True]


def test_a_mixed_request_writes_nothing_and_asks_for_all() -> None:
    prompt, session = Prompt(desk_with_files(disclosure=OpenToFiles())), Session()
    with prompt.resources:
        with pytest.raises(VisibilityExpansionRequired) as caught:
            ScriptedAdapter([open_("docs", "orders")]).evaluate(prompt, session=session)
        assert prompt.resources.get(Filesystem).glob("context/*") == ()
    assert caught.value.requested_overrides == {("docs",): FULL, ("orders",): FULL}


def test_without_a_filesystem_opening_to_files_fails_and_the_log_has_a_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session()
    play(desk(disclosure=OpenToFiles()), open_("docs"), "done", session=session)
    assert answers(session)[0] == (False, "Cannot write context files: no filesystem available.")
    assert "add a WorkspaceSection to the prompt" in caplog.text


class Broken(Section[None]):
    def render_body(self, params: None) -> str:
        raise RuntimeError("no ink")


def test_a_section_that_cannot_be_rendered_is_a_failed_result() -> None:
    broken = Broken(title="Broken", key="broken", summary="s", visibility=SUMMARY)
    template = PromptTemplate(ns="t", key="k", sections=[broken, WorkspaceSection()], disclosure=OpenToFiles())
    session = Session()
    play(template, open_("broken"), "done", session=session)
    assert answers(session)[0] == (
        False,
        "Failed to write context for 'broken': Section 'broken' failed to render: RuntimeError: no ink",
    )


def test_open_and_halt_ends_the_turn_and_returns_control() -> None:
    session = Session()
    template = PromptTemplate(
        ns="t",
        key="k",
        sections=[section("a", tools=("use_a",)), MarkdownSection(title="B", key="b", template="x"), section("c")],
        disclosure=OpenAndHalt(),
    )
    adapter = ScriptedAdapter([[open_("a", "c"), call("never")]])
    response = adapter.evaluate(Prompt(template), session=session)
    assert response.halt == OpenSectionsResult({("a",): FULL, ("c",): FULL}, reason="needed")
    assert response.output is None
    assert [event.name for event in session[ToolInvoked].all()] == ["open_sections"]
    assert response.halt.render() == ("Sections requested for expansion: a, c. Retry prompt with visibility overrides.")
    retried = Prompt(template).render(visibility_overrides=response.halt.requested_overrides)
    assert tool_names(retried.tools) == ["use_a"]


def test_the_main_loop_goes_on_after_a_halt_by_itself() -> None:
    session = Session()
    with ScriptedAdapter([open_("orders.refunds"), call("refund"), "done"]) as adapter:
        response = MainLoop().execute(Prompt(desk(disclosure=OpenAndHalt())), session=session, adapter=adapter)
    assert (response.text, response.halt) == ("done", None)
    assert tool_names(adapter.requests[1].tools) == ["lookup", "refund", "open_sections"]
