from __future__ import annotations

import json
import sys
from shlex import quote
from typing import Any

import pytest

from tests.cli.conftest import Wink
from tests.cli.terminal import Terminal, settled

READ = {"call": "read_section", "arguments": {"section_key": "house"}}
BOOK = {"call": "book", "arguments": {"room": "sea"}}
GUEST = ("-p", "Guest.name=Ada")

# Blocks until it is interrupted, the first time it is asked.
SLOW = """
import threading
from weakincentives import ScriptedAdapter

asked = []

def answer(request):
    asked.append(request)
    if len(asked) == 1:
        print("(thinking)", flush=True)
        threading.Event().wait()
    return "Here."

adapter = ScriptedAdapter(answer)
"""

FULL = """
from weakincentives import ScriptedAdapter
from weakincentives.runtime import ModelReply

adapter = ScriptedAdapter([ModelReply(stop_reason="overflow"), "Hi."])
"""


def script(wink: Wink, *replies: Any) -> tuple[str, ...]:
    (wink.folder / "script.json").write_text(json.dumps(replies), encoding="utf-8")
    return ("chat", "desk:template", *GUEST, "--model", "scripted:script.json")


def test_in_a_pipe_each_line_is_a_message_and_answers_are_plain(wink: Wink) -> None:
    words = script(wink, READ, BOOK, "Booked.", "Bye.")
    done = wink(*words, stdin="A room, please.\n\nThanks.\n")
    assert (done.returncode, done.stdout) == (0, "Booked.\nBye.\n")
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["open", "tools", "tool", "done", "done"]
    assert [row["question"] for row in wink.json("runs", "list")] == ["Thanks.", "A room, please."]
    assert "asked   Thanks." in wink("runs", "show").stdout


QUOTING = """
from weakincentives import ScriptedAdapter
from weakincentives.runtime import ModelReply

item = '{"type": "quotation", "from": ["house"]}'
adapter = ScriptedAdapter([ModelReply(text="Rooms face the sea.", items=(item,))])
adapter.name = "local"
"""


def test_an_answer_that_is_quoted_says_so(wink: Wink) -> None:
    (wink.folder / "quoting.py").write_text(QUOTING, encoding="utf-8")
    words = ("chat", "desk:template", *GUEST, "-a", "quoting:adapter")
    done = wink(*words, stdin="A room?\n")
    assert (done.stdout, done.stderr.splitlines()[0]) == ("Rooms face the sea.\n", "quoted  word for word from house")
    with Terminal(wink.folder, *words, columns=140, NO_COLOR="1") as terminal:
        greeting = terminal.read("> ")
        assert "No language model is at work: the sections are ranked by an embedding" in greeting
        assert "With a provider's model" in " ".join(greeting.split())
        terminal.type("A room?\n")
        assert "Rooms face the sea." in terminal.read("done")
        assert "1 turn" in (status := terminal.read("\n> ")) and "; quoted from house\n" in status


def test_the_browser_that_view_opens_is_given_no_token(wink: Wink) -> None:
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    (wink.folder / "browser.py").write_text("import sys; print('given', *sys.argv[1:])", encoding="utf-8")
    with Terminal(
        wink.folder, *script(wink, "Hi."), columns=200, NO_COLOR="1", BROWSER=f"{quote(sys.executable)} browser.py %s"
    ) as terminal:
        terminal.read("> ")
        terminal.type("/view\n")
        shown = terminal.read("?token=")
    assert "given file://" in shown.partition("http://127.0.0.1:")[0]


def test_what_opens_is_named_and_an_exchange_ends_with_one_line_of_status(wink: Wink) -> None:
    with Terminal(wink.folder, *script(wink, READ, BOOK, "Booked."), columns=80, NO_COLOR="1") as terminal:
        assert terminal.read("\n> ").startswith(
            "desk: 2 sections, ▒ marks those that open. /help lists the commands.\n"
        )
        terminal.type("A room\n")
        shown = settled(terminal.read("\n> ")).splitlines()[1:]
        terminal.type("\x04")
        assert terminal.rest()[0] == 0
    steps = ["▒ house", "  with book", 'tool    book({"room": "sea"}) -> booked sea']
    assert shown[:5] == [*steps, "", "Booked."]
    assert shown[6].startswith("done    3 turns, ") and shown[5:6] + shown[7:] == ["", "", "> "]


