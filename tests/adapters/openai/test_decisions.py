"""The decision endpoint, and the ranker that asks it, through the vendor's SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.adapters.vendors import KEY
from tests.servers.loopback import Answer, Received
from tests.servers.openai_decisions import DecisionServer
from weakincentives.adapters.openai import DecisionRanker, Decisions, choice, predicate, score
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import BudgetExceededError
from weakincentives.evals import Case, FinishedRun, evaluate
from weakincentives.guards import Guard, GuardContext, GuardRefusedError, Outcome, Refuse
from weakincentives.limits import Budget, Prices, TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SearchSections, SectionVisibility
from weakincentives.prompt.disclosure.ranking import PaidRanking
from weakincentives.runtime import Conversation, Message, PossibleMiss, SectionsOpened, SectionsRanked, ledger
from weakincentives.session import Session
from weakincentives.telemetry import RunStore, record

LIKELY = {"Refunds": 0.9, "Shipping": 0.3, "Vouchers": 0.2}
KINDS = {"blocking": openai.OpenAI, "async": openai.AsyncOpenAI}


def likely(text: str, statement: str) -> float | None:
    return next((chance for title, chance in LIKELY.items() if title in statement), 0.01)


@contextmanager
def decisions(answering: Any = likely, kind: str = "blocking") -> Iterator[tuple[Decisions, DecisionServer]]:
    with DecisionServer(answering) as server:
        # An async client is closed in the loop of its connections, which these tests do not have.
        options: Any = {"max_retries": 0, "default_headers": {"connection": "close"}}
        made = KINDS[kind](api_key=KEY, base_url=f"{server.url}/v1", **options)
        yield Decisions(made), server
        if kind == "blocking":
            made.close()


def template(ranker: Any, **options: Any) -> PromptTemplate[Any]:
    closed = [
        MarkdownSection(
            key=title.lower(),
            title=title,
            template=f"All about {title}.",
            summary=f"On {title}.",
            visibility=SectionVisibility.SUMMARY,
        )
        for title in LIKELY
    ]
    question = MarkdownSection(key="question", title="Question", template="My money?", role="user")
    strategy = SearchSections(ranker=ranker, **options)
    return PromptTemplate(ns="tests", key="ranked", sections=[*closed, question], disclosure=strategy)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_question_has_a_typed_answer(kind: str) -> None:
    asked = [predicate("Refunds."), choice("Which?", {"a": "First.", "b": ""}), score("How?", ["low", "high"])]
    with decisions(kind=kind) as (made, server):
        decided = asyncio.run(made.ask_async("My money?", asked))
    first, second, third = decided.answers
    assert (first.probability, second.value, third.value) == (0.9, "a", 1.5)
    assert (decided.usage, decided.model) == (TokenUsage(1_000_000), "gpt-6-luna")
    assert server.requests[0].json["questions"][1]["choices"] == [
        {"value": "a", "description": "First."},
        {"value": "b"},
    ]


def test_more_questions_than_a_request_takes_are_asked_in_several() -> None:
    with decisions() as (made, server):
        decided = made.ask("Hi.", [predicate(f"Number {number}.") for number in range(401)])
    assert [len(received.json["questions"]) for received in server.requests] == [400, 1]
    assert len(decided.answers) == 401 and decided.usage == TokenUsage(2_000_000)


def test_a_refused_question_has_no_answer_and_no_rank() -> None:
    with decisions(lambda text, statement: None if "b" in statement else 0.5) as (made, _):
        assert made.ask("Hi.", [predicate("b")]).answers[0].probability is None
        assert DecisionRanker(made).index(["a", "b"]).rank("Hi.", 9) == [(0, 0.5)]


def test_an_async_client_cannot_be_asked_without_awaiting() -> None:
    with decisions(kind="async") as (made, server), pytest.raises(TypeError, match=r"call ask_async\(\)"):
        made.ask("Hi.", [predicate("a")])
    assert server.requests == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_search_asks_for_every_section_and_is_recorded_and_paid(kind: str, form: str) -> None:
    session = Session()
    adapter = ScriptedAdapter([call("search_sections", query="my money"), "Done."])
    with decisions(kind=kind) as (made, server):
        prompt = Prompt(template(DecisionRanker(made)))
        if form == "sync":
            response = adapter.evaluate(prompt, session=session)
        else:
            response = asyncio.run(adapter.evaluate_async(prompt, session=session))
    (asked,) = [received.json for received in server.requests]
    assert asked["input"] == "my money"
    assert asked["questions"][0] == {"type": "predicate", "instructions": "The request needs: Refunds. On Refunds."}
    (found,) = [message.text for message in session[Message] if message.role == "tool"]
    assert found.index('"refunds"') < found.index('"shipping"') < found.index('"vouchers"')
    (event,) = session[SectionsRanked]
    assert (event.model, event.usage, event.cost) == ("gpt-6-luna", TokenUsage(1_000_000), pytest.approx(0.10))
    assert response.usage.input_tokens > 1_000_000 and response.turns == 2


def test_rankings_stand_in_the_ledger_beside_the_turns_they_were_made_for() -> None:
    session = Session()
    script = [call("search_sections", query="my money"), "Done."]
    with decisions() as (made, _):
        prompt = Prompt(template(DecisionRanker(made, misses=True), preopen=1))
        ScriptedAdapter(script).evaluate(prompt, session=session)
    told = ledger(session)
    # For the user's words before the first turn; for the search before the second, and for misses after it.
    assert [(row.ranked_tokens, row.ranking_cost) for row in told.rows] == [
        (1_000_000, pytest.approx(0.1)),
        (2_000_000, pytest.approx(0.2)),
    ]
    assert "3,000,000 more to rank sections ($0.3000)" in repr(told)
    assert "ranked" in told._repr_html_()
    assert told.sent_tokens < 1_000


def test_rankings_are_spent_by_the_conversation_and_recorded_with_the_run(tmp_path: Path) -> None:
    with decisions() as (made, server), record(tmp_path / "runs.db"):
        total = Budget(max_cost=0.25)
        adapter = ScriptedAdapter(["A.", "B.", "C.", "D."], model="gpt-6-sol")
        chat = Conversation(Prompt(template(DecisionRanker(made), preopen=1)), adapter=adapter, total=total)
        with pytest.raises(BudgetExceededError, match=r"max_cost=0\.25"):
            for number in range(9):
                chat.send(f"Message {number}.")
        assert chat.usage.input_tokens >= 3_000_000
    with RunStore(tmp_path / "runs.db") as store:
        runs = store.list_runs()
        assert sum(run.cost or 0.0 for run in runs) == pytest.approx(0.3, rel=0.01)
        assert sum(store.ledger(run.run_id).ranked_tokens for run in runs if run.turns) == 2_000_000
    assert len(server.requests) == 3


def test_sections_that_are_clear_of_the_next_open_before_the_first_turn() -> None:
    session = Session()
    with decisions() as (made, server):
        made_prompt = Prompt(template(DecisionRanker(made), preopen=2))
        ScriptedAdapter(["Done."]).evaluate(made_prompt, session=session)
    assert [(event.section_keys, event.decided_by) for event in session[SectionsOpened]] == [(("refunds",), "search")]
    assert len(server.requests) == len(session[SectionsRanked]) == 1
    assert "My money?" in server.requests[0].json["input"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_asks_with_the_words_of_each_message(kind: str) -> None:
    with decisions(kind=kind) as (made, server):
        prompt = Prompt(template(DecisionRanker(made), preopen=1))
        chat = Conversation(prompt, adapter=ScriptedAdapter(["A.", "B."]))
        chat.send("First.")
        chat.send("Second.")
    assert ["Second." in received.json["input"] for received in server.requests] == [False, True]
    assert len(chat.session[SectionsRanked]) == 2


def test_a_budget_in_money_stops_a_run_that_ranks_too_much() -> None:
    script = [call("search_sections", query=f"words {number}") for number in range(9)]
    with decisions() as (made, server), pytest.raises(BudgetExceededError, match=r"max_cost=0\.25"):
        budget = Budget(max_cost=0.25)
        adapter = ScriptedAdapter(script, model="gpt-6-sol")
        adapter.evaluate(Prompt(template(DecisionRanker(made))), session=Session(), budget=budget)
    assert len(server.requests) == 3


@pytest.mark.parametrize("misses", [False, True])
def test_misses_are_asked_of_the_model_only_if_that_was_chosen(misses: bool) -> None:
    session = Session()
    with decisions() as (made, server):
        ScriptedAdapter(["Done."]).evaluate(Prompt(template(DecisionRanker(made, misses=misses))), session=session)
    assert len(server.requests) == len(session[SectionsRanked]) == int(misses)
    assert [miss.section_key for miss in session[PossibleMiss]] == (["refunds"] if misses else [])


def test_a_failed_ranking_is_a_result_for_the_model_and_opens_nothing(caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    with decisions() as (made, _):
        made.model = "gpt-6-sol"
        adapter = ScriptedAdapter([call("search_sections", query="my money"), "Done."])
        prompt = Prompt(template(DecisionRanker(made, misses=True), preopen=1))
        assert adapter.evaluate(prompt, session=session).text == "Done."
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert (result.success, result.text) == (False, "The search is not available now; go on without it.")
    assert "does not support decisions" in caplog.text
    assert (len(session[SectionsOpened]), len(session[SectionsRanked])) == (0, 0)


def answered(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A response in which every answer, or the response, has these fields."""
    likely = {"type": "predicate", "name": None, "probability": 0.5}
    answers = [{**likely, **fields} for _ in body["questions"]]
    usage = {"input_tokens": 10, "output_tokens": 0, "input_tokens_details": {"cached_tokens": 0}}
    return {"model": "gpt-6-luna", "answers": answers, "usage": usage} | fields


