from __future__ import annotations

import sys
from shlex import split

import pytest

from tests.cli.conftest import Wink
from tests.cli.terminal import Terminal
from weakincentives import __version__
from weakincentives.cli.commands import EXAMPLES, PURPOSES, parsed, parser
from weakincentives.cli.completion import grammar


def test_help_lists_every_command(wink: Wink) -> None:
    done = wink("--help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")] == list(PURPOSES)


def test_nothing_typed_is_wrong_usage_but_shows_the_help(wink: Wink) -> None:
    done = wink()
    assert (done.returncode, done.stdout) == (2, wink("--help").stdout)


def test_version(wink: Wink) -> None:
    assert wink("--version").stdout == f"wink {__version__}\n"


def test_an_unknown_command_is_answered_with_those_that_exist(wink: Wink) -> None:
    done = wink("rander")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("wink: no command 'rander'; there are run, chat, ")


def test_a_wrong_option_is_wrong_usage(wink: Wink) -> None:
    done = wink("render", "desk:template", "--nope")
    assert (done.returncode, "unrecognized arguments: --nope" in done.stderr) == (2, True)


def test_a_command_without_its_verb_is_answered_with_the_verbs(wink: Wink) -> None:
    done = wink("skills")
    assert (done.returncode, done.stdout) == (2, "")
    assert "required: {install|check}" in done.stderr


@pytest.mark.parametrize(
    ("command", "says"), [("overrides", "no overrides in"), ("work", "There is no durable work in")]
)
def test_a_command_that_lists_does_so_without_its_verb(wink: Wink, command: str, says: str) -> None:
    if command == "work":
        pytest.importorskip("dbos", reason="needs the extra [durable]")
    assert says in wink(command).stderr and says in wink(command, "list").stderr


def test_without_durable_work_the_command_that_starts_it_is_named(wink: Wink) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]")
    assert "start it with `wink worker module:loop`" in wink("work").stderr


@pytest.mark.parametrize(
    "words",
    [
        "runs list nope.db",
        "runs show",
        "runs show nope",
        "runs prune --keep 1",
        "view nope.db",
        "view --export x.html",
        "fork 3f2a",
        "report",
        "export --atif",
        "eval show",
        "eval compare before after",
        "eval run nope.jsonl desk:template",
        "tune desk:template nope.jsonl",
        "run desk:template hi --resume nope.json",
        "run desk:template hi -a scripted:nope.json",
        "run nope:template hi",
        "render desk:template --open nope",
        "skills check nope",
        "mcp lock nope.json",
    ],
)
def test_a_name_that_does_not_exist_is_a_mistake_of_the_caller(wink: Wink, words: str) -> None:
    done = wink(*words.split())
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1


def test_every_command_and_subcommand_has_examples_that_it_accepts_and_that_fit_a_terminal() -> None:
    for name, examples in EXAMPLES.items():
        command = name.split()[0]
        assert command != name or len(examples) == 2
        for example in examples:
            words = split(example.partition(" >> ")[0].partition(" | ")[0])
            assert example.startswith(name) and len(f"  wink {example}") <= 80
            assert parsed(parser(command), words[1:]) is not None
    verbs = [child.name for name in PURPOSES for child in grammar(parser(name), "").commands]
    assert {*EXAMPLES} == {*PURPOSES, *(verb.removeprefix("wink ") for verb in verbs)}


