"""The examples run as they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import browser as browser
from tests.helpers.embedded import require_quotation
from tests.npm_support import NpmModules
from tests.ui.server import Talkative, asked, post, serving
from weakincentives.adapters.scripted import ScriptedAdapter, call

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VISITOR = '{"cookie": "visitor=ann"}'
SCRIPT = [call("read_section", section_key="refunds"), "How many days ago?", call("refund", order=7), "It is refunded."]


def test_the_terminal_chat_answers_each_line() -> None:
    program = (
        "from examples.chat import talk\n"
        "from weakincentives.adapters.scripted import ScriptedAdapter, call\n"
        "script = [call('read_section', section_key='refunds'), 'How old?', call('refund', order=7), 'Done.']\n"
        "talk(ScriptedAdapter(script), ['Refund order 7.', 'Two.'], [])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    *lines, tokens = done.stdout.splitlines()
    assert lines == ["[read_section]", "How old?", "> [refund]", "Done.", "> "]
    assert tokens.endswith(" tokens")


def test_the_terminal_chat_runs_on_the_embedded_model() -> None:
    require_quotation()
    environment = {"PATH": "", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "examples" / "chat.py")]
    done = subprocess.run(
        command, input="When do parcels leave?\n", env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "within a day" in done.stdout


@pytest.fixture
def address() -> Iterator[str]:
    from examples.web_chat import application

    with serving(application(ScriptedAdapter(SCRIPT))) as url:
        yield url


def test_the_web_chat_serves_both_protocols(address: str, npm_modules: NpmModules) -> None:
    chat = f"{address}/api/chat"
    first, second = npm_modules.run("vercel.mjs", "ai", chat, "t1", "Refund order 7.", "Two days.", HEADERS=VISITOR)
    assert (first["parts"][-1]["text"], second["parts"][-1]["text"]) == ("How many days ago?", "It is refunded.")


def test_the_web_chat_speaks_ag_ui(address: str, npm_modules: NpmModules) -> None:
    agent = f"{address}/agent"
    first, second = npm_modules.run("ag_ui.mjs", agent, "t1", "Refund order 7.", "Two days.", HEADERS=VISITOR)
    assert first["state"]["openSections"] == ["refunds"]
    assert second["messages"][-1]["content"] == "It is refunded."


def test_the_page_talks_in_a_browser(address: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(address)
    for text, answer in (("Refund order 7.", "How many days ago?"), ("Two.", "It is refunded.")):
        page.fill("input[name=text]", text)
        page.click("text=Send")
        page.get_by_text(answer).wait_for()
    lines = [
        "Refund order 7.",
        'read_section {"section_key":"refunds"}',
        "opened refunds refund",
        "How many days ago?",
        "Two.",
        'refund {"order":7}',
        "It is refunded.",
    ]
    assert page.locator("#log p").all_text_contents() == lines
    page.reload()
    page.get_by_text("It is refunded.").wait_for()
    assert page.locator("#log p").all_text_contents() == lines
    page.close()


def test_a_visitor_without_the_cookie_of_the_page_is_refused(address: str) -> None:
    assert post(f"{address}/api/chat", asked("Hi."))[0] == 401


def test_the_page_can_stop_an_answer(browser: Browser) -> None:
    from examples.web_chat import application

    with serving(application(Talkative(["I begin", "Shorter."]))) as url:
        page = browser.new_page()
        page.goto(url)
        page.fill("input[name=text]", "Tell me everything.")
        page.click("text=Send")
        page.get_by_text("I begin").wait_for()
        page.click("text=Stop")
        page.get_by_text("stopped").wait_for()
        page.fill("input[name=text]", "Please.")
        page.click("text=Send")
        page.get_by_text("Shorter.").wait_for()
        page.close()


CHANGE = [call("change_address", order=7, address="2 Hill Road"), "Anything else?", "It goes to the old one."]


@pytest.mark.parametrize("way", ["at once", "after a reload"])
@pytest.mark.parametrize("verdict", ["Approve", "Deny"])
def test_a_visitor_sees_the_difference_and_decides(browser: Browser, verdict: str, way: str) -> None:
    from examples.web_chat import application

    with serving(application(ScriptedAdapter(CHANGE))) as url:
        page = browser.new_page()
        page.goto(url)
        page.fill("input[name=text]", "Order 7 goes to 2 Hill Road.")
        page.click("text=Send")
        page.locator(".question").wait_for()
        if way == "after a reload":
            page.reload()
        shown = page.locator(".question pre").inner_text()
        assert "-to: 1 Mill Lane\n+to: 2 Hill Road" in shown
        page.click(f"text={verdict}")
        page.get_by_text("Anything else?").wait_for()
        lines = page.locator("#log p").all_text_contents()
        assert ("denied" in lines) is (verdict == "Deny")
        assert page.locator(".question").count() == 0
        page.reload()
        page.get_by_text("Anything else?").wait_for()
        assert page.locator("#log p").all_text_contents() == lines
        page.close()


def test_a_visitor_who_writes_instead_has_not_decided(browser: Browser) -> None:
    from examples.web_chat import application

    with serving(application(model := ScriptedAdapter(CHANGE))) as url:
        page = browser.new_page()
        page.goto(url)
        for text, shown in (("It goes to 2 Hill Road.", ".question"), ("No, wait.", "text=Anything else?")):
            page.fill("input[name=text]", text)
            page.click("text=Send")
            page.locator(shown).wait_for()
        assert page.locator(".question").count() == 0
        page.close()
    assert model.requests[-1].messages[-2].text.startswith("Not decided")


def test_a_visitor_edits_an_earlier_message_and_the_files_go_back_too(browser: Browser) -> None:
    from examples.web_chat import application

    lines = [CHANGE[0], "Changed.", "Thanks too.", CHANGE[0], "Changed again."]
    with serving(application(model := ScriptedAdapter(lines))) as url:
        page = browser.new_page()
        page.goto(url)
        page.fill("input[name=text]", "Order 7 goes to 2 Hill Road.")
        page.click("text=Send")
        page.click("text=Approve")
        page.get_by_text("Changed.").wait_for()
        page.fill("input[name=text]", "Thank you.")
        page.click("text=Send")
        page.get_by_text("Thanks too.").wait_for()
        page.reload()
        page.get_by_text("Thanks too.").wait_for()
        page.locator("#log button").first.click()
        assert page.input_value("input[name=text]") == "Order 7 goes to 2 Hill Road."
        page.fill("input[name=text]", "Order 7 goes to 2 Hill Road, please.")
        page.click("text=Send")
        page.locator(".question").wait_for()
        # It differs from the first address again.
        assert "-to: 1 Mill Lane\n+to: 2 Hill Road" in page.locator(".question pre").inner_text()
        shown = page.locator("#log .user").all_text_contents()
        page.close()
    assert shown == ["Order 7 goes to 2 Hill Road, please."]
    assert [message.text for message in model.requests[-1].messages if message.by_user] == shown
