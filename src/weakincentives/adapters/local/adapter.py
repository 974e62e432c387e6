"""The adapter for what runs in this process: quotation, and language models in GGUF files."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from weakincentives.adapters.local.cache import existing_file
from weakincentives.adapters.local.embedding import usable_cores
from weakincentives.adapters.local.gguf.engine import (
    SHELF,
    Engine,
    EngineError,
    Settings,
    embedding_settings,
    gguf_embedder,
    load_runtime,
    usable_threads,
)
from weakincentives.adapters.local.gguf.models import model_file
from weakincentives.adapters.local.gguf.writer import SMALL, Writer
from weakincentives.adapters.local.outlook import Sections, outlook
from weakincentives.adapters.local.published import published_embedder
from weakincentives.adapters.local.relevance import Relevance, WordRelevance
from weakincentives.adapters.local.replier import LANGUAGE_MODEL, Replier
from weakincentives.adapters.local.watch import Listener, Progress, Stopped, Watch
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import AnyTool, DisclosureRequest, EstimatedTokens, SectionVisibility, Tokenizer
from weakincentives.prompt.disclosure.ranking import section_text
from weakincentives.runtime import (
    Channel,
    Exposure,
    LiveRun,
    ModelReply,
    ModelRequest,
    PromptRendered,
    ProviderAdapter,
    ToolInvoked,
)

logger = logging.getLogger("weakincentives.adapters")

QUOTATION = "quotation"
WORDS = "words"


class LocalAdapter(ProviderAdapter):
    """Answers with quotations, inside this process: no key, no network, no language model.

        LocalAdapter().evaluate(prompt, session=session)

    It opens the sections that an embedding model ranks first, copies the arguments of tools from the question, and
    quotes what answers it from a section or from a tool's result. `ranker="words"` ranks by shared words, without a
    model.

    With a language model in a GGUF file (`model`, else `WINK_LOCAL_MODEL`, else the one that `wink model get` fetched;
    extra `gguf`), `replies` sets how it answers: with quotations ("quote", the default below a billion weights) or with
    an answer that the model writes from the text ("compose", the default for larger models). Adapters with the same
    file share one loaded model; `close()` releases it. `progress` is called with the number of tokens read so far and
    their total.
    """

    name = "local"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        replies: Literal["auto", "quote", "compose"] = "auto",
        ranker: str | os.PathLike[str] | None = None,  #: "words", or a GGUF file that embeds texts
        context: int = 8192,  #: the size of a language model's context window, in tokens
        threads: int | None = None,  #: by default as many as there are usable cores
        max_tokens: int = 1024,  #: the longest reply of a language model
        progress: Progress | None = None,
        tokenizer: Tokenizer | None = None,  #: by default that of the language model, else an estimate
        **options: Any,
    ) -> None:
        self._file = _language_model(model)
        if self._file is None and replies == "compose":
            raise ValueError(f"replies='compose' needs a language model; {LANGUAGE_MODEL}.")
        super().__init__(QUOTATION if self._file is None else self._file.stem, tokenizer=tokenizer, **options)
        self._replies = replies
        self._ranker = ranker or os.environ.get("WINK_LOCAL_RANKER")
        self._context = context
        self._threads = threads
        self._max_tokens = max_tokens
        self._progress = progress
        self._taken: list[Settings] = []
        self._release = weakref.finalize(self, _give_back, self._taken)

    @property
    def identity(self) -> tuple[Any, ...]:
        ranker = "" if self._ranker is None else Path(self._ranker).name
        return (*super().identity, self._replies, ranker, self._max_tokens, self.context_window)

    @property
    def supports_dynamic_tools(self) -> bool:
        """Tools can appear at any turn."""
        return True

    @property
    def context_window(self) -> int | None:
        """The size of the language model's window; a quotation has none."""
        return None if self._file is None else self._context

    @property
    def compacts_itself(self) -> bool:
        """A model that quotes reads no more than fits, and cannot summarize."""
        return not self.composes

    @property
    def tokenizer(self) -> Tokenizer:
        """The language model's own tokenizer, so that counts are exact; without one, an estimate.

        It is always the same estimate, so that figures do not depend on the extras that are installed.
        """
        if self._tokenizer is not None:
            return self._tokenizer
        return EstimatedTokens() if self._file is None else _OwnTokens(self)

    def sent_tool(self, tool: AnyTool) -> str:
        """A tool as a provider's model would read it; a language model in this process reads no definitions."""
        return super().sent_tool(tool) if self._file is None else ""

    @cached_property
    def engine(self) -> Engine:
        """The loaded language model; loading takes about a second."""
        if self._file is None:
            raise ValueError(f"This LocalAdapter has no language model; {LANGUAGE_MODEL}.")
        return self._take(Settings(self._file, self._context, self._threads or usable_threads()))

    @cached_property
    def relevance(self) -> Relevance:
        """The ranker of sections and sentences."""
        if self._ranker == WORDS:
            return WordRelevance()
        threads = self._threads or usable_cores()
        if self._ranker is None:
            embedder = published_embedder(type(self).__name__, tuned=True, threads=threads)
        else:
            file = existing_file(self._ranker, "LocalAdapter's ranker")
            embedder = gguf_embedder(self._take(embedding_settings(file, self._threads)))
        from weakincentives.adapters.local.meaning import VectorRelevance

        return VectorRelevance(embedder)

    @cached_property
    def replier(self) -> Replier:
        writer: Writer | None = None
        if self._file is not None:
            writer = Writer(self.engine, self._max_tokens, composes=self.composes)
        return Replier(self.relevance, self._count_request, self.count_tokens, writer)

    @property
    def composes(self) -> bool:
        """True if a language model writes the answers, rather than quoting."""
        if self._file is None or self._replies == "quote":
            return False
        if self._replies == "compose":
            return True
        return self.engine.parameters >= SMALL

    def channel(self) -> Channel:
        return LocalChannel(self.replier, Sections, self._progress)

    @contextmanager
    def open_channel(self, live: LiveRun) -> Iterator[Channel]:
        yield LocalChannel(self.replier, lambda: _sections(live), self._progress)

    def close(self) -> None:
        """Release the model; it is freed when nothing else in this process uses it."""
        for name in ("engine", "relevance", "replier"):
            self.__dict__.pop(name, None)
        _give_back(self._taken)

    def _take(self, settings: Settings) -> Engine:
        engine = SHELF.take(settings)
        self._taken.append(settings)
        return engine

    def _count_request(self, request: ModelRequest) -> int:
        tools = [tool for tool in request.tools if tool.name not in request.revoked]
        return self.estimate_request(request.messages, tools)


