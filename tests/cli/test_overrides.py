from __future__ import annotations

from tests.cli.conftest import Wink

OWN_STORE = """
from desk import template
from weakincentives.prompt import JsonPromptOverridesStore, Prompt

prompt = Prompt(template, overrides_store=JsonPromptOverridesStore("elsewhere"))
"""


def override(wink: Wink, text: str = "Say hello to ${name}.", **environment: str) -> None:
    done = wink("overrides", "edit", "desk:template", "welcome", "--from", "-", stdin=text, **environment)
    assert (done.returncode, done.stdout) == (0, "")


def test_an_edited_section_is_rendered_under_its_tag(wink: Wink) -> None:
    override(wink)
    guest = ("--params", "Guest.name=Ada")
    assert "Say hello to Ada." in wink("render", "desk:template", *guest, "--tag", "latest").stdout
    missed = wink("render", "desk:template", *guest, "--tag", "lattest")
    assert missed.returncode == 2
    assert missed.stderr == "wink: no override of hotel/desk has the tag 'lattest'; stored tags: latest\n"
    assert "Greet Ada" in wink("render", "desk:template", *guest).stdout


def test_a_tag_applies_to_a_prompt_that_has_no_store_of_its_own(wink: Wink) -> None:
    override(wink)
    guest = ("--params", "Guest.name=Ada", "--tag", "latest")
    assert "Say hello to Ada." in wink("render", "desk:prompt", *guest).stdout
    (wink.folder / "shop.py").write_text(OWN_STORE)
    stored = wink("render", "shop:prompt", *guest)
    words = "wink: --tag needs a prompt without a store of overrides; 'shop:prompt' has its own\n"
    assert (stored.returncode, stored.stderr) == (2, words)


def test_list_and_show_name_what_is_overridden(wink: Wink) -> None:
    override(wink)
    assert wink("overrides", "list").stdout == "hotel/desk@latest: welcome\n"
    assert [row["state"] for row in wink.json("overrides", "show", "desk:template")["texts"]] == [
        "overridden",
        "original",
        "original",
        "original",
    ]


def test_a_summary_and_a_visibility_are_overridden_shown_and_removed(wink: Wink) -> None:
    edit = ("overrides", "edit", "desk:template", "house")
    assert wink(*edit, "--summary", "--from", "-", stdin="Rules of ${name}'s stay.").returncode == 0
    guest = ("--params", "Guest.name=Ada", "--tag", "latest")
    assert "Rules of Seaview's stay." in wink("render", "desk:template", *guest).stdout
    assert wink(*edit, "--visibility", "full").returncode == 0
    assert wink("overrides", "list").stdout == "hotel/desk@latest: summary house, visibility house full\n"
    assert "visibility  house    overridden\n" in wink("overrides", "show", "desk:template").stdout
    assert "-summary\n+full\n" in wink("overrides", "diff", "desk:template").stdout
    assert "Rules of Seaview's stay." not in wink("render", "desk:template", *guest).stdout
    assert wink(*edit, "--visibility", "declared").returncode == 0
    assert wink(*edit, "--summary", "--delete").returncode == 0
    assert wink("overrides", "list").stdout == "hotel/desk@latest: empty\n"


def test_a_visibility_that_cannot_be_had_is_refused(wink: Wink) -> None:
    edit = ("overrides", "edit", "desk:template", "welcome", "--visibility", "summary")
    refused = wink(*edit)
    assert refused.returncode == 2
    assert "welcome of hotel/desk@latest: it has no summary to show; override that too" in refused.stderr
    assert "takes neither --from nor --delete" in wink(*edit, "--delete").stderr
    assert wink("overrides", "list").stdout == ""


def test_an_override_of_text_that_changed_since_is_stale(wink: Wink) -> None:
    override(wink)
    agent = wink.folder / "desk.py"
    agent.write_text(agent.read_text(encoding="utf-8").replace("Greet", "Welcome"), encoding="utf-8")
    done = wink("overrides", "show", "desk:template")
    assert done.returncode == 1
    assert done.stdout.startswith("section  welcome  stale: it was written for text that has changed since")
    assert wink("overrides", "diff", "desk:template").stdout.startswith("# not applied: section 'welcome'")


def test_diff_says_that_nothing_is_changed(wink: Wink) -> None:
    assert wink("overrides", "diff", "desk:template").stderr == "hotel/desk@latest changes no text\n"


def test_diff_shows_the_prompts_words_beside_the_overrides(wink: Wink) -> None:
    override(wink)
    done = wink("overrides", "diff", "desk:template")
    assert done.returncode == 0
    assert "-Greet ${name} for ${nights} nights.\n+Say hello to ${name}.\n" in done.stdout


def test_the_editor_of_the_environment_edits(wink: Wink) -> None:
    done = wink("overrides", "edit", "desk:template", "book", "--tool", EDITOR="sed -i s/Book/Reserve/")
    assert done.returncode == 0
    assert "+Reserve a room." in wink("overrides", "diff", "desk:template").stdout


def test_an_empty_text_is_not_stored(wink: Wink) -> None:
    done = wink("overrides", "edit", "desk:template", "welcome", "--from", "-", stdin="")
    assert (done.returncode, "is empty; pass --delete" in done.stderr) == (2, True)
    assert wink.json("overrides", "list") == []


def test_an_editor_that_fails_stores_nothing(wink: Wink) -> None:
    done = wink("overrides", "edit", "desk:template", "welcome", EDITOR="false")
    assert (done.returncode, "set EDITOR, or use --from FILE" in done.stderr) == (2, True)
    assert wink.json("overrides", "list") == []


def test_a_placeholder_that_the_section_cannot_fill_is_refused(wink: Wink) -> None:
    done = wink("overrides", "edit", "desk:template", "welcome", "--from", "-", stdin="Hello ${nmae}")
    assert (done.returncode, "${nmae}" in done.stderr) == (1, True)


def test_delete_brings_the_own_words_back(wink: Wink) -> None:
    override(wink)
    assert wink("overrides", "edit", "desk:template", "welcome", "--delete").returncode == 0
    assert wink("overrides", "list").stdout == "hotel/desk@latest: empty\n"
    assert wink("overrides", "edit", "desk:template", "welcome", "--delete").returncode == 2


def test_the_store_is_a_setting(wink: Wink) -> None:
    override(wink, WINK_STORE="elsewhere")
    assert wink.json("overrides", "list", WINK_STORE="elsewhere") == wink.json(
        "overrides", "list", "--store", "elsewhere"
    )
    assert wink.json("overrides", "list") == []


def test_an_unknown_section_is_rejected_before_the_editor_opens(wink: Wink) -> None:
    done = wink("overrides", "edit", "desk:template", "hose", EDITOR="false")
    said = "wink: hotel/desk has no section 'hose'; it has welcome, house; did you mean 'house'?\n"
    assert (done.returncode, done.stderr) == (2, said)
