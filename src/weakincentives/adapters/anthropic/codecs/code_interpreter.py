"""Code execution on the Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.anthropic.codecs.block import Result, Text, Use, failed, name_of
from weakincentives.adapters.hosted.codec import SettingsCodec
from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.adapters.hosted.setting import Rule
from weakincentives.prompt import HostedTool
from weakincentives.tools.code_interpreter import (
    CodeExecution,
    CodeFile,
    CodeInterpreterConfig,
    CodeInterpreterResult,
)

_LANGUAGES = {"code_execution": "python", "bash_code_execution": "bash", "text_editor_code_execution": "editor"}


class _File(msgspec.Struct):
    file_id: str | None = None


class _Run(msgspec.Struct):
    stdout: str | None = None
    stderr: str | None = None
    return_code: int | None = None
    content: list[_File] | None = None


class _Ran(Result):
    content: _Run


class _Edit(msgspec.Struct):
    content: str | None = None
    lines: list[str] | None = None


class _Edited(Result):
    content: _Edit


class AnthropicCodeInterpreterCodec(SettingsCodec[CodeInterpreterConfig, CodeInterpreterResult]):
    """`code_execution_20260521`: Python, bash and an editor in a container that the provider makes."""

    kind = "code_interpreter"
    adapter = "anthropic"
    config_type = CodeInterpreterConfig
    honours: ClassVar[Mapping[str, Rule]] = {}

    def declare(self, tool: HostedTool[CodeInterpreterConfig]) -> dict[str, Any]:
        return {"type": "code_execution_20260521", "name": "code_execution"}

    def parse_output(
        self, response_items: Sequence[Any], tool: HostedTool[CodeInterpreterConfig]
    ) -> CodeInterpreterResult | None:
        reading = Reading(tool, self.adapter)
        uses: dict[str, Use] = {}
        results: dict[str, CodeExecution] = {}
        for item in response_items:
            kind = kind_of(item)
            if kind == "server_tool_use" and name_of(item) in _LANGUAGES:
                use = reading.call(item, Use)
                if use is not None:
                    uses[use.id] = use
            elif kind.endswith("_tool_result") and kind.removesuffix("_tool_result") in _LANGUAGES:
                result = _result(reading, item)
                if result is not None:
                    results[result.call_id] = result
            elif kind == "text":
                block = reading.part(item, Text)
                reading.say(block.text if block else "")
        if not reading.used():
            return None
        executions = [_execution(use, results.pop(use.id, None)) for use in uses.values()]
        executions += results.values()
        files = [file for execution in executions for file in execution.files]
        return CodeInterpreterResult.of(executions, text=reading.text, files=files, errors=reading.errors)


def _result(reading: Reading, item: Any) -> CodeExecution | None:
    """The outcome of a call whose code is not known yet."""
    result = reading.call(item, Result)
    if result is None or failed(reading, result):
        return None
    language = _LANGUAGES[kind_of(item).removesuffix("_tool_result")]
    if language == "editor":
        edited = reading.part(item, _Edited)
        if edited is None:
            return None
        shown = edited.content.content or "\n".join(edited.content.lines or ())
        return CodeExecution("", stdout=shown, language=language, call_id=result.tool_use_id)
    ran = reading.part(item, _Ran)
    if ran is None:
        return None
    run = ran.content
    files = tuple(CodeFile(file.file_id) for file in run.content or () if file.file_id)
    return CodeExecution("", run.stdout, run.stderr, run.return_code, language, files, result.tool_use_id)


def _execution(use: Use, result: CodeExecution | None) -> CodeExecution:
    language = _LANGUAGES[use.name]
    written = use.input.get("code", use.input.get("command", ""))
    if language == "editor":
        written = msgspec.json.encode(use.input).decode()
    if result is None:
        return CodeExecution(str(written), language=language, call_id=use.id)
    return CodeExecution(
        code=str(written),
        stdout=result.stdout,
        stderr=result.stderr,
        exit_code=result.exit_code,
        language=language,
        files=result.files,
        call_id=use.id,
    )