@pytest.mark.parametrize("columns", [41, 61, 80, 140])
def test_lines_of_an_answer_end_between_words(wink: Wink, columns: int) -> None:
    long = "One two three four five six seven eight nine ten. " * 4
    with Terminal(wink.folder, *script(wink, READ, long), columns=columns, NO_COLOR="1") as terminal:
        terminal.read("\n> ")
        terminal.type("A room\n")
        shown = settled(terminal.read("done")).splitlines()[1:-1]
    answer = shown[shown.index("") :]
    assert all(len(line) <= columns for line in shown) and " ".join(answer).split() == long.split()


MARKDOWN = """# On **rooms**

Take the **sea view**, not `book`:

- one
  - two **bold** words
3. three
> said

```
book('sea')   # 2 ** 3
```

| room | nights |
|---|---|
| sea | 3 |
| garden, which faces the garden | 2 |

2 * 3 ** 4 `open"""
SET = """On rooms

Take the sea view, not book:

• one
  • two bold words
3. three
│ said

    book('sea')   # 2 ** 3

room                            nights
sea                             3
garden, which faces the garden  2

2 * 3 ** 4 open"""


def test_markdown_is_set_for_the_terminal_and_left_as_it_is_in_a_pipe(wink: Wink) -> None:
    with Terminal(wink.folder, *script(wink, MARKDOWN), NO_COLOR="1") as terminal:
        terminal.read("\n> ")
        terminal.type("How?\n")
        shown = settled(terminal.read("done")).splitlines()[1:-2]
    assert "\n".join(shown) == SET
    assert wink(*script(wink, MARKDOWN), stdin="How?\n").stdout == f"{MARKDOWN}\n"


def test_bold_and_code_are_styled_and_a_wide_table_becomes_a_list(wink: Wink) -> None:
    wide = f"| a | b |\n|---|---|\n| {'word ' * 9}| {'more ' * 9}|\n\nTake the **sea**, `now`."
    with Terminal(wink.folder, *script(wink, wide), columns=60) as terminal:
        terminal.read("\n> ")
        terminal.type("How?\n")
        shown = terminal.read("done")
    assert "• a: word word word" in shown and "\x1b[1msea\x1b[0m, \x1b[36mnow\x1b[0m." in shown


def test_a_wait_is_shown_and_erased(wink: Wink) -> None:
    (wink.folder / "slow.py").write_text(SLOW, encoding="utf-8")
    with Terminal(wink.folder, "chat", "desk:template", *GUEST, "-a", "slow:adapter", NO_COLOR="1") as terminal:
        terminal.read("\n> ")
        terminal.type("Hello?\n")
        terminal.read("reading… ")
        assert "\r\x1b[2K" in terminal.press("\x03", until="stopped; what was said so far stays")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("run", "desk:template", *GUEST), "model   working… 2 s"),
        (("eval", "run", "cases.jsonl", "desk:template"), "0 of 1 cases [..............................] 1 s"),
    ],
)
def test_a_run_and_an_evaluation_say_how_long_they_have_been_at_work(
    wink: Wink, command: tuple[str, ...], line: str
) -> None:
    (wink.folder / "slow.py").write_text(SLOW, encoding="utf-8")
    case = {"id": "a", "message": "Hello?", "params": {"Guest": {"name": "Ada"}}, "expected": "Here."}
    (wink.folder / "cases.jsonl").write_text(json.dumps(case), encoding="utf-8")
    with Terminal(wink.folder, *command, "-a", "slow:adapter", NO_COLOR="1") as terminal:
        assert terminal.read(line)


def test_ctrl_c_stops_the_answer_and_the_next_message_works(wink: Wink) -> None:
    (wink.folder / "slow.py").write_text(SLOW, encoding="utf-8")
    with Terminal(wink.folder, "chat", "desk:template", *GUEST, "-a", "slow:adapter", NO_COLOR="1") as terminal:
        terminal.read("> ")
        terminal.type("Hello?\n")
        terminal.read("(thinking)")
        terminal.press("\x03", until="stopped; what was said so far stays")
        terminal.read("> ")
        terminal.type("Still there?\n")
        assert "Here.\n" in terminal.read("> ")
        terminal.press("\x03", until="(Ctrl-D or /quit leaves)")
        terminal.type("/quit\n")
        assert terminal.rest()[0] == 0


def test_a_section_is_opened_by_hand_and_why_says_so(wink: Wink) -> None:
    done = wink(*script(wink, BOOK, "Booked."), stdin="/open house\nA room\n/why\n")
    assert done.stderr.startswith("open    house, with book\n") and done.stdout.startswith("Booked.\n")
    assert [line.split(maxsplit=2) for line in done.stdout.splitlines()[2:-1]] == [
        ["welcome", "full", "as declared"],
        ["house", "full", "you, with /open"],
    ]


