"""A registry of codecs that loads each of them when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from weakincentives.adapters.hosted.capability import adapters_of
from weakincentives.runtime.hosted import HostedToolCodec


class LazyCodecs(Mapping[str, HostedToolCodec[Any, Any]]):
    """Codecs by kind, given as `module:Class`: an adapter knows its kinds without loading them.

    `takes_more` says whether a user may add to them.
    """

    def __init__(self, homes: Mapping[str, str], *, takes_more: bool = True) -> None:
        self.takes_more = takes_more
        self._homes = dict(homes)
        self._loaded: dict[str, HostedToolCodec[Any, Any]] = {}

    def __getitem__(self, kind: str) -> HostedToolCodec[Any, Any]:
        codec = self._loaded.get(kind)
        if codec is None:
            module, _, name = self._homes[kind].partition(":")
            codec = self._loaded.setdefault(kind, getattr(import_module(module), name)())
        return codec

    def __contains__(self, kind: object) -> bool:
        return kind in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def elsewhere(self, kind: str) -> tuple[str, ...]:
        """The adapters that have a kind."""
        return adapters_of(kind)
