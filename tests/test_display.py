"""What values show of themselves: tables that fit, and notebooks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from weakincentives._base.display import Table, bar, cell_width, folded, said, shortened, strip, toned, tree
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Message
from weakincentives.session import Session

TABLE = Table(
    ("run", "turns", "question"),
    [("a1", "3", "Where is it?"), ("b2", "12", "日本 | <b>")],
    ("turns",),
    ("turns",),
    "question",
)

SETUP = """
from dataclasses import dataclass
from weakincentives import Conversation, MainLoop, MarkdownSection, Prompt, PromptTemplate, SectionVisibility, Session
from weakincentives import ScriptedAdapter
from weakincentives.adapters.scripted import call
from weakincentives.runtime import Message, ledger

@dataclass
class Reply:
    status: str
    steps: list[str]

page = MarkdownSection(key="page", title="Page", template="<i>A page</i> of the guide. " * 20)
guide = MarkdownSection(key="guide", title="Guide", template="<b>Read</b> me.", summary="A guide.",
                        visibility=SectionVisibility.SUMMARY, children=[page])
template = PromptTemplate(ns="tests", key="desk", sections=[guide])
prompt = Prompt(template)
adapter = ScriptedAdapter([call("read_section", section_key="guide"), "Done <script>."])
session = Session(session_id="s1")
explanation = adapter.explain(prompt)
rendered = prompt.render()
response = MainLoop().execute(prompt, session=session, adapter=adapter)
chat = Conversation(prompt, adapter=ScriptedAdapter([call("read_section", section_key="guide"), "<u>Yes</u>."]))
chat.send("<b>Hello?</b>")
script = ScriptedAdapter(['{"status": "<b>ok", "steps": ["one", "two"]}'])
typed = script.evaluate(Prompt[Reply](ns="tests", key="typed", sections=[page]), session=Session())
"""
CELLS = (
    "prompt",
    "rendered",
    "explanation",
    "session",
    "ledger(session)",
    "response",
    "template",
    "chat",
    "chat.session[Message]",
    "typed",
)


def test_a_table_is_cut_at_its_flexible_column_then_loses_columns() -> None:
    assert TABLE.text() == "run  turns  question\na1       3  Where is it?\nb2      12  日本 | <b>"
    wide = Table(("run", "turns", "question"), [("a1", "3", "x" * 60)], ("turns",), ("turns",), "question")
    assert wide.text(60).splitlines()[1] == f"a1       3  {'x' * 47}…"
    assert wide.text(48).splitlines() == ["run  question", f"a1   {'x' * 42}…"]


def test_wide_letters_take_two_columns_and_accents_none() -> None:
    assert [cell_width(text) for text in ("abc", "日本", "e\u0301", "🙂")] == [3, 4, 1, 2]
    assert shortened("日本語", 5) == "日本…"


def test_marks_without_width_do_not_make_a_short_text_of_a_long_one() -> None:
    assert shortened("e" + "\u0301" * 1000, 5) == "e" + "\u0301" * 19 + "…"


def test_markup_of_values_is_not_obeyed() -> None:
    assert '<td style="text-align: left; padding-left: 0.5em">日本 | &lt;b&gt;</td>' in TABLE.html()
    drawn = [toned("<b>"), said("<i>", "<b>"), said("user", "<b>" * 2_000), folded("<b>", "<i>")]
    shown = tree([(node("<b>", 0, "<s>"), "<u>", "<i>", 1, 2)]).html()
    for html in (*(part.html for part in drawn), shown):
        assert not any(f"<{letter}>" in html for letter in "busi")


def test_drawings_are_texts_where_there_is_no_html() -> None:
    assert (toned("passed"), said("user", "Hi."), bar([("full", 1)], 2)) == ("passed", "user: Hi.", "")
    rows = [
        (node("guide", 0), "summary", "declared", 1, 20),
        (node("page", 1, "search"), "hidden", "declared", 0, 5),
        (node("shop", 0, is_late=True), "full", "override", 7, 2),
    ]
    assert tree(rows).text().splitlines()[1:] == [
        "guide    summary  declared       1       20",
        "  page   hidden   declared       0        5    search",
        "shop     full     override       7        7    not known yet",
    ]


def node(key: str, depth: int, *tools: str, is_late: bool = False) -> Any:
    named = [SimpleNamespace(name=name) for name in tools]
    return SimpleNamespace(section=SimpleNamespace(key=key), depth=depth, all_tools=named, is_late=is_late)


def test_a_strip_has_a_column_for_each_turn() -> None:
    html = strip([(1_000, 0), (2_000, 1_000)]).html
    assert html.count("tokens sent, ") == 2 and "turn 2: 2,000 tokens sent, 1,000 cached" in html
    assert strip([]).html == ""
    assert strip([(1, 0)] * 5_000).html.count("tokens sent, ") == 100


def test_the_result_of_a_tool_keeps_its_columns() -> None:
    assert "font-family: monospace" in Message("tool", "a   b", name="look")._repr_html_()
    assert "monospace" not in Message("user", "a   b")._repr_html_()


def test_a_long_conversation_shows_its_end_and_nothing_that_cannot_be_sent() -> None:
    session = Session()
    for number in range(250):
        session.dispatch(Message("user", f"message {number} \ud800"))
    shown = session[Message]._repr_html_()
    assert "150 earlier" in shown and "message 149 " not in shown and "message 249 ?" in shown
    shown.encode()


@dataclass(frozen=True)
class Guest:
    name: str


def test_a_prompt_that_cannot_be_rendered_says_what_it_needs() -> None:
    section = MarkdownSection[Guest](key="welcome", title="Welcome", template="${name}")
    shown = Prompt(PromptTemplate(ns="tests", key="guest", sections=[section]))._repr_html_()
    assert "It cannot be rendered yet: " in shown and ">welcome<" in shown


@pytest.fixture(scope="module")
def outputs() -> list[dict[str, Any]]:
    """What a notebook shows for each cell, run by a real kernel."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat, nbclient and ipykernel: ./test installs them")
    nbclient = pytest.importorskip("nbclient", reason="needs nbformat, nbclient and ipykernel: ./test installs them")
    pytest.importorskip("ipykernel", reason="needs nbformat, nbclient and ipykernel: ./test installs them")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (SETUP, *CELLS)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's own libraries
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [cell.outputs[0].data for cell in notebook.cells[1:]]