def test_why_says_what_was_open_from_the_start(wink: Wink) -> None:
    done = wink(*script(wink, BOOK, "Booked."), "--open", "house", stdin="A room\n/why house\n")
    assert done.stdout.splitlines()[-1].split(maxsplit=2) == ["house", "full", "open since this conversation began"]


def test_why_says_what_the_model_opened(wink: Wink) -> None:
    done = wink(*script(wink, READ, "Hello."), stdin="Hi\n/why house\n")
    assert done.stdout.splitlines()[-1].split(maxsplit=2) == ["house", "read", "the model, turn 1, for 'Hi'"]


def test_why_tells_calls_of_the_same_id_apart(wink: Wink) -> None:
    (wink.folder / "numbered.py").write_text(NUMBERED, encoding="utf-8")
    done = wink("chat", "numbered:template", "-a", "numbered:adapter", stdin="Hi\nAnd a room?\n/why\n")
    assert [line.split(maxsplit=2) for line in done.stdout.splitlines()[3:-1]] == [
        ["house", "read", "the model, turn 1, for 'Hi'"],
        ["rooms", "read", "the model, turn 1, for 'And a room?'"],
    ]


NUMBERED = """
from weakincentives import MarkdownSection, PromptTemplate, ScriptedAdapter, SectionVisibility
from weakincentives.runtime import ModelReply, ToolCall

closed = {"template": "A text.", "summary": "A line.", "visibility": SectionVisibility.SUMMARY}
sections = [MarkdownSection(key=key, title=key, **closed) for key in ("house", "rooms")]
template = PromptTemplate(ns="hotel", key="rooms", sections=sections)

def read(key):
    return ModelReply(tool_calls=(ToolCall("call_1", "read_section", f'{{"section_key": "{key}"}}'),))

adapter = ScriptedAdapter([read("house"), "Hello.", read("rooms"), "Free."])
"""
RANKING = """
from weakincentives import ScriptedAdapter
from weakincentives.adapters.scripted import call
from weakincentives.runtime import ModelReply, ToolCall

item = '{"type": "ranking", "by": "words", "of": 27, "best": [{"key": "house", "score": 0.512}]}'
asked = ToolCall("c1", "read_section", '{"section_key": "house"}')
adapter = ScriptedAdapter([ModelReply(tool_calls=(asked,), items=(item,)), "Hello."])
"""


def test_why_says_the_rank_of_a_section_that_was_picked(wink: Wink) -> None:
    (wink.folder / "ranking.py").write_text(RANKING, encoding="utf-8")
    done = wink("chat", "desk:template", *GUEST, "-a", "ranking:adapter", stdin="A room?\n/why house\n")
    assert done.stdout.splitlines()[-1].endswith("the model, turn 1 (rank 0.51 of 27), for 'A room?'")


def test_a_saved_conversation_goes_on_where_it_was(wink: Wink) -> None:
    wink(*script(wink, READ, "Hello."), stdin="Hi\n/save chat.json\n/save chat.md\n")
    written = (wink.folder / "chat.md").read_text(encoding="utf-8")
    assert written == "**user**\n\nHi\n\n**assistant**\n\nHello.\n\n"
    done = wink(*script(wink, BOOK, "Booked."), "--resume", "chat.json", stdin="A room\n/why house\n")
    assert done.stdout.startswith("Booked.\n") and "house    read" in done.stdout


def test_view_serves_the_conversation(wink: Wink) -> None:
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    done = wink(*script(wink, "Hello."), stdin="Hi\n/view\n")
    assert done.stdout.splitlines()[1].startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/opne house", "no command '/opne'; there are /open KEY, "),
        ("/open hosue", "no section 'hosue'; there are welcome, house; did you mean 'house'?"),
        ("/save", "/save needs a FILE"),
        ("/save nowhere/chat.md", "cannot write nowhere/chat.md"),
        ("Hello", "script.json has no more replies"),
    ],
)
def test_what_goes_wrong_is_said_and_the_conversation_goes_on(wink: Wink, line: str, message: str) -> None:
    done = wink(*script(wink), stdin=f"{line}\n/help\n")
    assert done.returncode == 1 and f"wink: {message}" in done.stderr
    assert done.stdout.startswith("/open KEY   show a section in full")


