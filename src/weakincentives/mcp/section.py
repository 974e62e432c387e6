"""`MCPSection`: the tools of an MCP server as a section that starts the server when it is opened."""

from __future__ import annotations

import base64
import fnmatch
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from weakincentives._base.imports import require_extra
from weakincentives.content import Audio, Document, Image, Part
from weakincentives.errors import PromptValidationError
from weakincentives.mcp.connection import (
    Connection,
    Connections,
    HttpServer,
    OnElicit,
    OnProgress,
    Server,
    StdioServer,
    first_cause,
)
from weakincentives.mcp.listing import ListedSkill, ListedTool, Listing, lock_file, read_lock
from weakincentives.prompt import (
    Approvals,
    Compensation,
    LateContent,
    Section,
    SectionOptions,
    SectionVisibility,
    Timeouts,
    Tool,
    ToolContext,
    ToolResult,
    by_tool,
)
from weakincentives.resources import Binding, ResourceRegistry, ScopedResourceContext

if TYPE_CHECKING:
    from mcp_types import CallToolResult

logger = logging.getLogger("weakincentives.mcp")

Group = Callable[[str], str | None]
TIMEOUT = 60.0
MAX_DEFINITION = 100_000
"""The longest description and schema of a tool, in characters: a model reads them with every request."""
NOT_UNDONE = "What this call has changed on the server, if anything, is not undone."
NO_EFFECTS = "what an MCP tool does happens on the server, so its effects cannot be taken back and shown"


@dataclass(frozen=True, slots=True)
class MCPResult:
    """The structured content of a tool's result; the model reads the same as text."""

    structured: Any  #: the content

    def render(self) -> str:
        return ""


