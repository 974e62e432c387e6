"""Sections of a config file, and the lock file that knows their tools before a server is started."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.disclosure.desk import answers, tool_names
from tests.mcp.servers import PRELOAD
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.cli import main
from weakincentives.errors import PromptValidationError
from weakincentives.mcp import HttpServer, MCPSection, StdioServer, lock_file, mcp_sections, read_lock
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SearchSections
from weakincentives.prompt.overrides import JsonPromptOverridesStore
from weakincentives.runtime import SectionLoaded
from weakincentives.session import Session

pytestmark = pytest.mark.slow
SHOP = str(Path(__file__).parent / "shop.py")
PROGRAM, *ARGUMENTS = warm.command(SHOP, preload=PRELOAD)
PLAIN: dict[str, Any] = {"command": "python", "args": [SHOP]}
ENTRY: dict[str, Any] = {"command": PROGRAM, "args": ARGUMENTS, "env": {"SHOP_TOOLS": "${SHOP_TOOLS:-}"}}
READ = call("read_section", section_key="shop")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, shop=ENTRY)


@pytest.fixture(scope="module")
def listings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `wink mcp lock` writes of the shop."""
    path = write(tmp_path_factory.mktemp("locked"), shop=ENTRY)
    assert main(["mcp", "lock", str(path)]) == 0
    return lock_file(path).read_text()


@pytest.fixture
def locked(config: Path, listings: str) -> Path:
    lock_file(config).write_text(listings)
    return config


def write(folder: Path, **servers: Any) -> Path:
    path = folder / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def template(path: Path, **options: Any) -> PromptTemplate[None]:
    task = MarkdownSection(title="Task", key="task", template="Help.")
    return PromptTemplate(ns="tests", key="shop", sections=[task, *mcp_sections(path, start_timeout=120, **options)])


def evaluate(made: PromptTemplate[None], *script: Any) -> tuple[ScriptedAdapter, Session]:
    session = Session()
    with ScriptedAdapter([*script, "Done."]) as adapter:
        adapter.evaluate(Prompt(made), session=session)
    return adapter, session


def test_every_server_of_a_config_is_a_summarized_section(tmp_path: Path) -> None:
    path = write(tmp_path, shop=ENTRY, **{"My API": {"url": "https://example.com/${TENANT}/mcp"}})
    made = mcp_sections(path)
    assert [(section.key, section.title, section.summary) for section in made] == [
        ("shop", "shop", "Tools of the MCP server 'shop'."),
        ("my-api", "My API", "Tools of the MCP server 'My API'."),
    ]


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"include": ["get_stock", "list_*"]}, ["get_stock", "list_items"]),
    ({"exclude": ["*_item", "crash", "[!glsw]*"]}, ["get_stock", "list_items", "show_picture", "wait"]),
    ({"include": ["*_item"], "exclude": ["remove_*"]}, ["add_item"]),
    ({"include": []}, []),
]


@pytest.mark.parametrize("is_locked", [True, False])
@pytest.mark.parametrize(("filters", "kept"), FILTERS)
def test_a_config_says_which_tools_of_a_server_are_offered(
    tmp_path: Path, listings: str, filters: dict[str, Any], kept: list[str], is_locked: bool
) -> None:
    path = write(tmp_path, shop={**ENTRY, "summary": "The stock, for $5.", **filters})
    if is_locked:
        lock_file(path).write_text(listings)
    adapter, session = evaluate(template(path, summary="Any server."), READ)
    assert "The stock, for $5." in adapter.requests[0].messages[0].text
    assert tool_names(adapter.requests[1].tools)[1:] == kept
    assert [event.changed_tools for event in session[SectionLoaded].all()] == [()]