NONSENSE: dict[str, Any] = {
    "text": {"probability": "high"},
    "infinite": {"probability": "Infinity"},
    "nothing": {"probability": None},
    "above one": {"probability": 1.5},
    "negative": {"probability": -0.5},
    "another kind": {"type": "choice", "choice": "a", "confidence": 1},
    "a new kind": {"type": "poem"},
    "no answers": {"answers": None},
    "too few": {"answers": [{"type": "predicate", "probability": 0.5}]},
    "no usage": {"usage": None},
    "negative usage": {"usage": {"input_tokens": -5_000_000, "output_tokens": 0}},
    "unreadable": Answer(200, b"<html>"),
    "not a number": Answer(200, b'{"answers": [{"type": "predicate", "probability": NaN}]}'),
    "failing": Answer(500, b"{}"),
    "gone": Answer(reset=True),
    "hanging": Answer(200, b"{}", delay=60),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_from_the_endpoint_opens_nothing_costs_nothing_and_ends_no_run(nonsense: Any) -> None:
    class Server(DecisionServer):
        def answer(self, received: Received) -> Answer:
            if isinstance(nonsense, Answer):
                return nonsense
            return Answer(body=json.dumps(answered(received.json, **nonsense)).encode())

    with Server(likely) as server, openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0) as client:
        ranker = DecisionRanker(Decisions(client, timeout=0.2), misses=True)
        session, adapter = Session(), ScriptedAdapter([call("search_sections", query="my money"), "Done."])
        assert adapter.evaluate(Prompt(template(ranker, preopen=1)), session=session).text == "Done."
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert not result.success
    assert (len(session[SectionsOpened]), len(session[SectionsRanked]), len(session[PossibleMiss])) == (0, 0, 0)
    session.snapshot().to_json()


