from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Wink
from tests.telemetry.agents import FAIL, prompt, record_durable_run, run
from tests.viewer.hosted import record_hosted_run
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.cli.output import dollars
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import (
    Compacted,
    Compaction,
    Conversation,
    MainLoop,
    ModelCalled,
    ModelReply,
    ModelRequest,
    TextDelta,
)
from weakincentives.session import Session
from weakincentives.telemetry import RunStore, record


@pytest.fixture
def runs(wink: Wink) -> list[str]:
    """The ids of two runs in runs.db, the older first."""
    recorder = record(wink.folder / "runs.db")
    first = run(recorder=recorder)
    second = run(call("fail"), ModelReply(text="\x1b[31mOh.\x1b[0m"), bound=prompt(FAIL), recorder=recorder)
    return [first.run_id, second.run_id]


def test_list_shows_the_newest_first(wink: Wink, runs: list[str]) -> None:
    lines = wink("runs", "list", "runs.db").stdout.splitlines()
    heading = ["run", "status", "started", "prompt", "model", "turns", "input", "output", "time", "question"]
    assert lines[0].split() == heading
    assert [line.split()[0] for line in lines[1:]] == runs[::-1]
    assert [row["turns"] for row in wink.json("runs", "list", "runs.db")] == [2, 4]


def test_without_a_file_the_runs_of_this_folder_are_meant(wink: Wink) -> None:
    (wink.folder / "script.json").write_text('["Hello."]', encoding="utf-8")
    words = ("run", "desk:template", "-p", "Guest.name=Ada", "-q", "-a", "scripted:script.json")
    assert "There is no run file at '.wink/runs.db'; `wink run`, `wink chat`" in wink("runs").stderr
    assert wink(*words, "--no-record").stderr == ""
    assert not (wink.folder / ".wink").exists()
    told = wink.json(*words)
    assert [row["run_id"] for row in wink.json("runs", "list")] == [told["run_id"]]
    assert wink("runs").stdout == wink("runs", "list").stdout != ""
    assert wink("runs", "show").stdout == wink("runs", "show", told["run_id"][:6]).stdout
    assert (wink.folder / ".wink" / ".gitignore").read_text(encoding="utf-8") == "runs.db*\n"
    assert "did you mean" in wink("runs", "show", told["run_id"][:5] + "-").stderr
    assert wink.json("report")["runs"] == 1


def test_list_finds_runs_by_what_was_said(wink: Wink, runs: list[str]) -> None:
    assert [row["run_id"] for row in wink.json("runs", "list", "runs.db", "--search", "no such thing")] == runs[1:]
    assert [row["run_id"] for row in wink.json("runs", "list", "runs.db", "--search", "How to work")] == runs[:1]
    assert wink("runs", "list", "runs.db", "--search", "nothing says this").stderr == "no runs\n"


def test_show_tells_question_turns_openings_answer_and_savings(wink: Wink) -> None:
    adapter = ScriptedAdapter([call("read_section", section_key="guide"), call("fail"), "Done."])
    with record(wink.folder / "runs.db"):
        run_id = Conversation(prompt(FAIL), adapter=adapter).send("What is in\nthe guide?").run_id
    lines = wink("runs", "show", "runs.db").stdout.splitlines()
    assert lines[0].startswith(f"{run_id}  ok  tests/sums on scripted scripted  20") and lines[-1].startswith(
        "sent    "
    )
    assert [line for line in lines[1:-1] if not line.startswith(("prompt", "model"))] == [
        "",
        "asked   What is in",
        "        the guide?",
        "open    guide",
        "tool    fail({}) -> failed, undone: Tool 'fail' failed: ValueError: no such thing",
        "answer  Done.",
        "",
    ]
    assert wink.json("runs", "list", "runs.db")[0]["question"] == "What is in\nthe guide?"


def test_show_has_each_turn_as_json(wink: Wink, runs: list[str]) -> None:
    shown = wink.json("runs", "show", "runs.db", runs[0])
    assert [turn["full_prompt"] is None for turn in shown["turn_list"]] == [True, True, False, False]


def test_show_takes_the_newest_run_and_prints_no_escape_sequence(wink: Wink, runs: list[str]) -> None:
    text = wink("runs", "show", "runs.db").stdout
    assert text.startswith(runs[1]) and "answer  ␛[31mOh." in text and "\x1b" not in text
    turn = wink("runs", "show", "runs.db", "--turn", "2").stdout
    assert "=== reply\n␛[31mOh." in turn and "\x1b" not in turn


