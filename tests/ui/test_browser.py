"""The clients as they are published, in a browser: what a page shows, and what it shows after it was reloaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.browser import browser as browser
from tests.disclosure.desk import desk
from tests.npm_support import FOLDER, NpmModules
from tests.ui.server import application, serving
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult, tool
from weakincentives.runtime import Conversation
from weakincentives.ui import Threads

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.slow

# One pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
Visit = Callable[..., "Page"]
Site = Callable[[Threads], AbstractContextManager[str]]
Example = Callable[[ScriptedAdapter], AbstractContextManager[str]]


@pytest.fixture(scope="module")
def visitors(npm_modules: NpmModules, browser: Browser) -> Iterator[tuple[str, BrowserContext]]:
    """A server for the packages, and visitors who keep what they have loaded."""

    def module(request: Any) -> Response:
        path = FOLDER / "node_modules" / request.path_params["path"]
        found = next((each for each in (path, Path(f"{path}.js"), path / "index.js") if each.is_file()), None)
        kept = {"cache-control": "max-age=3600", "access-control-allow-origin": "*"}
        known = {"status_code": 404} if found is None else {"content": found.read_bytes()}
        return Response(**known, media_type="text/javascript", headers=kept)

    with serving(Starlette(routes=[Route("/modules/{path:path}", module)])) as packages:
        context = browser.new_context()
        context.set_default_timeout(10_000)
        yield packages, context
        context.close()


@pytest.fixture(params=["ai", "ag-ui"])
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def visit(client: str, visitors: tuple[str, BrowserContext]) -> Iterator[Visit]:
    """Opens the page of an application; at the end of the test none may have failed."""
    _, context = visitors
    problems: list[str] = []
    opened: list[Page] = []

    def visited(url: str, api: str = "") -> Page:
        page = context.new_page()
        opened.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{url}/pages/index.html?client={client}&thread=t1" + (f"&api={api}" if api else ""))
        page.wait_for_selector("body[data-ready]", state="attached")
        return page

    yield visited
    for page in opened:
        page.close()
    assert problems == []


@pytest.fixture
def site(visitors: tuple[str, BrowserContext]) -> Site:
    """Serves an application with the page that uses the clients."""

    def file(request: Any) -> Response:
        path = FOLDER / "pages" / request.path_params["name"]
        text = path.read_text().replace("/modules/", f"{visitors[0]}/modules/")
        return Response(text, media_type="text/html" if path.suffix == ".html" else "text/javascript")

    def served(threads: Threads) -> AbstractContextManager[str]:
        app = application(threads)
        app.routes.append(route)
        return serving(app)

    route = served.route = Route("/pages/{name}", file)  # type: ignore[attr-defined]
    return served


def say(page: Page, client: str, text: str, image: bool = False) -> None:
    content: Any = [{"type": "text", "text": text}] if client == "ai" or image else text
    if image and client == "ai":
        content.append({"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"})
    elif image:
        content.append({"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}})
    page.evaluate("content => window.page.send(content)", content)


def messages(page: Page) -> Any:
    return page.evaluate("window.page.messages()")


@dataclass(frozen=True)
class Plan:
    title: str


@tool
def look(order: int, *, context: ToolContext) -> ToolResult[None]:
    """Find an order."""
    context.emit({"step": 1})
    context.emit({"step": 2})
    return ToolResult("It is in drawer 7.")


@tool
def refund(order: int) -> ToolResult[None]:
    """Refund an order."""
    return ToolResult("The account is locked.", success=False)


def shop(*lines: Any, output: Any = None) -> Callable[..., Conversation[Any]]:
    sections = [MarkdownSection(title="A", key="a", template="Internal.", tools=[look, refund])]
    template = (PromptTemplate if output is None else PromptTemplate[output])(ns="t", key="k", sections=sections)
    return lambda *_: Conversation(Prompt(template), adapter=ScriptedAdapter([*lines]))


def reloaded(page: Page) -> Page:
    page.reload()
    page.wait_for_selector("body[data-ready]", state="attached")
    return page


def without_progress(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reloaded page has: all but the progress of tools."""
    return [
        {**message, "parts": [part for part in message["parts"] if part["type"] != "data-progress"]}
        if "parts" in message
        else message
        for message in found
    ]


def test_a_reloaded_page_shows_the_history_with_images_tool_parts_and_failures(
    client: str, visit: Visit, site: Site
) -> None:
    script = [call("look", order=7, call_id="1"), call("refund", order=7, call_id="2"), "Sorry.", "A dot."]
    with site(Threads(shop(*script))) as url:
        page = visit(url)
        say(page, client, "Refund 7.")
        say(page, client, "And this?", image=True)
        before, lines = without_progress(messages(page)), page.inner_text("#log")
        after = messages(reloaded(page))
    failures = [message.pop("error") for message in after if "error" in message]
    assert failures == ([] if client == "ai" else ["The tool call failed."])
    assert after == before
    assert page.locator("img").evaluate_all("images => images.map(image => image.naturalWidth)") == [1]
    assert "drawer" not in lines and "locked" not in lines
    assert page.inner_text("#log") == "\n\n".join(line for line in lines.split("\n\n") if "progress" not in line)


