"""Typed values to JSON and back, JSON Schema, and a tagged form of JSON that preserves every type."""

from weakincentives.serde.checked import check_tagged, load_checked, undeclared
from weakincentives.serde.codecs import (
    Codec,
    MalformedJson,
    codec,
    confusable_options,
    decode,
    field_descriptions,
    find_json,
    parse,
    schema,
)
from weakincentives.serde.foreign import ForeignSchema
from weakincentives.serde.records import (
    Column,
    UnresolvedType,
    columns,
    dump,
    encode,
    field_types,
    field_value,
    is_instance,
    is_record,
)
from weakincentives.serde.strict import describe_bounds, is_strict, to_strict
from weakincentives.serde.tagged import (
    declare_type,
    dump_tagged,
    is_declared,
    load_tagged,
    own_constructors,
    register_type,
)
from weakincentives.serde.upgrade import Upgrades, check_upgrades, named_types, upgrade_tagged

__all__ = [
    "Codec",
    "Column",
    "ForeignSchema",
    "MalformedJson",
    "UnresolvedType",
    "Upgrades",
    "check_tagged",
    "check_upgrades",
    "codec",
    "columns",
    "confusable_options",
    "declare_type",
    "decode",
    "describe_bounds",
    "dump",
    "dump_tagged",
    "encode",
    "field_descriptions",
    "field_types",
    "field_value",
    "find_json",
    "is_declared",
    "is_instance",
    "is_record",
    "is_strict",
    "load_checked",
    "load_tagged",
    "named_types",
    "own_constructors",
    "parse",
    "register_type",
    "schema",
    "to_strict",
    "undeclared",
    "upgrade_tagged",
]
