"""How a code interpreter gets into a prompt: as a tool of any section, or with a section of its own."""

from __future__ import annotations

from typing import Any

from weakincentives.prompt import HostedTool
from weakincentives.tools.code_interpreter.config import CodeInterpreterConfig
from weakincentives.tools.section import HostedToolSection

_TEMPLATE = """
You can run code in a sandbox. Use it for arithmetic, data, and anything that is easier to compute than to guess; say
what came out, not only what you expected.
"""


def code_interpreter_tool(
    config: CodeInterpreterConfig = CodeInterpreterConfig(), *, name: str = "code_interpreter"
) -> HostedTool[CodeInterpreterConfig]:
    """A code interpreter with this configuration; its result is `response.hosted_outputs[name]`."""
    return HostedTool(
        kind="code_interpreter", name=name, description="Execute code in a sandboxed environment.", config=config
    )


class CodeInterpreterSection(HostedToolSection):
    """A section that lets the model run code at the provider."""

    def __init__(
        self,
        config: CodeInterpreterConfig = CodeInterpreterConfig(),
        *,
        key: str = "code_interpreter",
        title: str = "Code Interpreter",
        template: str = _TEMPLATE,
        name: str = "code_interpreter",
        **options: Any,
    ) -> None:
        super().__init__(code_interpreter_tool(config, name=name), title=title, key=key, template=template, **options)
