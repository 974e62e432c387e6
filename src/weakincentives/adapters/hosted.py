"""The base of hosted tool codecs: the settings a provider honours, declared as data, and a reader for its items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_type_hints

import msgspec

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool
from weakincentives.runtime.spi import adapter_specs
from weakincentives.tools import DomainFilter, FailureCode, HostedToolFailure
from weakincentives.tools.web_search import GeoHint

ConfigT = TypeVar("ConfigT")
OutputT = TypeVar("OutputT")
ShapeT = TypeVar("ShapeT")


@dataclass(frozen=True, slots=True)
class Rule:
    """How a provider honours a setting: with any value or only some, and never combined with certain other settings."""

    values: Collection[object] | None = None
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = []
        if isinstance(self.values, range):
            parts.append(f"{self.values[0]} to {self.values[-1]}")
        elif self.values is not None:
            parts.append(", ".join(str(value) for value in self.values))
        parts += [f"not with `{other}`" for other in self.without]
        return "; ".join(parts) or "yes"


HONOURED = Rule()
LOCATION = dict.fromkeys((f"geo_hint.{name}" for name in ("country_code", "city", "region", "timezone")), HONOURED)


class SettingsCodec(ABC, Generic[ConfigT, OutputT]):
    """A codec that declares which settings of its config the provider honours.

    `honours` maps each such setting (`geo_hint.city`) to its rule. Any other setting that differs from its default is
    rejected before any request. `single` means that the provider cannot tell two tools of this kind apart. `sent_names`
    are the names under which the provider offers the tool, whatever ours is called.
    """

    kind: ClassVar[str]
    adapter: ClassVar[str]
    config_type: ClassVar[type]
    honours: ClassVar[Mapping[str, Rule]]
    single: ClassVar[bool] = True
    sent_names: tuple[str, ...] = ()

    def serialize(self, tool: HostedTool[ConfigT]) -> dict[str, Any]:
        """The provider's declaration of the tool."""
        if not isinstance(tool.config, self.config_type):
            raise self._refusal(
                tool, f"kind '{self.kind}' takes a {self.config_type.__name__}, got {type(tool.config).__name__}"
            )
        settings = used_settings(tool.config)
        for setting in settings:
            objection = self.objection(setting, settings)
            if objection is not None:
                others = [
                    adapter
                    for adapter, codec in codecs_by_kind().get(self.kind, {}).items()
                    if adapter != self.adapter
                    and isinstance(codec, SettingsCodec)
                    and codec.objection(setting, settings) is None
                ]
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
            return f"the {self.adapter} adapter cannot honour {setting}={value!r} (it accepts {Rule(rule.values)})"
        for other in rule.without:
            if other in settings:
                return f"the {self.adapter} adapter cannot honour {setting} together with {other}"
        return None

    def _refusal(self, tool: HostedTool[ConfigT], why: str) -> PromptEvaluationError:
        return PromptEvaluationError(f"Hosted tool '{tool.name}': {why}.", phase="render")

    @abstractmethod
    def declare(self, tool: HostedTool[ConfigT]) -> dict[str, Any]:
        """The declaration of a tool whose settings are known to be honoured."""

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[ConfigT]) -> OutputT | None:
        """The typed output from all items of a run, or None if the tool was not used."""
        reader = ItemReader(tool, self.adapter)
        output = self.read(reader, response_items)
        return output if reader.used() else None

    def read(self, reader: ItemReader, items: Sequence[Any]) -> OutputT:
        """The typed output of the items that the reader can read."""
        raise NotImplementedError(f"{type(self).__name__} must define read or parse_output")


def codecs_by_kind() -> Mapping[str, Mapping[str, Any]]:
    """The codecs of all installed adapters: for each kind of hosted tool, by the adapter's name."""
    kinds: dict[str, dict[str, Any]] = {}
    for spec in adapter_specs():
        for kind, codec in spec.codecs().items():
            kinds.setdefault(kind, {})[spec.name] = codec
    return kinds


