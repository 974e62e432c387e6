"""Choosing which summarized sections fit in full into a number of tokens."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from weakincentives.prompt.outline import FULL, SUMMARY, Node
from weakincentives.prompt.tokens import Tokenizer
from weakincentives.prompt.view import View, tool_text


def fit(view: View, budget: int, tokenizer: Tokenizer) -> View:
    """Open summarized sections, the cheapest first, as long as text and tools stay within the budget.

    A section that the caller or the session summarized on purpose stays as it is.
    """
    spent = tokenizer.count("".join(view.pieces())) + sum(
        tokenizer.count(tool_text(tool)) for _, tool in view.offered()
    )
    waiting: list[tuple[int, int]] = []

    def weigh(nodes: Iterable[Node]) -> None:
        for node in nodes:
            if view.decided_by(node) in ("declared", "selector"):
                heapq.heappush(waiting, (view.opening_cost(node, tokenizer)[0], node.index))

    weigh(view.plan.summarized)
    while waiting and spent + waiting[0][0] <= budget:
        cost, index = heapq.heappop(waiting)
        spent += cost
        node = view.outline.nodes[index]
        view = view.with_shape(view.shape.with_state(node, FULL, "budget"))
        weigh(view.shown_below(node, SUMMARY))
    return view
