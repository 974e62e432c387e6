"""What adapters built on a vendor's client share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Self, TypedDict

from weakincentives._imports import import_extra, require_extra
from weakincentives.adapters.network.channel import NetworkChannel
from weakincentives.adapters.network.client import ClientTransport
from weakincentives.adapters.network.endpoint import keys
from weakincentives.adapters.network.retry import KeyRedactor, Retries
from weakincentives.adapters.network.wire import Wire, define_hosted_tool
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import AnyTool, HostedTool, Tokenizer
from weakincentives.runtime import HostedToolCodec, ProviderAdapter


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of every adapter over a client."""

    client: Any
    hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] | None
    output_retries: int
    tokenizer: Tokenizer | None
    max_retries: int
    parameters: Mapping[str, Any] | None
    clock: Clock


class ClientAdapter(ProviderAdapter):
    """An adapter over a vendor's client object: the user's, or the one the SDK makes from the environment.

    One adapter serves any number of runs, threads and event loops, and keeps its connections alive between them. A
    subclass names the SDK's `package`, its `client_types` (blocking and async), the `path` to post to, the `reserved`
    request fields that users may not set through `parameters=`, and the `wire_type` whose `_wire()` it makes.
    """

    package: ClassVar[str]
    path: ClassVar[str]
    client_types: ClassVar[tuple[str, str]]
    reserved: ClassVar[frozenset[str]]
    wire_type: ClassVar[type[Wire]]

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
        **unknown: Any,
    ) -> None:
        if unknown:
            name, made = min(unknown), self.client_types[0]
            raise TypeError(
                f"{type(self).__name__} has no option '{name}'; pass fields of the request as "
                f"parameters={{'{name}': ...}}, and settings of the client (a key, an address) as client={made}(...)"
            )
        super().__init__(
            model, hosted_tool_codecs=hosted_tool_codecs, output_retries=output_retries, tokenizer=tokenizer
        )
        if client is None:
            require_extra(self.package, self.package, type(self).__name__)
        self._client = client
        self._parameters = self._checked(parameters or {})
        self._retries = Retries(limit=max_retries)
        self._clock = clock
        self._redactor = KeyRedactor(lambda: keys(self._client) if self._client is not None else ())
        self._transport: ClientTransport | None = None
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
        """Whether requests go over our own connections; False if the client carries more than settings."""
        return self._connected().direct

    def define_tool(self, tool: AnyTool) -> str:
        if isinstance(tool, HostedTool):
            return define_hosted_tool(tool, self.hosted_tool_codecs)
        return self.wire_type.tools.text(tool)

    def channel(self) -> NetworkChannel:
        return NetworkChannel(
            self._wire(),
            self._connected(),
            retries=self._retries,
            redactor=self._redactor,
            clock=self._clock,
        )

    def close(self) -> None:
        """Close the idle connections; the adapter opens new ones when it is used again."""
        if self._transport is not None:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _wire(self) -> Wire:
        """The wire for a new run."""

    def _checked(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        taken = sorted(self.reserved & parameters.keys())
        if taken:
            raise ValueError(f"parameters cannot set {', '.join(taken)}; the prompt and the adapter set them")
        return dict(parameters)

    def _connected(self) -> ClientTransport:
        with self._lock:
            if self._transport is None:
                self._transport = self._connect()
            else:
                self._transport.refresh()
            return self._transport

    def _connect(self) -> ClientTransport:
        sdk = import_extra(self.package, self.package, type(self).__name__)
        if self._client is None:
            self._client = self._from_environment(sdk)
        if not hasattr(self._client, "default_query"):
            raise TypeError(
                f"client must be a client of the {self.package} package, such as {self.client_types[0]}(...), "
                f"got {type(self._client).__module__}.{type(self._client).__name__}; pass an HTTP client as its "
                "http_client="
            )
        plain = tuple(getattr(sdk, name) for name in self.client_types)
        return ClientTransport(self._client, sdk, self.path, plain=plain)

    def _from_environment(self, sdk: ModuleType) -> Any:
        name = self.client_types[0]
        try:
            return getattr(sdk, name)()
        except Exception as error:
            raise PromptEvaluationError(
                f"{name}() could not be created from the environment: {error} "
                f"Set the SDK's variables or pass client={name}(...).",
                phase="request",
            ) from None