def used_settings(config: Any) -> Mapping[str, object]:
    """The settings that differ from their defaults, with their values."""
    config_type: type = type(config)
    nested = nested_settings(config_type)
    used: dict[str, object] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if nested[one.name] is not None:
            inner = {} if value is None else used_settings(value)
            used |= {f"{one.name}.{name}": chosen for name, chosen in inner.items()}
        elif default is MISSING or value != default:
            used[one.name] = value
    return used


@cache
def nested_settings(config_type: type[Any]) -> Mapping[str, type | None]:
    """Each field with the dataclass in `X` or `X | None`, else None: a union of several types is a single setting."""
    found: dict[str, type | None] = {}
    for name, hint in get_type_hints(config_type).items():
        kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
        one = kinds[0] if len(kinds) == 1 else None
        found[name] = one if isinstance(one, type) and is_dataclass(one) else None
    return found


def domain_fields(domains: DomainFilter | None) -> dict[str, list[str]]:
    """The filter as the fields every provider accepts, without empty lists."""
    if domains is None:
        return {}
    fields = {"allowed_domains": list(domains.allowed), "blocked_domains": list(domains.blocked)}
    return {name: value for name, value in fields.items() if value}


def location_fields(hint: GeoHint) -> dict[str, str]:
    """The user's location as the fields every provider accepts, without empty ones."""
    fields = {"country": hint.country_code, "city": hint.city, "region": hint.region, "timezone": hint.timezone}
    return {name: value for name, value in fields.items() if value}


class ItemReader:
    """One pass over the items of a run for one hosted tool, using those that have the expected shape.

    Its `text` is that of the answers so far, so that a citation's range can be shifted by the length of earlier text.
    An item of the tool that cannot be read is recorded in `errors`; if none can be read, there is no output and `used`
    raises.
    """

    def __init__(self, tool: HostedTool[Any], adapter: str) -> None:
        self.text = ""
        self.errors: list[HostedToolFailure] = []
        self._tool = tool
        self._adapter = adapter
        self._calls = 0
        self._malformed: Any = None
        self._why = ""

    def call(self, item: Any, shape: type[ShapeT]) -> ShapeT | None:
        """Read an item that shows the tool was used."""
        found = self.part(item, shape)
        if found is None:
            self._malformed, self._why = item, self.errors[-1].message
        else:
            self._calls += 1
        return found

    def part(self, item: Any, shape: type[ShapeT], name: str = "") -> ShapeT | None:
        """Read something else that belongs to the tool, such as a citation; an error calls it by its type or name."""
        try:
            return msgspec.convert(item, shape, from_attributes=True)
        except msgspec.ValidationError as error:
            self.fail("malformed", message=f"{name or type_of(item) or 'item'}: {error}")
            return None

    def parts(self, items: Iterable[Any], shape: type[ShapeT], *types: str) -> Iterator[ShapeT]:
        """Read the items of these types, or all if none is named."""
        for item in items:
            if not types or type_of(item) in types:
                found = self.part(item, shape)
                if found is not None:
                    yield found

    def fail(self, code: FailureCode, provider_code: str = "", *, message: str = "", call_id: str = "") -> None:
        self.errors.append(HostedToolFailure(code, provider_code, message, call_id))

    def used(self) -> bool:
        """True if the tool was used; raises if none of its items could be read."""
        if self._calls == 0 and self._malformed is not None:
            raise PromptEvaluationError(
                f"Hosted tool '{self._tool.name}': {self._adapter} answered with items that cannot be read "
                f"({self._why}).",
                phase="parse",
                payload=self._malformed,
            )
        return self._calls > 0

    def span(self, start: int | None, end: int | None, *, of: int) -> tuple[int, int] | None:
        """A range of the text added last (of length `of`) as a range of all text; None if it is out of bounds."""
        if start is None or end is None or not 0 <= start <= end <= of:
            return None
        before = len(self.text) - of
        return before + start, before + end


def type_of(item: Any) -> str:
    """The `type` of an item."""
    return string_of(item, "type")


def string_of(item: Any, name: str) -> str:
    """A text in an item, which is decoded JSON or an object from the vendor's SDK."""
    value = item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
    return value if isinstance(value, str) else ""
