"""Reading the items of a provider: what fits is taken, what does not is noted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool
from weakincentives.tools import FailureCode, HostedToolFailure

ShapeT = TypeVar("ShapeT", bound=msgspec.Struct)


class Reading:
    """One pass over the items of a run for one hosted tool.

    It gathers the text of the answers; a citation's range moves by the length of what was said before. An item of the
    tool that cannot be read becomes an error of the output, unless none can be: then there is no output to give.
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

    def say(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def call(self, item: Any, shape: type[ShapeT]) -> ShapeT | None:
        """An item that shows the tool in use."""
        found = self.part(item, shape)
        if found is None:
            self._malformed, self._why = item, self.errors[-1].message
        else:
            self._calls += 1
        return found

    def part(self, item: Any, shape: type[ShapeT]) -> ShapeT | None:
        """Something else that belongs to the tool, such as a citation."""
        try:
            return msgspec.convert(item, shape, from_attributes=True)
        except msgspec.ValidationError as error:
            self.fail("malformed", message=f"{kind_of(item) or 'item'}: {error}")
            return None

    def fail(self, code: FailureCode, provider_code: str = "", *, message: str = "", call_id: str = "") -> None:
        self.errors.append(HostedToolFailure(code, provider_code, message, call_id))

    def used(self) -> bool:
        """Whether the tool was used; raises when that is all that can be said."""
        if self._calls == 0 and self._malformed is not None:
            raise PromptEvaluationError(
                f"Hosted tool '{self._tool.name}': {self._adapter} answered with items that cannot be read "
                f"({self._why}).",
                phase="parse",
                payload=self._malformed,
            )
        return self._calls > 0

    def span(self, start: int | None, end: int | None, *, of: int) -> tuple[int, int] | None:
        """A range in the text said last, of this length, as a range of all text; None where it makes no sense."""
        if start is None or end is None or not 0 <= start <= end <= of:
            return None
        before = self._length - of
        return before + start, before + end


def kind_of(item: Any) -> str:
    """The `type` of an item, be it decoded JSON or an object of the vendor's SDK."""
    kind = item.get("type") if isinstance(item, Mapping) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else ""