def test_one_turn_is_shown_as_the_model_had_it(wink: Wink, runs: list[str]) -> None:
    text = wink("runs", "show", "runs.db", runs[0], "--turn", "3").stdout
    assert "--- tools_added\nadd" in text and '=== reply\nadd({"a": 1, "b": 2})' in text
    turn = wink.json("runs", "show", "runs.db", runs[0], "--turn", "3")
    assert [(section["key"], section["visibility"], section["seen"]) for section in turn["sections"]] == [
        ("intro", "full", "prompt"),
        ("guide", "summary", "conversation"),
        ("sums", "full", "conversation"),
    ]


def test_what_a_hosted_tool_gave_is_shown_with_its_turn(wink: Wink) -> None:
    record_hosted_run(wink.folder / "runs.db")
    text = wink("runs", "show", "runs.db", "--turn", "1").stdout
    assert "=== delphi was run by the provider\n{" in text and '"<b>Beware.</b>"' in text


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_texts_that_cannot_be_encoded_are_shown_with_escapes(wink: Wink, encoding: str) -> None:
    said = "half a pair: \ud83d, and caf\u00e9"
    run(ModelReply(text=said, model="\x1b[31mred"), recorder=record(wink.folder / "runs.db"))
    show = ("python", "-m", "weakincentives.cli", "runs", "show", "runs.db")
    done = wink.process(*show, "--turn", "1", "--json", PYTHONIOENCODING=encoding)
    assert json.loads(done.stdout)["reply"]["text"] == said
    done = wink.process(*show, "--turn", "1", PYTHONIOENCODING=encoding)
    half = {"utf-8": "⟨U+D83D⟩", "ascii": "\\ud83d"}[encoding]
    assert (done.returncode, f"half a pair: {half}, and caf" in done.stdout) == (0, True)
    assert "\x1b" not in wink("runs", "list", "runs.db").stdout + wink("runs", "show", "runs.db").stdout


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("words", [("runs", "export", "runs.db", "-o"), ("view", "runs.db", "--export")])
def test_an_export_never_overwrites_the_run_file_it_reads(
    wink: Wink, runs: list[str], words: tuple[str, ...], link: Callable[[Path, Path], None]
) -> None:
    link(wink.folder / "other", wink.folder / "runs.db")
    for target in ("runs.db", "other"):
        done = wink(*words, target)
        assert (done.returncode, done.stderr) == (
            2,
            f"wink: {target} is the run file itself; name another file to write to\n",
        )
    assert len(wink.json("runs", "list", "runs.db")) == 2


