"""Optional packages."""

import json

import pytest

from weakincentives.adapters.network.extra import load, require


def test_a_missing_package_is_named_with_the_way_to_get_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'weakincentives\[openai\]'") as caught:
        require("no_such_package", "openai")
    assert caught.value.name == "no_such_package"


def test_a_package_that_is_there_is_imported() -> None:
    assert load("json", "openai") is json
