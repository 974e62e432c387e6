from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Wink

ROOT = Path(__file__).parents[2]
GUEST = ("--params", "Guest.name=Ada")
READ = {"call": "read_section", "arguments": {"section_key": "house"}}
BOOK = {"call": "book", "arguments": {"room": "sea"}}


def script(wink: Wink, *replies: Any) -> str:
    (wink.folder / "script.json").write_text(json.dumps(replies), encoding="utf-8")
    return "scripted:script.json"


def test_the_answer_goes_to_stdout_and_what_happened_to_stderr(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "--adapter", script(wink, READ, BOOK, "Booked."))
    assert (done.returncode, done.stdout) == (0, "Booked.\n")
    steps = [line.partition("  ")[0] for line in done.stderr.splitlines()]
    assert steps == ["prompt", "model", "open", "tools", "model", "tool", "model", "done"]


def test_quiet_says_nothing_but_the_answer(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "-q", "-a", script(wink, "Hello."))
    assert (done.stdout, done.stderr) == ("Hello.\n", "")


def test_an_answer_that_cannot_be_encoded_is_printed_with_escapes(wink: Wink) -> None:
    adapter = script(wink, "Half a pair: \ud83d, \x1b[31mcaf\u00e9")
    done = wink.process("python", "-m", "weakincentives.cli", "run", "desk:template", *GUEST, "-q", "-a", adapter)
    assert (done.returncode, done.stdout) == (0, "Half a pair: \\ud83d, \x1b[31mcaf\u00e9\n")


def test_json_tells_what_was_opened_and_called(wink: Wink) -> None:
    told = wink.json("run", "desk:template", *GUEST, "-a", script(wink, READ, BOOK, "Booked."))
    assert (told["text"], told["turns"], told["opened"]) == ("Booked.", 3, ["house"])
    assert [tool["name"] for tool in told["tools"]] == ["read_section", "book"]
    assert told["usage"]["input_tokens"] > 0


def test_open_offers_the_tools_of_a_section_from_the_start(wink: Wink) -> None:
    told = wink.json("run", "desk:template", *GUEST, "--open", "house", "-a", script(wink, BOOK, "Booked."))
    assert [(tool["name"], tool["success"]) for tool in told["tools"]] == [("book", True)]


def test_tags_of_a_run_are_recorded_and_found(wink: Wink) -> None:
    for release in ("7", "8"):
        tags = ("--run-tag", f"release={release}", "--run-tag", "note=a=b")
        assert wink("run", "desk:template", *GUEST, *tags, "-a", script(wink, "Hello.")).returncode == 0
    found = wink.json("runs", "list", "--where", "release=7", "--where", "note=a=b")
    assert [run["tags"] for run in found] == [{"release": "7", "note": "a=b"}]


@pytest.mark.parametrize(
    ("tag", "problem"),
    [
        ("release", "argument --run-tag: must be KEY=VALUE, got 'release'"),
        ("=7", "argument --run-tag: must be KEY=VALUE, got '=7'"),
        ("overrides=calm", "--run-tag: tags must have names without '=', other than 'overrides'"),
        (f"release={'7' * 201}", "--run-tag: tags must have"),
    ],
)
def test_a_tag_that_cannot_be_stored_is_refused(wink: Wink, tag: str, problem: str) -> None:
    done = wink("run", "desk:template", *GUEST, "--run-tag", tag, "-a", script(wink, "Hello."))
    assert (done.returncode, done.stdout) == (2, "") and problem in done.stderr


def test_structured_output_is_printed_as_json(wink: Wink) -> None:
    with (wink.folder / "desk.py").open("a", encoding="utf-8") as file:
        file.write("typed = PromptTemplate[Guest](ns='hotel', key='typed', sections=[welcome])\n")
    adapter = script(wink, {"output": {"name": "Ada", "nights": 2}})
    done = wink("run", "desk:typed", *GUEST, "-q", "-a", adapter)
    assert json.loads(done.stdout) == {"name": "Ada", "nights": 2}


def test_a_run_that_fails_ends_with_1_and_its_error(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "-q", "-a", script(wink, READ))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "wink: script.json has no more replies\n"


def test_a_limit_on_turns_stops_the_run(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "-q", "--max-turns", "1", "-a", script(wink, READ, "Never."))
    assert (done.returncode, "max_turns=1" in done.stderr) == (1, True)