def test_export_writes_a_line_per_event(wink: Wink, runs: list[str]) -> None:
    lines = [json.loads(line) for line in wink("runs", "export", "runs.db", "--jsonl").stdout.splitlines()]
    assert sorted({line["run_id"] for line in lines}) == sorted(runs)
    assert [line["event"]["arguments"] for line in lines if line["kind"] == "ToolInvoked"][2] == '{"a": 1, "b": 2}'
    done = wink("runs", "export", "runs.db", runs[1], "--output", "one.jsonl")
    assert (done.returncode, done.stdout) == (0, "")
    written = (wink.folder / "one.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(written) == len([line for line in lines if line["run_id"] == runs[1]])


def test_a_process_that_never_saw_the_program_shows_its_values(wink: Wink, runs: list[str]) -> None:
    done = wink.process("python", "-m", "weakincentives.cli", "runs", "export", "runs.db", runs[0])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (added,) = [line["event"] for line in lines if line["kind"] == "ToolInvoked" and line["event"]["name"] == "add"]
    assert (added["params"], added["result"]["value"]) == ({"a": 1, "b": 2}, 3)


def test_prune_deletes_runs_and_the_texts_that_only_they_have(wink: Wink, runs: list[str]) -> None:
    assert wink.json("runs", "prune", "runs.db", "--keep", "1") == {"deleted": runs[:1]}
    with RunStore(wink.folder / "runs.db") as store:
        assert [left.run_id for left in store.list_runs()] == runs[1:]
        assert store.query("SELECT count(*) FROM events WHERE run_id = ?", runs[:1]) == [(0,)]
        assert store.query("SELECT count(*) FROM texts WHERE text LIKE '%How to work%'") == [(0,)]
        assert store.turn(runs[1], 1).complete


def test_prune_says_why_it_keeps_a_named_run(wink: Wink) -> None:
    with (
        record(wink.folder / "runs.db") as recorder,
        MainLoop().stream(prompt(), session=Session(), adapter=ScriptedAdapter(["Three."])) as events,
    ):
        next(iter(events))
        recorder.flush()
        (row,) = wink.json("runs", "list", "runs.db")
        done = wink("runs", "prune", "runs.db", row["run_id"])
    assert done.stdout == "deleted 0 runs\n"
    assert done.stderr == f"{row['run_id']} is running; it can be deleted once it has ended\n"


def test_prune_by_age_keeps_what_is_young(wink: Wink, runs: list[str]) -> None:
    assert wink("runs", "prune", "runs.db", "--older-than", "1d").stdout == "deleted 0 runs\n"
    assert wink("runs", "prune", "runs.db", "--older-than", "0s").stdout == "deleted 2 runs\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("runs", "prune", "runs.db"), 2, "name what to delete"),
        (("runs", "show", "runs.db", "zzz"), 2, "There is no run 'zzz'"),
        (("runs", "show", "runs.db", "--turn", "9"), 2, "has turns 1 to 2"),
        (("runs", "list", "nowhere.db"), 2, "no run file at 'nowhere.db'"),
        (("report", "nowhere.db"), 2, "no run file at 'nowhere.db'"),
        (("report", "runs.db", "--price", "gpt"), 2, "MODEL=INPUT,OUTPUT"),
        (
            ("report", "runs.db", "--prompt", "tests/sum"),
            2,
            "there are runs of tests/sums; did you mean",
        ),
        (("report", "runs.db", "--last", "0"), 2, "argument --last: must be at least 1, got 0"),
        (("runs", "list", "runs.db", "--limit", "-1"), 2, "argument --limit: must be at least 1, got -1"),
        (("runs", "prune", "runs.db", "--keep", "-1"), 2, "argument --keep: must be at least 0, got -1"),
        (("runs", "prune", "runs.db", "--older-than", "30"), 2, "time must be like 30d, 12h, 90m or 45s, got '30'"),
        (("runs", "prune", "runs.db", "--older-than", "9999999999d"), 2, "time must be like 30d"),
    ],
)
def test_what_is_wrong_is_said(wink: Wink, runs: list[str], words: tuple[str, ...], code: int, message: str) -> None:
    done = wink(*words)
    assert (done.returncode, done.stdout) == (code, "") and message in done.stderr


def test_a_run_file_that_cannot_be_opened_is_named(wink: Wink) -> None:
    # SQLite opens no path of more than 512 letters; a file without permission fails alike, but not for root.
    deep = wink.folder / ("d" * 200) / ("d" * 200) / ("d" * 200)
    deep.mkdir(parents=True)
    (deep / "runs.db").touch()
    done = wink("runs", "list", str(deep / "runs.db"))
    assert (done.returncode, done.stdout) == (1, "") and "cannot be read: unable to open database file" in done.stderr


def test_the_report_advises_and_says_what_it_would_have_saved(wink: Wink) -> None:
    path = Path(wink.folder / "runs.db")
    for _ in range(3):
        run(recorder=record(path))
    text = wink("report", "runs.db", "--price", "scripted=2,10,0.2").stdout
    advised, _, reasons = text.partition("\n\n")
    saves, change, *_ = advised.splitlines()
    assert re.fullmatch(r"tests/sums: 3 runs cost \$0.\d+; with this advice \$0.\d+, \d+% less", saves)
    assert change == "Change 'guide' to visibility=SectionVisibility.FULL."
    assert reasons.startswith("section") and "always opened" in reasons
    (advice,) = wink.json("report", "runs.db")["prompts"]
    assert (advice["unit"], advice["runs"], advice["saved"] > 0) == ("input tokens", 3, True)


def test_a_cost_that_rounds_to_nothing_is_not_shown_as_none() -> None:
    assert [dollars(cost) for cost in (0.0, 0.00001, 0.00012)] == ["$0.0000", "<$0.0001", "$0.0001"]