class MCPSection(Section[None]):
    """A section whose tools come from an MCP server, which is started when the section is opened.

        MCPSection(key="files", title="Files", summary="Reads and writes files.", server=StdioServer("npx", [...]))

    `server` may be a function that returns one; it is called when the server is started. `group` maps a tool's name to
    the key of a child section, or None. `include` and `exclude` are names of tools, or patterns such as `list_*`: only
    tools that the first names, if given, and the second does not, are offered. `compensate` maps tool names to
    functions that undo a failed call. `timeout` is that of each tool, in seconds, or a mapping by name; tools that it
    does not name have a minute. `approval` has a person decide before a "call", or is a function of the arguments that
    returns "call" or None, or a mapping by name. `lock` is a file with the server's listing, so that the tools are
    known before the server is started. `trusted=True` accepts the server's claims about which tools are read-only.
    The server's skills are child sections, unless `skills=False`.
    """

    literal = True

    def __init__(
        self,
        *,
        key: str,
        title: str,
        server: Server | Callable[[], Server],
        group: Group | None = None,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        timeout: Timeouts = TIMEOUT,
        approval: Approvals = None,
        on_elicit: OnElicit | None = None,
        on_progress: OnProgress | None = None,
        compensate: Mapping[str, Compensation[dict[str, Any]]] | None = None,
        trusted: bool = False,
        lock: str | os.PathLike[str] | None = None,
        skills: bool = True,
        **options: Unpack[SectionOptions[None]],
    ) -> None:
        require_extra("mcp", "mcp", "MCPSection")
        if not isinstance(server, StdioServer | HttpServer) and not callable(server):
            raise PromptValidationError(
                f"MCPSection '{key}': server must be a StdioServer or an HttpServer, got {server!r}."
            )
        self.server = server
        self._group = group
        self._include = None if include is None else _patterns(key, "include", include)
        self._exclude = _patterns(key, "exclude", exclude)
        self._timeout = timeout
        self._approval = approval
        self._on_elicit = on_elicit
        self._on_progress = on_progress
        self._compensate = dict(compensate or {})
        self._trusted = trusted
        self._skills = skills
        self._lock = lock
        stored = None if lock is None else read_lock(lock).get(key)
        self._check_options(key, stored)
        self._stored = None if stored is None else self._filtered(stored)
        options.setdefault("summary", self._default_summary(title))
        options.setdefault("visibility", SectionVisibility.SUMMARY)
        super().__init__(key=key, title=title, **options)

    def render_body(self, params: None) -> str:
        return ""

    def resources(self) -> ResourceRegistry:
        return ResourceRegistry.of(Binding(Connections, lambda _: Connections()))

    def stored(self) -> LateContent | None:
        return None if self._stored is None else self._content(self._stored)

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        """Start the server and list its tools; None if they are as in the lock file.

        As long as they stay the same, so does the content: others who use these resources may have it already.
        """
        connection = self._connection(resources)
        connection.begin_load()
        is_first = connection.listed is None and self._stored is None
        complete = connection.listing()
        if is_first:
            self._check_options(self.key, complete)
        listing, names = self._filtered(complete), [tool.name for tool in complete.tools]
        for pattern in (*(self._include or ()), *self._exclude):
            if not fnmatch.filter(names, pattern):
                known = ", ".join(map(_printable, names)) or "none"
                logger.warning("No tool of MCP server '%s' matches %r; it has: %s.", self.key, pattern, known)
        if connection.loaded is None and self._stored is not None and listing.same_as(self._stored):
            return None
        if connection.loaded is not None and listing.same_as(connection.loaded[0]):
            return connection.loaded[1]
        changed = {} if self._stored is None else listing.changed_from(self._stored)
        if changed:
            words = "; ".join(f"{_printable(name)} was {how}" for name, how in changed.items())
            logger.warning(
                "The tools of MCP server '%s' are not as %s has them: %s. Run `wink mcp lock` to accept that.",
                self.key,
                self._lock,
                words,
            )
        content = self._content(listing, tuple(changed))
        connection.loaded = listing, content
        return content

    def refresh(self, resources: ScopedResourceContext) -> bool:
        return self._connection(resources).begin_run()

    def outdated(self, resources: ScopedResourceContext) -> bool:
        return self._connection(resources).outdated

    def listing(self) -> Listing:
        """Start the server, ask what it offers, and stop it."""
        connection = Connection(self.key, self.server, self._on_elicit)
        try:
            return connection.listing()
        finally:
            connection.close()

    async def call(self, name: str, arguments: Mapping[str, Any], *, context: ToolContext) -> ToolResult[MCPResult]:
        """Call one of the server's tools, as `compensate` functions do; `context` is that of the running tool."""
        seconds = self._timeout_of(name)
        if context.deadline is not None:
            left = max(0.0, context.deadline.remaining().total_seconds())
            seconds = left if seconds is None else min(seconds, left)
        return await self._call(name, arguments, context=context, seconds=seconds)

    async def _call(
        self, name: str, arguments: Mapping[str, Any], *, context: ToolContext, seconds: float | None = None
    ) -> ToolResult[MCPResult]:
        connection = self._connection(context.resources)
        try:
            result = _result(await connection.call(name, arguments, seconds, self._on_progress))
        except Exception as error:
            return ToolResult(str(first_cause(error)), success=False)
        if result.success or name in self._compensate:
            return result
        return replace(result, message=f"{result.message}\n\n{NOT_UNDONE}".strip())

    def _check_options(self, key: str, listing: Listing | None) -> None:
        """Reject a bad timeout or approval, and one for a tool that is not listed, once that is known."""
        whose = f"MCPSection '{key}'"
        options: dict[Literal["timeout", "approval"], Any] = {"timeout": self._timeout, "approval": self._approval}
        for option, given in options.items():
            named = given if isinstance(given, Mapping) else ()
            by_tool(whose, option, given, named if listing is None else [tool.name for tool in listing.tools])
        if "effects" in (self._approval.values() if isinstance(self._approval, Mapping) else [self._approval]):
            raise PromptValidationError(f"{whose}: {NO_EFFECTS}; use approval='call'.")

    def _timeout_of(self, name: str) -> float | None:
        return self._timeout.get(name, TIMEOUT) if isinstance(self._timeout, Mapping) else self._timeout

    def _approval_of(self, name: str) -> Any:
        rule = self._approval.get(name) if isinstance(self._approval, Mapping) else self._approval
        return _without_effects(rule) if callable(rule) else rule

    def _filtered(self, listing: Listing) -> Listing:
        """The listing with those tools alone that are included and not excluded."""

        def matches(name: str, patterns: Iterable[str]) -> bool:
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

        return replace(
            listing,
            tools=tuple(
                tool
                for tool in listing.tools
                if (self._include is None or matches(tool.name, self._include))
                and not matches(tool.name, self._exclude)
            ),
        )

    def _connection(self, resources: ScopedResourceContext) -> Connection:
        return resources.get(Connections).get(self, lambda: Connection(self.key, self.server, self._on_elicit))

    def _content(self, listing: Listing, changed: tuple[str, ...] = ()) -> LateContent:
        tools: list[Tool[Any, Any]] = []
        groups: dict[str, list[Tool[Any, Any]]] = {}
        for listed in listing.tools:
            try:
                made = self._tool(listed)
            except PromptValidationError as error:
                logger.warning("Tool %r of MCP server '%s' is left out: %s", listed.name, self.key, _printable(error))
                continue
            group = None if self._group is None else self._group(listed.name)
            (tools if group is None else groups.setdefault(section_key(group), [])).append(made)
        children = [ToolGroup(key, made) for key, made in groups.items()]
        skills = self._skill_sections(listing, set(groups)) if self._skills else []
        return LateContent(tuple(tools), (*children, *skills), listing.instructions.strip(), changed)

    def _skill_sections(self, listing: Listing, taken: set[str]) -> list[MCPSkill]:
        """The server's skills; of several with one name, or with the name of a group, the path makes the key."""
        made = []
        for skill in listing.skills:
            path = skill.uri.partition("://")[2].removesuffix("/SKILL.md")
            key = _free_key(taken, section_key(skill.name), section_key(path.replace("/", "-")))
            made.append(MCPSkill(key, skill, partial(self._read, skill)))
        return made

    def _read(self, skill: ListedSkill, uri: str, resources: ScopedResourceContext) -> str:
        """A file of a skill, marked as the server's, as the specification requires."""
        return f"(From the MCP server '{self.key}'.)\n\n{self._connection(resources).read_skill(skill, uri).strip()}"

    def _tool(self, listed: ListedTool) -> Tool[Any, Any]:
        size = len(listed.description) + len(json.dumps(listed.schema))
        if size > MAX_DEFINITION:
            raise PromptValidationError(
                f"its definition has {size:,} characters, and at most {MAX_DEFINITION:,} are sent."
            )
        compensate = self._compensate.get(listed.name)
        made = Tool.from_schema(
            name=listed.name,
            description=listed.description,
            schema=listed.schema,
            handler=partial(self._call, listed.name),
            result_type=MCPResult,
            read_only=self._trusted and listed.read_only and compensate is None,
            compensate=compensate,
            timeout=self._timeout_of(listed.name),
            approval=self._approval_of(listed.name),
        )
        made.reaches_outside = made.acts_if_failed = not made.read_only
        return made

    def _default_summary(self, title: str) -> str:
        if self._stored is None or not self._stored.tools:
            return f"Tools of the MCP server '{title}'."
        return f"Tools: {', '.join(tool.name for tool in self._stored.tools)}."