class LocalChannel:
    """Answers requests in this process; `sections` returns the sections of the prompt, as they are at the moment."""

    def __init__(
        self,
        replier: Replier,
        sections: Callable[[], Sections],
        progress: Progress | None = None,
    ) -> None:
        self._replier = replier
        self._sections = sections
        self._progress = progress

    def call(self, request: ModelRequest) -> ModelReply:
        return self._reply(request, self._watch(request), _ignore)

    async def call_async(self, request: ModelRequest) -> ModelReply:
        watch = self._watch(request)
        try:
            return await asyncio.to_thread(self._reply, request, watch, _ignore)
        finally:
            watch.stopped.set()

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]:
        watch = self._watch(request)
        parts: queue.Queue[str | ModelReply | BaseException] = queue.Queue()
        worker = self._start(request, watch, parts.put)
        part: str | ModelReply = ""
        try:
            while not isinstance(part, ModelReply):
                part = _unless_raised(parts.get())
                yield part
        finally:
            watch.stopped.set()
            worker.join()

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        watch = self._watch(request)
        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[str | ModelReply | BaseException] = asyncio.Queue()

        def put(part: str | ModelReply | BaseException) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        worker = self._start(request, watch, put)
        part: str | ModelReply = ""
        try:
            while not isinstance(part, ModelReply):
                part = _unless_raised(await parts.get())
                yield part
        finally:
            watch.stopped.set()
            await asyncio.to_thread(worker.join)

    def _watch(self, request: ModelRequest) -> Watch:
        for name in ("effort", "show_reasoning", "parallel_tool_calls"):
            if value := getattr(request.settings, name):
                raise PromptEvaluationError(
                    f"Prompt '{request.prompt_name}': the local adapter does not accept {name}={value!r}; "
                    "it accepts temperature and max_output_tokens.",
                    prompt_name=request.prompt_name,
                    phase="request",
                )
        return Watch(request.prompt_name, request.deadline, request.settings, self._progress)

    def _reply(self, request: ModelRequest, watch: Watch, listener: Listener) -> ModelReply:
        try:
            return self._replier.reply(request, outlook(request, self._sections()), watch, listener)
        except EngineError as error:
            raise PromptEvaluationError(
                f"The local model failed in '{request.prompt_name}': {error}",
                prompt_name=request.prompt_name,
                phase="request",
            ) from error

    def _start(
        self, request: ModelRequest, watch: Watch, put: Callable[[str | ModelReply | BaseException], None]
    ) -> threading.Thread:
        def work() -> None:
            try:
                put(self._reply(request, watch, put))
            except Stopped:
                pass
            except BaseException as error:
                put(error)

        worker = threading.Thread(target=work, name="weakincentives-local", daemon=True)
        worker.start()
        return worker


