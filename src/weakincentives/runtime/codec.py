"""How an adapter speaks of one kind of hosted tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from weakincentives.prompt.hosted import HostedTool

ConfigT = TypeVar("ConfigT")
OutputT_co = TypeVar("OutputT_co", covariant=True)


class HostedToolCodec(Protocol[ConfigT, OutputT_co]):
    """Turns a hosted tool into the provider's form and the provider's items into a typed output."""

    @property
    def kind(self) -> str:
        """The abstract tool kind this codec handles."""
        ...

    def serialize(self, tool: HostedTool[ConfigT]) -> dict[str, Any]:
        """The provider's declaration of the tool; a setting it cannot honour is a `PromptEvaluationError`."""
        ...

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[ConfigT]) -> OutputT_co | None:
        """The typed output out of all items of a run, or None when the tool was not used."""
        ...


class CodecRegistry(Mapping[str, HostedToolCodec[Any, Any]]):
    """Codecs by kind: the user's before the adapter's own. A registry below may load a codec when it is looked up."""

    def __init__(
        self, given: Mapping[str, HostedToolCodec[Any, Any]], own: Mapping[str, HostedToolCodec[Any, Any]]
    ) -> None:
        self._given = dict(given)
        self._own = own

    def __getitem__(self, kind: str) -> HostedToolCodec[Any, Any]:
        return self._given[kind] if kind in self._given else self._own[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._given or kind in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._own, *self._given)))

    def __len__(self) -> int:
        return len(self._own.keys() | self._given.keys())

    def elsewhere(self, kind: str) -> tuple[str, ...]:
        """The adapters that have a kind, where the adapter's own registry knows of the others."""
        look: Callable[[str], tuple[str, ...]] | None = getattr(self._own, "elsewhere", None)
        return look(kind) if look else ()

    @property
    def takes_more(self) -> bool:
        """Whether the adapter can be given a codec for a kind that it lacks."""
        return bool(getattr(self._own, "takes_more", True))