def test_a_change_of_tools_that_are_not_offered_is_no_change(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOOLS", "haggle")
    _, session = evaluate(template(locked, include=["get_*"]), READ)
    assert [event.changed_tools for event in session[SectionLoaded].all()] == [()]


def test_a_filter_that_matches_no_tool_is_named(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluate(template(config, include=["get_*"], exclude=["delete_*"]), READ)
    assert "No tool of MCP server 'shop' matches 'delete_*'; it has: get_stock, list_items" in caplog.text
    assert "'get_*'" not in caplog.text


def test_a_filter_is_a_list(config: Path) -> None:
    with pytest.raises(PromptValidationError, match=r"'shop': include= takes a list of names, got 'get_\*'"):
        mcp_sections(config, include="get_*")


def test_a_variable_that_is_not_set_fails_by_name_when_the_server_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, shop={**ENTRY, "env": {"KEY": "${SHOP_KEY_THAT_IS_NOT_SET}"}})
    _, session = evaluate(template(path), READ)
    assert answers(session) == [(False, "Section 'shop' cannot be opened now; go on without it.")]
    assert "needs the environment variable SHOP_KEY_THAT_IS_NOT_SET, which is not set." in caplog.text


def test_variables_are_read_when_the_server_is_started(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = template(config)
    monkeypatch.setenv("SHOP_TOOLS", "haggle")
    adapter, _ = evaluate(made, READ)
    assert tool_names(adapter.requests[-1].tools)[-1] == "haggle"


def test_a_locked_server_is_found_by_its_tools_before_it_is_started(locked: Path) -> None:
    made = template(locked)
    found = PromptTemplate(ns="tests", key="found", sections=made.sections, disclosure=SearchSections(menu="none"))
    adapter, session = evaluate(found, call("search_sections", query="what is in stock"), READ)
    (listed, _), tools = answers(session), tool_names(adapter.requests[-1].tools)
    assert '- "shop": shop' in listed[1]
    assert "get_stock" in tools


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", 'must have an object "mcpServers" of servers by name'),
        ('{"mcpServers": {"a": {"args": []}}}', 'server \'a\' needs a "command" or a "url"'),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://a"}}}', "use its streamable HTTP address"),
        ('{"mcpServers": {"a": {"url": "http://a"}, "A": {"url": "http://b"}}}', "have the same section key"),
    ],
)
def test_a_config_that_cannot_be_read_says_why(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / ".mcp.json").write_text(content)
    with pytest.raises(PromptValidationError, match=problem):
        mcp_sections(tmp_path / ".mcp.json")


SHOP_AND_COPY = {"shop": ENTRY, "copy": ENTRY}


def timeouts(path: Path, **options: Any) -> dict[str, float | None]:
    """The timeout of each tool that the model is offered."""
    adapter, _ = evaluate(template(path, **options), READ)
    return {tool.own_name: tool.timeout for tool in adapter.requests[1].tools if tool.name != "read_section"}


@pytest.mark.parametrize("is_locked", [True, False])
@pytest.mark.parametrize(
    ("entry", "options", "wait", "others"),
    [
        ({}, {}, 60.0, 60.0),
        ({}, {"timeout": 5}, 5, 5),
        ({}, {"timeout": None}, None, None),
        ({"timeout": 7}, {"timeout": 5}, 7, 7),
        ({"timeout": {"wait": 7}}, {"timeout": 5}, 7, 60.0),
    ],
)
def test_a_config_says_how_long_calls_may_take(
    tmp_path: Path, listings: str, entry: Any, options: Any, wait: Any, others: Any, is_locked: bool
) -> None:
    path = write(tmp_path, shop={**ENTRY, **entry})
    if is_locked:
        lock_file(path).write_text(listings)
    found = timeouts(path, **options)
    assert (found.pop("wait"), set(found.values())) == (wait, {others})


def test_timeouts_by_tool_name_go_to_the_servers_that_have_the_tools(tmp_path: Path, listings: str) -> None:
    stock = json.loads(listings)["shop"]
    bare = {**stock, "tools": stock["tools"][:1]}
    path = write(tmp_path, **SHOP_AND_COPY)
    lock_file(path).write_text(json.dumps({"shop": stock, "copy": bare}))
    found = timeouts(path, timeout={"wait": 5, "get_stock": 2})
    assert (found["wait"], found["get_stock"], found["crash"]) == (5, 2, 60.0)
    with pytest.raises(PromptValidationError, match=r"timeout= names 'weit', which is none of its tools: add_item, ch"):
        mcp_sections(path, timeout={"weit": 5})
    lock_file(path).write_text(json.dumps({"shop": stock}))
    with pytest.raises(PromptValidationError, match=r"needs a lock file .* 'copy' is in none; run `wink mcp lock`"):
        mcp_sections(path, timeout={"wait": 5})


