"""The agent frameworks that we measure ourselves against, each in an environment of its own.

`python -m bench.peers install` makes the environments under bench/.venvs; without them their rows are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parent / ".venvs"
SCRIPTS = Path(__file__).parent / "peer_scripts"


@dataclass(frozen=True, slots=True)
class Peer:
    """A framework: what to install, and the script that runs the same work with it."""

    name: str
    requirements: tuple[str, ...]
    script: str

    @property
    def python(self) -> Path:
        return HOME / self.script / "bin" / "python"

    @property
    def installed(self) -> bool:
        return self.python.exists()

    def measure(self, url: str, *, calls: int, tools: int = 2, rounds: int = 3) -> float:
        """CPU seconds of one run, the best of a few."""
        command = [str(self.python), str(SCRIPTS / f"run_{self.script}.py"), url, str(calls), str(tools), str(rounds)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return float(json.loads(printed.splitlines()[-1])["cpu"])

    def measure_crowd(self, url: str, *, calls: int, runs: int) -> tuple[float, float]:
        """Wall seconds of many runs at once, and CPU seconds of each."""
        command = [str(self.python), str(SCRIPTS / f"run_{self.script}.py"), url, str(calls), "2", "1", str(runs)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(printed.splitlines()[-1])
        return float(found["wall"]), float(found["cpu"])


PEERS = (
    Peer("Pydantic AI", ("pydantic-ai-slim[openai,ui]", "uvicorn"), "pydantic_ai"),
    Peer("OpenAI Agents SDK", ("openai-agents",), "openai_agents"),
    Peer("LangChain", ("langchain", "langchain-openai"), "langchain"),
)


# With the engine of bench/durable.py, whose version may differ from that of ours.
DURABLE = Peer("Pydantic AI with DBOS", ("pydantic-ai-slim[dbos]",), "pydantic_ai_dbos")


def install() -> None:
    for peer in (*PEERS, DURABLE):
        venv.create(HOME / peer.script, with_pip=True)
        subprocess.run([str(peer.python), "-m", "pip", "install", "--quiet", *peer.requirements], check=True)
        print(f"{peer.name}: installed in bench/.venvs/{peer.script}")


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python -m bench.peers install")
    install()
