"""The closed sections in the order in which they fit what is asked, and how that is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.adapters.local.outlook import Choice, Outlook
from weakincentives.adapters.local.relevance import Relevance

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Ranking:
    """Choices with their scores, the best first."""

    by: str
    places: Sequence[tuple[float, Choice]]

    @property
    def choices(self) -> list[Choice]:
        return [choice for _, choice in self.places]

    def item(self) -> str:
        """The ranking as it stands in the conversation, for whoever wants to know why."""
        best = [{"key": choice.key, "score": round(score, 3)} for score, choice in self.places[:SHOWN]]
        return json.dumps({"type": "ranking", "by": self.by, "of": len(self.places), "best": best})


def ranked(outlook: Outlook, relevance: Relevance) -> Ranking:
    """Rank what can be opened now."""
    pairs = [(choice.title, choice.summary) for choice in outlook.choices]
    scores = relevance.sections(outlook.question, pairs)
    return Ranking(relevance.name, sorted(zip(scores, outlook.choices, strict=True), key=lambda place: -place[0]))