def test_a_timeout_for_a_tool_that_a_server_does_not_have_is_an_error_as_soon_as_that_is_known(
    config: Path, listings: str, caplog: pytest.LogCaptureFixture
) -> None:
    problem = r"MCPSection 'shop': timeout= names 'weit', which is none of its tools: get_stock, list_items"
    write(config.parent, shop={**ENTRY, "timeout": {"weit": 5}})
    with ScriptedAdapter([READ, "Done."]) as adapter:
        adapter.evaluate(Prompt(template(config)), session=(session := Session()))
    assert answers(session)[0][1] == "Section 'shop' cannot be opened now; go on without it."
    assert re.search(problem, caplog.text)
    lock_file(config).write_text(listings)
    with pytest.raises(PromptValidationError, match=problem):
        mcp_sections(config)


TEXTS: list[Any] = [None, 3, True, [], ["a"], {}, {"a": 1}, "", " "]
ODD_ENTRIES: list[Any] = [
    *(None, 3, True, "text", [], ["command"], {}, {"command": None, "url": None}),
    *({"command": value} for value in TEXTS),
    *({"url": value} for value in TEXTS),
    *({**PLAIN, "args": value} for value in (3, True, "text", {"a": 1}, [None], [["a"]], [{"a": 1}])),
    *({**PLAIN, "env": value} for value in (3, True, "text", ["a"], {"A": None}, {"A": ["a"]}, {"A": {}})),
    *({**PLAIN, "cwd": value} for value in (3, True, ["a"], {}, "", " ")),
    *({**PLAIN, "summary": value} for value in (3, True, ["a"], {})),
    *({**PLAIN, what: value} for what in ("include", "exclude") for value in (3, True, "get_*", {"a": 1}, [3], [None])),
    *({**PLAIN, "timeout": value} for value in ("5", True, [5], 0, -1, {"wait": "5"}, {"wait": 0}, {"wait": [5]})),
    *({**PLAIN, "type": value} for value in (3, True, ["sse"], {}, "sse")),
    *({"url": "http://a", "headers": value} for value in (3, True, "text", ["a"], {"A": None}, {"A": ["a"]})),
]
ODD_FILES = [
    *(json.dumps(value) for value in (None, 3, True, "text", [], {}, {"mcpServers": None}, {"mcpServers": [PLAIN]})),
    *(json.dumps({"mcpServers": {"a": entry}}) for entry in ODD_ENTRIES),
    *("", "{", '{"mcpServers": {', "[" * 100_000, '{"a":' * 100_000, "\ufeff{}", "NaN"),
]


@pytest.mark.parametrize("content", ODD_FILES, ids=lambda content: content[:60])
def test_no_config_is_so_odd_that_it_is_not_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text(content)
    with pytest.raises(PromptValidationError, match=re.escape(f"'{path}'")):
        mcp_sections(path)


def test_text_that_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_bytes(b'{"mcpServers": {"a": {"command": "\xff"}}}')
    with pytest.raises(PromptValidationError, match=r"\.mcp\.json' is not JSON"):
        mcp_sections(tmp_path / ".mcp.json")


def test_every_text_of_an_entry_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", "chairs")
    monkeypatch.setenv("HOME", str(tmp_path))
    entry = {"command": "run-${SHOP}", "args": ["${SHOP}", 3], "env": {"A": "${SHOP}", "B": 1}, "cwd": "~/${SHOP}"}
    local, remote = mcp_sections(
        write(tmp_path, local=entry, remote={"url": "http://${SHOP}/", "headers": {"X": "${SHOP}"}, "args": None})
    )
    expected = StdioServer("run-chairs", ["chairs", "3"], {"A": "chairs", "B": "1"}, str(tmp_path / "chairs"))
    assert (local.server(), remote.server()) == (expected, HttpServer("http://chairs/", {"X": "chairs"}))  # type: ignore[operator]


def test_a_lock_prices_a_server_without_starting_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "lock", str(config)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["shop", "9", "tools", "new"]
    write(config.parent, shop={"command": "no-such-command"})
    made = template(config)
    explained = ScriptedAdapter([]).explain(Prompt(made))
    state = explained.sections[1].state
    assert (len(state.tools), state.tool_tokens > 300) == (9, True)
    assert explained.sections[1].opening.startswith("injects get_stock, list_items,")
    assert made.sections[1].summary == (
        "Tools: get_stock, list_items, add_item, remove_item, show_picture, choose_colour, wait, crash, read_variable."
    )


