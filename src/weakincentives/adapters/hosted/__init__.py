"""What codecs of hosted tools share: the settings they honour, and reading a provider's items."""

from weakincentives.adapters.hosted.codec import (
    HONOURED,
    Capability,
    Rule,
    SettingsCodec,
    all_settings,
    capabilities,
    domain_fields,
    location_fields,
    used_settings,
)
from weakincentives.adapters.hosted.items import ItemReader, type_of

__all__ = [
    "HONOURED",
    "Capability",
    "ItemReader",
    "Rule",
    "SettingsCodec",
    "all_settings",
    "capabilities",
    "domain_fields",
    "location_fields",
    "type_of",
    "used_settings",
]
