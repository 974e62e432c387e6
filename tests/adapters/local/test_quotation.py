"""What the local adapter does without a language model: it quotes, copies, counts and refuses."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.embedded import require_quotation
from weakincentives.adapters.local import LocalAdapter
from weakincentives.adapters.local.cache import stamp_file
from weakincentives.adapters.local.gguf.models import published
from weakincentives.clock import FakeClock
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    EstimatedTokens,
    MarkdownSection,
    Prompt,
    SectionVisibility,
    tool,
)
from weakincentives.runtime import Conversation, Message, ModelCalled, ToolInvoked, ledger
from weakincentives.session import Session

ROOT = Path(__file__).parents[3]
SUMMARY = SectionVisibility.SUMMARY
RULES = "Parcels leave within a day. Refunds take five days. The desk closes at six in the evening."


@dataclass(frozen=True)
class Verdict:
    good: bool


@tool(read_only=True)
def weather(city: str) -> str:
    "The weather in a city."
    return f"It rains in {city}."


@tool(read_only=True)
def search(query: str) -> str:
    "Search the documentation."
    return f"Three pages about {query}."


@tool
def note(text: str) -> str:
    "Write a note."
    return f"Noted: {text}"


def open_prompt(text: str, question: str, *tools: object) -> Prompt[None]:
    rules = MarkdownSection(key="rules", title="Rules", template=text, tools=tools)
    return Prompt(ns="t", key="open", sections=[rules, MarkdownSection(key="q", title="Q", template=question)])


def answer(local: LocalAdapter, prompt: Prompt[None]) -> str:
    return local.evaluate(prompt, session=Session()).text


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("When does the desk close?", "The desk closes at six in the evening."),
        ("Who won the Tour of Flanders?", "The text does not say that."),
    ],
)
def test_where_everything_is_open_the_answer_is_quoted_from_that(local: LocalAdapter, question: str, text: str) -> None:
    assert answer(local, open_prompt(RULES, question)).startswith(text)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What is the weather in Paris?", "It rains in Paris."),
        ("weather in new york?", "It rains in new york."),
        ('What is the weather in "Santiago de Chile" today?', "It rains in Santiago de Chile."),
        ("Search the docs for how approval works", "Three pages about approval works."),
        ("What is the weather?", "The text does not say that."),
    ],
)
def test_a_text_that_a_lookup_needs_is_copied_from_the_question(local: LocalAdapter, question: str, text: str) -> None:
    assert answer(local, open_prompt("Help users.", question, weather, search)) == text


def test_a_change_gets_no_text_that_the_message_does_not_name_as_such(local: LocalAdapter) -> None:
    session = Session()
    local.evaluate(open_prompt(RULES, "Please write a note about the refunds.", note), session=session)
    assert not session[ToolInvoked].all()


def test_structured_output_is_refused_with_what_can_write_it(local: LocalAdapter) -> None:
    task = MarkdownSection(key="t", title="Task", template="Judge: I like it.")
    with pytest.raises(PromptEvaluationError) as caught:
        local.evaluate(Prompt[Verdict](ns="t", key="verdict", sections=[task]), session=Session())
    assert str(caught.value) == (
        "Prompt 'verdict' wants structured output, and LocalAdapter without a language model only quotes; use a "
        "model that writes: a provider's, such as OpenAIAdapter('gpt-5.6'), or a language model on this machine, "
        "LocalAdapter('model.gguf') (pip install 'weakincentives[gguf]')."
    )


def test_a_prompt_without_any_text_to_quote_is_refused(local: LocalAdapter) -> None:
    prompt = Prompt(ns="t", key="story", sections=[MarkdownSection(key="t", title="T", template="Tell a story.")])
    with pytest.raises(PromptEvaluationError, match=r"no text to quote from, .* LocalAdapter\('model\.gguf'\)"):
        local.evaluate(prompt, session=Session())


def test_to_compose_takes_a_language_model() -> None:
    with pytest.raises(ValueError, match=r"replies='compose' needs a language model; .*OpenAIAdapter"):
        LocalAdapter(replies="compose")


def test_tokens_are_those_of_the_requests_and_do_not_depend_on_installed_packages(local: LocalAdapter) -> None:
    rules = MarkdownSection(key="rules", title="Rules", template=RULES, summary="The rules.", visibility=SUMMARY)
    prompt = Prompt(ns="t", key="closed", sections=[rules])
    session = Session()
    Conversation(prompt, adapter=local, session=session).send("When does the desk close?")
    first = session[ModelCalled].all()[0]
    request = session[Message].all()[: first.messages]
    tools = local.next_request(prompt).tools
    assert first.usage.input_tokens == local.estimate_request(request, tools)
    assert local.count_tools(tools) > 0
    assert ledger(session) == ledger(session, tokenizer=EstimatedTokens())


def test_a_deadline_ends_the_reading_of_a_handbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_quotation()
    monkeypatch.setenv("WINK_CACHE", str(tmp_path))
    pages = []
    for number in range(40):
        text = " ".join(f"Rule {number}.{line} costs {line * number} euros." for line in range(40))
        pages.append(
            MarkdownSection(
                key=f"p{number}", title=f"Page {number}", template=text, summary="Rules", visibility=SUMMARY
            )
        )
    prompt = Prompt(ns="t", key="long", sections=pages)
    clock = FakeClock()
    deadline = Deadline.after(60, clock=clock)
    with (
        LocalAdapter(progress=lambda tokens, total: clock.advance(61)) as adapter,
        pytest.raises(DeadlineExceededError, match="while the local model was working"),
    ):
        Conversation(prompt, adapter=adapter).send("Which rule is it?", deadline=deadline)


def test_what_was_read_so_far_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_quotation()
    monkeypatch.setenv("WINK_CACHE", str(tmp_path))
    steps: list[tuple[int, int]] = []
    with LocalAdapter(progress=lambda tokens, total: steps.append((tokens, total))) as adapter:
        answer(adapter, open_prompt(RULES, "When does the desk close?"))
    assert steps and all(0 < tokens <= total for tokens, total in steps)
    assert steps[-1][0] == steps[-1][1]


WORDS = """
from tests.extras import hide_extras