def test_a_conversation_goes_on_after_a_reload_and_an_edited_message_takes_it_back(
    client: str, visit: Visit, site: Site
) -> None:
    made = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two.", "Three.", "Four."]))
    with site(Threads(lambda thread, request: made)) as url:
        page = visit(url)
        say(page, client, "First?")
        say(page, client, "Second?")
        say(reloaded(page), client, "Third?")
        page.evaluate("window.page.edit(1, 'Fourth?')")
        assert page.evaluate("window.page.errors") == []
        shown = reloaded(page).inner_text("#log")
    said = [message.text for message in made.messages if message.role in ("user", "assistant")]
    assert said == ["First?", "One.", "Fourth?", "Four."]
    assert shown.split("\n\n") == [
        f"{role}: {text}" for role, text in zip(["user", "assistant"] * 2, said, strict=True)
    ]


@pytest.mark.parametrize("knows", ["an exchange", "nothing"])
def test_an_outdated_page_is_told_to_reload(client: str, visit: Visit, site: Site, knows: str) -> None:
    made = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two.", "Three."]))
    with site(Threads(lambda thread, request: made)) as url:
        first = visit(url)
        second = visit(url)
        say(first if knows == "an exchange" else second, client, "First?")
        say(reloaded(second), client, "Second?")
        say(first, client, "Third?")
        (problem,) = first.evaluate("window.page.errors")
        assert "The conversation has gone on elsewhere; reload the page to see it." in problem
        say(reloaded(first), client, "Third?")
        assert "assistant: Three." in first.inner_text("#log")


def test_progress_is_shown_while_the_tool_is_running(client: str, visit: Visit, site: Site) -> None:
    go = threading.Event()

    @tool
    def work(*, context: ToolContext) -> str:
        """Work."""
        context.emit("half")
        return "done" if go.wait(20) else "late"

    template = PromptTemplate(
        ns="t", key="k", sections=[MarkdownSection(title="A", key="a", template="x", tools=[work])]
    )
    make = lambda *_: Conversation(Prompt(template), adapter=ScriptedAdapter([call("work"), "Here."]))  # noqa: E731
    with site(Threads(make)) as url:
        page = visit(url)
        content: Any = [{"type": "text", "text": "Go."}] if client == "ai" else "Go."
        page.evaluate("content => { window.page.send(content) }", content)
        page.get_by_text('"data":"half"').wait_for()
        assert "Here." not in page.inner_text("#log")
        go.set()
        page.get_by_text("Here.").wait_for()


def test_a_typed_answer_is_data_and_no_text_before_and_after_a_reload(client: str, visit: Visit, site: Site) -> None:
    with site(Threads(shop('{"title": "Move"}', output=Plan))) as url:
        page = visit(url)
        say(page, client, "Plan it.")
        for each in (page, reloaded(page)):
            if client == "ai":
                assert 'data-output {"title":"Move"}' in each.inner_text("#log")
            else:
                assert each.evaluate("window.page.state()")["output"] == {"title": "Move"}
            assert "assistant:" not in each.inner_text("#log")


def test_opened_sections_are_shown_and_stay_after_a_reload(client: str, visit: Visit, site: Site) -> None:
    script = [call("read_section", section_key="orders"), "Read.", call("lookup"), "Found."]
    with site(Threads(lambda *_: Conversation(Prompt(desk()), adapter=ScriptedAdapter(script)))) as url:
        page = visit(url)
        say(page, client, "Look.")
        for each in (page, reloaded(page)):
            if client == "ai":
                assert 'data-section {"key":"orders","tools":["lookup"]}' in each.inner_text("#log")
            else:
                assert each.evaluate("window.page.state()")["openSections"] == ["orders"]
            assert "All of orders." not in each.content()
        say(page, client, "Look it up.")
        assert "assistant: Found." in page.inner_text("#log")


@pytest.mark.parametrize("client", ["ag-ui"], indirect=True)
def test_a_tool_of_the_page_is_answered_by_the_page(visit: Visit, site: Site, client: str) -> None:
    with site(Threads(shop(call("page.confirm", call_id="c"), "Good."))) as url:
        page = visit(url)
        tools = [{"name": "confirm", "description": "Ask.", "parameters": {"type": "object"}}]
        page.evaluate("tools => window.page.send('Hi.', tools)", tools)
        reloaded(page).evaluate("tools => window.page.answer('Confirmed.', tools)", tools)
        assert page.evaluate("window.page.errors") == []
        before = messages(page)
        assert [message.get("content") for message in before][-1] == "Good."
        assert {"confirm {}", "assistant: Good."} <= set(page.inner_text("#log").split("\n\n"))
        # What the page has said itself is a result, which it sees only where `show` says so.
        assert [message["role"] for message in messages(reloaded(page))] == [message["role"] for message in before]


CHANGE = [call("change_address", order=7, address="2 Hill Road"), "Anything else?", "Later."]


