"""One run's line to the local model: sync, async and streaming forms of the same reply."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

from weakincentives.adapters.local.decoding import Hear, Progress, Stopped, Watch
from weakincentives.adapters.local.engine import EngineError
from weakincentives.adapters.local.outlook import outlook
from weakincentives.adapters.local.replier import Replier
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import Span
from weakincentives.prompt.ranking import SectionText
from weakincentives.runtime import ModelReply, ModelRequest


class LocalChannel:
    """Asks the model in this process; `sections` says where they are in the prompt, and what closed ones hold."""

    def __init__(
        self,
        replier: Replier,
        sections: Callable[[], tuple[Sequence[Span], Mapping[str, SectionText]]],
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
        try:
            while True:
                part = heard.get()
                if isinstance(part, BaseException):
                    raise part
                yield part
                if isinstance(part, ModelReply):
                    return
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
        try:
            while True:
                part = await heard.get()
                if isinstance(part, BaseException):
                    raise part
                yield part
                if isinstance(part, ModelReply):
                    return
        finally:
            watch.stopped.set()
            await asyncio.to_thread(worker.join)

    def _watch(self, request: ModelRequest) -> Watch:
        for name in ("effort", "show_reasoning", "parallel_tool_calls"):
            if value := getattr(request.settings, name):
                raise PromptEvaluationError(
                    f"Prompt '{request.prompt_name}': the local adapter does not take {name}={value!r}; "
                    "it takes temperature and max_output_tokens.",
                    prompt_name=request.prompt_name,
                    phase="request",
                )
        return Watch(request.prompt_name, request.deadline, request.settings, self._progress)

    def _reply(self, request: ModelRequest, watch: Watch, heard: Hear) -> ModelReply:
        try:
            return self._replier.reply(request, outlook(request, *self._sections()), watch, heard)
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


def _ignore(text: str) -> None:
    pass
