"""What `import weakincentives` and `wink --help` cost beyond bare Python."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

from bench.row import Row

WHOLE = "from weakincentives import MainLoop, MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, Session"


def rows() -> Iterator[Row]:
    bare, front, whole, wink = best_cpu(
        ["-c", "pass"], ["-c", "import weakincentives"], ["-c", WHOLE], ["-m", "weakincentives.cli", "--help"]
    )
    yield Row("import weakincentives, beyond bare Python", (front - bare) * 1e3, "ms", goal=45)
    yield Row("modules it loads", modules("import weakincentives"), "", goal=100)
    yield Row("import of a whole first program", (whole - bare) * 1e3, "ms")
    yield Row("modules it loads", modules(WHOLE), "")
    yield Row("wink --help, whole process", wink * 1e3, "ms", goal=60)


def best_cpu(*commands: list[str], rounds: int = 9) -> list[float]:
    """CPU seconds of a fresh interpreter per command, in turns."""
    best = [float("inf")] * len(commands)
    for _ in range(rounds):
        for index, command in enumerate(commands):
            before = children_cpu()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            best[index] = min(best[index], children_cpu() - before)
    return best


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def modules(statement: str) -> int:
    """How many modules a statement loads beyond those of bare Python."""

    def loaded(script: str) -> set[str]:
        command = [sys.executable, "-c", f"{script}\nimport sys\nprint(*sys.modules)"]
        return set(subprocess.check_output(command, text=True).split())

    return len(loaded(statement) - loaded("pass"))
