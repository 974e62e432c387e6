"""Reading a provider's items: what has the expected shape is used, the rest becomes an error of the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool
from weakincentives.tools import FailureCode, HostedToolFailure

ShapeT = TypeVar("ShapeT", bound=msgspec.Struct)


class ItemReader:
    """One pass over the items of a run for one hosted tool.

    It collects the text of the answers, so that a citation's range can be shifted by the length of earlier text. An
    item of the tool that cannot be read is recorded in `errors`; if none can be read, there is no output and `used`
    raises.
    """

    def __init__(self, tool: HostedTool[Any], adapter: str) -> None:
        self.errors: list[HostedToolFailure] = []
        self._tool = tool
        self._adapter = adapter
        self._texts: list[str] = []
        self._length = 0
        self._calls = 0
        self._malformed: Any = None
        self._why = ""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add_text(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def call(self, item: Any, shape: type[ShapeT]) -> ShapeT | None:
        """Read an item that shows the tool was used."""
        found = self.part(item, shape)
        if found is None:
            self._malformed, self._why = item, self.errors[-1].message
        else:
            self._calls += 1
        return found

    def part(self, item: Any, shape: type[ShapeT]) -> ShapeT | None:
        """Read something else that belongs to the tool, such as a citation."""
        try:
            return msgspec.convert(item, shape, from_attributes=True)
        except msgspec.ValidationError as error:
            self.fail("malformed", message=f"{type_of(item) or 'item'}: {error}")
            return None

    def fail(self, code: FailureCode, provider_code: str = "", *, message: str = "", call_id: str = "") -> None:
        self.errors.append(HostedToolFailure(code, provider_code, message, call_id))

    def used(self) -> bool:
        """Whether the tool was used; raises if none of its items could be read."""
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
        before = self._length - of
        return before + start, before + end


def type_of(item: Any) -> str:
    """The `type` of an item, which is decoded JSON or an object of the vendor's SDK."""
    name = item.get("type") if isinstance(item, Mapping) else getattr(item, "type", None)
    return name if isinstance(name, str) else ""
