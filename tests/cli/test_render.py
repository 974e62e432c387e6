from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Wink

GUEST = ("--params", "Guest.name=Ada", "nights=3")


def test_render_prints_the_prompt_that_the_params_make(wink: Wink) -> None:
    done = wink("render", "desk:template", *GUEST)
    assert done.returncode == 0
    assert done.stdout.startswith("## 1. Welcome\n\nGreet Ada for 3 nights.\n\n## 2. House\n\nAbout the house.")
    assert done.stderr == ""


def test_open_shows_a_section_in_full(wink: Wink) -> None:
    done = wink("render", "desk:prompt", *GUEST, "--open", "house", "--tools")
    assert "This is Seaview." in done.stdout
    assert done.stdout.endswith("[tool] book: Book a room.\n")


def test_json_has_text_tools_and_spans(wink: Wink) -> None:
    shown = wink.json("render", "desk:template", *GUEST, "--open", "house")
    assert shown["text"].startswith("## 1. Welcome")
    assert [tool["name"] for tool in shown["tools"]] == ["book"]
    assert [span["path"] for span in shown["spans"]] == [["welcome"], ["house"]]


def test_params_come_from_a_file_too(wink: Wink) -> None:
    content = {"Guest": {"name": "Bob"}, "nights": 2, "stars": 4}
    (wink.folder / "guest.json").write_text(json.dumps(content), encoding="utf-8")
    assert "Greet Bob for 2 nights." in wink("render", "desk:template", "--params", "@guest.json").stdout


def test_a_number_stays_text_where_the_field_is_text(wink: Wink) -> None:
    assert "Greet 007 for 1 nights." in wink("render", "desk:template", "-p", "Guest.name=007").stdout


def test_a_field_of_two_types_must_say_which(wink: Wink) -> None:
    done = wink("render", "desk:template", "--params", "name=Ada")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "wink: --params name= is ambiguous; write one of Guest.name, Hotel.name\n"


def test_an_unknown_field_is_answered_with_those_that_exist(wink: Wink) -> None:
    done = wink("render", "desk:template", "--params", "nam=Ada")
    assert done.returncode == 2
    assert "Guest.name, Guest.nights, Hotel.name, Hotel.stars" in done.stderr


def test_a_value_of_the_wrong_type_names_the_field(wink: Wink) -> None:
    done = wink("render", "desk:template", "--params", "Guest.name=Ada", "nights=many")
    assert done.returncode == 2
    assert "--params for Guest: $.nights:" in done.stderr


def test_params_that_are_missing_are_named_as_they_are_typed(wink: Wink) -> None:
    done = wink("render", "desk:template")
    assert (done.returncode, done.stderr) == (2, "wink: the prompt needs a Guest; pass --params Guest.name=...\n")


def test_what_a_module_prints_is_no_part_of_the_answer(wink: Wink) -> None:
    with (wink.folder / "desk.py").open("a", encoding="utf-8") as file:
        file.write("print('hello')\n")
    done = wink("render", "desk:template", *GUEST)
    assert (done.stdout.startswith("## 1. Welcome"), done.stderr) == (True, "hello\n")


def test_an_unknown_section_to_open_is_answered_with_the_keys(wink: Wink) -> None:
    done = wink("render", "desk:template", *GUEST, "--open", "garden")
    assert (done.returncode, done.stderr) == (2, "wink: --open garden: no such section; there are welcome, house\n")


def test_a_target_that_is_no_prompt_says_what_it_is(wink: Wink) -> None:
    done = wink("render", "desk:answer")
    assert done.returncode == 2
    assert done.stderr.startswith("wink: 'desk:answer' must be a PromptTemplate, ") and "got int" in done.stderr


def test_a_function_that_needs_arguments_makes_no_prompt(wink: Wink) -> None:
    (wink.folder / "maker.py").write_text("def make(name): ...")
    done = wink("render", "maker:make")
    assert done.returncode == 2
    assert done.stderr.startswith("wink: 'maker:make' must be a function that takes no arguments: missing a required")


def test_a_missing_module_or_variable_is_wrong_usage(wink: Wink) -> None:
    assert wink("render", "nowhere:prompt").returncode == 2
    assert wink("render", "desk:promt").stderr == (
        "wink: 'desk' has no 'promt'; it has prompt, template; did you mean 'prompt'?\n"
    )
    assert "expected module:variable" in wink("render", "desk").stderr


def test_a_server_that_lacks_params_says_so_in_one_line(wink: Wink) -> None:
    pytest.importorskip("mcp", reason="needs the extra [mcp]")
    done = wink("mcp", "serve", "desk:template")
    assert (done.returncode, done.stderr) == (2, "wink: the prompt needs a Guest; pass --params Guest.name=...\n")
