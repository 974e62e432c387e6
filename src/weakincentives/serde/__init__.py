"""Dataclasses to JSON and back, and to JSON Schema; `tagged` keeps every type exactly."""

from weakincentives.serde import tagged
from weakincentives.serde.codec import Codec, MalformedJson, codec, decode, parse, schema
from weakincentives.serde.writer import dump, encode

__all__ = ["Codec", "MalformedJson", "codec", "decode", "dump", "encode", "parse", "schema", "tagged"]
