"""The local adapter with its real ranker, and with a small language model."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.helpers.embedded import small_model
from weakincentives.adapters.local import LocalAdapter, LocalRanker
from weakincentives.adapters.local.gguf.engine import Engine, Listener
from weakincentives.adapters.local.gguf.writer import chat
from weakincentives.content import Image
from weakincentives.demo.desk import ask
from weakincentives.errors import ContextOverflowError, DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    MarkdownSection,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    SearchSections,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import (
    Completed,
    Conversation,
    MainLoop,
    Message,
    ModelCalled,
    ModelRequest,
    Settings,
    TextDelta,
    ToolInvoked,
    ToolsInjected,
)
from weakincentives.session import Session

# A language model computes for seconds, and for minutes beside others.
pytestmark = pytest.mark.limit(300)

SUMMARY = SectionVisibility.SUMMARY
SIZES = "A medium shirt has a chest of 100 centimetres. Socks come in two sizes."
OPENING = "The shop opens at nine in the morning. It closes at six in the evening."


@dataclass(frozen=True, slots=True)
class Asked:
    text: str


@dataclass(frozen=True, slots=True)
class Weigh:
    parcel: str


@dataclass(frozen=True, slots=True)
class Verdict:
    mood: Literal["good", "bad"]
    score: int


def weigh(params: Weigh, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(f"Parcel {params.parcel} weighs 7 kilograms.")


def shop(question: str, **options: object) -> Prompt[None]:
    scales = Tool[Weigh, None](name="weigh", description="Weigh a parcel.", handler=weigh, read_only=True)
    scales = scales.with_descriptions(None, {"parcel": "The parcel, such as PK-12."})
    sections = [
        MarkdownSection(title="Sizes", key="sizes", template=SIZES, summary="Clothing sizes.", visibility=SUMMARY),
        MarkdownSection(title="Hours", key="hours", template=OPENING, summary="Opening hours.", visibility=SUMMARY),
        MarkdownSection(
            title="Parcels",
            key="parcels",
            template="Parcels are weighed before they leave.",
            summary="Weight of a parcel.",
            visibility=SUMMARY,
            tools=[scales],
        ),
        MarkdownSection[Asked](title="Question", key="question", template="${text}"),
    ]
    return Prompt(PromptTemplate(ns="test", key="shop", sections=sections, **options)).bind(Asked(question))


def story() -> Prompt[None]:
    return Prompt(ns="test", key="story", sections=[MarkdownSection(title="Task", key="t", template="Tell a story.")])


def opened(session: Session) -> list[str]:
    return [call.params.section_key for call in session[ToolInvoked].all() if call.name == "read_section"]


def sentences(text: str) -> set[str]:
    return set(re.split(r"(?<=\.)\s+", text))


def test_the_section_that_fits_is_opened_and_quoted(local: LocalAdapter) -> None:
    session = Session()
    response = local.evaluate(shop("When do you close in the evening?"), session=session)
    assert opened(session) == ["hours"]
    assert "six in the evening" in response.text and sentences(response.text) <= sentences(OPENING)


def test_a_section_that_the_caller_opens_is_quoted_without_being_opened_again(local: LocalAdapter) -> None:
    session = Session()
    overrides = {("hours",): SectionVisibility.FULL}
    prompt = shop("When does the shop close?")
    response = local.evaluate(prompt, session=session, visibility_overrides=overrides)
    assert opened(session) == [] and sentences(response.text) <= sentences(OPENING)


def test_a_tool_appears_with_its_section_and_gets_what_the_question_says(local: LocalAdapter) -> None:
    session = Session()
    response = local.evaluate(shop("What is the weight of parcel PK-77?"), session=session)
    assert session[ToolsInjected].latest().tool_names == ("weigh",)
    assert response.text == "Parcel PK-77 weighs 7 kilograms."


def test_a_section_that_another_run_has_read_is_not_taken_for_a_tools_result(local: LocalAdapter) -> None:
    prompt, first, forked = shop("What is the weight of parcel PK-77?"), Session(), Session()
    local.evaluate(prompt, session=first)
    forked.dispatch(SetVisibilityOverride(("parcels",), SectionVisibility.FULL))
    forked[Message].seed(first[Message].all()[:-1])
    assert Conversation(prompt, adapter=local, session=forked).send(None).text == "Parcel PK-77 weighs 7 kilograms."


def test_a_tool_is_not_called_without_the_code_it_needs(local: LocalAdapter) -> None:
    session = Session()
    local.evaluate(shop("What is the weight of my parcel?"), session=session)
    assert "weigh" not in [call.name for call in session[ToolInvoked].all()]


def test_it_works_with_strategies_that_restart(local: LocalAdapter) -> None:
    prompt = shop("What is the weight of parcel PK-77?", disclosure=OpenOrRead())
    response = MainLoop().execute(prompt, session=Session(), adapter=local)
    assert response.text == "Parcel PK-77 weighs 7 kilograms."


def test_a_stream_tells_the_text_of_the_response(local: LocalAdapter) -> None:
    events = list(local.stream(shop("When do you open?"), session=Session()))
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert isinstance(events[-1], Completed)
    assert text == events[-1].response.text != ""


async def test_the_async_forms_say_the_same(local: LocalAdapter) -> None:
    question = "When do you open?"
    response = await local.evaluate_async(shop(question), session=Session())
    streamed = [event async for event in local.stream_async(shop(question), session=Session())]
    assert response.text == streamed[-1].response.text == local.evaluate(shop(question), session=Session()).text


def test_a_very_long_question_is_ranked_by_its_beginning(local: LocalAdapter) -> None:
    session = Session()
    local.evaluate(shop("When do you close in the evening? " + "\u4e2d" * 600), session=session)
    assert opened(session)[0] == "hours"


def test_usage_is_what_the_model_counts(writing: LocalAdapter) -> None:
    session = Session()
    writing.evaluate(shop("When do you open?"), session=session)
    called = session[ModelCalled].latest()
    messages = session[Message].all()[: called.messages]
    tools = shop("When do you open?").render().tools
    request = ModelRequest("shop", messages, tools=tools, initial_tools=len(tools))
    assert called.usage.input_tokens == writing.engine.count_chat(chat(request))


def test_structured_output_always_parses(writing: LocalAdapter) -> None:
    prompt = Prompt[Verdict](
        ns="test", key="verdict", sections=[MarkdownSection(title="Task", key="t", template="Judge: I like it.")]
    )
    output = writing.evaluate(prompt, session=Session()).output
    assert isinstance(output, Verdict) and output.mood in ("good", "bad")


def test_a_conversation_that_does_not_fit_is_refused_before_decoding(writing: LocalAdapter) -> None:
    with (
        LocalAdapter(small_model(), context=256) as small,
        pytest.raises(ContextOverflowError, match=r"has [\d,]+ tokens, .* room for 256") as caught,
    ):
        small.evaluate(shop("When? " * 300), session=Session())
    assert caught.value.phase == "request"


def test_a_conversation_that_no_longer_fits_goes_on_without_its_oldest_turns(writing: LocalAdapter) -> None:
    session = Session()
    with LocalAdapter(small_model(), context=700) as small:
        chat = Conversation(shop("Hello."), adapter=small, session=session)
        questions = ("When do you close in the evening?", "What is the chest of a medium shirt?")
        answers = [chat.send(question).text for question in questions * 4]
        with pytest.raises(ContextOverflowError, match="with its last question has"):
            chat.send("When? " * 800)
        answers.append(chat.send(questions[0]).text)
    assert all(answer.startswith(OPENING) for answer in answers[::2])
    assert all("100 centimetres" in answer.partition(".")[0] for answer in answers[1::2])
    assert max(call.usage.input_tokens for call in session[ModelCalled].all()) <= 700


@dataclass(frozen=True)
class Member:
    name: str


def test_a_section_that_begins_to_apply_is_not_taken_for_the_question(local: LocalAdapter) -> None:
    @tool
    def refund(order: int, *, context: ToolContext) -> str:
        "Refund an order."
        context.session.dispatch(SetVisibilityOverride(("account",), SectionVisibility.FULL))
        return f"Order {order} is refunded."

    task = MarkdownSection(key="task", title="Task", template="Orders are refunded in full.", tools=[refund])
    account = MarkdownSection[Member](
        key="account", title="Account", template="${name} is a gold member.", summary="The account.", visibility=SUMMARY
    )
    prompt = Prompt(PromptTemplate(ns="t", key="k", sections=[task, account])).bind(Member("Ann"))
    assert Conversation(prompt, adapter=local).send("Please refund order 7.").text == "Order 7 is refunded."


def test_a_deadline_stops_decoding(writing: LocalAdapter) -> None:
    with pytest.raises(DeadlineExceededError, match="local model"):
        writing.evaluate(story(), session=Session(), deadline=Deadline.after(0.2))


def test_a_stream_that_nobody_reads_any_more_stops(writing: LocalAdapter) -> None:
    stream = writing.stream(story(), session=Session())
    assert isinstance(next(stream), TextDelta)
    stream.close()
    assert writing.engine.count("still here") > 0


def test_adapters_with_the_same_file_share_one_model(writing: LocalAdapter) -> None:
    with LocalAdapter(small_model()) as other:
        assert other.engine is writing.engine
    assert writing.engine.count("still here") > 0


def test_threads_can_share_an_adapter(local: LocalAdapter) -> None:
    questions = ["When do you open?", "What is the weight of parcel PK-77?"] * 3
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda question: local.evaluate(shop(question), session=Session()).text, questions))
    assert len(set(answers)) == 2 and answers[:2] == answers[2:4] == answers[4:]


def test_an_unknown_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"'nowhere\.gguf'.*GGUF"):
        LocalAdapter("nowhere.gguf")


@pytest.mark.slow
def test_another_process_works_beside_this_one_and_ends_cleanly(writing: LocalAdapter) -> None:
    program = (
        "import sys\nfrom weakincentives.adapters.local import LocalAdapter\n"
        "print(LocalAdapter(sys.argv[1]).engine.count('one two three'))\n"
    )
    command = [sys.executable, "-c", program, str(small_model())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == writing.engine.count("one two three")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1002))
def test_answers_fit_random_schemas(writing: LocalAdapter, seed: int) -> None:
    from bench.local.schemas import random_run

    run = random_run(writing, seed)
    assert (run.invalid, run.problem) == (0, "")
    assert run.answer is not None


def test_the_embedding_model_finds_sections_by_meaning(local: LocalAdapter) -> None:
    texts = ["Where parcels are and when they arrive.", "Money back for faulty goods.", "Shop opening hours."]
    index = LocalRanker().index(texts)
    assert [index.rank(asked, 1)[0][0] for asked in ("track my delivery", "a broken item, I want a refund")] == [0, 1]


def test_a_ranker_without_a_model_says_what_to_install() -> None:
    with pytest.raises(FileNotFoundError, match=r"LocalRanker's model is .*no such file"):
        LocalRanker("missing.gguf")


def test_a_section_is_found_by_what_only_its_body_says(local: LocalAdapter) -> None:
    session = Session()
    local.evaluate(shop("How many centimetres has the chest of a medium?"), session=session)
    assert opened(session) == ["sizes"]


def test_two_sections_that_fit_nearly_the_same_are_opened_at_once(local: LocalAdapter) -> None:
    sections = [
        MarkdownSection(
            title=f"Delivery {place}", key=place, template=text, summary=f"Delivery {place}.", visibility=SUMMARY
        )
        for place, text in (("abroad", "Parcels abroad take nine days."), ("home", "Parcels at home take two days."))
    ]
    asked = MarkdownSection(title="Question", key="q", template="How long does delivery take?", role="user")
    session = Session()
    response = local.evaluate(Prompt(ns="test", key="post", sections=[*sections, asked]), session=session)
    assert sorted(opened(session)) == ["abroad", "home"]
    assert "nine days" in response.text and "two days" in response.text


def test_a_second_question_gets_an_answer_of_its_own(local: LocalAdapter) -> None:
    session = Session()
    chat = Conversation(shop("Hello."), adapter=local, session=session)
    first, second = chat.send("When do you close in the evening?"), chat.send("What is the weight of parcel PK-77?")
    assert "six in the evening" in first.text
    assert second.text == "Parcel PK-77 weighs 7 kilograms."


def refund(params: Weigh, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(f"Parcel {params.parcel} is refunded.")


def desk(**options: Any) -> PromptTemplate[None]:
    """A section with a lookup, and one with a change; the refunds of spoiled goods are below it."""
    numbered = {"parcel": "The parcel, such as PK-12."}
    track = Tool[Weigh, None](name="track", description="Where a parcel is.", handler=weigh, read_only=True)
    pay = Tool[Weigh, None](name="refund", description="Refund a parcel.", handler=refund)
    spoiled = MarkdownSection(
        title="Spoiled goods",
        key="spoiled",
        template="The code for spoiled goods is SG-41.",
        summary="The refund code for spoiled goods.",
        visibility=SUMMARY,
    )
    sections = [
        MarkdownSection(
            title=key.title(),
            key=key,
            template=text,
            summary=f"All about {key}.",
            visibility=SUMMARY,
            tools=[tool.with_descriptions(None, numbered)],
            children=children,
        )
        for key, text, tool, children in (
            ("shipping", "Parcels leave within a day.", track, []),
            ("refunds", "Parcels under 14 days are refunded in full.", pay, [spoiled]),
        )
    ]
    return PromptTemplate(ns="test", key="desk", sections=sections, **options)


def told(adapter: LocalAdapter, *messages: str, **options: Any) -> tuple[list[str], list[str]]:
    """What was called or opened, and what was answered, in one conversation."""
    session = Session()
    chat = Conversation(Prompt(desk(**options)), adapter=adapter, session=session)
    answers = [chat.send(message).text for message in messages]
    return [getattr(call.params, "section_key", call.name) for call in session[ToolInvoked].all()], answers


NO_REQUESTS = """\
Do NOT refund parcel PK-8, just tell me the rule for refunds.
Please don\u2019t refund parcel PK-8 yet.
Do not, under any circumstances, refund parcel PK-8.
Do not cancel and refund parcel PK-8.
I do not want a refund for parcel PK-8.
No refund for parcel PK-8, please.
Send a new one instead of refunding parcel PK-8.
Please hold off on refunding parcel PK-8.
Please make sure that nobody refunds parcel PK-8.
What is the rule for refunds of parcel PK-8?
How do I refund parcel PK-8?
Could you tell me whether parcel PK-8 was refunded?
did my refund for parcel PK-8 go through
Do we need to refund parcel PK-8?
I want to know the refund rules for parcel PK-8.
Please list the steps to refund parcel PK-8.
If it is late, please refund parcel PK-8.
Parcel PK-8 was refunded last week.
You refunded parcel PK-8 twice.
My colleague said to refund parcel PK-8, is that right?
Thanks for the refund of parcel PK-8!
refund parcel PK-8? no thanks"""

REQUESTS = """\
Please refund parcel PK-8.
Refund parcel PK-8
ok, refund parcel PK-8 then
Could you refund parcel PK-8?
I want a refund for parcel PK-8.
I need you to refund parcel PK-8.
I'd like my money back for parcel PK-8, please give me a refund.
Parcel PK-8 never arrived, please refund it.
It doesn't work, please refund parcel PK-8.
Do not tell me the rule, just refund parcel PK-8.
Don't refund parcel PK-7, but refund parcel PK-8.
What is the rule? And please refund parcel PK-8.
Please refund parcel PK-8 and tell me when it is done."""


@pytest.mark.parametrize(("messages", "refunded"), [(NO_REQUESTS, False), (REQUESTS, True)])
def test_a_change_is_made_only_if_the_message_asks_for_it(local: LocalAdapter, messages: str, refunded: bool) -> None:
    answers = {message: told(local, message)[1] for message in messages.splitlines()}
    done = ["Parcel PK-8 is refunded."]
    assert [message for message, answer in answers.items() if (answer == done) is not refunded] == []


@pytest.mark.parametrize(
    ("message", "tool"),
    [
        ("Please send me a return label for order FH-20391.", "create_return_label"),
        ("I'd like to return order FH-20391, please send me the label.", "create_return_label"),
        ("Cancel my Pod Club, I am member M-4421.", "change_subscription"),
    ],
)
def test_a_request_in_other_words_than_the_description_is_carried_out(
    local: LocalAdapter, message: str, tool: str
) -> None:
    session = Session()
    local.evaluate(ask(message), session=session)
    assert tool in [call.name for call in session[ToolInvoked].all()]


@pytest.mark.parametrize("message", ["Please wrap order FH-20391 as a present.", "I want a manager to see FH-20391."])
def test_a_request_that_no_tool_carries_out_changes_nothing(local: LocalAdapter, message: str) -> None:
    session = Session()
    local.evaluate(ask(message), session=session)
    assert {call.name for call in session[ToolInvoked].all()} <= {"read_section", "lookup_order"}


def test_a_sentence_is_quoted_behind_the_one_it_refers_to(local: LocalAdapter) -> None:
    pump = "The pump has a filter. It is washed every month. Otherwise the flow drops. A new one costs 9 euros."
    section = MarkdownSection(title="Pump", key="pump", template=pump, summary="The pump.", visibility=SUMMARY)
    asked = MarkdownSection(title="Q", key="q", template="Why does the flow drop?")
    text = local.evaluate(Prompt(ns="test", key="pump", sections=[section, asked]), session=Session()).text
    assert "The pump has a filter. It is washed every month. Otherwise the flow drops." in text


def test_a_message_about_a_change_is_not_answered_with_a_lookup(local: LocalAdapter) -> None:
    messages = (
        "Where is parcel PK-8?",
        "Do not refund parcel PK-8, just tell me the rule.",
        "Please refund parcel PK-8.",
    )
    called, answers = told(local, *messages)
    assert [name for name in called if name in ("track", "refund")] == ["track", "refund"]
    assert called[0] == "shipping" and "refunds" in called
    assert "refunded in full" in answers[1]
    assert answers[2] == "Parcel PK-8 is refunded."


def test_what_the_prompt_does_not_list_is_searched_for(local: LocalAdapter) -> None:
    called, answers = told(local, "When do parcels leave?", disclosure=SearchSections(menu="none"))
    assert called == ["search_sections", "shipping"]
    assert "within a day" in answers[0]


@pytest.mark.parametrize("menu", ["all", "none"])
def test_where_nothing_fits_it_says_so(local: LocalAdapter, menu: Literal["all", "none"]) -> None:
    _, answers = told(local, "What is the capital of France?", disclosure=SearchSections(menu=menu))
    assert answers[0].startswith("The text does not say that.")


@pytest.mark.parametrize("question", ["Hi! What's the price of a brand new Six at the moment?", "What is 17 times 23?"])
def test_a_question_that_no_section_answers_is_refused(local: LocalAdapter, question: str) -> None:
    answer = local.evaluate(ask(question), session=Session()).text
    assert answer.startswith("The text does not say that. The nearest sections are: ")


@pytest.mark.parametrize(
    "question", ["is the plastic of the tank bpa free?", "Could I grow oyster mushrooms in the Six?"]
)
def test_a_question_near_the_subject_that_no_sentence_answers_is_refused(local: LocalAdapter, question: str) -> None:
    assert "does not say" in local.evaluate(ask(question), session=Session()).text


def test_each_question_of_a_message_is_answered_or_refused(local: LocalAdapter) -> None:
    session = Session()
    asked = ["When do you close in the evening?", "What is the capital of France?", "What is a medium shirt's chest?"]
    answers = local.evaluate(shop(" ".join(asked)), session=session).text.split("\n\n")
    assert [answer.partition("\n")[0] for answer in answers] == asked
    assert "six in the evening" in answers[0]
    assert "The text does not say that." in answers[1]
    assert "100 centimetres" in answers[2]
    assert {"hours", "sizes"} <= set(opened(session))


def test_a_question_beside_one_that_a_tool_answers_is_answered_too(local: LocalAdapter) -> None:
    message = "What is the weight of parcel PK-77? When do you close in the evening?"
    weight, closing = local.evaluate(shop(message), session=Session()).text.split("\n\n")
    assert weight == "What is the weight of parcel PK-77?\nParcel PK-77 weighs 7 kilograms."
    assert "six in the evening" in closing


def test_a_question_that_needs_the_one_before_it_is_answered_with_it(local: LocalAdapter) -> None:
    answer = local.evaluate(shop("When do you close in the evening? And why?"), session=Session()).text
    assert answer.startswith(OPENING)


def test_much_text_around_a_question_does_not_hide_it(local: LocalAdapter) -> None:
    filler = "My sister and I went to the lake and had a wonderful time with the dog. " * 20
    answer = local.evaluate(shop(f"{filler}When do you close in the evening? {filler}"), session=Session()).text
    assert "six in the evening" in answer


def test_a_section_below_a_closed_one_is_opened_and_summaries_are_not_quoted(local: LocalAdapter) -> None:
    called, answers = told(local, "How are refunds done?", "What is the refund code for spoiled goods?")
    assert called[0] == "refunds" and "refunds.spoiled" in called
    assert "The refund code for spoiled goods." not in answers[0]
    assert "SG-41" in answers[1]


def test_a_later_question_opens_the_section_that_matches_better(local: LocalAdapter) -> None:
    called, answers = told(
        local, "When are parcels refunded?", "When do parcels leave?", "Are parcels refunded in full?"
    )
    assert called == ["refunds", "shipping"]
    facts = ("refunded in full", "within a day", "refunded in full")
    assert all(fact in answer.partition(".")[0] for fact, answer in zip(facts, answers, strict=True))


class Speaker:
    """An engine that says the same to everything."""

    parameters = 10**9

    def __init__(self, engine: Engine, text: str) -> None:
        self.settings, self.count, self.count_chat = engine.settings, engine.count, engine.count_chat
        self._text = text

    def recall(self, messages: object, read: object) -> None:
        pass

    def chat(self, request: Mapping[str, Any], heard: Listener) -> None:
        usage = {"prompt_tokens": 7, "completion_tokens": 5}
        heard({"choices": [{"delta": {"content": self._text}, "finish_reason": "stop"}], "usage": usage})


class SpeakingAdapter(LocalAdapter):
    engine: Any = None


@pytest.mark.parametrize(
    ("said", "shown"), [("We close at six.", "We close at six.\n\n> {}"), ("A key costs 25 euros.", "{}")]
)
def test_a_composed_answer_stands_above_the_quotation_unless_it_was_made_up(
    writing: LocalAdapter, said: str, shown: str
) -> None:
    question = "When do you close in the evening?"
    expected = shown.format(writing.evaluate(shop(question), session=Session()).text)
    adapter = SpeakingAdapter(small_model())
    adapter.engine = Speaker(writing.engine, said)
    events = list(adapter.stream(shop(question), session=Session()))
    assert events[-1].response.text == expected
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == expected


CHANGES = (
    "Please refund order {order}.",
    "How long do I have to ask for a refund of {amount} euros?",
    "By when must I tell you to get all my money back?",
    "Refund me, now!",
    "I want {amount} euros back.",
    "Was order {order} refunded?",
)


@pytest.mark.parametrize("replies", ["quote", "compose"])
def test_nothing_is_changed_with_arguments_that_the_conversation_does_not_hold(
    writing: LocalAdapter, replies: Literal["quote", "compose"]
) -> None:
    chance = random.Random(7)
    adapter = SpeakingAdapter(small_model(), replies=replies)
    adapter.engine = Speaker(writing.engine, '"yes"')
    for at in range(24):
        question = CHANGES[at % len(CHANGES)].format(
            order=f"FH-{chance.randint(20000, 20999)}", amount=chance.randint(5, 90)
        )
        session = Session()
        adapter.evaluate(ask(question), session=session)
        for call in session[ToolInvoked].all():
            if call.name == "issue_refund":
                assert {call.params.order_number, str(int(call.params.amount))} <= set(re.findall(r"[\w-]+", question))


def test_how_much_of_a_prompt_is_read_is_told(writing: LocalAdapter) -> None:
    told: list[tuple[int, int]] = []
    with LocalAdapter(
        small_model(), replies="compose", progress=lambda done, size: told.append((done, size))
    ) as adapter:
        adapter.evaluate(shop("When do you open?"), session=Session())
    assert told[-1][0] == told[-1][1] > 0


def test_what_every_conversation_begins_with_is_read_once_for_all_processes(
    writing: LocalAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINK_CACHE", str(tmp_path))
    hours = MarkdownSection(title="Hours", key="hours", template=OPENING, summary="Opening hours.", visibility=SUMMARY)

    def asked() -> tuple[str, int]:
        sizes: list[int] = []
        # Another context than that of the other tests, so that a model of its own is loaded and freed.
        with LocalAdapter(
            small_model(),
            replies="compose",
            context=4096,
            progress=lambda _, size: sizes.append(size),
        ) as adapter:
            talk = Conversation(Prompt(ns="test", key="hours", sections=[hours]), adapter=adapter)
            return talk.send("When do you open?").text, len(set(sizes))

    # The sections are embedded before, so that only the language model reads.
    Conversation(Prompt(ns="test", key="hours", sections=[hours]), adapter=LocalAdapter()).send("When do you open?")
    text, first = asked()
    assert (first, asked()) == (2, (text, 1))
    next((tmp_path / "states").glob("*.state")).write_bytes(b"not a state")
    assert asked() == (text, 2)


def test_settings_of_a_run_reach_the_model(writing: LocalAdapter) -> None:
    with pytest.raises(PromptEvaluationError, match="cut off at its length limit") as caught:
        writing.evaluate(story(), session=Session(), settings=Settings(max_output_tokens=3))
    assert len(str(caught.value.payload).split()) <= 3


def test_a_setting_that_the_model_has_not_is_refused_by_name(local: LocalAdapter) -> None:
    with pytest.raises(PromptEvaluationError, match=r"does not accept effort='high'; it accepts temperature and max"):
        local.evaluate(story(), session=Session(), settings=Settings(effort="high"))


def test_a_picture_is_refused_by_name(local: LocalAdapter) -> None:
    chat = Conversation(story(), adapter=local)
    with pytest.raises(PromptEvaluationError, match=r"The local adapter .* accepts text only, got \[image"):
        chat.send([Image.from_bytes(b"\x89PNG\r\n\x1a\n", media_type="image/png"), "What is this?"])