def test_an_adapter_of_ones_own_is_named_like_a_prompt(wink: Wink) -> None:
    (wink.folder / "mine.py").write_text(
        "from weakincentives import ScriptedAdapter\nadapter = ScriptedAdapter(['Mine.'])\n", encoding="utf-8"
    )
    assert wink("run", "desk:template", *GUEST, "-q", "-a", "mine:adapter").stdout == "Mine.\n"


def test_the_adapter_is_a_setting(wink: Wink) -> None:
    assert wink("run", "desk:template", *GUEST, "-q", WINK_ADAPTER=script(wink, "Hello.")).stdout == "Hello.\n"


def test_an_unknown_adapter_is_answered_with_those_that_exist(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "-a", "opanai")
    assert (done.returncode, "no adapter 'opanai'; there are local, anthropic, " in done.stderr) == (2, True)
    assert "no adapter 'opanai'; there are " in wink("run", "desk:template", *GUEST, "-a", "opanai:gpt-5.6").stderr
    assert "needs a model, as in openai:MODEL" in wink("run", "desk:template", *GUEST, "-a", "openai").stderr


def test_a_script_that_cannot_be_read_is_wrong_usage(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "-a", "scripted:nowhere.json")
    assert (done.returncode, done.stderr.startswith("wink: --adapter scripted:nowhere.json: ")) == (2, True)
    done = wink("run", "desk:template", *GUEST, "-a", "scripted")
    assert done.stderr == "wink: --adapter scripted needs a file, as in scripted:FILE\n"


def test_control_characters_of_a_model_do_not_reach_the_terminal(wink: Wink) -> None:
    hostile = {"call": "book", "arguments": {"room": "\x1b[2J"}}
    done = wink("run", "desk:template", *GUEST, "--open", "house", "-a", script(wink, hostile, "Done."))
    assert "\x1b" not in done.stderr


def test_explain_says_what_a_run_would_do(wink: Wink) -> None:
    done = wink("explain", "desk:template", *GUEST, "-a", script(wink))
    assert done.returncode == 0
    assert "injects book by append" in done.stdout


def test_explain_as_json_has_the_sections(wink: Wink) -> None:
    told = wink.json("explain", "desk:template", *GUEST, "--open", "house", "-a", script(wink))
    assert [section["state"]["visibility"] for section in told["sections"]] == ["full", "full"]


def test_a_missing_extra_is_one_line_and_not_a_traceback(wink: Wink) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.extras import hide_extras; hide_extras()\n"
        "from weakincentives.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = wink.process("python", "-c", script, "run", "desk:template", *GUEST, "-q", "-a", "openai:gpt-5.6")
    assert done.returncode == 1
    assert done.stderr.endswith("pip install 'weakincentives[openai]'\n")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "import nothing_like_this",
            ["Traceback (most recent", "broken.py", "    import nothing_like_this"],
        ),
        ("1 / 0", ["Traceback (most recent", "broken.py", "ZeroDivisionError: division by zero"]),
        ("template = (", ["broken.py", "    template = (", "SyntaxError: '(' was never closed"]),
    ],
)
def test_an_error_in_the_users_program_is_shown_without_our_own_frames(wink: Wink, text: str, lines: list[str]) -> None:
    (wink.folder / "broken.py").write_text(text)
    done = wink("render", "broken:template")
    assert (done.returncode, done.stdout) == (1, "")
    assert all(line in done.stderr for line in lines) and "weakincentives" not in done.stderr


def test_record_keeps_the_run_for_the_viewer(wink: Wink) -> None:
    from weakincentives.telemetry import RunStore

    wink("run", "desk:template", *GUEST, "-q", "--record", "runs.db", "-a", script(wink, "Hello."))
    with RunStore(wink.folder / "runs.db") as store:
        assert [run.prompt_name for run in store.list_runs()] == ["desk"]


def test_where_nothing_can_be_written_the_run_goes_on_unrecorded(wink: Wink) -> None:
    (wink.folder / ".wink").write_text("a file in the way", encoding="utf-8")
    done = wink("run", "desk:template", *GUEST, "-q", "-a", script(wink, "Hello."))
    assert (done.returncode, done.stdout) == (0, "Hello.\n")
    assert done.stderr.startswith("not recorded: cannot write .wink/runs.db")
    done = wink("run", "desk:template", *GUEST, "-q", "--record", ".wink/x.db", "-a", script(wink, "Hello."))
    assert (done.returncode, "Cannot record to" in done.stderr) == (1, True)


