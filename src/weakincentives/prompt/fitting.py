"""Choosing which summarized sections fit in full into a number of tokens."""

from __future__ import annotations

from weakincentives.prompt.outline import FULL, Node
from weakincentives.prompt.tokens import Tokenizer
from weakincentives.prompt.view import View, tool_text


def fit(view: View, budget: int, tokenizer: Tokenizer) -> View:
    """Open summarized sections, the cheapest first, as long as text and tools stay within the budget.

    A section that the caller or the session summarized on purpose stays as it is.
    """
    spent = tokenizer.count("".join(view.pieces())) + sum(
        tokenizer.count(tool_text(tool)) for _, tool in view.offered()
    )
    refused: set[int] = set()
    while True:
        candidates = [
            (view.opening_cost(node, tokenizer)[0], node)
            for node in view.plan.summarized
            if node.index not in refused and view.decided_by(node) in ("declared", "selector")
        ]
        if not candidates:
            return view
        cost, node = min(candidates, key=_cheapest)
        if spent + cost > budget:
            refused.add(node.index)
            continue
        spent += cost
        view = view.with_shape(view.shape.with_state(node, FULL, "budget"))


def _cheapest(candidate: tuple[int, Node]) -> tuple[int, int]:
    return candidate[0], candidate[1].index