def test_of_a_typed_answer_only_the_final_form_is_printed(wink: Wink) -> None:
    with (wink.folder / "desk.py").open("a", encoding="utf-8") as file:
        file.write("typed = PromptTemplate[Guest](ns='hotel', key='typed', sections=[welcome])\n")
    rejected, right = '{"name": 9, "nights": 2}', '{"name": "Ada", "nights": 2}'
    words = ["desk:typed" if word == "desk:template" else word for word in script(wink, rejected, right)]
    done = wink(*words, stdin="Who am I?\n")
    assert (done.returncode, done.stdout) == (0, f"{right}\n")


def test_a_conversation_with_another_prompt_is_named_when_it_is_resumed(wink: Wink) -> None:
    with (wink.folder / "desk.py").open("a", encoding="utf-8") as file:
        file.write("other = PromptTemplate(ns='hotel', key='other', sections=[welcome])\n")
    wink(*script(wink, "Hello."), stdin="Hi\n/save talk.json\n")
    words = ["desk:other" if word == "desk:template" else word for word in script(wink, "Hello again.")]
    done = wink(*words, "--resume", "talk.json", stdin="And?\n")
    assert done.stderr.splitlines()[0] == "talk.json is a conversation with hotel/desk, not hotel/other"


def test_a_file_that_is_not_a_conversation_is_named(wink: Wink) -> None:
    done = wink(*script(wink, "Hello."), "--resume", "desk.py")
    assert done.returncode == 2 and done.stderr.startswith("wink: --resume desk.py: The text is not a session snapshot")


def test_a_file_that_is_not_there_is_named(wink: Wink) -> None:
    done = wink(*script(wink, "Hello."), "--resume", "nope.json")
    assert (done.returncode, done.stderr) == (
        2,
        "wink: --resume: there is no file 'nope.json'; /save in the chat writes one\n",
    )


def test_new_starts_a_conversation_that_knows_nothing_of_the_last(wink: Wink) -> None:
    words = script(wink, READ, "Booked.", "Hello.")
    done = wink(*words, stdin="A room, please.\n/new\nHello.\n/save chat.json\n/why house\n")
    assert (done.returncode, "Booked." in (wink.folder / "chat.json").read_text(encoding="utf-8")) == (0, False)
    assert done.stdout.splitlines()[-1].split(maxsplit=2) == ["house", "summary", "as declared"]


def test_a_full_context_is_reported_with_the_way_on(wink: Wink) -> None:
    (wink.folder / "full.py").write_text(FULL, encoding="utf-8")
    done = wink("chat", "desk:template", *GUEST, "-a", "full:adapter", stdin="Hello.\n/new\nHello.\n")
    assert done.stdout == "Hi.\n"
    assert "wink: " in done.stderr and "/new starts a new conversation." in done.stderr


ENDLESS = """
from weakincentives import ScriptedAdapter
from weakincentives.adapters.scripted import call

adapter = ScriptedAdapter(lambda request: call("unknown"))
"""


def test_an_endless_loop_stops_after_fifty_turns_and_the_chat_goes_on(wink: Wink) -> None:
    (wink.folder / "endless.py").write_text(ENDLESS, encoding="utf-8")
    done = wink("chat", "desk:template", *GUEST, "-a", "endless:adapter", stdin="Hi.\nAgain.\n")
    assert done.stderr.count("Budget of prompt 'desk' is exhausted: max_turns=50, spent 50") == 2
    assert [row["turns"] for row in wink.json("runs", "list")] == [50, 50]


@pytest.mark.parametrize(("option", "turns"), [((), 50), (("--max-turns", "3"), 3), (("--max-turns", "60"), 60)])
def test_a_run_stops_after_its_turns(wink: Wink, option: tuple[str, ...], turns: int) -> None:
    (wink.folder / "endless.py").write_text(ENDLESS, encoding="utf-8")
    done = wink("run", "desk:template", *GUEST, "-a", "endless:adapter", *option)
    assert done.returncode == 1 and f"max_turns={turns}, spent {turns}" in done.stderr


def test_ctrl_c_before_an_answer_leaves_no_mark_on_the_screen(wink: Wink) -> None:
    (wink.folder / "slow.py").write_text(SLOW.replace("(thinking)", ""), encoding="utf-8")
    with Terminal(wink.folder, "chat", "desk:template", *GUEST, "-a", "slow:adapter", NO_COLOR="1") as terminal:
        terminal.read("> ")
        terminal.type("Hello?\n")
        terminal.read("reading… ")
        shown = terminal.press("\x03", until="stopped; what was said so far stays")
    assert shown.rpartition("^C")[2].startswith("\r\x1b[2K")
