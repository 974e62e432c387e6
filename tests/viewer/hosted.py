"""A run whose provider ran a tool of its own."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.hosted_tools import OracleCodec, oracle_reply, oracle_tool
from weakincentives import MarkdownSection, Prompt, Session
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.telemetry import record


def record_hosted_run(path: Path, session: Session | None = None) -> str:
    """One turn; the id of the run."""
    section = MarkdownSection[None](
        key="future", title="Future", template="Ask the oracle.", hosted_tools=(oracle_tool(name="delphi"),)
    )
    model = ScriptedAdapter([oracle_reply("<b>Beware.</b>")], hosted_tool_codecs={"oracle": OracleCodec()})
    with record(path):
        return model.evaluate(Prompt(ns="t", key="t", sections=[section]), session=session or Session()).run_id