class _OwnTokens:
    """The tokenizer of a loaded language model."""

    def __init__(self, adapter: LocalAdapter) -> None:
        self._adapter = adapter
        self.name = adapter.model

    def count(self, text: str) -> int:
        return self._adapter.engine.count(text)


def _language_model(model: str | os.PathLike[str] | None) -> Path | None:
    """The file of the language model, if there is one and it can be used.

    One that was named must be usable. One that was only fetched once is left out if this environment lacks llama.cpp.
    """
    file = model_file(model)
    if file is None:
        return None
    try:
        load_runtime()
    except ImportError as error:
        if model or os.environ.get("WINK_LOCAL_MODEL"):
            raise
        logger.warning("LocalAdapter answers with quotations, without the fetched model '%s': %s", file.stem, error)
        return None
    return file


def _sections(live: LiveRun) -> Sections:
    """The sections of a run's prompt, as they are now."""
    session = live.session
    view = live.view
    exposure = session[Exposure].latest() or Exposure()
    closed = [node for node in view.existing() if view.visibility_of(node) is not SectionVisibility.FULL]
    opened = [node for node in view.shown if view.is_open(node.path) and view.decided_by(node) != "declared"]
    readable = []
    for node in (*closed, *opened):
        if exposure[node.path].source in ("prompt", "conversation"):
            readable.append((node.section.title, "".join(view.own_pieces(node.path))))

    requested: dict[str, None] = {}
    matches: dict[str, None] = {}
    openings = set()
    for event in live.events(ToolInvoked):
        if event.disclosure is not None:
            requested |= dict.fromkeys(event.disclosure.keys)
            if event.run_id == live.run_id:
                openings.add(event.call_id)
        matches |= dict.fromkeys(DisclosureRequest.of(event.result.value).found)

    rendered = next(live.events(PromptRendered), None)
    return Sections(
        spans=() if rendered is None else rendered.spans,
        texts={node.key: section_text(node) for node in (*closed, *opened)},
        closed=dict.fromkeys(node.key for node in closed),
        readable=readable,
        requested=requested,
        matches=matches,
        openings=openings,
    )


def _give_back(taken: list[Settings]) -> None:
    while taken:
        SHELF.give_back(taken.pop())


def _unless_raised(part: str | ModelReply | BaseException) -> str | ModelReply:
    if isinstance(part, BaseException):
        raise part
    return part


def _ignore(text: str) -> None:
    pass