def test_the_report_promises_nothing_without_advice(wink: Wink, runs: list[str]) -> None:
    text = wink("report", "runs.db").stdout
    assert "; advice needs at least 3 runs\n" in text and "with this advice" not in text


def test_the_report_lists_sections_with_advice_and_counts_the_others(wink: Wink) -> None:
    for _ in range(3):
        run(recorder=record(wink.folder / "runs.db"))
    text = wink("report", "runs.db").stdout
    listed = [line.split()[0] for line in text.splitlines() if line and line[:1].islower()]
    assert "intro" not in listed and "guide" in listed
    assert "1 other section is best left as declared." in text
    assert "intro" in wink("report", "runs.db", "--all").stdout


def test_a_file_without_finished_runs_has_nothing_to_advise(wink: Wink) -> None:
    with record(wink.folder / "runs.db"):
        pass
    assert wink("report", "runs.db").stderr == "no successful runs, so there is nothing to advise\n"


def test_a_durable_run_is_named_by_the_id_that_the_list_prints(wink: Wink) -> None:
    (wink.folder / ".wink").mkdir()
    record_durable_run(wink.folder / ".wink" / "runs.db", "order.1")
    assert wink("runs", "list").stdout.splitlines()[1].split()[0] == "desk/order.1"
    assert wink("runs", "show", "desk/order.1").stdout == wink("runs", "show").stdout != ""
    assert wink("runs", "export", "desk/o").stdout == wink("runs", "export").stdout != ""
    refused = wink("runs", "show", "desk/odder.1").stderr
    assert "there is no file 'desk/odder.1', nor one run of that name" in refused
    assert refused.rstrip().endswith("did you mean 'desk/order.1'?")


def test_an_empty_name_is_no_run(wink: Wink, runs: list[str]) -> None:
    for words in (["show"], ["export"], ["prune"]):
        assert "There is no run ''" in wink("runs", *words, "runs.db", "").stderr
    assert len(wink.json("runs", "list", "runs.db")) == len(runs)


def test_runs_alone_takes_the_options_of_list(wink: Wink, runs: list[str]) -> None:
    listed = wink("runs", "--json", "--limit", "1", WINK_RECORD="runs.db").stdout
    assert [row["run_id"] for row in json.loads(listed)] == runs[1:]
    assert "did you mean '--limit'?" in wink("runs", "--limt", "1").stderr


def test_a_prefix_of_several_runs_is_refused_with_their_ids(wink: Wink) -> None:
    for key in ("o-1", "o-2"):
        record_durable_run(wink.folder / "runs.db", key)
    assert "begin with 'desk/o': 'desk/o-1', 'desk/o-2'" in wink("runs", "show", "runs.db", "desk/o").stderr


def test_a_result_is_shown_as_the_model_read_it_even_if_its_class_is_unknown(wink: Wink) -> None:
    script = """
from dataclasses import dataclass
from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, Session, ToolResult, tool
from weakincentives.adapters.scripted import call
from weakincentives.telemetry import record

@dataclass(frozen=True)
class Fare:
    cents: int

    def render(self):
        return f"{self.cents / 100:.2f} EUR"

@tool
def fare(to: str) -> ToolResult[Fare]:
    "The fare."
    return ToolResult("The fare:", Fare(1250))

sections = [MarkdownSection(key="t", title="T", template="Go.", tools=[fare])]
with record("runs.db"):
    ScriptedAdapter([call("fare", to="x"), "Done."]).evaluate(
        Prompt(PromptTemplate(ns="t", key="t", sections=sections)), session=Session()
    )
"""
    subprocess.run([sys.executable, "-c", script], cwd=wink.folder, check=True)
    told = wink("runs", "show", "runs.db").stdout
    assert 'tool    fare({"to": "x"}) -> The fare:\n\n        12.50 EUR\nmodel   turn 2' in told
    assert wink("runs", "show", "runs.db", "--turn", "1").stdout.endswith("=== fare worked\nThe fare:\n\n12.50 EUR\n")


