"""Hosted tools: capabilities that the provider runs, declared by a typed configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass, is_dataclass
from typing import Generic, TypeVar

from weakincentives.errors import PromptValidationError
from weakincentives.prompt.tool import check_description, check_tool_name


class HostedToolConfig:
    """Marks a frozen dataclass as the configuration of a hosted tool; deriving from it is optional."""

    __slots__ = ()


class HostedToolOutput:
    """Marks a frozen dataclass as the parsed output of a hosted tool; deriving from it is optional."""

    __slots__ = ()


ConfigT = TypeVar("ConfigT")


# No slots: `HostedTool[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class HostedTool(Generic[ConfigT]):
    """A capability that the provider runs; `kind` picks the adapter's codec, `config` is what the codec encodes."""

    kind: str
    name: str
    description: str
    config: ConfigT

    @property
    def definition(self) -> str:
        """The tool as JSON text in no provider's format; for counting."""
        return json.dumps({"name": self.name, "kind": self.kind, "description": self.description})

    def __post_init__(self) -> None:
        check_tool_name(self.name)
        if not isinstance(self.kind, str) or not self.kind.strip():
            raise PromptValidationError(
                f"Hosted tool '{self.name}' has no kind (got {self.kind!r}); pass kind='web_search' or the like."
            )
        check_description(f"Hosted tool '{self.name}'", self.description, 200, ascii_only=True)
        params = getattr(type(self.config), "__dataclass_params__", None)
        if not is_dataclass(self.config) or isinstance(self.config, type) or params is None or not params.frozen:
            raise PromptValidationError(
                f"Hosted tool '{self.name}': config must be an instance of a frozen dataclass, "
                f"got {type(self.config).__name__}."
            )
