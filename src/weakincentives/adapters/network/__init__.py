"""Building blocks for adapters, ours and yours, that reach a model over HTTP.

A `Wire` translates between a run and a vendor's JSON. A `ClientAdapter` sends it with the settings of the vendor's
client, and a `NetworkAdapter` without one, over an `OwnTransport`; `NetworkChannel` adds retries and deadlines to any
`Transport`.
"""

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives.adapters.network.adapter import (
    ClientAdapter as ClientAdapter,
    ClientOptions as ClientOptions,
    NetworkAdapter as NetworkAdapter,
    NetworkOptions as NetworkOptions,
)
from weakincentives.adapters.network.channel import NetworkChannel as NetworkChannel
from weakincentives.adapters.network.direct import OwnTransport as OwnTransport
from weakincentives.adapters.network.endpoint import check_address as check_address, own_endpoint as own_endpoint
from weakincentives.adapters.network.transport import (
    ClientStream as ClientStream,
    Response as Response,
    Stream as Stream,
    Transport as Transport,
    TransportError as TransportError,
    within as within,
)
from weakincentives.adapters.network.wire import (
    FIRST_USER_TURN as FIRST_USER_TURN,
    EncodedRequest as EncodedRequest,
    EventParser as EventParser,
    ToolCache as ToolCache,
    Wire as Wire,
    as_object as as_object,
    base64_text as base64_text,
    data_url as data_url,
    encode as encode,
    refused as refused,
)

if not TYPE_CHECKING:
    __all__ = public_names(globals())
