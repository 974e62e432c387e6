"""The base classes of adapters that reach a vendor through its SDK or with the settings of its client."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar, TypedDict
from weakref import WeakKeyDictionary

import msgspec

from weakincentives._base.imports import import_extra, require_extra
from weakincentives.adapters.network.channel import MALFORMED, NetworkChannel, Preparation
from weakincentives.adapters.network.direct import OwnTransport, RedirectError
from weakincentives.adapters.network.endpoint import Endpoint, endpoint, fingerprint, keys
from weakincentives.adapters.network.sdk import SdkTransport
from weakincentives.adapters.network.transport import Response, Stream, Transport, TransportError
from weakincentives.adapters.network.wire import EncodedRequest, Wire, encode
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import AnyTool, HostedTool, Tokenizer
from weakincentives.runtime import HostedToolCodec, LiveRun, ModelRequest, ProviderAdapter, Settings
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.adapters")

ASK_SECONDS = 5.0
"""How long a vendor has to describe a model."""


class NetworkOptions(TypedDict, total=False):
    """The keyword arguments of every network adapter."""

    hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] | None  #: besides the adapter's own
    output_retries: int  #: how often an answer of the wrong type is returned to the model
    tokenizer: Tokenizer | None  #: counts tokens for plans and ledgers
    max_retries: int  #: how often a failed request is sent again
    parameters: Mapping[str, Any] | None  #: fields to add to each request
    settings: Settings | None  #: settings that every provider has
    clock: Clock  #: a `FakeClock` in tests


class ClientOptions(NetworkOptions, total=False):
    """The keyword arguments of every adapter that sends requests for a vendor's client."""

    client: Any  #: the vendor's client, sync or async; by default a new one


class NetworkAdapter(ProviderAdapter, ABC):
    """An adapter that sends requests, with retries and one wire per session, which keeps what it has encoded.

    A subclass sets the `package` it needs, with the `extra` that installs it if that has another name, its `wire_type`
    and the `reserved` fields that `parameters=` may not set. It implements `_wire()`, `_transport()` and `_keys()`.
    """

    package: ClassVar[str]
    extra: ClassVar[str] = ""
    reserved: ClassVar[frozenset[str]] = frozenset()
    wire_type: ClassVar[type[Wire]]
    key_hint = ""
    """Where the key comes from, for the error of a request that the vendor refuses to authenticate."""

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Any,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ValueError(f"{type(self).__name__} needs the name of a model, got {model!r}")
        taken = sorted(self.reserved & (parameters or {}).keys())
        if taken:
            raise ValueError(f"parameters cannot set {', '.join(taken)}; the prompt and the adapter set them")
        super().__init__(model, **options)
        if client is None:
            require_extra(self.package, self.extra or self.package, type(self).__name__)
        self._client = client
        self._parameters = dict(parameters or {})
        self._max_retries = max_retries
        self._clock = clock
        self._wires: WeakKeyDictionary[Session, Wire] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @property
    def identity(self) -> tuple[Any, ...]:
        keys = list(self._keys())
        parameters: dict[str, Any] = {}
        for name, value in self._parameters.items():
            if value not in keys:
                parameters[name] = value
        return (*super().identity, parameters)

    def define_tool(self, tool: AnyTool) -> str:
        if not isinstance(tool, HostedTool):
            return self.wire_type.tools.text(tool)
        try:
            return encode(self.hosted_tool_codecs[tool.kind].serialize(tool)).decode()
        except (KeyError, PromptEvaluationError):  # The adapter cannot offer it.
            return tool.definition

    def channel(self) -> NetworkChannel:
        return self._channel(self._wire(), self._transport())

    @contextmanager
    def open_channel(self, live: LiveRun) -> Iterator[NetworkChannel]:
        with self._lock:
            wire = self._wires.pop(live.session, None)
        wire = wire or self._wire()
        channel = self._channel(wire, self._transport())
        live.interrupt = channel.interrupt
        yield channel
        # After an error the wire may be half extended, and an abandoned run's thread may still be using it.
        if not live.fence.closed:
            with self._lock:
                self._wires[live.session] = wire

    def _channel(self, wire: Wire, transport: Transport) -> NetworkChannel:
        return NetworkChannel(
            wire,
            transport,
            max_retries=self._max_retries,
            secrets=self._keys,
            clock=self._clock,
            key_hint=self.key_hint,
            compaction=self._compaction_transport,
            prepare=self._preparation(),
        )

    def _preparation(self) -> Preparation | None:
        """The step before a run's requests, if there is one."""
        return None

    def _compaction_transport(self) -> Transport:
        """The connection for requests to compact a conversation."""
        return self._transport()

    @abstractmethod
    def _wire(self) -> Wire:
        """The wire for a new session."""

    @abstractmethod
    def _transport(self) -> Transport:
        """The connection to the vendor."""

    @abstractmethod
    def _keys(self) -> Iterable[str | None]:
        """Secrets that errors must never show."""


