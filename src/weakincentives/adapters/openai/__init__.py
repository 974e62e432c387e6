"""OpenAI's models through the Responses API."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.adapters.openai.models import MODELS, SHUT_DOWN
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.openai.adapter import OpenAIAdapter
    from weakincentives.adapters.openai.decisions import DecisionRanker, Decisions, choice, predicate, score

__all__ = ["SPEC", "DecisionRanker", "Decisions", "OpenAIAdapter", "choice", "predicate", "score"]

SPEC = AdapterSpec(
    name="openai",
    package=__name__,
    adapter="OpenAIAdapter",
    provider="openai",
    package_needed="openai",
    key_variables=("OPENAI_API_KEY",),
    hosted_tools=("web_search", "code_interpreter", "file_search"),
    cache_safe_routes=frozenset({"additional_tools", "tool_search"}),
    prefix_keys=("model", "tools", "instructions", "text", "reasoning"),
    conversation_key="input",
    prices={name: model.prices for name, model in MODELS.items() if model.prices},
    shut_down=SHUT_DOWN,
)

__getattr__ = lazy_front(
    __name__,
    {"adapter": ["OpenAIAdapter"], "decisions": ["DecisionRanker", "Decisions", "choice", "predicate", "score"]},
)