class ToolGroup(Section[None]):
    """Some tools of a server, summarized by their names."""

    literal = True

    def __init__(self, key: str, tools: list[Tool[Any, Any]]) -> None:
        title = key.replace("_", " ").replace("-", " ").capitalize()
        summary = f"Tools: {', '.join(tool.name for tool in tools)}."
        super().__init__(key=key, title=title, summary=summary, visibility=SectionVisibility.SUMMARY, tools=tools)

    def render_body(self, params: None) -> str:
        return ""


ReadFile = Callable[[str, ScopedResourceContext], str]


class SkillPage(Section[None]):
    """A file of a server's skill, fetched when it is opened.

    Its text comes from outside: it is never a system message, whatever the voice of the strategy.
    """

    loads_tools = False

    def __init__(self, key: str, title: str, summary: str, uri: str, read: ReadFile) -> None:
        self._uri = uri
        self._read = read
        summary = summary.replace("$", "$$")
        super().__init__(key=key, title=title, summary=summary, visibility=SectionVisibility.SUMMARY)

    def render_body(self, params: None) -> str:
        return ""

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        return LateContent(text=self._read(self._uri, resources).strip())


class MCPSkill(SkillPage):
    """A skill of a server: `SKILL.md` is its text, the other pages are its children, and other files are named."""

    def __init__(self, key: str, skill: ListedSkill, read: ReadFile) -> None:
        self._skill = skill
        super().__init__(key, skill.name, skill.description, skill.uri, read)

    def load(self, resources: ScopedResourceContext) -> LateContent | None:
        root = self._skill.uri.removesuffix("SKILL.md")
        others = [file.uri for file in self._skill.files if file.uri != self._skill.uri]
        paths = {uri: _printable(uri.removeprefix(root)).replace("`", "'") for uri in others}
        taken: set[str] = set()
        texts = {uri: section_key(path.removesuffix(".md")) for uri, path in paths.items() if path.endswith(".md")}
        pages = {uri: _free_key(taken, key) for uri, key in texts.items()}
        children = tuple(SkillPage(key, paths[uri], paths[uri], uri, self._read) for uri, key in pages.items())
        notes = [f"`{paths[uri]}` is the subsection `{key}`." for uri, key in pages.items()]
        if other := [f"`{path}`" for uri, path in paths.items() if uri not in pages]:
            notes.append(f"Files of this skill that are not shown: {', '.join(other)}.")
        text = self._read(self._skill.uri, resources).strip()
        return LateContent(children=children, text="\n\n".join([text, *notes]))


