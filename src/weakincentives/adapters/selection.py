"""Selects an adapter: the one a string names, or the first of several that works."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from weakincentives.adapters.wrapped import WrappedAdapter
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.runtime import Channel, ModelReply, ModelRequest, ProviderAdapter, Settings
from weakincentives.runtime.spi import MODEL_FACTS, Model, RunOptions, adapter_spec, adapter_specs

logger = logging.getLogger("weakincentives.adapters")


def adapter_for(name: str, **options: Any) -> ProviderAdapter:
    """The adapter that a string names, as `--adapter` does on the command line.

    adapter_for("openai:gpt-5.6", settings=Settings(effort="low"))
    """
    provider, _, model = name.partition(":")
    spec = adapter_spec(provider)
    if spec is None:
        known = ", ".join(spec.usage for spec in adapter_specs()) or "no adapter: none is installed as an entry point"
        raise ValueError(f"adapter_for takes one of {known}; got {name!r}")
    if spec.requires_model and not model:
        raise ValueError(f"adapter_for needs a model, as in {spec.usage!r}; got {name!r}")
    adapter: ProviderAdapter = spec.create(model, **options)
    return adapter


class FallbackAdapter(ProviderAdapter):
    """A list of adapters: a run is tried on the first, and goes on with the next when that fails.

        FallbackAdapter(OpenAIAdapter("gpt-5.6"), AnthropicAdapter("claude-opus-5"))

    When an adapter fails after its retries, the run continues with the next, in the same session, and stays with the
    one that answers; the next run starts with the first again. A refusal or a truncated answer counts as an answer. A
    stream that breaks after part of a reply was shown fails, since that part cannot be taken back. If the last adapter
    fails too, its error is raised, with the failures of the others in its message. Outside of a run, such as in
    `explain` and `count`, the facts are those of the first.
    """

    name = "fallback"

    def __init__(self, *adapters: ProviderAdapter, settings: Settings | None = None) -> None:
        if len(adapters) < 2 or not all(isinstance(adapter, ProviderAdapter) for adapter in adapters):
            raise TypeError(f"FallbackAdapter takes two or more adapters, got {adapters!r}")
        self.adapters = adapters
        self.model = ", ".join(f"{adapter.name}:{adapter.model}" for adapter in adapters)
        self.settings = Settings().merged(settings)

    @property
    def models(self) -> tuple[Model, ...]:
        models: list[Model] = []
        for adapter in self.adapters:
            own_settings = adapter.settings if isinstance(adapter, FallbackAdapter) else Settings()
            for model in adapter.models:
                if own_settings == Settings():
                    models.append(model)
                else:
                    models.append(_WithSettings(model, own_settings))
        return tuple(models)

    @property
    def has_channel(self) -> bool:
        return any(model.has_channel for model in self.models)

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.name, self.settings, *(adapter.identity for adapter in self.adapters))

    @contextmanager
    def open_spare_channel(self) -> Iterator[Channel]:
        yield _SpareChannel(self.models)

    @asynccontextmanager
    async def open_spare_channel_async(self) -> AsyncIterator[Channel]:
        yield _SpareChannel(self.models)

    def close(self) -> None:
        """Close every adapter."""
        for adapter in self.adapters:
            adapter.close()

    def _requested_settings(self, options: RunOptions) -> Settings:
        return self.settings.merged(options.get("settings"))


def _fact_of_first(name: str) -> property:
    return property(lambda fallback: getattr(fallback.adapters[0], name))


for _name in MODEL_FACTS:
    if _name not in vars(FallbackAdapter) and _name not in ("model", "settings"):
        setattr(FallbackAdapter, _name, _fact_of_first(_name))


class _WithSettings(WrappedAdapter):
    """A model of a list within a list, with the settings of that list."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.adapter = model
        self.others = ()
        self._settings = settings

    @property
    def settings(self) -> Settings:  # type: ignore[override]
        return self.adapter.settings.merged(self._settings)


class _SpareChannel(Channel):
    """Sends a request that is part of no run, such as that for a summary, to the first model that answers it."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = [model for model in models if model.has_channel]

    def call(self, request: ModelRequest) -> ModelReply:
        for model in self._models:
            try:
                with model.open_spare_channel() as channel:
                    return channel.call(request)
            except PromptEvaluationError as error:
                self._check(model, error)
        raise AssertionError("the last model answers or raises")

    async def call_async(self, request: ModelRequest) -> ModelReply:
        for model in self._models:
            try:
                async with model.open_spare_channel_async() as channel:
                    return await channel.call_async(request)
            except PromptEvaluationError as error:
                self._check(model, error)
        raise AssertionError("the last model answers or raises")

    def _check(self, model: Model, error: PromptEvaluationError) -> None:
        """Raise the error of a model if no other is to be tried."""
        if model is self._models[-1] or isinstance(error, BudgetExceededError | DeadlineExceededError):
            raise error
        logger.warning("%s:%s failed, going on with the next: %s", model.name, model.model, error)
