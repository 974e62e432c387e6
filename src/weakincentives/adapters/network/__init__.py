"""Building blocks for adapters, ours and yours, that reach a model over HTTP.

A `Wire` translates between a run and a vendor's JSON. A `ClientAdapter` sends it with the settings of the vendor's
client, and a `NetworkAdapter` without one, over an `OwnTransport`; `NetworkChannel` adds retries and deadlines to any
`Transport`.
"""

from weakincentives.adapters.network.adapter import (
    ClientAdapter,
    ClientOptions,
    NetworkAdapter,
    NetworkOptions,
    OwnTransport,
)
from weakincentives.adapters.network.channel import NetworkChannel
from weakincentives.adapters.network.endpoint import check_address, own_endpoint
from weakincentives.adapters.network.transport import ClientStream, Response, Stream, Transport, TransportError, within
from weakincentives.adapters.network.wire import (
    FIRST_USER_TURN,
    EncodedRequest,
    EventParser,
    ToolCache,
    Wire,
    base64_text,
    data_url,
    encode,
    refused,
)

__all__ = [
    "FIRST_USER_TURN",
    "ClientAdapter",
    "ClientOptions",
    "ClientStream",
    "EncodedRequest",
    "EventParser",
    "NetworkAdapter",
    "NetworkChannel",
    "NetworkOptions",
    "OwnTransport",
    "Response",
    "Stream",
    "ToolCache",
    "Transport",
    "TransportError",
    "Wire",
    "base64_text",
    "check_address",
    "data_url",
    "encode",
    "own_endpoint",
    "refused",
    "within",
]