@pytest.fixture
def example(visitors: tuple[str, BrowserContext], site: Site) -> Example:
    """Serves the example web chat, for a visitor with its cookie, with the page that uses the clients."""

    @contextmanager
    def served(model: ScriptedAdapter) -> Iterator[str]:
        from examples.web_chat import application as web_chat

        app = web_chat(model)
        app.routes.append(site.route)  # type: ignore[attr-defined]
        with serving(app) as url:
            visitors[1].request.get(url)
            yield url

    return served


@pytest.mark.parametrize("way", ["at once", "after a reload"])
@pytest.mark.parametrize("approved", [True, False])
def test_a_visitor_of_the_example_sees_the_difference_and_decides(
    client: str, visit: Visit, example: Example, approved: bool, way: str
) -> None:
    with example(model := ScriptedAdapter(CHANGE)) as url:
        page = visit(url, api="/api/chat" if client == "ai" else "/agent")
        say(page, client, "Order 7 goes to 2 Hill Road.")
        page.get_by_text("approval-requested").wait_for()
        if way == "after a reload":
            reloaded(page)
        assert "-to: 1 Mill Lane\n+to: 2 Hill Road" in str(page.text_content("#log"))
        page.evaluate("approved => { window.page.decide(approved, 'not today') }", approved)
        page.get_by_text("Anything else?").wait_for()
        assert page.evaluate("window.page.errors") == []
        for each in (page, reloaded(page)):
            lines = each.inner_text("#log")
            assert "approval-requested" not in lines and lines.count("Anything else?") == 1
            if client == "ai":
                state = "output-available" if approved else "output-denied"
                assert f'change_address {{"order":7,"address":"2 Hill Road"}} {state}' in lines
            else:
                result = "Order 7 goes to 2 Hill Road." if approved else "The tool call was denied."
                assert f"tool: {result}" in lines
    told = model.requests[-1].messages[-1].text
    assert told == ("Order 7 goes to 2 Hill Road." if approved else "A person denied this call: not today")


@pytest.mark.parametrize("client", ["ag-ui"], indirect=True)
def test_a_visitor_of_the_example_edits_the_arguments_and_is_asked_again(
    client: str, visit: Visit, example: Example
) -> None:
    with example(model := ScriptedAdapter(CHANGE)) as url:
        page = visit(url, api="/agent")
        say(page, client, "Order 7 goes to 2 Hill Road.")
        page.evaluate("window.page.edit_arguments({order: 7, address: '3 Hill Road'})")
        assert "+to: 3 Hill Road" in page.inner_text("#log")
        page.evaluate("window.page.decide(true)")
        assert page.evaluate("window.page.errors") == []
        assert "assistant: Anything else?" in page.inner_text("#log")
    assert model.requests[-1].messages[-1].text.endswith("Order 7 goes to 3 Hill Road.")


def test_a_message_over_a_waiting_call_leaves_it_undecided(client: str, visit: Visit, example: Example) -> None:
    with example(model := ScriptedAdapter(CHANGE)) as url:
        page = visit(url, api="/api/chat" if client == "ai" else "/agent")
        say(page, client, "Order 7 goes to 2 Hill Road.")
        if client == "ai":
            say(page, client, "No, wait.")
        else:  # The agent wants each interrupt addressed.
            page.evaluate("window.page.say_instead('No, wait.')")
        page.get_by_text("Anything else?").wait_for()
        assert page.evaluate("window.page.errors") == []
        assert "denied" in reloaded(page).inner_text("#log")
        say(page, client, "Well?")
        assert page.evaluate("window.page.errors") == [] and "Later." in page.inner_text("#log")
    assert [message.text for message in model.requests[1].messages][-2].startswith("Not decided")


@pytest.mark.parametrize("client", ["ai"], indirect=True)
def test_a_tool_without_a_handler_is_answered_by_the_page(visit: Visit, site: Site, client: str) -> None:
    ask = Tool[None, str](name="ask_user", description="Ask.", handler=None)
    sections = [MarkdownSection(title="A", key="a", template="x", tools=[ask])]
    template = PromptTemplate(ns="t", key="k", sections=sections)
    model = ScriptedAdapter([call("ask_user"), "Blue it is."])
    with site(Threads(lambda *_: Conversation(Prompt(template), adapter=model))) as url:
        page = visit(url)
        say(page, client, "Go.")
        reloaded(page).evaluate("{ window.page.answer({color: 'blue'}) }")
        page.get_by_text("Blue it is.").wait_for()
        assert page.evaluate("window.page.errors") == []
    assert model.requests[-1].messages[-1].text == '{"color":"blue"}'


@pytest.mark.parametrize("client", ["ai"], indirect=True)
def test_an_answer_is_regenerated(visit: Visit, site: Site, client: str) -> None:
    with site(Threads(shop("One.", "Two."))) as url:
        page = visit(url)
        say(page, client, "Hi.")
        page.evaluate("window.page.regenerate()")
        assert page.inner_text("#log") == "user: Hi.\n\nassistant: Two."
        assert reloaded(page).inner_text("#log") == "user: Hi.\n\nassistant: Two."
