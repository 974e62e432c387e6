"""The subject of a command: a prompt with its params, overrides and open sections, and the adapter to run it on.

Adapters are imported only when needed: rendering a prompt or editing overrides uses none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction, signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from weakincentives.cli.commands import default
from weakincentives.cli.output import UsageError, did_you_mean, meter, reason
from weakincentives.errors import PromptEvaluationError, SerdeError, UnboundParamsError
from weakincentives.prompt import (
    JsonPromptOverridesStore,
    Prompt,
    PromptTemplate,
    SectionPath,
    SectionVisibility,
    Tool,
    with_ancestors,
)
from weakincentives.serde import columns, parse

if TYPE_CHECKING:
    from weakincentives.runtime import ModelRequest, ProviderAdapter

ADAPTER = "local"
SCRIPTED = "scripted"
OVERRIDES = ".wink/overrides"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="module:variable", help="a PromptTemplate, a Prompt, or a function that returns one"
    )
    add_prompt_options(parser)


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """The params, open sections and overrides of a prompt."""
    add_params_option(parser)
    parser.add_argument(
        "--open", metavar="KEY", action="append", default=[], help="show this section in full; repeatable"
    )
    parser.add_argument("--tag", help="apply the stored overrides with this tag")
    add_store_option(parser)


def add_params_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--params",
        "-p",
        metavar="FIELD=VALUE",
        action="append",
        nargs="+",
        default=[],
        help="params of the prompt: field=value, Type.field=value or @file.json; repeatable",
    )


def take_message(arguments: argparse.Namespace) -> str | None:
    """The message, if it was written after `--params` and taken for one of them."""
    for words in arguments.params:
        if len(words) > 1 and "=" not in words[-1] and not words[-1].startswith("@"):
            message: str = words.pop()
            return message
    return None


def selected_prompt(arguments: argparse.Namespace) -> Prompt[Any]:
    """The prompt named in the arguments, with its params bound."""
    words = [word for group in arguments.params for word in group]
    found = named_prompt(arguments.target)
    if arguments.tag:
        if found.overrides_store is not None:
            raise UsageError(f"--tag needs a prompt without a store of overrides; {arguments.target!r} has its own")
        store = open_store(arguments)
        if store.resolve(found.template.descriptor, arguments.tag) is None:
            tags = ", ".join(stored.tag for stored in store.list(ns=found.ns, key=found.key)) or "none"
            raise UsageError(
                f"no override of {found.ns}/{found.key} has the tag {arguments.tag!r}; stored tags: {tags}"
            )
        found = found.with_overrides(store, arguments.tag)
    return found.bind(*read_params(words, found.template.outline.params_types))


def check_params(prompt: Prompt[Any]) -> None:
    """Raise if the prompt lacks params, for commands that would find out only after a person has typed something."""
    try:
        prompt.render()
    except UnboundParamsError:
        raise
    except Exception:
        return  # It may need the session of a run, and will say so there.


def named_prompt(target: str) -> Prompt[Any]:
    found = resolve(target, Prompt, PromptTemplate)
    if callable(found) and not isinstance(found, type | Tool):
        found = made_by(found, target)
    if isinstance(found, PromptTemplate):
        return Prompt(found)
    if isinstance(found, Prompt):
        return found
    raise UsageError(
        f"{target!r} must be a PromptTemplate, a Prompt or a function that returns one, got {type(found).__name__}"
    )


def made_by(function: Callable[[], object], target: str) -> Any:
    """What a function of the user's makes, which must take no arguments."""
    try:
        signature(function).bind()
    except TypeError as error:
        raise UsageError(f"{target!r} must be a function that takes no arguments: {error}") from None
    return function()


def opened(arguments: argparse.Namespace, prompt: Prompt[Any]) -> dict[SectionPath, SectionVisibility]:
    """The sections of `--open`, with the ancestors that must be open for them to appear."""
    by_key = prompt.template.outline.by_key
    unknown = [key for key in arguments.open if key not in by_key]
    if unknown:
        hint = did_you_mean(unknown[0], by_key)
        raise UsageError(f"--open {unknown[0]}: no such section; there are {', '.join(by_key)}{hint}")
    return with_ancestors({by_key[key].path: SectionVisibility.FULL for key in arguments.open})