def test_a_message_is_what_the_user_says(wink: Wink) -> None:
    wink("run", "desk:template", "A room, please.", *GUEST, "-q", "-a", script(wink, "Hello."))
    assert wink.json("runs", "show")["question"] == "A room, please."


def test_a_reply_that_no_script_can_have_says_what_can(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "-a", script(wink, {"tool": "book"}))
    assert (done.returncode, done.stdout) == (2, "")
    assert '{"call": NAME, "arguments": {...}}' in done.stderr and 'got {"tool": "book"}' in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("desk:template", "Hi there", *GUEST, "-a", "scripted:script.json"),
        ("desk:template", "-a", "scripted:script.json", "Hi there", *GUEST),
        ("desk:template", "-a", "scripted:script.json", *GUEST, "Hi there"),
    ],
)
def test_the_message_may_stand_anywhere_after_the_prompt(wink: Wink, words: tuple[str, ...]) -> None:
    script(wink, "Hello.")
    assert wink("run", *words).stdout == "Hello.\n"
    assert wink.json("runs", "list")[0]["question"] == "Hi there"


def test_an_adapter_that_needs_an_address_says_so(wink: Wink) -> None:
    done = wink("run", "desk:template", *GUEST, "-a", "openai-chat:some")
    assert done.returncode == 2 and done.stderr.startswith("wink: --adapter openai-chat:some: ")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "Where?", "desk:template"),
        ("fork", "desk:template", "3f2a"),
        ("tune", "cases.jsonl", "desk:template"),
        ("eval", "run", "desk:template", "cases.jsonl"),
        ("eval", "run", "desk:template", "cases.jsonl", "-a", "local"),
        ("overrides", "edit", "house", "desk:template"),
    ],
    ids=" ".join,
)
def test_arguments_that_are_exchanged_are_an_error_that_names_their_order(wink: Wink, words: tuple[str, ...]) -> None:
    (wink.folder / "cases.jsonl").write_text('{"input": "Hi.", "expected": "Hi"}\n', encoding="utf-8")
    done = wink(*words)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "'desk:template' stands where " in done.stderr
    assert f": wink {' '.join(words[: 2 if words[0] in ('eval', 'overrides') else 1])} " in done.stderr


@pytest.mark.parametrize("cases", ["desk:template", "desk:prompt", "desk:answer", "desk:book"])
def test_what_is_no_list_of_cases_is_an_error_that_says_so(wink: Wink, cases: str) -> None:
    done = wink("eval", "run", cases, "desk:template")
    assert done.returncode == 2 and f"{cases!r} " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", ["run -a scripted:s.json", "chat -a scripted:s.json", "render", "explain -a scripted:s.json"]
)
def test_every_command_names_the_option_for_params_that_a_prompt_lacks(wink: Wink, command: str) -> None:
    (wink.folder / "s.json").write_text("[]", encoding="utf-8")
    done = wink(*command.split(), "desk:template", stdin="Hi.\n")
    assert (done.returncode, done.stderr) == (2, "wink: the prompt needs a Guest; pass --params Guest.name=...\n")


@pytest.mark.parametrize(
    ("problem", "cure"),
    [
        (
            "libgomp.so.1: cannot open shared object file: No such file or directory",
            "the system library 'libgomp', which is not installed; run apt-get install libgomp1, "
            "dnf install libgomp or apk add libgomp",
        ),
        (
            "libfancy.so.3: cannot open shared object file: No such file or directory",
            "the system library 'libfancy', which is not installed; install the package of your system that has it",
        ),
        (
            "/lib/libm.so.6: version `GLIBC_2.38' not found",
            "the package 'xllamacpp', which is installed, but cannot be loaded: "
            "/lib/libm.so.6: version `GLIBC_2.38' not found",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
def test_a_missing_system_library_is_named_with_the_package_that_has_it(
    wink: Wink, kind: str, problem: str, cure: str
) -> None:
    (wink.folder / "broken").mkdir()
    (wink.folder / "broken" / "xllamacpp.py").write_text(f"raise {kind}({problem!r})", encoding="utf-8")
    program = "from weakincentives.adapters.local.gguf.engine import load_runtime\nadapter = load_runtime"
    (wink.folder / "embedded.py").write_text(program, encoding="utf-8")
    words = ("run", "desk:template", "-p", "Guest.name=Ada", "-a", "embedded:adapter")
    done = wink.process("python", "-m", "weakincentives.cli", *words, PYTHONPATH=str(wink.folder / "broken"))
    assert (done.returncode, done.stderr) == (1, f"wink: A GGUF model needs {cure}\n")
