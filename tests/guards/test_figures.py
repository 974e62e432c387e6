"""The figures that README and the guides quote are those that `python -m bench --save` wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEERS = ["Pydantic AI", "OpenAI Agents SDK", "LangChain"]

# By page, the first cell of a line of its table, and the rows whose figures the next cells with digits quote.
QUOTED = {
    "README.md": {
        "closed at first": [
            "ReadSections (default), additional_tools: sent",
            "(default), additional_tools: uncached",
        ],
    },
    "docs/operate/costs.md": {
        "recording a step": ["over a plain one, SQLite", "over a plain one, Postgres"],
        **{
            f"{model}, open": [f"full prompt, {model}: tokens sent"]
            for model in ("gpt-5.6", "claude-opus-5", "claude-sonnet-5")
        },
        **{
            f"{model}, closed": [f"{route}: sent", f"{route}: uncached"]
            for model, route in (
                ("gpt-5.6", "ReadSections (default), additional_tools"),
                ("claude-opus-5", "ReadSections, tool_addition, claude-opus-5"),
                ("claude-sonnet-5", "ReadSections, tool_reference, claude-sonnet-5"),
            )
        },
        "a raw socket, the lower bound": [f"K={k}: raw socket" for k in (1, 10, 50, 200)],
        "`OpenAIAdapter`": [f"K={k}: OpenAIAdapter" for k in (1, 10, 50, 200)],
        "`AnthropicAdapter`": [f"K={k}: AnthropicAdapter" for k in (1, 10, 50, 200)],
        "`OpenAIAdapter` through a client with its own transport": [
            f"K={k}: OpenAIAdapter, through a client" for k in (1, 10, 50)
        ],
        "a hand-written loop on the OpenAI SDK": [f"K={k}: hand-written loop" for k in (1, 10, 50)],
        **{peer: [f"K={k}: {peer}" for k in (1, 10, 50)] for peer in PEERS},
    },
    "docs/disclosure/strategies.md": {
        "`ReadSections()` (default)": [
            "ReadSections (default), additional_tools: sent",
            "(default), additional_tools: uncached",
        ],
        **{
            f"`{name}()`": [f"{name}: sent", f"{name}: uncached"]
            for name in ("OpenOrRead", "OpenToFiles", "OpenAndHalt")
        },
        **{
            f"{line}, {model}": [f"ReadSections, {row}: sent", f"ReadSections, {row}: uncached"]
            for line, model, row in (
                ("`append`", "gpt-5.6", "append"),
                ("`tool_search=True`", "gpt-5.6", "tool_search with namespaces"),
                ("`tool_addition`", "claude-opus-5", "tool_addition, claude-opus-5"),
                ("`append`", "claude-sonnet-5", "append, claude-sonnet-5"),
                ("`tool_reference`", "claude-sonnet-5", "tool_reference, claude-sonnet-5"),
                ("`tool_search=True`", "claude-sonnet-5", "tool_search, claude-sonnet-5"),
            )
        },
    },
    "docs/conversations/long-conversations.md": {
        "20": ["20 exchanges, no compaction", "20 exchanges, when it pays"],
        "50": ["50 exchanges, no compaction", "50 exchanges, when it pays"],
        "200": ["200 exchanges, no compaction", "200 exchanges, when it pays"],
    },
}


@pytest.mark.parametrize(
    ("page", "line", "rows"), [(page, *each) for page, lines in QUOTED.items() for each in lines.items()]
)
def test_a_page_quotes_the_saved_figures(page: str, line: str, rows: list[str]) -> None:
    for quoted, row in zip(figures(page, line), rows, strict=False):
        number, figure = re.sub("[^0-9.]", "", quoted), saved(row, percent=quoted.endswith("%"))
        assert float(number) == pytest.approx(figure, abs=0.51 * 10 ** -len(number.partition(".")[2])), row
    assert len(figures(page, line)) >= len(rows)


def figures(page: str, line: str) -> list[str]:
    """The cells with figures in the last line of a table that begins with this cell."""
    found: list[str] = []
    for each in (ROOT / page).read_text(encoding="utf-8").splitlines():
        first, *cells = map(str.strip, each.strip("|").split("|"))
        if first == line:
            found = [cell for cell in cells if re.fullmatch(r"\$?[\d.,]+(%| ms| s)?", cell)]
    return found


def saved(row: str, *, percent: bool) -> float:
    """The figure of the first row that has these words, or its ratio in percent."""
    for each in (ROOT / "bench/RESULTS.md").read_text(encoding="utf-8").splitlines():
        if row in each:
            _, _, figure, _, ratio, *_ = each.split("|")
            return float(ratio.split("x")[0]) * 100 if percent else float(figure.split()[0].replace(",", ""))
    raise LookupError(row)