class ClientAdapter(NetworkAdapter):
    """An adapter over a vendor's client object: the user's, or one the SDK creates from the environment.

    One adapter serves any number of runs, threads and event loops, and keeps its connections alive between them. A
    subclass sets the `client_types` of its SDK (blocking and async), the `path` to post to, the path that compacts
    conversations if that is another, the path that counts tokens, and the `count_fields` of a request that it counts.
    """

    path: ClassVar[str]
    compact_path: ClassVar[str] = ""
    count_path: ClassVar[str]
    count_fields: ClassVar[tuple[str, ...]]
    client_types: ClassVar[tuple[str, str]]
    _tool_route: str | None = None
    # Where the vendor describes the model, if it is not known and nobody has asked yet.
    _model_path = ""
    _tool_search = False

    def __init__(self, model: str, **options: Any) -> None:
        if unknown := options.keys() - ClientOptions.__annotations__.keys():
            name, made = min(unknown), self.client_types[0]
            way_out = (
                f"pass fields of the request as parameters={{'{name}': ...}}, and settings of the client (a key, an "
                f"address) as client={made}(...)"
            )
            if name in Settings.__dataclass_fields__:
                way_out = f"pass settings=Settings({name}=...)"
            raise TypeError(f"{type(self).__name__} has no option '{name}'; {way_out}")
        super().__init__(model, **options)
        self.key_hint = f"check {self.package.upper()}_API_KEY, or pass client={self.client_types[0]}(api_key=...)"
        self._has_own_client = self._client is not None
        self._connection: ClientTransport | None = None
        self._compacting: ClientTransport | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        # Another server may have another model of this name. The SDK's own client need not be made to know its address.
        address = os.environ.get(f"{self.package.upper()}_BASE_URL", "")
        if self._has_own_client:
            address = str(getattr(self._client, "base_url", ""))
        return (*super().identity, address)

    @property
    def client(self) -> Any:
        """The vendor's client."""
        self._connected()
        return self._client

    @property
    def tool_route(self) -> str:
        """How tools that appear mid-conversation are announced."""
        return self._tool_route or super().tool_route

    @property
    def defers_tools(self) -> bool:
        return self._tool_search

    @property
    def uses_own_connections(self) -> bool:
        """True if requests go over our own connections; False if the client carries more than settings."""
        return self._connected().direct is not None

    def count_request(self, request: ModelRequest) -> int:
        """The tokens of a request, as the vendor counts them."""
        self._connected()
        transport = self._connect(self.count_path)
        try:
            return self._channel(self._wire(), transport).count(request, self.count_fields)
        finally:
            transport.close()

    def close(self) -> None:
        """Close the idle connections; the adapter opens new ones when it is used again."""
        for connection in (self._connection, self._compacting):
            if connection is not None:
                connection.close()

    def _wire(self, **options: Any) -> Wire:
        return self.wire_type(
            self.model,
            route=self.tool_route,
            codecs=self.hosted_tool_codecs,
            parameters=self._parameters,
            media=self.media,
            **options,
        )

    def _transport(self) -> Transport:
        return self._connected()

    def _compaction_transport(self) -> Transport:
        connected = self._connected()
        if not self.compact_path:
            return connected
        if self._compacting is None:
            self._compacting = self._connect(self.compact_path)
        self._compacting.refresh()
        return self._compacting

    def _preparation(self) -> Preparation | None:
        return self._ask_model if self._model_path else None

    async def _ask_model(self, wire: Wire, left: float | None, awaits: bool) -> None:
        """Ask once; without an answer that makes sense, what the adapter assumes of the model holds."""
        path, self._model_path = self._model_path, ""
        if not path:
            return
        transport = self._connect(path, "GET")
        try:
            seconds = ASK_SECONDS if left is None else min(left, ASK_SECONDS)
            answer = await transport.open(EncodedRequest((), {}), seconds, whole=True, awaits=awaits)
            if isinstance(answer, Response) and answer.status == 200:
                self._learn(wire, msgspec.json.decode(answer.body))
        except (TransportError, *MALFORMED) as error:
            logger.debug("%s could not be asked about '%s': %s", self.name, self.model, error)
        finally:
            transport.close()

    def _learn(self, wire: Wire, described: Any) -> None:
        """Take up the vendor's description of the model."""
        return

    def _keys(self) -> Iterable[str | None]:
        return keys(self._client) if self._client is not None else ()

    def _connected(self) -> ClientTransport:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect(self.path)
            else:
                self._connection.refresh()
            return self._connection

    def _connect(self, path: str, method: str = "POST") -> ClientTransport:
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
        return ClientTransport(self._client, sdk, path, method, plain=plain)

    def _from_environment(self, sdk: ModuleType) -> Any:
        name, key = self.client_types[0], f"{self.package.upper()}_API_KEY"
        try:
            return getattr(sdk, name)()
        except Exception as error:
            first = f"Set the SDK's variables, or pass client={name}(...)."
            first = first if os.environ.get(key) else f"Set {key}, or pass client={name}(api_key=...)."
            raise PromptEvaluationError(
                f"{first} {name}() could not be created from the environment: {error}",
                phase="request",
            ) from None


class ClientTransport:
    """Sends requests for a client: over our own connections if it only carries settings, else through the client."""

    def __init__(self, client: Any, sdk: Any, path: str, method: str = "POST", *, plain: tuple[type, ...]) -> None:
        self._client = client
        self._extra = sdk.__name__
        self._where = path, method
        self._plain = plain
        self._sdk = SdkTransport(client, sdk, path, method)
        self._known: tuple[object, ...] | None = None
        self.direct: OwnTransport | None = None
        self.refresh()

    def refresh(self) -> None:
        """Apply settings the user has changed on the client since the last request."""
        current = fingerprint(self._client)
        if current != self._known:
            self._known = current
            self._use(endpoint(self._client, self._plain, *self._where))

    async def open(
        self, request: EncodedRequest, timeout: float | None, *, whole: bool, awaits: bool
    ) -> Response | Stream:
        try:
            return await (self.direct or self._sdk).open(request, timeout, whole=whole, awaits=awaits)
        except RedirectError as error:
            # The client follows redirects, and sends every later request.
            self._use(None)
            error.retryable, error.wait = True, 0.0
            raise

    def close(self) -> None:
        """Close the idle connections; the client itself belongs to whoever created it."""
        if self.direct is not None:
            self.direct.close()

    def _use(self, found: Endpoint | None) -> None:
        self.close()
        self.direct = None if found is None else OwnTransport(found, self._extra)
