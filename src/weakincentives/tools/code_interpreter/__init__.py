"""Code interpreter: the provider runs the model's code in a sandbox."""

from weakincentives.tools.code_interpreter.config import CodeInterpreterConfig
from weakincentives.tools.code_interpreter.factory import CodeInterpreterSection, code_interpreter_tool
from weakincentives.tools.code_interpreter.output import CodeExecution, CodeFile, CodeInterpreterResult
from weakincentives.tools.failure import HostedToolFailure

__all__ = [
    "CodeExecution",
    "CodeFile",
    "CodeInterpreterConfig",
    "CodeInterpreterResult",
    "CodeInterpreterSection",
    "HostedToolFailure",
    "code_interpreter_tool",
]
