from __future__ import annotations

import json

from tests.cli.conftest import Wink
from tests.helpers.embedded import require_quotation


def test_the_starter_project_runs_and_its_test_passes(wink: Wink) -> None:
    done = wink("init", "My Desk")
    assert (done.returncode, done.stdout) == (0, "cd 'My Desk'\nwink chat agent:template\n")
    desk = Wink(wink.folder / "My Desk")
    call = {"call": "read_section", "arguments": {"section_key": "orders"}}
    lookup = {"call": "order_status", "arguments": {"order": 7}}
    (desk.folder / "script.json").write_text(json.dumps([call, lookup, "On Monday."]), encoding="utf-8")
    told = desk.json("run", "agent:template", "Where is order 7?", "-a", "scripted:script.json")
    assert (told["text"], told["opened"]) == ("On Monday.", ["orders"])
    assert "asked   Where is order 7?" in desk("runs", "show").stdout
    tested = desk.process("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in tested.stdout, tested.stdout


def test_the_starter_project_answers_on_the_embedded_model(wink: Wink) -> None:
    require_quotation()
    wink("init", "desk")
    done = Wink(wink.folder / "desk")("run", "agent:template", "Please refund order 7.")
    assert done.returncode == 0 and "refund" in done.stdout.lower()


def test_an_empty_name_makes_nothing(wink: Wink) -> None:
    done = wink("init", "")
    assert (done.returncode, done.stderr) == (2, "wink: NAME must have letters or digits, got ''\n")


def test_nothing_is_overwritten(wink: Wink) -> None:
    assert wink("init", ".").returncode == 0
    (wink.folder / "agent.py").write_text("mine", encoding="utf-8")
    done = wink("init", ".")
    assert (done.returncode, done.stderr) == (2, "wink: agent.py exists already; choose another NAME\n")
    assert (wink.folder / "agent.py").read_text(encoding="utf-8") == "mine"
