"""`serve` runs a template as an MCP server whose sections open in any host.

The host takes the place of the model: each of its calls is one turn of the inner loop, so that session, transactions,
disclosure and recording work as they do with an adapter.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from weakincentives._base.visible import visible
from weakincentives.content import Media, Part
from weakincentives.errors import GuardRefusedError
from weakincentives.limits import Budget
from weakincentives.mcp.server import CALL_ID, TOOL_META, AnnouncingServer, Context, Listener, content_block, is_older
from weakincentives.mcp.skills import OfferedSkills
from weakincentives.prompt import (
    BoundPrompt,
    Prompt,
    PromptTemplate,
    ReadSections,
    SetVisibilityOverride,
    Tokenizer,
    Tool,
)
from weakincentives.runtime import (
    Answer,
    Approve,
    Deny,
    LiveRun,
    Message,
    ModelReply,
    PendingCall,
    PromptRendered,
    PromptResponse,
    ToolCall,
    ToolExecutionOutcome,
    ToolExecutor,
)
from weakincentives.runtime.spi import (
    AskGuards,
    CallModel,
    CallOutcome,
    Cursor,
    Effect,
    LoadSections,
    Model,
    RunSpec,
    RunState,
    RunTools,
    Settled,
    Undecided,
    UseModel,
    Waits,
    call_async,
    closing_resources_async,
    load_sections,
    pass_decisions,
    run_loop,
)
from weakincentives.session import Session
from weakincentives.telemetry import Redactor

logger = logging.getLogger("weakincentives.mcp")
# Over HTTP nothing signals that a host has left. Beyond this many, the one idle longest is dropped, if it has been idle
# for some time; otherwise the new one is refused, so that no one can drive others out.
MAX_HOSTS = 1_000
IDLE_SECONDS = 600.0
DROPPED = "This host was idle, and its session was dropped to make room: its sections are closed. Try again."
# How long a host gets to process a list it has requested.
SETTLE_SECONDS = 0.1
APPROVAL = "approval"
# If a host has more open questions, the oldest counts as undecided.
MAX_QUESTIONS = 100
MAX_QUESTION = 50_000
UNATTENDED = "{name}({arguments}) needs a person's decision, and this client cannot ask for one: it has no elicitation."
NOT_OPEN = "This question is not open, or was about another call; call the tool again."
HostKey = tuple[str, str, str]
"""The path, authorization and session id that tell hosts apart."""


class TemplateServer:
    """A template as a server: `run_stdio()` serves one host, `app` is an ASGI application for any number of them."""

    def __init__(
        self,
        prompt: Prompt[Any],
        params: tuple[Any, ...],
        session: Session | None,
        relist_seconds: float,
        skills: bool = True,
    ) -> None:
        self._skills = skills
        self._prompt = prompt.with_template(_for_hosts(prompt.template)).bind(*params)
        # Rendered here, so that missing params raise in `serve` and not in the server's task group.
        self._instructions = self._prompt.render(session=session).system_text
        self._session = session
        self._relist_seconds = relist_seconds
        self._hosts: OrderedDict[HostKey, _Host] = OrderedDict()
        self._dropped: OrderedDict[HostKey, None] = OrderedDict()

    def run_stdio(self) -> None:
        """Serve one host over standard input and output until it closes them."""
        asyncio.run(self.run_stdio_async())

    async def run_stdio_async(self) -> None:
        async with stdio_server() as (read, write):
            # Standard output is reserved for the protocol; what tools print goes to standard error.
            with redirect_stdout(sys.stderr):
                await self.server.run(read, write, self.server.create_initialization_options())

    @cached_property
    def app(self) -> Any:
        """The ASGI application; hosts at `/mcp` are distinguished by their authorization, or by a path below it."""
        return self.server.streamable_http_app(streamable_http_path="/mcp{host:path}")

    @cached_property
    def server(self) -> Server[Any]:
        """The server itself, for uses that `run_stdio` and `app` do not cover."""
        server = AnnouncingServer(
            self._prompt.name,
            instructions=self._instructions,
            lifespan=self._lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listen,
        )
        if self._skills:
            enabled = self._prompt.view(Session()).existing()
            OfferedSkills(node.section for node in enabled if len(node.path) == 1).register(server)
        return server

    @asynccontextmanager
    async def _lifespan(self, server: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            while self._hosts:
                await self._hosts.popitem()[1].close()

    async def _host(self, context: Context) -> _Host:
        """The host that a request comes from."""
        key = ("", "", "")
        if context.request is not None:
            headers = context.request.headers
            # Only where the protocol has sessions has the SDK checked the id; elsewhere it is just what someone wrote.
            session_id = headers.get("mcp-session-id", "") if is_older(context) else ""
            key = (context.request.url.path, headers.get("authorization", ""), session_id)
        host, idle = self._hosts.get(key), None
        if host is None:
            if key in self._dropped:
                del self._dropped[key]
                raise MCPError(types.INVALID_REQUEST, DROPPED)
            idle = self._idle_host() if len(self._hosts) >= MAX_HOSTS else None
            session = self._session if context.request is None and self._session is not None else Session()
            host = self._hosts[key] = _Host(copy.copy(self._prompt), session, self._relist_seconds)
        host.last_used = time.monotonic()
        self._hosts.move_to_end(key)
        if idle is not None:
            await idle.close()
        try:
            await host.start()
        except Exception as error:
            self._hosts.pop(key, None)
            await host.close()
            # The host is a program of others, which is told neither paths nor settings of this one.
            logger.warning("'%s' cannot be served.", self._prompt.name, exc_info=error)
            message = f"'{self._prompt.name}' is not available now; the server's log says why."
            raise MCPError(types.INTERNAL_ERROR, message) from error
        return host

    def _idle_host(self) -> _Host:
        """Drop the host that has been idle longest, and remember to tell it."""
        key = next((key for key, host in self._hosts.items() if host.is_idle), None)
        if key is None:
            message = f"This server has {MAX_HOSTS:,} active hosts, the most it serves; try again later."
            raise MCPError(types.INTERNAL_ERROR, message)
        self._dropped[key] = None
        while len(self._dropped) > MAX_HOSTS:
            self._dropped.popitem(last=False)
        logger.warning("An MCP host that was idle has been dropped: there are more than %d.", MAX_HOSTS)
        return self._hosts.pop(key)

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        host = await self._host(context)
        host.listener.listed(context)
        return types.ListToolsResult(tools=[_declared(tool) for tool in host.list_tools()])

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        host, older = await self._host(context), is_older(context)
        arguments = json.dumps(params.arguments or {})
        if params.request_state is None:
            call_id = str((params.meta or {}).get(CALL_ID) or secrets.token_hex(8))
            call = ToolCall(call_id, params.name, arguments)
            outcome = await host.call(call, attended=_can_ask(context))
        else:
            question = host.question(params.request_state, params.name, arguments)
            outcome = await host.decide(question, (params.input_responses or {}).get(APPROVAL))
        while isinstance(outcome, OpenQuestion):
            if not older:
                return outcome.input_required()
            outcome = await host.decide(outcome, await self._elicited(context, host, outcome))
        content: list[Any] = [types.TextContent(type="text", text=outcome.message)]
        content += (content_block(part) for part in outcome.attachments)
        return types.CallToolResult(content=content, is_error=not outcome.success)

    async def _elicited(self, context: Context, host: _Host, question: OpenQuestion) -> types.ElicitResult:
        """The answer to a question in the older protocol, in which the server sends a request of its own."""
        form = question.form()
        try:
            return await context.session.elicit_form(form.message, form.requested_schema, context.request_id)
        except Exception as error:
            logger.warning("The MCP host could not ask about '%s': %s", question.call.name, error)
            return types.ElicitResult(action="cancel")
        except BaseException:
            host.withdraw(question)
            raise

    async def _listen(self, context: Context, params: Any) -> Any:
        return await (await self._host(context)).listener.listen(context, params)


def serve(
    prompt: Prompt[Any] | PromptTemplate[Any],
    *params: Any,
    session: Session | None = None,
    relist_seconds: float = 5.0,
    skills: bool = True,
) -> TemplateServer:
    """Offer a prompt to MCP hosts: its text as instructions, its tools, and `read_section` to open more.

    Root sections with a summary and a fixed text are `skills` too, for hosts that read skills over MCP.

    `params` are bound as by `Prompt.bind`. Each host has its own copy of the prompt, with everything bound to it, and
    its own session; the single host of `run_stdio` uses the given one. The answer to a call that adds tools waits until
    the host has listed them, at most `relist_seconds`.
    """
    if isinstance(prompt, PromptTemplate):
        prompt = Prompt(prompt)
    if not isinstance(prompt, Prompt):
        raise TypeError(f"serve takes a Prompt or a PromptTemplate, got {prompt!r}")
    return TemplateServer(prompt, params, session, relist_seconds, skills)


def _for_hosts(template: PromptTemplate[Any]) -> PromptTemplate[Any]:
    """The template as hosts use it: they write their own answers, and nobody renders the prompt for them again."""
    names = [tool.name for tool in template.disclosure.tools(with_tools=True, content_only=True)]
    if not names or "open_sections" in names:
        return template.with_(output=None, disclosure=ReadSections(suffix=template.disclosure.suffix))
    return template.with_(output=None)


class _HostAdapter(Model):
    """The model behind an MCP host: it lists tools again whenever they change."""

    name = "mcp"
    supports_dynamic_tools = True
    tool_route = "mcp"

    def __init__(self, prompt: Prompt[Any]) -> None:
        self._prompt = prompt
        self._counted = lru_cache(maxsize=8192)(self.tokenizer.count)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._prompt.template.counter

    def count_tokens(self, text: str) -> int:
        return self._counted(text)

    def check_parts(self, parts: Sequence[Part], earlier: Iterable[Message] = ()) -> None:
        """Accept all media: the host knows what its model accepts."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A call that waits for a person at the host; `turn` is the one in which it was made.

    `pending` is what is asked; `held` are all calls that wait with it, as those of a run inside the call may.
    The token is another one each time: an answer that comes twice, or after the call was asked about again, is void.
    """

    token: str
    call: ToolCall
    pending: PendingCall
    held: tuple[PendingCall, ...]
    turn: int
    problem: str = ""  # Why the last answer was refused.

    def form(self) -> types.ElicitRequestFormParams:
        """The question as a form; for a tool without a handler it has a field for the answer."""
        answer = {}
        if self.pending.question.answers[0] == "answer":
            answer = {"answer": {"type": "string", "title": "Answer"}}
        schema = {"type": "object", "properties": answer, "required": list(answer)}
        text = self.pending.question.excerpt(MAX_QUESTION)
        if self.problem:
            text = f"{visible(Redactor().text(self.problem))}\n\n{text}"
        return types.ElicitRequestFormParams(message=text, requested_schema=schema)

    def input_required(self) -> types.InputRequiredResult:
        """The question as the result of the call; the client repeats the call with the answer."""
        asked = types.ElicitRequest(params=self.form())
        return types.InputRequiredResult(input_requests={APPROVAL: asked}, request_state=self.token)

    def decision(self, answer: object) -> Settled | None:
        """The decision in a client's answer; None if it has none. Dismissing the form leaves the call undecided."""
        if not isinstance(answer, types.ElicitResult):
            return None
        if answer.action == "decline":
            return Deny()
        if answer.action != "accept":
            return Undecided()
        if self.pending.needs != "answer":
            return Approve()
        text = (answer.content or {}).get("answer")
        return Answer(text) if isinstance(text, str) and text.strip() else Undecided()


