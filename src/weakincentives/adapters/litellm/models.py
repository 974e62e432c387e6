"""The vendors behind LiteLLM: how it treats their models, as of 1.108."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.adapters.anthropic.models import ModelFacts as ClaudeFacts, facts as facts_of_claude
from weakincentives.adapters.openai.models import ModelFacts as GptFacts, facts as facts_of_gpt


@dataclass(frozen=True, slots=True)
class VendorFacts:
    """The parts of a request that LiteLLM passes on to a vendor; the defaults are those of an unknown one.

    It may drop a web search, or the location of one. If it drops a search beside function tools unless it is asked to
    keep both, `asks_for_both` is set. `audio` is None if LiteLLM's own table says whether a model accepts it.
    """

    name: str = ""
    search: bool = True
    location: bool = True
    asks_for_both: bool = False
    first_user_turn: bool = True
    operator_text: bool = False
    audio: bool | None = None


VENDORS = {
    facts.name: facts
    for facts in (
        VendorFacts("anthropic", audio=False),
        VendorFacts("azure", first_user_turn=False, operator_text=True),
        VendorFacts("bedrock", location=False),
        VendorFacts("gemini", location=False, asks_for_both=True, audio=True),
        VendorFacts("groq", location=False),
        VendorFacts("openai", first_user_turn=False, operator_text=True),
        VendorFacts("vertex_ai", location=False, asks_for_both=True, audio=True),
        VendorFacts("xai", search=False),
    )
}


def vendor_of(model: str) -> VendorFacts:
    """The vendor of a model, derived from its LiteLLM name."""
    name, slash, _ = model.partition("/")
    if not slash and model.startswith("claude-"):
        name = "anthropic"
    elif not slash and gpt_facts(model).efforts is not None:
        name = "openai"
    return VENDORS.get(name) or VendorFacts(name)


def claude_facts(model: str) -> ClaudeFacts:
    """The facts of a model of Anthropic's, without the prefixes of its LiteLLM name."""
    return facts_of_claude(model.rpartition("/")[2])


def gpt_facts(model: str) -> GptFacts:
    """The facts of a model of OpenAI's, without the prefixes of its LiteLLM name."""
    return facts_of_gpt(model.rpartition("/")[2])
