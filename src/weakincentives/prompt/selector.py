"""Callables that authors give to a section (`enabled=`, `visibility=`), called with what they ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from weakincentives.session import Session

Selector = Callable[[Any, Session | None], Any]


def selector(function: Callable[..., Any]) -> Selector:
    """Call `function` with the params, with `session=` by keyword, with both or with nothing, as it declares."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return lambda params, session: function(params)
    wants_session = any(p.name == "session" or p.kind is p.VAR_KEYWORD for p in parameters)
    wants_params = any(
        p.kind is p.VAR_POSITIONAL
        or (p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and (p.default is p.empty or p.name == "params"))
        for p in parameters
        if p.name != "session"
    )
    if wants_params and wants_session:
        return lambda params, session: function(params, session=session)
    if wants_session:
        return lambda params, session: function(session=session)
    if wants_params:
        return lambda params, session: function(params)
    return lambda params, session: function()