class _Host:
    """One host's run of the template: an inner loop advanced by the host's calls."""

    def __init__(self, prompt: Prompt[Any], session: Session, relist_seconds: float) -> None:
        self.listener = Listener()
        self.last_used = time.monotonic()
        bound = prompt.bound()
        spec = RunSpec(
            prompt=bound,
            models=(_HostAdapter(prompt),),
            resources=prompt.resources,
            budget=Budget(max_turns=None),
            beginning="resume" if _is_under_way(session, bound) else "new",
        )
        self._live = LiveRun(spec, session)
        self._cursor: Cursor[Effect, PromptResponse[Any]] | None = None
        self._live.calls.idempotency_key = self._idempotency_key
        # They are not in the session: the run goes on with other calls.
        self._questions: OrderedDict[str, OpenQuestion] = OrderedDict()
        self._deciding: OpenQuestion | None = None
        self._offered: list[Tool[Any, Any]] = []
        self._messages: Sequence[Message] = ()
        self._delivered = 0
        self._calls: set[asyncio.Future[ToolExecutionOutcome | OpenQuestion]] = set()
        self._stack = AsyncExitStack()
        # Two locks, because a host lists the tools again before it gets the result of the call that changed them.
        self._starting = asyncio.Lock()
        self._lock = asyncio.Lock()
        self._relist_seconds = relist_seconds
        self._relisted = asyncio.Event()
        self._follows = True

    async def start(self) -> None:
        async with self._starting:
            if self._cursor is not None:
                return
            live = self._live
            self._stack.enter_context(live.session.claim(live.owner))
            await self._stack.enter_async_context(closing_resources_async(live))
            self._cursor = Cursor(run_loop(live))
            await self._advance()
            self._delivered = len(self._messages)

    async def close(self) -> None:
        """End the run; calls in progress are cancelled, and open questions are undecided."""
        for work in self._calls:
            work.cancel()
        if self._cursor is not None and self._cursor.step is not None:
            for question in list(self._questions.values()):
                await self._call(question.call, question, Undecided())
        async with self._lock:
            if self._cursor is not None and self._cursor.step is not None:
                self._cursor.answer(ModelReply())
            await self._stack.aclose()

    @property
    def is_idle(self) -> bool:
        is_busy = bool(self._calls) or self._starting.locked()
        return not is_busy and time.monotonic() - self.last_used >= IDLE_SECONDS

    def list_tools(self) -> list[Tool[Any, Any]]:
        # The list is only about to be sent, and over HTTP nothing guarantees that it arrives before the answer.
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._relisted.set)
        self._follows = True
        return self._offered

    async def call(self, call: ToolCall, *, attended: bool) -> ToolExecutionOutcome | OpenQuestion:
        """Run one call. A call that the host cancels is rolled back, and the run continues.

        One that needs approval becomes a question; unless the host is `attended`, it fails without being run.
        """
        if len(self._questions) >= MAX_QUESTIONS:
            oldest = next(iter(self._questions.values()))
            await self._await(self._work(oldest.call, oldest, Undecided()))
        outcome = await self._await(self._work(call, attended=attended))
        if isinstance(outcome, OpenQuestion) and not attended:
            # Of a run inside the call, which has an executor of its own.
            shown = _unattended(outcome.pending.tool, outcome.pending.arguments)
            done = await self._await(self._work(call, outcome, Undecided()))
            assert isinstance(done, ToolExecutionOutcome)
            return replace(done, message=f"{done.message}\n{shown}")
        return outcome

    def question(self, token: str, name: str, arguments: str) -> OpenQuestion:
        """The open question with this token; the call that the client repeats must be the one that was asked about."""
        found = self._questions.get(token)
        if found is None or (found.call.name, json.loads(found.call.arguments)) != (name, json.loads(arguments)):
            raise MCPError(types.INVALID_PARAMS, NOT_OPEN)
        return found

    async def decide(self, question: OpenQuestion, answer: object) -> ToolExecutionOutcome | OpenQuestion:
        """Act on the answer to a question; if there is none, the question stays open."""
        decision = question.decision(answer)
        if decision is None:
            return question
        try:
            decision = await self._passed(question, decision)
        except GuardRefusedError as error:
            return self._ask_again(question, str(error))
        return await self._await(self._work(question.call, question, decision))

    async def _passed(self, question: OpenQuestion, decision: Settled) -> Settled:
        """The decision with the person's words as the guards let them pass."""
        call_id, live = question.pending.call_id, self._live
        async with self._lock:
            steps = pass_decisions(live, {call_id: decision}, {call_id: question.pending})
            cursor = Cursor(steps)
            while isinstance(effect := cursor.step, AskGuards):
                try:
                    verdict = await call_async(effect.steps())
                except Exception as error:
                    cursor.fail(error)
                else:
                    cursor.answer(verdict)
            return cursor.result()[call_id]

    def _ask_again(self, question: OpenQuestion, problem: str) -> OpenQuestion:
        """The question that stays open, with why the answer to it was refused."""
        if question.token in self._questions:
            self._questions[question.token] = question = replace(question, problem=problem)
        return question

    def withdraw(self, question: OpenQuestion) -> None:
        """Leave a question undecided whose request was cancelled."""
        self._work(question.call, question, Undecided())

    def _work(self, *arguments: Any, **named: Any) -> asyncio.Future[ToolExecutionOutcome | OpenQuestion]:
        # A separate task: the host's cancel scope would also interrupt the rollback.
        work = asyncio.ensure_future(self._call(*arguments, **named))
        self._calls.add(work)
        work.add_done_callback(self._calls.discard)
        return work

    async def _await(
        self, work: asyncio.Future[ToolExecutionOutcome | OpenQuestion]
    ) -> ToolExecutionOutcome | OpenQuestion:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            self.last_used = time.monotonic()

    async def _call(
        self,
        call: ToolCall,
        question: OpenQuestion | None = None,
        decision: Settled | None = None,
        *,
        attended: bool = True,
    ) -> ToolExecutionOutcome | OpenQuestion:
        """One turn with this call, or with the decision about it."""
        async with self._lock:
            before, live = await self._advance(), self._live
            assert self._cursor is not None
            if question is not None and self._questions.pop(question.token, None) is None:
                return ToolExecutionOutcome(call.id, NOT_OPEN, False, name=call.name)
            if question is not None and decision is not None:
                waits = question.held if isinstance(decision, Undecided) else (question.pending,)
                # Before the call is made again, for it to keep its id.
                live.session[PendingCall].seed(question.held)
                live.decisions |= {each.call_id: decision for each in waits}
            self._cursor.answer(ModelReply(tool_calls=(call,)))
            assert isinstance(self._cursor.step, RunTools)
            (call,) = self._cursor.step.calls
            live.calls.unattended = "" if attended else _unattended(call.name, call.arguments)
            self._deciding = question
            outcome = await self._run(call)
            held = live.session[PendingCall].all()
            live.session[PendingCall].clear()
            live.decisions.clear()
            next_question: OpenQuestion | None = None
            if isinstance(outcome, Waits):
                turn = self._turn(question)
                token = secrets.token_urlsafe(16)
                next_question = OpenQuestion(token, call, outcome.pending, held, turn)
                self._questions[token] = next_question
                text = "A person is asked about this call."
                outcome = ToolExecutionOutcome(call.id, text, False, name=call.name)
            self._cursor.answer([outcome])
            if await self._advance() != before:
                await self._announce()
            return next_question or self._with_notices(outcome)

    def _with_notices(self, outcome: ToolExecutionOutcome) -> ToolExecutionOutcome:
        """The outcome, followed by the messages that the loop has added for the model since the last one.

        A host reads nothing but results, so that the text of a section which its call has opened comes with it.
        """
        texts, attachments = [outcome.message], [*outcome.attachments]
        for message in self._messages[self._delivered :]:
            if message.role in ("system", "user"):
                texts.append(message.text)
                attachments.extend(filter(_is_media, message.parts))
        self._delivered = len(self._messages)
        return replace(outcome, message="\n\n".join(texts), attachments=tuple(attachments))

    def _idempotency_key(self, call: ToolCall) -> str:
        """The same in the turn in which a call is asked about and in the one in which it is decided."""
        return f"{self._live.run_id}:{self._turn(self._deciding)}:{call.id}"

    def _turn(self, question: OpenQuestion | None) -> int:
        """The turn in which the call was asked about, or the one under way."""
        if question is None:
            return self._live.meter.own_turns
        return question.turn

    async def _advance(self) -> list[Tool[Any, Any]]:
        """Load sections until the loop waits for the host, and return the tools it then offers."""
        assert self._cursor is not None
        while isinstance(effect := self._cursor.step, LoadSections | AskGuards | UseModel):
            if isinstance(effect, UseModel):
                self._cursor.answer(None)
            elif isinstance(effect, AskGuards):
                self._cursor.answer(await call_async(effect.steps()))
            else:
                self._cursor.answer(await asyncio.to_thread(load_sections, self._live, effect))
        if not isinstance(effect, CallModel):
            self._cursor.result()
            raise RuntimeError("the run has ended")
        request = effect.request
        self._messages = request.messages
        self._offered = [tool for tool in request.tools if tool.name not in request.revoked]
        return self._offered

    async def _run(self, call: ToolCall) -> CallOutcome:
        try:
            (outcome,) = await ToolExecutor(self._live).execute_all_async([call])
        except asyncio.CancelledError:
            return ToolExecutionOutcome(call.id, f"Tool '{call.name}' was cancelled.", False, name=call.name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Whatever a tool raises, the other hosts go on.
            logger.exception("Tool '%s' failed.", call.name)
            return ToolExecutionOutcome(call.id, f"Tool '{call.name}' failed: {error}", False, name=call.name)
        if isinstance(outcome, Waits):
            return outcome
        if outcome.ends_turn or (outcome.disclosure is not None and outcome.disclosure.files):
            return self._open_in_place(outcome)
        return outcome

    def _open_in_place(self, outcome: ToolExecutionOutcome) -> ToolExecutionOutcome:
        """Open the sections that a call has left to another prompt or to files; a notice then has their text."""
        request = outcome.disclosure
        assert request is not None
        overrides, message = {**request.overrides}, f"Opened: {', '.join(request.keys)}."
        if request.files:
            message, view = outcome.message, self._live.view
            for path in filter(None, map(view.find, request.keys)):
                overrides.update(view.opening(path).overrides)
        for path, visibility in overrides.items():
            self._live.session.dispatch(SetVisibilityOverride(path, visibility))
        opened = replace(request, content=(), halt=False)
        return replace(outcome, message=message, disclosure=opened, restarts=False)

    async def _announce(self) -> None:
        """Tell the host that the list has changed, and wait for it to list again, unless it failed to last time."""
        relisted = self._relisted = asyncio.Event()
        await self.listener.notify()
        if self._follows and self.listener.listens:
            try:
                await asyncio.wait_for(relisted.wait(), self._relist_seconds)
            except TimeoutError:
                self._follows = False
                logger.warning("The MCP host did not list the tools again within %g seconds.", self._relist_seconds)


def _is_under_way(session: Session, prompt: BoundPrompt[Any]) -> bool:
    """True if the session holds a run of this prompt for a host, which has ended with its process."""
    state, last = session[RunState].latest(), session[Message].latest()
    if state is None or last is None or not state.is_of(prompt.ns, prompt.key):
        return False
    render = session[PromptRendered].latest()
    is_for_host = render is not None and render.adapter == _HostAdapter.name
    return is_for_host and (last.role != "assistant" or bool(last.tool_calls))


def _unattended(name: str, arguments: str) -> str:
    return visible(Redactor().text(UNATTENDED.format(name=name, arguments=arguments)))


def _is_media(part: Part) -> bool:
    return isinstance(part, Media)


def _can_ask(context: Context) -> bool:
    """True if the client can show a form; one that names no mode has forms."""
    capabilities = context.session.client_capabilities
    asks = None if capabilities is None else capabilities.elicitation
    has_forms = asks is not None and (asks.form is not None or asks.url is None)
    return has_forms and (not is_older(context) or context.session.can_send_request)


def _declared(tool: Tool[Any, Any]) -> types.Tool:
    """A tool as MCP lists it."""
    return types.Tool.model_validate(
        {
            "name": tool.name,
            "description": tool.description,
            # Hosts check calls against it, and their models need not write every argument.
            "inputSchema": tool.plain_schema,
            "annotations": {"readOnlyHint": tool.read_only},
            "_meta": TOOL_META,
        }
    )
