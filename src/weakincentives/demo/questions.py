"""The desk's test questions as cases, for `wink eval run weakincentives.demo.questions:cases ...`."""

from __future__ import annotations

from pathlib import Path

from weakincentives.evals import Case, load_cases


def cases() -> tuple[Case, ...]:
    """Forty questions to the handbook, each with the facts that its answer needs and the section that has them."""
    return load_cases(Path(__file__).with_name("questions.jsonl"))