def add_store_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help=f"the folder of overrides [WINK_STORE] (default: {OVERRIDES})")


def open_store(arguments: argparse.Namespace) -> JsonPromptOverridesStore:
    return JsonPromptOverridesStore(arguments.store or default("store") or OVERRIDES)


def add_adapter_option(
    parser: argparse.ArgumentParser, *, also: str = "", unset: str = f"[WINK_ADAPTER] (default: {ADAPTER})"
) -> None:
    """The adapter to run on; `also` names what else the command takes, `unset` what it does without the option."""
    from weakincentives.runtime.spi import adapter_specs

    parser.add_argument(
        "--adapter",
        "--model",
        "-a",
        metavar="NAME[:MODEL]",
        help=f"{', '.join(spec.usage for spec in adapter_specs())}, {SCRIPTED}:FILE, {also}or module:variable {unset}",
    )


def make_adapter(
    arguments: argparse.Namespace, *, progress: Callable[[int, int], None] | None = None
) -> ProviderAdapter:
    """The adapter from the flag, or from the settings; `progress` hears how much one in this process has read."""
    from weakincentives.adapters import adapter_for
    from weakincentives.runtime.spi import adapter_spec

    text: str = arguments.adapter or default("adapter") or ADAPTER
    name, _, model = text.partition(":")
    if name == SCRIPTED:
        return _scripted(model)
    spec = adapter_spec(name)
    if spec is None:
        return _named(text)
    if spec.requires_model and not model:
        raise UsageError(f"--adapter {name} needs a {spec.model.lower()}, as in {spec.usage}")
    try:
        return adapter_for(text, **({"progress": progress or show_reading} if spec.in_process else {}))
    except ValueError as error:
        raise UsageError(f"--adapter {text}: {error}") from None


def show_reading(done: int, size: int) -> None:
    """Show how much the local adapter has read."""
    meter(f"reading {done:,} of {size:,} tokens", done, size)


def resolve(target: str, *kinds: type) -> object:
    """Import the module, from the working directory or the environment, and return its variable (dots allowed).

    If there is no such variable, the error lists those of these kinds and the functions that the module defines. What
    the module prints while it is imported goes to stderr: stdout is for the command's data.
    """
    module_name, colon, variable = target.partition(":")
    if not (module_name and colon and variable):
        raise UsageError(f"expected module:variable, such as 'my_agent:prompt', got {target!r}")
    if not module_exists(module_name):
        here = [path.stem for path in Path.cwd().iterdir() if path.suffix == ".py" or path.is_dir()]
        hint = did_you_mean(module_name, here)
        raise UsageError(f"no module {module_name!r} in {os.getcwd()} or among the installed packages{hint}")
    with redirect_stdout(sys.stderr):
        value: object = import_module(module_name)
    for name in variable.split("."):
        if not hasattr(value, name):
            fitting = sorted(
                known
                for known, one in vars(value).items()
                if isinstance(one, kinds) or (isfunction(one) and one.__module__ == module_name and known[0] != "_")
            )
            has = f"it has {', '.join(fitting) or 'nothing to use here'}{did_you_mean(name, fitting)}"
            raise UsageError(f"{module_name!r} has no {name!r}; {has}")
        value = getattr(value, name)
    return value


def read_json(file: str, flag: str) -> Any:
    """Read the JSON file given with a flag."""
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag}: {reason(error)}") from None


