"""The base of the codecs that come with the library: refuses what its provider cannot honour, by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives.adapters.hosted.capability import adapters_with
from weakincentives.adapters.hosted.setting import Rule, used
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool

ConfigT = TypeVar("ConfigT")
OutputT = TypeVar("OutputT")


class SettingsCodec(ABC, Generic[ConfigT, OutputT]):
    """A codec that says as data which settings of its config the provider honours.

    `honours` maps each such setting (`geo_hint.city`) to its rule; one that differs from its default and is not
    there is refused before any request. `single` says that the provider cannot tell two tools of this kind apart.
    """

    kind: ClassVar[str]
    adapter: ClassVar[str]
    config_type: ClassVar[type]
    honours: ClassVar[Mapping[str, Rule]]
    single: ClassVar[bool] = True

    def serialize(self, tool: HostedTool[ConfigT]) -> dict[str, Any]:
        """The provider's declaration of the tool."""
        if not isinstance(tool.config, self.config_type):
            raise self._refusal(
                tool, f"kind '{self.kind}' takes a {self.config_type.__name__}, got {type(tool.config).__name__}"
            )
        settings = used(tool.config)
        for setting in settings:
            objection = self.objection(setting, settings)
            if objection is not None:
                others = [name for name in adapters_with(self.kind, settings, setting) if name != self.adapter]
                can = f"{' and '.join(others)} can" if others else "no adapter can"
                raise self._refusal(tool, f"{objection}; {can}")
        return self.declare(tool)

    def objection(self, setting: str, settings: Mapping[str, object]) -> str | None:
        """Why the provider cannot honour a setting as it is used, or None when it can."""
        rule = self.honours.get(setting)
        value = settings[setting]
        if rule is None:
            return f"the {self.adapter} adapter cannot honour {setting}={value!r}"
        if rule.values is not None and value not in rule.values:
            return f"the {self.adapter} adapter cannot honour {setting}={value!r} (it takes {Rule(rule.values)})"
        for other in rule.without:
            if other in settings:
                return f"the {self.adapter} adapter cannot honour {setting} together with {other}"
        return None

    def _refusal(self, tool: HostedTool[ConfigT], why: str) -> PromptEvaluationError:
        return PromptEvaluationError(f"Hosted tool '{tool.name}': {why}.", phase="render")

    @abstractmethod
    def declare(self, tool: HostedTool[ConfigT]) -> dict[str, Any]:
        """The declaration of a tool whose settings are all honoured."""

    @abstractmethod
    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[ConfigT]) -> OutputT | None:
        """The typed output out of all items of a run, or None when the tool was not used."""
