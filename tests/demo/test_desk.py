"""The support desk: its handbook, its tools on a real database, and its words on a pipe."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.embedded import require_quotation
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.demo.__main__ import ask_desk, chosen, main
from weakincentives.demo.desk import QUESTIONS, ask, handbook
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import RunStore

# The ranker computes for seconds, and for minutes beside others.
pytestmark = pytest.mark.limit(300)

REFUND = {"order_number": "FH-20391", "amount": 20, "reason": "damaged"}


def results(script: list[Any]) -> list[tuple[bool, str]]:
    session = Session()
    ScriptedAdapter([*script, "Done."]).evaluate(ask("Help!"), session=session)
    return [(event.success, event.result.message) for event in session[ToolInvoked].all()]


def test_every_section_has_a_title_a_summary_and_a_body() -> None:
    assert len(handbook()) == 27
    assert all(page.title and len(page.summary or "") > 60 and len(page.text) > 1500 for page in handbook())


def test_the_prompt_shows_summaries_and_the_question_last() -> None:
    rendered = ask("Where is my parcel?").render()
    assert rendered.text.endswith("Where is my parcel?")
    assert [tool.name for tool in rendered.tools] == ["read_section"]


def test_tools_work_on_the_database() -> None:
    script = [
        call("read_section", section_key="refunds"),
        call("issue_refund", **REFUND),
        call("issue_refund", **REFUND | {"amount": 50}),
    ]
    assert results(script)[1:] == [
        (True, "Refunded 20.00 euros for order FH-20391 (damaged)."),
        (False, "Order FH-20391 has 39.00 euros left to refund, not 50.00."),
    ]


@pytest.mark.parametrize(
    ("section", "tool", "arguments", "message"),
    [
        ("order-status", "lookup_order", {"order_number": "FH-99999"}, "There is no order FH-99999."),
        (
            "replacement-parts",
            "find_part",
            {"model": "Tower", "part": "pump"},
            "The pump of the Tower is P-103, 34 euros, 10 in stock.",
        ),
        (
            "pod-club",
            "change_subscription",
            {"member_number": "M-4417", "action": "pause"},
            "Member M-4417 (Kitchen, every 6 weeks): pause is done, the membership is paused.",
        ),
        (
            "returns",
            "create_return_label",
            {"order_number": "FH-20391"},
            "Return label RL-20391 for order FH-20391 was sent; it is valid for 14 days.",
        ),
    ],
)
def test_each_tool_comes_with_its_section(section: str, tool: str, arguments: dict[str, Any], message: str) -> None:
    assert results([call("read_section", section_key=section), call(tool, **arguments)])[1][1] == message


def test_a_question_is_a_number_or_words() -> None:
    assert chosen([]) == [QUESTIONS[0]]
    assert chosen(["2", "1"]) == [QUESTIONS[1], QUESTIONS[0]]
    assert chosen(["is", "it", "safe?"]) == ["is it safe?"]


def test_a_number_beyond_the_list_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["1", "99"])
    assert f"there is no question 99; --list shows 1 to {len(QUESTIONS)}" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    script = "import sys; from weakincentives.demo.__main__ import main; sys.stdin.read(); sys.exit(main(['--list']))"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as said:
        assert said.stdin and said.stdout and said.stderr
        said.stdout.close()
        said.stdin.close()
        assert (said.stderr.read(), said.wait()) == (b"", 0)


@pytest.mark.parametrize(
    ("question", "picked", "source"),
    [("1", "order-status", "lookup_order"), ("2", "refunds", "refunds")],
)
def test_it_says_who_picks_and_what_is_quoted(question: str, picked: str, source: str, tmp_path: Path) -> None:
    require_quotation()
    demo = [sys.executable, "-m", "weakincentives.demo", question]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    show = [sys.executable, "-m", "weakincentives.cli", "runs", "show"]
    shown = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    for text in (done.stdout, shown.stdout):
        assert re.search(rf"^picks   {picked} 0\.\d\d, .* \(ranked by all-MiniLM-L6-v2-tuned\)$", text, re.MULTILINE)
        assert re.search(rf"^answer  \(quoted from {source}\)$", text, re.MULTILINE)
    assert "note    No language model is at work: the sections are ranked by an embedding" in done.stdout
    assert "picks the answer itself" not in done.stdout


def test_it_ends_with_the_address_of_the_viewer(tmp_path: Path) -> None:
    require_quotation("uvicorn")
    command = [sys.executable, "-m", "weakincentives.demo", "--view", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shown:
        assert shown.stdout
        assert "view    this run in the browser:\n" in shown.stdout
        address = next(shown.stdout)
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address.partition("#")[0], timeout=30) as page:
            assert page.status == 200
        shown.send_signal(signal.SIGINT)
        assert shown.wait(timeout=30) == 0
    with RunStore(tmp_path / ".wink" / "runs.db") as store:
        (run,) = store.list_runs()
    assert address.endswith(f"#/run/{run.run_id}\n")


def test_the_list_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.startswith(f"1  {QUESTIONS[0]}\n2  ")


def test_what_happens_is_told_in_plain_lines_on_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    adapter = ScriptedAdapter(
        [call("read_section", section_key="order-status"), call("lookup_order", order_number="FH-20417"), "Shipped."]
    )
    ask_desk(adapter, QUESTIONS[0])
    told = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert told == ["asked", "prompt", "model", "open", "tools", "model", "tool", "model", "answer", "sent"]


def test_the_questions_of_the_benchmark_have_their_facts_in_the_handbook() -> None:
    bodies = {page.key: page.text.lower() for page in handbook()}
    file = Path(__file__).parents[2] / "bench" / "local" / "questions.json"
    for case in (case for name in ("test", "fresh", "tuning", "last") for case in json.loads(file.read_text())[name]):
        for key in [] if "tool" in case else [case["section"], *case.get("also", ())]:
            assert all(any(fact.lower() in bodies[key] for fact in group) for group in case["facts"]), case["question"]