def test_every_help_fits_a_terminal(wink: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in EXAMPLES:
        done = wink(*name.split(), "--help")
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and max(map(len, lines)) <= 80
        assert "example" in done.stdout and lines[lines.index("") + 1][0].isupper()


def test_an_unknown_option_of_a_subcommand_is_answered_with_its_own_usage(wink: Wink) -> None:
    done = wink("eval", "run", "cases.jsonl", "desk:template", "--open", "x")
    assert done.returncode == 2 and done.stderr.startswith("usage: wink eval run ")
    assert done.stderr.endswith("wink eval run: error: unrecognized arguments: --open x\n")


@pytest.mark.parametrize("columns", [80, 140])
def test_help_and_errors_end_their_lines_between_words(wink: Wink, columns: int) -> None:
    for words in (
        ["--help"],
        ["chat", "--help"],
        ["report", "--help"],
        ["rnu"],
        ["render", "desk:template", "--open", "x"],
    ):
        with Terminal(wink.folder, *words, columns=columns, NO_COLOR="1") as terminal:
            shown = terminal.rest()[1].splitlines()
        assert max(map(len, shown)) <= columns, shown


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["rander"], "render"),
        (["render", "desk:template", "--opn", "house"], "--open"),
        (["runs", "shwo"], "show"),
        (["runs", "list", "--status", "faild"], "failed"),
        (["render", "dsek:template"], "desk"),
        (["render", "desk:tempalte"], "template"),
        (["render", "desk:template", "--open", "hosue"], "house"),
        (["render", "desk:template", "-p", "nigths=2"], "nights"),
        (["run", "desk:template", "-p", "Guest.name=Ada", "-a", "opanai"], "openai"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_the_nearest(wink: Wink, words: list[str], nearest: str) -> None:
    done = wink(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"; did you mean '{nearest}'?\n")


def test_help_of_a_command_is_data(wink: Wink) -> None:
    done = wink("render", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--open KEY" in done.stdout


def test_an_interrupt_ends_with_130(wink: Wink) -> None:
    (wink.folder / "stopped.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    assert wink("render", "stopped:prompt").returncode == 130


def test_help_imports_no_command_and_no_optional_package(wink: Wink) -> None:
    script = "import sys; from weakincentives.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = wink.process("python", "-c", script).stderr.split()
    assert "weakincentives.cli.prompts" not in loaded
    assert not {"msgspec", "dataclasses"} & set(loaded)


def test_a_reader_that_leaves_early_is_no_traceback(wink: Wink) -> None:
    done = wink.process("sh", "-c", '"$0" -m weakincentives.cli --help | true', "python")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_port_out_of_range_is_a_usage_error(wink: Wink) -> None:
    done = wink("view", "--port", "99999")
    assert done.returncode == 2
    assert done.stderr.endswith("argument --port: must be between 0 and 65535, got 99999\n")
    # Its address would have to be found out before it is printed.
    done = wink("mcp", "serve", "desk:template", "--http", "0")
    assert done.stderr.endswith("argument --http: must be between 1 and 65535, got 0\n")


@pytest.mark.parametrize(
    ("words", "closed", "message"),
    [
        ("--version", "1>&-", "stdout is closed; redirect it to a file or to /dev/null"),
        ("chat desk:template -p Guest.name=Ada -a scripted:s.json", "0<&-", "stdin is closed; redirect it"),
        ("overrides edit desk:template house --from -", "0<&-", "stdin is closed; redirect it"),
        ("mcp serve desk:template -p Guest.name=Ada", "0<&-", "stdin is closed; redirect it"),
        ("--version", "2>&-", ""),
    ],
)
def test_a_closed_stream_is_named(wink: Wink, words: str, closed: str, message: str) -> None:
    if words.startswith("mcp"):
        pytest.importorskip("mcp", reason="needs the extra [mcp]")
    (wink.folder / "s.json").write_text("[]", encoding="utf-8")
    done = wink.process("sh", "-c", f'"$0" -m weakincentives.cli {words} {closed}', sys.executable)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2 if message else 0, True, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "render ./desk:template",
            "no module './desk' in {folder} or among the installed packages; did you mean 'desk'?",
        ),
        ("worker ..:x", "no module '..' in {folder} or among the installed packages"),
        ("mcp lock .", "there is no config '.'; write one with \"mcpServers\", or name the file"),
    ],
)
def test_a_path_where_a_name_is_expected_is_one_line(wink: Wink, words: str, message: str) -> None:
    done = wink(*words.split())
    assert (done.returncode, done.stderr) == (2, f"wink: {message.format(folder=wink.folder)}\n")