def test_a_stopped_run_shows_what_was_said_and_that_a_request_is_not_counted(wink: Wink) -> None:
    with record(wink.folder / "runs.db"):
        chat = Conversation(prompt(), adapter=ScriptedAdapter(["One\ntwo"]))
        with chat.stream("Count.") as stream:
            assert isinstance(next(iter(stream)), TextDelta)
    lines = wink("runs", "show", "runs.db").stdout.splitlines()
    assert [line for line in lines if line.startswith(("answer", "stopped"))] == [
        "answer  One",
        "stopped by the caller",
    ]
    assert lines[-1].startswith("sent    0 tokens over 0 turns, not counting the unfinished request")
    (row,) = wink.json("runs", "list", "runs.db")
    assert (row["status"], row["answer"]) == ("interrupted", "One\n")


def test_the_model_that_took_over_is_named(wink: Wink) -> None:
    down = PromptEvaluationError("503 down", phase="request")
    first = ScriptedAdapter([call("read_section", section_key="guide"), down], model="gpt-5.6")
    adapter = FallbackAdapter(first, ScriptedAdapter(["Done."], model="claude-opus-5"))
    run_id = (
        MainLoop(recorder=record(wink.folder / "runs.db")).execute(prompt(), session=Session(), adapter=adapter).run_id
    )
    told = wink("runs", "show", "runs.db", run_id).stdout
    assert "failed  PromptEvaluationError: 503 down\nmodel   claude-opus-5 goes on\nmodel   turn 2: " in told
    assert told.count("goes on") == 1


def test_a_run_names_the_override_whose_texts_it_used(wink: Wink) -> None:
    (wink.folder / "script.json").write_text('["Hello."]', encoding="utf-8")
    words = ("run", "desk:template", "-p", "Guest.name=Ada", "-q", "-a", "scripted:script.json")
    assert wink(*words).returncode == 0
    assert "override" not in wink("runs", "show").stdout
    wink("overrides", "edit", "desk:template", "welcome", "--tag", "calm", "--from", "-", stdin="Greet ${name} calmly.")
    assert wink(*words, "--tag", "calm").returncode == 0
    assert "prompt  desk with override 'calm' on script.json: " in wink("runs", "show").stdout
    assert wink.json("runs", "show")["overrides_tag"] == "calm"


QUOTATION = '{"type": "quotation", "from": ["hours", "prices"], "scores": [0.7]}'


@pytest.mark.parametrize(
    ("item", "source"),
    [
        (QUOTATION, "(quoted from hours, prices)\n        "),
        ('{"type": "quotation", "from": []}', ""),
        ('{"type": "quotation", "from": "hours"}', ""),
        ('{"type": "quotation", "from": {"a": 1}}', ""),
        ('{"type": "quotation"}', ""),
        ('{"type": "ranking", "best": 5}', ""),
        ("[" * 100_000, ""),
        ("quotation", ""),
        ("null", ""),
    ],
)
def test_an_answer_that_is_a_quotation_names_its_source(wink: Wink, item: str, source: str) -> None:
    with record(wink.folder / "runs.db"):
        ScriptedAdapter([ModelReply(text="At six.", items=(item,))]).evaluate(prompt(), session=Session())
    assert f"\nanswer  {source}At six.\n\nsent    " in wink("runs", "show", "runs.db").stdout


def test_show_says_what_a_compaction_cost_and_saved(wink: Wink) -> None:
    def model(request: ModelRequest) -> str:
        said = [each.text for each in request.messages if each.role == "user" and not each.kind]
        return "A summary." if said[-1].startswith("Summarize") else "Well. " + "And so on. " * 120

    template = PromptTemplate(ns="t", key="k", sections=[MarkdownSection(key="a", title="A", template="Talk.")])
    with record(wink.folder / "runs.db"):
        chat = Conversation(
            Prompt(template), adapter=ScriptedAdapter(model), compaction=Compaction(window=1_500, keep=1)
        )
        for number in range(5):
            response = chat.send(f"Go on, {number}.")
    (event, *_) = chat.session[Compacted].all()
    shown = wink("runs", "show", "runs.db", event.run_id).stdout
    assert f"compact from {event.before:,} to {event.after:,} tokens by model" in shown
    with RunStore(wink.folder / "runs.db") as store:
        recorded = store.run(event.run_id)
    calls = [each.usage.input_tokens for each in chat.session[ModelCalled] if each.run_id == event.run_id]
    assert recorded.usage.input_tokens == sum(calls) + event.usage.input_tokens
    assert response.text.startswith("Well.")
    explained = ScriptedAdapter(model).explain(chat.prompt, chat.session).render()
    assert "tokens are left out of each request" in explained
