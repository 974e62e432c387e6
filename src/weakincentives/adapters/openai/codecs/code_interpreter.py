"""Code interpreter on the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from weakincentives.adapters.hosted.codec import SettingsCodec
from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.adapters.hosted.setting import HONOURED, Rule
from weakincentives.adapters.openai.codecs.message import check_status, read_message
from weakincentives.prompt import HostedTool
from weakincentives.tools.code_interpreter import (
    CodeExecution,
    CodeFile,
    CodeInterpreterConfig,
    CodeInterpreterResult,
)


class _Output(msgspec.Struct):
    type: str = ""
    logs: str | None = None
    url: str | None = None


class _Call(msgspec.Struct):
    id: str = ""
    code: str | None = None
    container_id: str = ""
    outputs: list[_Output] | None = None
    status: str | None = None


class _FileCitation(msgspec.Struct):
    file_id: str
    filename: str | None = None
    container_id: str | None = None


class OpenAICodeInterpreterCodec(SettingsCodec[CodeInterpreterConfig, CodeInterpreterResult]):
    """`code_interpreter`: Python only; logs are its standard output, and it says neither stderr nor an exit code."""

    kind = "code_interpreter"
    adapter = "openai"
    config_type = CodeInterpreterConfig
    include: ClassVar[tuple[str, ...]] = ("code_interpreter_call.outputs",)
    honours: ClassVar[Mapping[str, Rule]] = {
        "allowed_languages": Rule(values=(("python",),)),
        "container_id": HONOURED,
        "file_ids": HONOURED,
        "memory_gb": Rule(values=(1, 4, 16, 64)),
        "allowed_domains": HONOURED,
    }

    def declare(self, tool: HostedTool[CodeInterpreterConfig]) -> dict[str, Any]:
        return {"type": self.kind, "container": tool.config.container_id or _container(tool.config)}

    def parse_output(
        self, response_items: Sequence[Any], tool: HostedTool[CodeInterpreterConfig]
    ) -> CodeInterpreterResult | None:
        reading = Reading(tool, self.adapter)
        executions: list[CodeExecution] = []
        files: list[CodeFile] = []

        def cite(note: Any, length: int) -> None:
            found = reading.part(note, _FileCitation)
            if found is not None:
                name, container = found.filename or "", found.container_id or ""
                files.append(CodeFile(found.file_id, name, container_id=container))

        for item in response_items:
            match kind_of(item):
                case "code_interpreter_call":
                    call = reading.call(item, _Call)
                    if call is not None:
                        executions.append(_execution(call))
                        check_status(reading, call.status, call.id)
                case "message":
                    read_message(reading, item, "container_file_citation", cite)
        if not reading.used():
            return None
        return CodeInterpreterResult.of(executions, text=reading.text, files=files, errors=reading.errors)


def _container(config: CodeInterpreterConfig) -> dict[str, Any]:
    container: dict[str, Any] = {"type": "auto"}
    if config.file_ids:
        container["file_ids"] = list(config.file_ids)
    if config.memory_gb is not None:
        container["memory_limit"] = f"{config.memory_gb}g"
    if config.allowed_domains:
        container["network_policy"] = {"type": "allowlist", "allowed_domains": list(config.allowed_domains)}
    elif config.allowed_domains is not None:
        container["network_policy"] = {"type": "disabled"}
    return container


def _execution(call: _Call) -> CodeExecution:
    logs = None if call.outputs is None else "".join(output.logs or "" for output in call.outputs)
    images = [output.url for output in call.outputs or () if output.type == "image" and output.url]
    return CodeExecution(
        code=call.code or "",
        stdout=logs,
        files=tuple(CodeFile(url=url, container_id=call.container_id) for url in images),
        call_id=call.id,
    )
