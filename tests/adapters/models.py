"""Models of earlier generations, by what they can do: their names change as vendors shut them down."""

from __future__ import annotations

from typing import Any

from weakincentives.adapters.anthropic.models import MODELS as CLAUDE
from weakincentives.adapters.openai.models import MODELS as GPT


def first(models: Any, **facts: Any) -> str:
    """The first model with these facts."""
    return next(name for name, known in models.items() if all(getattr(known, key) == facts[key] for key in facts))


PLAIN = first(GPT, efforts=(), squares=None)
"""A model of OpenAI that does not reason."""
MINIMAL = first(GPT, efforts=("minimal", "low", "medium", "high"), squares=None)
MINI = first(GPT, squares=(1.62, 1536))
UP_TO_HIGH = first(GPT, efforts=("none", "low", "medium", "high"))
ALWAYS = first(GPT, efforts=("low", "medium", "high"))
UNSEARCHED = first(GPT, tool_search=False)
UNNAMED = first(GPT, chooses_added=False, tool_search=False)
BUDGETED = first(CLAUDE, thinking="budget", tool_search=True)
