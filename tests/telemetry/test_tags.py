"""Tags of runs: given to a session or to one run, recorded, shown and filtered by."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Wink, wink as wink
from tests.telemetry.agents import SCRIPT, prompt
from weakincentives import FallbackAdapter, MainLoop, run, run_async
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import JsonPromptOverridesStore, Prompt
from weakincentives.runtime import Conversation, PromptRendered
from weakincentives.session import Session
from weakincentives.telemetry import RunStore, record


def ways() -> dict[str, Any]:
    """Every way to begin a run, by name; each takes a session and tags, and returns the ids of its runs."""

    def streamed(stream: Any) -> str:
        with stream:
            list(stream)
        return str(stream.run_id)

    def fallback(session: Session, tags: Any) -> list[str]:
        first = ScriptedAdapter([SCRIPT[0], PromptEvaluationError("down", phase="request")])
        return [run(prompt(), FallbackAdapter(first, ScriptedAdapter(SCRIPT[1:])), session=session, tags=tags).run_id]

    def talk(session: Session, tags: Any) -> list[str]:
        chat = Conversation(prompt(), adapter=ScriptedAdapter([*SCRIPT, "And more."]), session=session)
        return [chat.send(words, tags=tags).run_id for words in ("Hi.", "More.")]

    def resume(session: Session, tags: Any) -> list[str]:
        down = ScriptedAdapter([SCRIPT[0], PromptEvaluationError("down", phase="request")])
        with pytest.raises(PromptEvaluationError):
            down.evaluate(prompt(), session=session, tags=tags)
        return [ScriptedAdapter(SCRIPT[1:]).resume(prompt(), session=session, tags=tags).run_id]

    loop, adapter = MainLoop(), lambda **options: ScriptedAdapter(SCRIPT, **options)
    return {
        "run": lambda session, tags: [run(prompt(), adapter(), session=session, tags=tags).run_id],
        "async": lambda session, tags: [asyncio.run(run_async(prompt(), adapter(), session=session, tags=tags)).run_id],
        "stream": lambda session, tags: [
            streamed(loop.stream(prompt(), session=session, adapter=adapter(), tags=tags))
        ],
        "restart": lambda session, tags: [
            run(prompt(), adapter(supports_dynamic_tools=False), session=session, tags=tags).run_id
        ],
        "fallback": fallback,
        "exchanges": talk,
        "resume": resume,
    }


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize(
    ("of_session", "of_run", "both"),
    [
        ({"team": "desk"}, None, {"team": "desk"}),
        (None, {"case": "7"}, {"case": "7"}),
        ({"team": "desk", "case": "0"}, {"case": "7"}, {"team": "desk", "case": "7"}),
        ({"a b.c": 'quoted "text" \\u0000%'}, None, {"a b.c": 'quoted "text" \\u0000%'}),
        (None, None, {}),
    ],
)
def test_the_tags_of_session_and_run_are_recorded_and_found(
    way: str, of_session: Any, of_run: Any, both: dict[str, str], tmp_path: Path
) -> None:
    with record(tmp_path / "runs.db"):
        others = [run(prompt(), ScriptedAdapter(SCRIPT), tags={"team": "other"}).run_id]
        ids = ways()[way](Session(tags=of_session), of_run)
    with RunStore(tmp_path / "runs.db") as store:
        assert [store.run(run_id).tags for run_id in ids] == [both] * len(ids)
        found = [summary.run_id for summary in store.list_runs(tags=both, order="started")]
        assert found == ids if both else found == [*others, *ids]
        assert store.count_runs(tags={**both, "no": "such"}) == 0
        assert store.groups("all", tags=both)[0]["runs"] == len(found)


def test_runs_are_found_by_the_tag_of_their_override(tmp_path: Path) -> None:
    overrides = JsonPromptOverridesStore(tmp_path / "overrides")
    template = prompt().template
    described = template.descriptor
    body = described.override_section(("intro",), "Be calm.")
    overrides.upsert(described.new_override("calm").with_section(("intro",), body))
    with record(tmp_path / "runs.db"):
        plain = run(Prompt(template), ScriptedAdapter(SCRIPT)).run_id
        calm = Prompt(template, overrides_store=overrides, overrides_tag="calm")
        chat = Conversation(calm, adapter=ScriptedAdapter([*SCRIPT, "More."]), session=Session(tags={"n": "1"}))
        ids = [chat.send("Hi.").run_id, chat.send("More.").run_id]
    with RunStore(tmp_path / "runs.db") as store:
        found = store.list_runs(tags={"overrides": "calm"}, order="started")
        assert [summary.run_id for summary in found] == ids
        assert {json.dumps(dict(summary.tags)) for summary in found} == {'{"n": "1", "overrides": "calm"}'}
        assert store.run(plain).tags == {}


def test_a_clone_has_the_tags_and_observers_see_them() -> None:
    session = Session(tags={"team": "desk"}).clone()
    run(prompt(), ScriptedAdapter(SCRIPT), session=session, tags={"case": "7"})
    assert [event.tags for event in session[PromptRendered]] == [{"team": "desk", "case": "7"}]


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({"case": 7}, r"strings to strings, got 'case': 7; write str\("),
        ({7: "case"}, "strings to strings"),
        (["case"], r"mapping of names to texts, got \['case'\]"),
        ({"": "x"}, "names without '='"),
        ({"a=b": "x"}, "names without '='"),
        ({"overrides": "x"}, "other than 'overrides'"),
        ({"a": "x" * 201}, "at most 200 characters"),
    ],
)
def test_what_is_no_tag_is_refused(tags: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        Session(tags=tags)
    adapter = ScriptedAdapter(SCRIPT)
    with pytest.raises((TypeError, ValueError), match=problem):
        run(prompt(), adapter, tags=tags)
    assert adapter.requests == []


def test_the_command_line_filters_by_tags_and_lists_them(wink: Wink) -> None:
    with record(wink.folder / "runs.db"):
        for team, case in (("desk", "1"), ("desk", "2"), ("shop", "1")):
            run(prompt(), ScriptedAdapter(SCRIPT), session=Session(tags={"team": team}), tags={"case": case})

    def listed(*words: str) -> list[Any]:
        return [tuple(row["tags"].values()) for row in wink.json("runs", "list", "runs.db", *words)]

    assert listed("--where", "team=desk") == [("desk", "2"), ("desk", "1")]
    assert listed("--where", "team=desk", "--where", "case=1") == [("desk", "1")]
    assert listed("--where", "team=") == []
    lines = wink("runs", "list", "runs.db", "--where", "team=shop").stdout.splitlines()
    assert len(lines) == 2 and "tags" in lines[0].split() and "team=shop case=1" in lines[1]
    wrong = wink("runs", "list", "runs.db", "--where", "team")
    assert wrong.returncode == 2 and "must be KEY=VALUE, got 'team'" in wrong.stderr
