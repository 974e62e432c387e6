from __future__ import annotations

import json

from scripts.vendor import LIBRARIES, LOCK, VENDOR, mismatches


def test_the_libraries_in_the_tree_are_those_of_the_lock() -> None:
    assert mismatches() == []


def test_every_library_has_its_licence_beside_it_and_nothing_else_is_there() -> None:
    locked = json.loads(LOCK.read_text(encoding="utf-8"))
    assert [f"{one['package']}@{one['version']}" for one in locked] == [package for package, _ in LIBRARIES]
    licences = {f"{one['package'].lstrip('@').replace('/', '-')}.LICENSE" for one in locked}
    modules = {name for one in locked for name in one["files"]}
    assert {path.name for path in VENDOR.iterdir()} == {"lock.json"} | licences | modules
