"""The command line and the viewer tell the same of recorded runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.viewer_runs import INVESTIGATION, Alert, Narrated, on_call_template
from tests.telemetry.agents import record_conversation, run
from tests.viewer.playground import on_call
from weakincentives import MainLoop, MarkdownSection, Prompt, Session
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.cli import main
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptRenderError
from weakincentives.runtime import ledger
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer import Wanted
from weakincentives.viewer.documents import Documents


@pytest.fixture(scope="module")
def recorded(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs with restarts, injected tools, a rollback and a failure, and a conversation."""
    talk = tmp_path_factory.mktemp("talk") / "runs.db"
    record_conversation(talk, "What does the guide say?", "Thanks.")
    return [runs, talk]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_lists_agree(recorded: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for path in recorded:
        with RunStore(path) as store:
            shown = Documents(store).runs()["runs"]
        for said, row in zip(printed(capsys, "runs", "list", str(path)), shown, strict=True):
            flat = {**row, **row["usage"], "duration": round(row["duration"], 3)}
            inside = {**row["children"], **row["children"]["usage"]}
            flat["children"] = {name: inside[name] for name in said["children"]}
            assert {name: flat[name] for name in said if name in flat} == {
                name: said[name] for name in said if name in flat
            }
            assert said["duration"] == round(row["ended"] - row["started"], 3)


def test_runs_agree_turn_by_turn(recorded: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for path in recorded:
        with RunStore(path) as store:
            documents = Documents(store)
            for run in store.list_runs():
                said, whole = printed(capsys, "runs", "show", str(path), run.run_id), documents.run(run.run_id)
                turns, columns = said["turn_list"], whole["turns"]
                assert [turn["sent"] for turn in turns] == columns["input"]
                assert [turn["cached"] for turn in turns] == columns["cached"]
                assert [turn["full_prompt"] for turn in turns] == columns["full"]
                full = sum(turn["full_prompt"] or 0 for turn in turns)
                assert whole["run"]["full_prompt_tokens"] == full == whole["ledger"]["full"]
                assert whole["run"]["saved"] == whole["ledger"]["saved"] == full - said["input_tokens"]


def test_turns_agree_on_sections_tools_and_messages(recorded: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for path in recorded:
        with RunStore(path) as store:
            documents = Documents(store)
            for run in store.list_runs():
                for n in range(1, run.turns + 1):
                    said = printed(capsys, "runs", "show", str(path), run.run_id, "--turn", str(n))
                    shown = documents.turn(run.run_id, n)
                    assert said["sections"] == shown["sections"]
                    assert said["tools"] == [tool["name"] for tool in shown["tools"]]
                    assert len(said["messages"]) == sum(stop - start for start, stop in shown["request"])
                    assert said["complete"] and shown["complete"]


def test_reports_agree(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunStore(runs) as store:
        assert printed(capsys, "report", str(runs))["prompts"] == json.loads(
            json.dumps(Documents(store).report()["prompts"])
        )


def test_a_run_that_failed_after_opening_is_compared_with_a_run_of_as_many_turns(runs: Path) -> None:
    with RunStore(runs) as store:
        failed = store.list_runs(status="failed")[0]
        ledger = store.ledger(failed.run_id)
    assert [row.full_prompt_tokens is None for row in ledger.rows] == [True, False]
    assert failed.saved == ledger.saved > 0
    assert (failed.prompt, failed.model) == ("operations/on-call", "gpt-5.2")


@dataclass(frozen=True)
class Unbound:
    name: str


def test_a_run_that_failed_before_its_first_turn_names_prompt_and_model(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    section = MarkdownSection[Unbound](key="greeting", title="Greeting", template="Hello ${name}.")
    with record(path), pytest.raises(PromptRenderError):
        MainLoop().execute(
            Prompt(ns="shop", key="hello", sections=[section]),
            session=Session(),
            adapter=ScriptedAdapter(["Hi."], model="gpt-5.2"),
        )
    with RunStore(path) as store:
        (run,) = store.list_runs()
    assert (run.status, run.prompt, run.prompt_name, run.model) == ("failed", "shop/hello", "hello", "gpt-5.2")
    assert "Unbound" in run.error


def test_a_search_covers_all_runs_and_says_when_it_was_cut(runs: Path) -> None:
    with RunStore(runs) as store:
        documents = Documents(store)
        few, many = documents.search("529 three times"), documents.search("checkout")
    assert (few["matching"], few["cut"], {hit["turn"] for hit in few["hits"]}) == (1, False, {2})
    assert (many["matching"], many["cut"], len(many["runs"])) == (4, True, 4)


def numbers(text: str, before: str) -> list[int]:
    """The number before each occurrence of some words."""
    return [int(found.replace(",", "")) for found in re.findall(rf"([\d,]+){before}", text)]


@pytest.mark.slow
def test_everything_open_means_the_same_on_every_surface(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, session, clock = tmp_path / "runs.db", Session(), FakeClock()
    bound = Prompt(on_call_template()).bind(Alert())
    adapter = Narrated(INVESTIGATION, clock, tool_route="append")
    plan = adapter.explain(bound)
    with record(path):
        run_id = MainLoop().execute(bound, session=session, adapter=adapter).run_id
    # One request: `explain`, the line that `wink run`, `./run` and `wink runs show` print, the viewer's tree, and the
    # playground.
    sent, full = plan.text_tokens + plan.tool_tokens, plan.full_tokens
    main(["runs", "show", str(path), run_id])
    shown = capsys.readouterr().out.replace("\n", " ")
    assert numbers(plan.render(), " tokens per request") == numbers(shown, " tokens per request") == [sent]
    assert numbers(plan.render(), " with everything open") == numbers(shown, " with everything open") == [full]
    with RunStore(path) as store:
        documents = Documents(store)
        turn, whole = documents.turn(run_id, 1), documents.run(run_id)
        report = documents.report()["prompts"][0]
        stored = store.ledger(run_id)
    sections = {section["key"]: section for section in turn["sections"]}
    assert sum(section["shown_tokens"] for section in turn["sections"]) + turn["builtin_tokens"] == sent
    assert sum(section["full_tokens"] for section in turn["sections"]) == full
    leaves = [each for each in report["sections"] if not any(key.startswith(f"{each['key']}.") for key in sections)]
    assert {each["key"]: each["full_tokens"] for each in leaves} == {
        each["key"]: sections[each["key"]]["full_tokens"] for each in leaves
    }
    played = on_call(tmp_path).render(Wanted(adapter="scripted", params={"Alert": vars(Alert())}))["tokens"]
    assert (played["total"], played["full"]) == (sent, full)
    # The whole run: the ledger of the session, which `./run` prints, that of the file, its list, and the viewer.
    whole_run = ledger(session).full_prompt_tokens
    assert stored.full_prompt_tokens == whole["ledger"]["full"] == whole["run"]["full_prompt_tokens"] == whole_run
    assert sum(value or 0 for value in whole["turns"]["full"]) == whole_run
    assert f"with everything open in every request {whole_run:,}" in " ".join(shown.split())


def test_a_run_without_a_cache_loses_none_on_any_surface(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, session = tmp_path / "runs.db", Session()
    with record(path):
        run_id = run(session=session, tool_route="append").run_id
    with RunStore(path) as store:
        whole = Documents(store).run(run_id)
        said = printed(capsys, "runs", "show", str(path), run_id)
    assert ledger(session).cache_lost_tokens == whole["ledger"]["lost"] == 0
    assert [turn["cache_lost"] for turn in said["turn_list"]] == whole["turns"]["lost"] == [0] * len(said["turn_list"])