def test_one_client_is_a_guard_too() -> None:
    with decisions(lambda text, statement: 0.9 if "refund" in text and "money" in statement else 0.1) as (made, server):

        class NoMoney(Guard):
            def before_run(self, words: str, *, context: GuardContext) -> Outcome | None:
                (answer,) = made.ask(words, [predicate("The user asks for money.")]).answers
                return Refuse("No money here.") if (answer.probability or 0) > 0.5 else None

        section = MarkdownSection(key="task", title="Task", template="Help.")
        guarded = PromptTemplate[Any](ns="tests", key="guarded", sections=[section], guards=[NoMoney()])
        chat = Conversation(Prompt(guarded), adapter=ScriptedAdapter(["Hello."]))
        assert chat.send("Hi.").text == "Hello."
        with pytest.raises(GuardRefusedError, match="No money here"):
            chat.send("I want a refund.")
    assert len(server.requests) == 2


def test_one_client_is_a_judge_too() -> None:
    with decisions(lambda text, statement: 0.9 if "Lyon" in text else 0.1) as (made, _):

        def is_right(run: FinishedRun) -> float:
            statement = predicate("The answer says where the parcel is.")
            likely = made.ask(run.text, [statement]).answers[0].probability or 0.0
            return round(likely)

        section = MarkdownSection(key="task", title="Task", template="Where is it?", role="user")
        asked = PromptTemplate[Any](ns="tests", key="judged", sections=[section])
        result = evaluate([Case("a")], Prompt(asked), ScriptedAdapter(["In Lyon."]), [is_right])
    assert result.mean == 1.0


def test_any_index_may_rank_asynchronously_and_say_what_it_took() -> None:
    class Slow:
        def index(self, texts: Any) -> Slow:
            return self

        async def rank(self, query: str, limit: int) -> PaidRanking:
            await asyncio.sleep(0)
            return PaidRanking([(0, 1.0)], "mine", TokenUsage(5), Prices(1.0, 1.0), 0.1)

    session = Session()
    adapter = ScriptedAdapter([call("search_sections", query="x"), "Done."])
    asyncio.run(adapter.evaluate_async(Prompt(template(Slow())), session=session))
    assert [(event.model, event.usage) for event in session[SectionsRanked]] == [("mine", TokenUsage(5))]
    assert json.loads(json.dumps([event.cost for event in session[SectionsRanked]])) == [pytest.approx(5e-6)]
