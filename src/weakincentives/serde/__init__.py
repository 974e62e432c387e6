"""Typed values to JSON and back, JSON Schema, and a tagged form of JSON that preserves every type."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives.serde.checked import (
    check_tagged as check_tagged,
    load_checked as load_checked,
    undeclared as undeclared,
)
from weakincentives.serde.codecs import (
    Codec as Codec,
    MalformedJson as MalformedJson,
    codec as codec,
    confusable_options as confusable_options,
    decode as decode,
    field_descriptions as field_descriptions,
    find_json as find_json,
    parse as parse,
    schema as schema,
)
from weakincentives.serde.foreign import ForeignSchema as ForeignSchema
from weakincentives.serde.records import (
    Column as Column,
    UnresolvedType as UnresolvedType,
    columns as columns,
    dump as dump,
    encode as encode,
    field_types as field_types,
    field_value as field_value,
    is_instance as is_instance,
    is_record as is_record,
)
from weakincentives.serde.strict import (
    describe_bounds as describe_bounds,
    is_strict as is_strict,
    to_strict as to_strict,
)
from weakincentives.serde.tagged import (
    OWN_NAMES as OWN_NAMES,
    declare_type as declare_type,
    dump_tagged as dump_tagged,
    is_declared as is_declared,
    load_tagged as load_tagged,
    own_constructors as own_constructors,
    register_type as register_type,
    stored_name as stored_name,
)
from weakincentives.serde.upgrade import (
    Upgrades as Upgrades,
    check_upgrades as check_upgrades,
    named_types as named_types,
    upgrade_tagged as upgrade_tagged,
)

if not TYPE_CHECKING:
    __all__ = public_names(globals())
