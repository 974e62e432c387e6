"""What the adapters that stand on a vendor's client have in common."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType, TracebackType
from typing import Any, Self, TypedDict

from weakincentives.adapters.network.channel import NetworkChannel
from weakincentives.adapters.network.client import ClientLine
from weakincentives.adapters.network.extra import load, require
from weakincentives.adapters.network.redact import Redactor
from weakincentives.adapters.network.retry import Retries
from weakincentives.adapters.network.vendor import secrets
from weakincentives.adapters.network.wire import Wire
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import Tokenizer
from weakincentives.runtime.adapter import ProviderAdapter
from weakincentives.runtime.hosted import HostedToolCodec


class ClientOptions(TypedDict, total=False):
    """What every adapter over a client takes by keyword."""

    client: Any
    hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] | None
    output_retries: int
    tokenizer: Tokenizer | None
    max_retries: int
    parameters: Mapping[str, Any] | None
    clock: Clock
    sleep_async: Callable[[float], Awaitable[object]]


class ClientAdapter(ProviderAdapter):
    """An adapter over a vendor's client object: the user's, or the one the SDK makes from the environment.

    One adapter serves any number of runs, threads and event loops, and keeps its connections alive between them.
    """

    package: str
    path: str
    client_types: tuple[str, str]
    reserved: frozenset[str]

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] | None = None,
        output_retries: int = 1,
        tokenizer: Tokenizer | None = None,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        sleep_async: Callable[[float], Awaitable[object]] = asyncio.sleep,
        **unknown: Any,
    ) -> None:
        if unknown:
            name, made = min(unknown), self.client_types[0]
            raise TypeError(
                f"{type(self).__name__} has no option '{name}'; what the request should carry goes into "
                f"parameters={{'{name}': ...}}, what the client needs (a key, an address) into client={made}(...)"
            )
        super().__init__(
            model, hosted_tool_codecs=hosted_tool_codecs, output_retries=output_retries, tokenizer=tokenizer
        )
        if client is None:
            require(self.package, self.package)
        self._client = client
        self._parameters = self._checked(parameters or {})
        self._retries = Retries(limit=max_retries)
        self._clock = clock
        self._sleep_async = sleep_async
        self._redact = Redactor(lambda: secrets(self._client) if self._client is not None else ())
        self._line: ClientLine | None = None
        self._lock = threading.Lock()

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @property
    def client(self) -> Any:
        """The vendor's client."""
        self._connected()
        return self._client

    @property
    def uses_own_connections(self) -> bool:
        """Whether requests go over our own connections; False where the client carries more than settings."""
        return self._connected().lean

    def channel(self) -> NetworkChannel:
        return NetworkChannel(
            self._wire(),
            self._connected(),
            retries=self._retries,
            redact=self._redact,
            clock=self._clock,
            sleep_async=self._sleep_async,
        )

    def close(self) -> None:
        """Close the connections that wait; the adapter opens new ones when it is used again."""
        if self._line is not None:
            self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _wire(self) -> Wire:
        """A new run's conversation in the vendor's format."""

    def _checked(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        taken = sorted(self.reserved & parameters.keys())
        if taken:
            raise ValueError(f"parameters cannot set {', '.join(taken)}: the prompt and the adapter decide on that")
        return dict(parameters)

    def _connected(self) -> ClientLine:
        with self._lock:
            if self._line is None:
                self._line = self._connect()
            else:
                self._line.refresh()
            return self._line

    def _connect(self) -> ClientLine:
        sdk = load(self.package, self.package)
        if self._client is None:
            self._client = self._from_environment(sdk)
        if not hasattr(self._client, "default_query"):
            raise TypeError(
                f"client must be a client of the {self.package} package, such as {self.client_types[0]}(...), "
                f"got {type(self._client).__module__}.{type(self._client).__name__}; an HTTP client goes into its "
                "http_client="
            )
        plain = tuple(getattr(sdk, name) for name in self.client_types)
        return ClientLine(self._client, sdk, self.path, plain=plain)

    def _from_environment(self, sdk: ModuleType) -> Any:
        name = self.client_types[0]
        try:
            return getattr(sdk, name)()
        except Exception as error:
            raise PromptEvaluationError(
                f"{name}() cannot be made from the environment: {error} "
                f"Set the SDK's variables or pass client={name}(...).",
                phase="request",
            ) from None
