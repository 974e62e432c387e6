"""Resolving `module:variable`."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from weakincentives.cli.output import UsageError, did_you_mean


def resolve(target: str) -> object:
    """Import the module, from the working directory or the environment, and return its variable (dots allowed).

    What the module prints while it is imported goes to stderr: stdout is for the command's data.
    """
    module_name, colon, variable = target.partition(":")
    if not (module_name and colon and variable):
        raise UsageError(f"expected module:variable, such as 'my_agent:prompt', got {target!r}")
    if not exists(module_name):
        here = [path.stem for path in Path.cwd().iterdir() if path.suffix == ".py" or path.is_dir()]
        hint = did_you_mean(module_name, here)
        raise UsageError(f"no module {module_name!r} in {os.getcwd()} or among the installed packages{hint}")
    with redirect_stdout(sys.stderr):
        value: object = import_module(module_name)
    for name in variable.split("."):
        if not hasattr(value, name):
            public = ", ".join(sorted(known for known in vars(value) if not known.startswith("_")))
            raise UsageError(f"{module_name!r} has no {name!r}; it has {public}{did_you_mean(name, vars(value))}")
        value = getattr(value, name)
    return value


def exists(module_name: str) -> bool:
    """Whether there is such a module, in the working directory or the environment."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return find_spec(module_name) is not None
    except ModuleNotFoundError:
        return False