def test_a_notebook_shows_each_value_as_html_and_a_line(outputs: list[dict[str, Any]]) -> None:
    assert [sorted(shown) for shown in outputs] == [["text/html", "text/plain"]] * len(CELLS)
    plain = [shown["text/plain"] for shown in outputs]
    assert plain[0] == "Prompt('tests', 'desk')" and plain[1].startswith("<RenderedPrompt 'desk': ")
    assert plain[2].startswith("<Explanation of 'desk' on scripted: ") and plain[3] == "Session('s1')"
    assert plain[4].startswith("<Ledger of run ") and plain[5].startswith(
        "<PromptResponse of 'desk': 'Done <script>.', 2 turns, "
    )
    assert plain[6] == "PromptTemplate('tests', 'desk')"
    assert plain[7].startswith("<Conversation of 'desk' on scripted: 5 messages, 2 model calls, ")
    assert all("\n" not in line and len(line) < 200 for line in (*plain[:8], plain[9]))


def test_a_notebook_shows_sections_and_escapes_what_they_say(outputs: list[dict[str, Any]]) -> None:
    html = [shown["text/html"] for shown in outputs]
    assert all(">guide<" in html[at] for at in (0, 1, 2, 4, 6)) and all(">  page<" in html[at] for at in (0, 1, 6))
    assert "RunEnded" in html[3] and "Done &lt;script&gt;." in html[5]
    assert not any(tag in shown for shown in html for tag in ("<b>", "<i>", "<u>", "<script>"))


def test_a_notebook_shows_a_conversation_turn_by_turn(outputs: list[dict[str, Any]]) -> None:
    chat, messages, typed = (shown["text/html"] for shown in outputs[-3:])
    assert "turn 2: " in chat and "wink view --run " in chat
    for said_there in ("&lt;b&gt;Hello?&lt;/b&gt;", "read_section(", "&lt;u&gt;Yes&lt;/u&gt;."):
        assert said_there in chat and said_there in messages
    assert ">status<" in typed and ">&lt;b&gt;ok<" in typed and "Reply(" not in typed
