"""A model of a provider: facts about it, a channel to it, and the tokens of a request to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, Self

from weakincentives.content import Media, Part
from weakincentives.prompt import AnyTool, Prompt, Tokenizer, Tool, default_tokenizer, portable_name
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.loop.channel import Channel
from weakincentives.runtime.media import MediaSupport
from weakincentives.runtime.messages import Message, ModelRequest, PromptResponse, Settings
from weakincentives.session import Session

MESSAGE_TOKENS, CALL_TOKENS = 4, 8
"""The tokens that a message and a call take besides their texts, about."""


class Model:
    """A model, as the loop knows it: facts, a channel, and the count of a request; it is asked, and asks nothing.

    The defaults describe a model that only reads text.
    """

    name: ClassVar[str] = ""
    """The name of the provider's adapter."""
    model: str = ""
    """The name of the model."""
    settings: Settings = Settings()
    """Those of every run on this model."""
    output_retries: int = 1
    """How often an answer of the wrong type is returned to the model."""
    max_tool_description: ClassVar[int | None] = None
    """The longest tool description that the provider accepts, in characters; longer ones are also sent as text."""
    reserved_names: Collection[str] = ()
    """The names of tools that the provider adds itself."""
    own_tools: Mapping[str, Tool[Any, Any]] = MappingProxyType({})
    """Those of them whose calls may reach the loop, because they wait for a person; they are never sent."""
    raised_errors: tuple[type[Exception], ...] = ()
    """The exceptions of tool handlers that end the run and are raised, instead of being sent to the model."""
    sends_tools: ClassVar[bool] = True
    """True if requests include the definitions of tools, so that they count as input."""
    compaction_keeps_tools: ClassVar[bool] = False
    """True if such a compaction includes the tools that were added to the conversation."""
    cache_write: ClassVar[float] = 1.0
    """The price of a token that is written to that cache, in input tokens."""

    @property
    def supports_dynamic_tools(self) -> bool:
        """True if tools can be added to a conversation; if not, opening a section with tools restarts it."""
        return False

    @property
    def tool_route(self) -> str:
        """The route by which tools appear mid-conversation."""
        return "append" if self.supports_dynamic_tools else "restart"

    @property
    def context_window(self) -> int | None:
        """The size of the model's context window in tokens, if it is known."""
        return None

    @property
    def compacts_itself(self) -> bool:
        """True if conversations are shortened behind the adapter, so that the loop must not."""
        return False

    @property
    def compacts(self) -> bool:
        """True if the provider can be asked to compact a conversation."""
        return False

    @property
    def cache_seconds(self) -> float:
        """How long the provider's prompt cache lasts after a request."""
        return 0.0

    @property
    def supports_operator_text(self) -> bool:
        """True if the model accepts system messages mid-conversation."""
        return False

    @property
    def defers_tools(self) -> bool:
        """True if the tools of closed sections are sent too, so that the provider's own search can find them."""
        return False

    @property
    def carries_search(self) -> bool:
        """True if `search_sections` is sent as the provider's own search, whose results bring tools."""
        return False

    @property
    def hosted_tool_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        """The codecs of the hosted tools this adapter can offer, by kind."""
        return {}

    @property
    def tokenizer(self) -> Tokenizer:
        return default_tokenizer()

    def count_tokens(self, text: str) -> int:
        return self.tokenizer.count(text)

    @property
    def media(self) -> MediaSupport:
        """The media that the model accepts."""
        return MediaSupport()

    def count_media(self, part: Media) -> int:
        """The tokens of a medium, by the vendor's formula."""
        return self.media.count(part)

    def define_tool(self, tool: AnyTool) -> str:
        """The tool as JSON text, as this adapter sends it to the model."""
        return tool.definition

    def found_tools(self, items: Sequence[str]) -> tuple[str, ...]:
        """The tools that the provider's search found, according to the items of a reply."""
        return ()

    def with_call_ids(self, items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
        """The items of a reply with other ids of its calls, in their order.

        Without items, the reply is sent back as its text and calls.
        """
        return ()

    def binds_reasoning(self, message: Message) -> bool:
        """True if a message has reasoning that the provider accepts only with the prompt it was written under."""
        return False

    def check_content(self, parts: Sequence[Part]) -> None:
        """Raise `PromptEvaluationError` for media that this adapter's model does not accept."""
        self.media.check(parts, self._described)

    def check_parts(self, parts: Sequence[Part], earlier: Iterable[Message] = ()) -> None:
        """Raise if the model does not accept these parts, or not as many together with those of earlier messages."""
        if any(isinstance(part, Media) for part in parts):
            self.check_content(parts)
            said = [part for message in earlier for part in message.parts]
            self.media.check_amount([*said, *parts], self._described)

    @property
    def _described(self) -> str:
        return f"The {self.name} adapter with model '{self.model}'"

    def sent_tool(self, tool: AnyTool) -> str:
        """A tool as it reaches the model: its definition, and its full description if that is sent as text."""
        return self.define_tool(tool) + self.long_description(tool) if self.sends_tools else ""

    def count_tools(self, tools: Iterable[AnyTool]) -> int:
        """The tokens of tools as they reach the model."""
        return sum(self.count_tokens(self.sent_tool(tool)) for tool in tools)

    def count_message(self, message: Message) -> int:
        """The tokens of a message in a request: its text, calls and media, and what providers add to each."""
        tokens = MESSAGE_TOKENS + self.count_tokens(message.text)
        for call in message.tool_calls:
            tokens += CALL_TOKENS + self.count_tokens(call.arguments)
        for part in message.parts:
            if isinstance(part, Media):
                tokens += self.count_media(part)
        return tokens

    def estimate_request(self, messages: Iterable[Message], tools: Iterable[AnyTool]) -> int:
        """The tokens of a request with these messages and tools: the one estimate where the vendor does not count."""
        return sum(map(self.count_message, messages)) + self.count_tools(tools)

    def count_request(self, request: ModelRequest) -> int:
        """The tokens of a request: the vendor's own count if it offers one, else an estimate."""
        return self.estimate_request(request.messages, [*request.tools, *request.hosted_tools])

    def long_description(self, tool: AnyTool) -> str:
        """The full description as text, if the provider accepts only its beginning."""
        limit = self.max_tool_description
        if limit is None or len(tool.description) <= limit:
            return ""
        return f"The tool {portable_name(tool.name)}, in full: {tool.description}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """What decides about replies besides the request: evaluations of another identity are run again.

        An adapter adds its own options, without keys and other secrets, which change without changing replies.
        """
        route = self.tool_route, self.supports_dynamic_tools, self.defers_tools, self.carries_search
        return (self.name, self.model, self.settings, self.output_retries, route)

    @property
    def has_channel(self) -> bool:
        """True if the library's own loop can run on this model."""
        return True

    @property
    def evaluates_itself(self) -> bool:
        """True if the model has an `evaluate` or `evaluate_async` of its own, which runs call in place of the loop."""
        return False

    def evaluate_itself(self, prompt: Prompt[Any], session: Session, options: Mapping[str, Any]) -> PromptResponse[Any]:
        """Evaluate by that method, with those of the options that it accepts."""
        raise TypeError(f"{type(self).__name__} has no evaluate() of its own")

    async def evaluate_itself_async(
        self, prompt: Prompt[Any], session: Session, options: Mapping[str, Any]
    ) -> PromptResponse[Any]:
        """`evaluate_itself` on an event loop."""
        raise TypeError(f"{type(self).__name__} has no evaluate_async() of its own")

    def channel(self) -> Channel:
        """A connection to the model for one run."""
        raise TypeError(f"{type(self).__name__} has no channel(); define it, or override the method that was called")

    @contextmanager
    def open_channel(self, loop: Any) -> Iterator[Channel]:
        """The channel for one run; override this to close what the channel holds when the run ends."""
        yield self.channel()

    @asynccontextmanager
    async def open_channel_async(self, loop: Any) -> AsyncIterator[Channel]:
        """`open_channel` on an event loop."""
        with self.open_channel(loop) as channel:
            yield channel

    @contextmanager
    def open_spare_channel(self) -> Iterator[Channel]:
        """A channel for one request outside of a run, such as a summary; override this to close what it holds."""
        yield self.channel()

    @asynccontextmanager
    async def open_spare_channel_async(self) -> AsyncIterator[Channel]:
        """`open_spare_channel` on an event loop."""
        with self.open_spare_channel() as channel:
            yield channel

    def close(self) -> None:
        """Release what is kept between runs; the model may be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


_NO_FACTS = frozenset(
    (
        *("channel", "open_channel", "open_channel_async", "open_spare_channel", "open_spare_channel_async", "close"),
        *("has_channel", "evaluates_itself", "evaluate_itself", "evaluate_itself_async"),
    )
)
MODEL_FACTS = tuple(name for name in vars(Model) if not name.startswith("_") and name not in _NO_FACTS)
"""The facts about a model: a model that wraps another has the same ones."""