hide_extras()
from weakincentives import LocalAdapter, MarkdownSection, Prompt, SectionVisibility, run

def page(key, text, summary):
    return MarkdownSection(
        key=key, title=key, template=text, summary=summary, visibility=SectionVisibility.SUMMARY
    )

pages = [
    page("hours", "The desk closes at six.", "When the desk opens and closes."),
    page("refunds", "Money is paid back in five days.", "How refunds are paid."),
    MarkdownSection(key="q", title="Q", template="When does the desk close?", role="user"),
]
print(run(Prompt(ns="t", key="t", sections=pages), LocalAdapter(ranker="words")).text)
"""


@pytest.mark.slow
def test_ranking_by_shared_words_needs_no_package_and_no_model() -> None:
    command = [sys.executable, "-c", WORDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout[:24], done.stderr) == ("The desk closes at six. ", "")


@pytest.fixture
def without_llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp is installed and cannot be loaded."""
    problem = "libgomp.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "xllamacpp.py").write_text(f"raise OSError({problem!r})", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.setenv("WINK_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("without_llama")
def test_a_named_model_that_cannot_be_loaded_is_an_error_that_names_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ImportError, match=r"A GGUF model needs the system library 'libgomp', .*libgomp1"):
        LocalAdapter(tmp_path / "model.gguf")
    monkeypatch.setenv("WINK_LOCAL_MODEL", str(tmp_path / "model.gguf"))
    with pytest.raises(ImportError, match="apt-get install libgomp1"):
        LocalAdapter()


@pytest.mark.usefixtures("without_llama")
def test_a_fetched_model_that_cannot_be_loaded_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    require_quotation()
    model = published()
    model.file.parent.mkdir(parents=True)
    model.file.write_bytes(b"GGUF")
    status = model.file.stat()
    stamp_file(model.sha256).write_text(f"{model.sha256} {status.st_size} {status.st_mtime_ns}", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        adapter = LocalAdapter()
    assert adapter.model == "quotation"
    assert "answers with quotations, without the fetched model 'qwen2.5-coder-1.5b" in caplog.text
    assert "apt-get install libgomp1" in caplog.text
