"""How an adapter speaks of one kind of hosted tool."""

from __future__ import annotations

from collections.abc import Sequence
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
