"""Whatever a provider answers, a codec gives an output, nothing, or an error in phase `parse`."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.helpers.hosted_tools import CASES, OracleConfig, reply
from weakincentives.adapters.hosted import codecs_by_kind
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool
from weakincentives.runtime.spi import adapter_spec
from weakincentives.serde import dump_tagged, load_tagged

PAIRS = [(adapter, kind) for kind, codecs in codecs_by_kind().items() for adapter in codecs]
ODD: Any = st.sampled_from([None, True, -1, 3.5, 2**70, "", "é", "web_search", [], [None], {}, {"type": "text"}, [[]]])


def items(adapter: str, kind: str) -> list[Any]:
    return [json.loads(item) for case in CASES for item in reply(adapter, kind, case).items]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in decoded JSON, as the keys that lead to it."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], odd: Any, *, gone: bool) -> None:
    for key in path[:-1]:
        value = value[key]
    if gone:
        del value[path[-1]]
    else:
        value[path[-1]] = copy.deepcopy(odd)


@pytest.mark.parametrize(("adapter", "kind"), PAIRS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_codec_survives_items_in_which_anything_may_be_wrong(adapter: str, kind: str, data: st.DataObject) -> None:
    spec = adapter_spec(adapter)
    assert spec is not None
    codec = spec.codecs()[kind]
    hostile = copy.deepcopy(items(adapter, kind))
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(list(places(hostile)) or [(0,)]))
        put(hostile, path, data.draw(ODD), gone=data.draw(st.booleans()))
    try:
        output = codec.parse_output(hostile, HostedTool(kind, "tool", "A tool.", OracleConfig()))
    except PromptEvaluationError as error:
        assert error.phase == "parse"
    else:
        assert load_tagged(dump_tagged(output)) == output
        for citation in getattr(output, "citations", ()):
            span = getattr(citation, "span", None)
            assert span is None or 0 <= span[0] <= span[1] <= len(output.text)