def module_exists(module_name: str) -> bool:
    """True if the module exists, in the working directory or the environment."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if "" in module_name.split("."):  # "./agent", or a name relative to no package.
        return False
    try:
        return find_spec(module_name) is not None
    except ModuleNotFoundError:
        return False


def read_params(words: Iterable[str], types: Sequence[type]) -> tuple[Any, ...]:
    """One instance of each type that was given a value: as `field=value`, as `Type.field=value` if two types share a
    field, or as `@file.json`.
    """
    values: dict[type, dict[str, Any]] = {}
    for word in words:
        for key, value in _file_pairs(word[1:], types) if word.startswith("@") else [_pair(word)]:
            owner, field = _owner(key, types)
            given = value if word.startswith("@") else _typed(value, owner, field)
            values.setdefault(owner, {})[field] = given
    return tuple(_instance(owner, given) for owner, given in values.items())


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"--params takes field=value or @file.json, got {word!r}")
    return key, value


def _file_pairs(name: str, types: Sequence[type]) -> Iterator[tuple[str, Any]]:
    content = read_json(name, f"--params @{name}")
    if not isinstance(content, dict):
        raise UsageError(f"--params @{name} must hold a JSON object of fields")
    by_name = {params_type.__name__: params_type for params_type in types}
    for key, value in content.items():
        if key in by_name and isinstance(value, Mapping):
            yield from ((f"{key}.{field}", inner) for field, inner in value.items())
        else:
            yield key, value


def _owner(key: str, types: Sequence[type]) -> tuple[type, str]:
    type_name, dot, field = key.rpartition(".")
    owners = [
        candidate
        for candidate in types
        if field in _field_names(candidate) and (not dot or candidate.__name__ == type_name)
    ]
    if len(owners) == 1:
        return owners[0], field
    if owners:
        choices = ", ".join(f"{owner.__name__}.{field}" for owner in owners)
        raise UsageError(f"--params {key}= is ambiguous; write one of {choices}")
    known = [f"{owner.__name__}.{name}" for owner in types for name in _field_names(owner)]
    hint = did_you_mean(key, [*known, *(name for owner in types for name in _field_names(owner))])
    has = f"there are {', '.join(known)}{hint}" if known else "this prompt has no params"
    raise UsageError(f"--params {key}= matches no field; {has}")


def _field_names(params_type: type) -> list[str]:
    return [column.key for column in columns(params_type) if column.init]


def _typed(value: str, owner: type, field: str) -> Any:
    """Text if the field accepts text, else JSON, else the text itself (for dates, enums and the like)."""
    name = next(column.name for column in columns(owner) if column.key == field)
    hint = get_type_hints(owner)[name]
    choices = get_args(hint) or (hint,)
    if str in choices and not (value == "null" and NoneType in choices):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _instance(owner: type, given: dict[str, Any]) -> Any:
    try:
        return parse(owner, given)
    except SerdeError as error:
        raise UsageError(f"--params for {owner.__name__}: {error}") from None


def _named(target: str) -> ProviderAdapter:
    """The user's own adapter, or the result of a function that creates one."""
    from weakincentives.runtime import ProviderAdapter
    from weakincentives.runtime.spi import adapter_specs

    name, colon, _ = target.partition(":")
    if not colon or not module_exists(name):
        kinds = [*(spec.provider for spec in adapter_specs()), SCRIPTED]
        raise UsageError(
            f"no adapter {name!r}; there are {', '.join(kinds)}, or module:variable for one of your own"
            f"{did_you_mean(name, kinds)}"
        )
    found = resolve(target, ProviderAdapter)
    if callable(found):
        found = made_by(found, target)
    if not isinstance(found, ProviderAdapter):
        raise UsageError(f"--adapter {target!r} must be an adapter, got {type(found).__name__}")
    return found


def _scripted(file: str) -> ProviderAdapter:
    """Plays a JSON list: text, `{"call": name, "arguments": {...}}`, a list of those, or `{"output": ...}`."""
    from weakincentives import ScriptedAdapter

    if not file:
        raise UsageError(f"--adapter {SCRIPTED} needs a file, as in {SCRIPTED}:FILE")
    lines = read_json(file, f"--adapter scripted:{file}")
    if not isinstance(lines, list):
        raise UsageError(f"--adapter scripted:{file}: a script is a JSON list of replies")
    replies = iter([_reply(line) for line in lines])

    def play(request: ModelRequest) -> Any:
        for reply in replies:
            return reply
        raise PromptEvaluationError(f"{file} has no more replies", prompt_name=request.prompt_name, phase="request")

    return ScriptedAdapter(play, model=file)


def _reply(line: Any) -> Any:
    from weakincentives.runtime import ToolCall

    if isinstance(line, dict) and "call" in line:
        return ToolCall(id="", name=line["call"], arguments=json.dumps(line.get("arguments", {})))
    if isinstance(line, dict) and "output" in line:
        return json.dumps(line["output"])
    if isinstance(line, list):
        return [_reply(call) for call in line]
    if isinstance(line, str):
        return line
    raise UsageError(
        f'a reply of a script is text, {{"call": NAME, "arguments": {{...}}}}, a list of calls or {{"output": ...}}; '
        f"got {json.dumps(line)}"
    )
