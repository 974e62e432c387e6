"""Dataclasses to JSON and back, JSON Schema, and a tagged form of JSON that preserves every type."""

from weakincentives.serde.codecs import Codec, MalformedJson, codec, decode, parse, schema
from weakincentives.serde.scan import find_json
from weakincentives.serde.tagged import dump_tagged, load_tagged, register_type
from weakincentives.serde.writer import dump, encode

__all__ = [
    "Codec",
    "MalformedJson",
    "codec",
    "decode",
    "dump",
    "dump_tagged",
    "encode",
    "find_json",
    "load_tagged",
    "parse",
    "register_type",
    "schema",
]