def test_with_a_lock_nothing_is_offered_before_the_section_is_opened(locked: Path) -> None:
    adapter, session = evaluate(template(locked), READ, call("get_stock", item="chair"))
    assert tool_names(adapter.requests[0].tools) == ["read_section"]
    assert (len(adapter.requests[1].tools), answers(session)[1]) == (10, (True, "chair: 3"))
    assert [event.changed_tools for event in session[SectionLoaded]] == [()]


def test_tools_that_have_changed_since_are_noticed(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOP_TOOLS", "haggle wait")
    main(["mcp", "lock", str(config)])
    monkeypatch.setenv("SHOP_TOOLS", "bargain get_stock")
    caplog.set_level(logging.WARNING)
    adapter, session = evaluate(template(config), READ)
    (loaded,) = session[SectionLoaded].all()
    assert loaded.changed_tools == ("get_stock", "haggle", "bargain")
    assert "get_stock was changed; haggle was removed; bargain was added. Run `wink mcp lock`" in caplog.text
    names = tool_names(adapter.requests[-1].tools)
    assert ("bargain" in names, "haggle" in names) == (True, False)


def test_a_check_of_the_lock_fails_when_a_listing_has_changed(
    locked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", "lock", "--check", str(locked)]) == 0
    monkeypatch.setenv("SHOP_TOOLS", "haggle")
    assert main(["mcp", "lock", "--check", str(locked)]) == 1
    assert "haggle added" in capsys.readouterr().out


def test_a_server_that_cannot_be_listed_keeps_its_entry(locked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = lock_file(locked).read_text()
    write(locked.parent, shop={"command": "no-such-command"})
    assert main(["mcp", "lock", str(locked)]) == 1
    printed = capsys.readouterr()
    assert "failed" in printed.out and "No such file or directory: 'no-such-command'" in printed.err
    assert lock_file(locked).read_text() == before


def test_descriptions_of_locked_tools_can_be_overridden(locked: Path, tmp_path: Path) -> None:
    made, store = template(locked), JsonPromptOverridesStore(tmp_path / "overrides")
    words = made.descriptor.override_tool("get_stock", description="Counts what is left.")
    store.upsert(made.descriptor.new_override("latest").with_tool("get_stock", words))
    with ScriptedAdapter([READ, "Done."]) as adapter:
        adapter.evaluate(Prompt(made, overrides_store=store), session=Session())
    found = next(tool for tool in adapter.requests[-1].tools if tool.name == "get_stock")
    assert found.description == "Counts what is left."


def test_grouped_tools_of_a_lock_are_known_too(locked: Path) -> None:
    made = template(locked, group=lambda name: "items" if "item" in name else None)
    assert [node.key for node in made.outline.nodes] == ["task", "shop", "shop.items"]
    items = call("read_section", section_key="shop.items")
    _, session = evaluate(made, items, call("list_items"))
    assert answers(session)[-1] == (True, '{"items": ["chair"]}')


def test_a_group_of_a_server_that_cannot_be_started_is_told_to_the_model(
    locked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(locked.parent, shop={"command": "no-such-command"})
    made = template(locked, group=lambda name: "items" if "item" in name else None)
    _, session = evaluate(made, call("read_section", section_key="shop.items"))
    assert answers(session) == [(False, "Section 'shop.items' cannot be opened now; go on without it.")]
    assert "MCP server 'shop' (no-such-command) cannot be started: [Errno 2] No such file" in caplog.text


def test_a_section_in_code_may_have_a_lock(locked: Path) -> None:
    made = MCPSection(key="shop", title="Shop", server=mcp_sections(locked)[0].server, lock=lock_file(locked))
    assert made.stored() is not None


def test_a_lock_file_that_cannot_be_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    lock = tmp_path / ".mcp.lock.json"
    lock.write_text('{"shop": 3}')
    with pytest.raises(PromptValidationError, match="delete it, and write it again with `wink mcp lock`"):
        read_lock(lock)
    assert lock.read_text() == '{"shop": 3}'