def _free_key(taken: set[str], *keys: str) -> str:
    """The first of these keys that is not taken, or a numbered one."""
    numbered = (f"{keys[0][:58]}-{number}" for number in count(2))
    key = next(key for key in chain(keys, numbered) if key not in taken)
    taken.add(key)
    return key


def by_prefix(name: str) -> str | None:
    """Groups tools by the first word of their names: `browser_click` and `browser_type` under `browser`."""
    words = _words(name)
    return words[0] if len(words) > 1 else None


def by_resource(name: str) -> str | None:
    """Groups tools by what they work on: `list_issues` and `create_issue` under `issue`."""
    words = _words(name)
    return "-".join(words[1:]).removesuffix("s") if len(words) > 1 else None


def _without_effects(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule; that it returns "effects" is an error."""

    @wraps(rule)
    def checked(*arguments: Any, **named: Any) -> Any:
        if (found := rule(*arguments, **named)) == "effects":
            raise ValueError(f"it returned 'effects', but {NO_EFFECTS}; return 'call'")
        return found

    return checked


def mcp_sections(
    path: str | os.PathLike[str],
    *,
    start_timeout: float = 20.0,
    timeout: Timeouts = TIMEOUT,
    approval: Approvals = None,
    **options: Any,
) -> list[MCPSection]:
    """A section for each server in a config file such as `.mcp.json`, using the lock file beside it if there is one.

    `${VAR}` and `${VAR:-default}` are replaced by environment variables when the server is started. `options` are
    passed to every `MCPSection`; a server's own "summary", "include", "exclude", "timeout" and "approval" take
    precedence. A `timeout` or `approval` by tool name needs the lock file, which says which server has which tool.
    """
    file = Path(path)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PromptValidationError(f"'{file}' is not JSON: {error}") from None
    servers = config.get("mcpServers", config.get("servers")) if isinstance(config, dict) else None
    if not isinstance(servers, dict):
        raise PromptValidationError(f"'{file}' must have an object \"mcpServers\" of servers by name.")
    keys: dict[str, str] = {}
    for name, entry in servers.items():
        if (twin := keys.setdefault(section_key(name), name)) != name:
            raise PromptValidationError(f"'{file}': servers '{twin}' and '{name}' have the same section key.")
        _configured(name, entry, file, start_timeout)
    found = lock_file(file)
    lock = options.pop("lock", found if found.exists() else None)
    listings = {} if lock is None else read_lock(lock)
    timeouts = _by_server("timeout", timeout, keys, listings, file)
    approvals = _by_server("approval", approval, keys, listings, file)
    return [
        MCPSection(
            **{
                "key": key,
                "title": name,
                "server": partial(_configured, name, servers[name], file, start_timeout, partial(_expanded, name)),
                "lock": lock,
                "timeout": timeouts[key],
                "approval": approvals[key],
                **options,
                **{what: servers[name][what] for what in _OPTIONS if servers[name].get(what) is not None},
            }
        )
        for key, name in keys.items()
    ]


def _by_server(
    option: Literal["timeout", "approval"],
    given: Any,
    keys: Iterable[str],
    listings: Mapping[str, Listing],
    file: Path,
) -> dict[str, Any]:
    """The option for each section, of one for all or of a mapping by tool name."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(keys, given)
    if unlisted := [key for key in keys if key not in listings]:
        raise PromptValidationError(
            f"'{file}': {option}= by tool name needs a lock file with the tools of every server, and '{unlisted[0]}' "
            f'is in none; run `wink mcp lock`, or write "{option}" into the entries of the servers.'
        )
    names = {key: {tool.name for tool in listings[key].tools} for key in keys}
    by_tool(f"'{file}'", option, given, sorted(set().union(*names.values())))
    return {key: {name: given[name] for name in given if name in names[key]} for key in keys}


def section_key(name: str) -> str:
    """A name as the key of a section."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:64] or "tools"


def _configured(
    name: str, entry: Any, file: Path, start_timeout: float, expand: Callable[[str], str] = lambda text: text
) -> Server:
    """The server for one entry, with `expand` applied to every text in it."""
    if not isinstance(entry, dict) or not ({"command", "url"} & entry.keys()):
        raise PromptValidationError(f"'{file}': server '{name}' needs a \"command\" or a \"url\".")
    if entry.get("type") == "sse":
        raise PromptValidationError(f"'{file}': server '{name}' is of type 'sse'; use its streamable HTTP address.")
    for key, (kind, called) in _FIELDS.items():
        if entry.get(key) is not None and not isinstance(entry[key], kind):
            raise PromptValidationError(f"'{file}': \"{key}\" of server '{name}' must be {called}, got {entry[key]!r}.")
    options: tuple[Literal["timeout", "approval"], ...] = ("timeout", "approval")
    for option in options:
        given = entry.get(option)
        by_tool(f"'{file}': server '{name}'", option, given, given if isinstance(given, dict) else ())
    values = [*(entry.get("args") or ()), *(entry.get("env") or {}).values(), *(entry.get("headers") or {}).values()]
    for value in values:
        if not isinstance(value, str | int | float):
            raise PromptValidationError(
                f'\'{file}\': "args", "env" and "headers" of server \'{name}\' must contain text, got {value!r}.'
            )

    for key in ("include", "exclude"):
        for pattern in entry.get(key) or ():
            if not isinstance(pattern, str):
                raise PromptValidationError(
                    f"'{file}': \"{key}\" of server '{name}' must contain names of tools, got {pattern!r}."
                )

    def text(key: str) -> str:
        value: str = entry.get(key) or ""
        if not value.strip():
            raise PromptValidationError(f"'{file}': \"{key}\" of server '{name}' must not be empty.")
        return expand(value)

    def texts(key: str) -> dict[str, str]:
        return {name: expand(str(value)) for name, value in (entry.get(key) or {}).items()}

    if "command" in entry:
        args = tuple(expand(str(word)) for word in entry.get("args") or ())
        cwd = None if entry.get("cwd") is None else os.path.expanduser(text("cwd"))
        return StdioServer(text("command"), args, texts("env"), cwd, start_timeout=start_timeout)
    return HttpServer(text("url"), texts("headers"), start_timeout=start_timeout)


_OPTIONS = ("summary", "include", "exclude", "timeout", "approval")
_FIELDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(("command", "url", "cwd", "type", "summary"), (str, "text")),
    **dict.fromkeys(("args", "include", "exclude"), (list, "a list of texts")),
    **dict.fromkeys(("env", "headers"), (dict, "an object with texts")),
    "timeout": ((int, float, dict), "a number of seconds, or an object with one for each tool"),
    "approval": ((str, dict), 'the text "call", or an object with it for some tools'),
}


def _patterns(key: str, what: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise PromptValidationError(f"MCPSection '{key}': {what}= takes a list of names, got {given!r}.")
    return tuple(given)


def _expanded(server: str, text: str) -> str:
    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"], match["default"])
        if found is None:
            raise PromptValidationError(
                f"MCP server '{server}' needs the environment variable {match['name']}, which is not set."
            )
        return found

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}", value, text)


def _printable(text: object) -> str:
    """Text from a server as a log may show it, on one line and without control characters."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(text))


def _words(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    return [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]


def _result(result: CallToolResult) -> ToolResult[MCPResult]:
    """The text for the model, the media beside it, and the structured content as the value."""
    texts: list[str] = []
    attachments: list[Part] = []
    for block in result.content:
        found = _part(block)
        if isinstance(found, str):
            texts.append(found)
        else:
            attachments.append(found)
    structured = result.structured_content
    if structured is not None and not texts:
        texts.append(json.dumps(structured, ensure_ascii=False))
    return ToolResult(
        "\n\n".join(texts),
        None if structured is None else MCPResult(structured),
        not result.is_error,
        attachments=tuple(attachments),
    )


def _part(block: Any) -> str | Part:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return _media(block.data, block.mime_type, "")
        case "resource_link":
            about = f": {block.description}" if block.description else ""
            return f"[resource {block.name} at {block.uri}{about}]"
        case "resource":
            resource = block.resource
            if hasattr(resource, "text"):
                return f"[resource {resource.uri}]\n{resource.text}"
            return _media(resource.blob, resource.mime_type or "", str(resource.uri))
    return f"[{block.type}]"


def _media(data: str, media_type: str, name: str) -> str | Part:
    """The bytes as a part, or a note if no model accepts their type."""
    try:
        decoded = base64.b64decode("".join(data.split()), validate=True)
    except ValueError:
        return f"[{name or 'data'}: {media_type or 'unknown type'}, not valid base64]"
    for kind in (Image, Audio, Document):
        if media_type in kind.types.values() and decoded:
            try:
                return kind.from_bytes(decoded, media_type, name=name)
            except ValueError:
                break
    return f"[{name or 'data'}: {media_type or 'unknown type'}, {len(decoded):,} bytes]"
