"""Makes the adapter that `--adapter` (or `--model`) names: `local`, `openai:MODEL`, `claude` and so on."""

from __future__ import annotations

import argparse
import json
from typing import Any

from weakincentives.adapters import adapter_for
from weakincentives.cli.commands import default
from weakincentives.cli.output import UsageError, did_you_mean, meter
from weakincentives.cli.selection import module_exists, read_json, resolve
from weakincentives.errors import PromptEvaluationError
from weakincentives.runtime import ModelRequest, ProviderAdapter, ToolCall, adapter_spec, adapter_specs

DEFAULT = "local"


def add_adapter_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--adapter",
        "--model",
        "-a",
        metavar="NAME[:MODEL]",
        help=f"{', '.join(spec.usage for spec in adapter_specs())}, "
        f"or module:variable [WINK_ADAPTER] (default: {DEFAULT})",
    )


def make_adapter(arguments: argparse.Namespace) -> ProviderAdapter:
    """The adapter of the flag, or of the settings."""
    text: str = arguments.adapter or default("adapter") or DEFAULT
    name, _, model = text.partition(":")
    if name == "scripted":
        return _scripted(model)
    spec = adapter_spec(name)
    if spec is None:
        return _named(text)
    if spec.requires_model and not model:
        raise UsageError(f"--adapter {name} needs a model, as in {spec.usage}")
    return adapter_for(text, **({"progress": show_reading} if name == "local" else {}))


def show_reading(done: int, size: int) -> None:
    """Say how much of a prompt the embedded model has read."""
    meter(f"reading {done:,} of {size:,} tokens", done, size)


def _named(target: str) -> ProviderAdapter:
    """An adapter of the user's own, or a function that makes one."""
    name, colon, _ = target.partition(":")
    if not colon or not module_exists(name):
        kinds = [spec.provider for spec in adapter_specs()]
        raise UsageError(
            f"no adapter {name!r}; there are {', '.join(kinds)}, or module:variable for one of your own"
            f"{did_you_mean(name, kinds)}"
        )
    found = resolve(target)
    if callable(found):
        found = found()
    if not isinstance(found, ProviderAdapter):
        raise UsageError(f"--adapter {target!r} is a {type(found).__name__}, not an adapter")
    return found


def _scripted(file: str) -> ProviderAdapter:
    """Plays a JSON list: text, `{"call": name, "arguments": {...}}`, a list of those, or `{"output": ...}`."""
    from weakincentives.adapters.scripted import ScriptedAdapter

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
