"""Any server that speaks OpenAI's Chat Completions, such as vLLM, Ollama, OpenRouter, Groq and DeepSeek."""

from dataclasses import replace
from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.openai_chat.adapter import OpenAIChatAdapter

__all__ = ["DEEPSEEK", "GROQ", "OLLAMA", "OPENROUTER", "SPEC", "VLLM", "OpenAIChatAdapter"]

SPEC = AdapterSpec(
    name="openai_chat",
    package=__name__,
    adapter="OpenAIChatAdapter",
    provider="openai-chat",
    model="MODEL@URL",
    extra="openai-chat",
    package_needed="httptools",
    prefix_keys=("model", "tools", "response_format"),
    conversation_key="messages",
    tool_key="function",
)
OLLAMA = replace(SPEC, provider="ollama", model="MODEL[@URL]", options={"base_url": "http://127.0.0.1:11434/v1"})
VLLM = replace(SPEC, provider="vllm", model="MODEL[@URL]", options={"base_url": "http://127.0.0.1:8000/v1"})
OPENROUTER = replace(
    SPEC,
    provider="openrouter",
    model="MODEL",
    options={"base_url": "https://openrouter.ai/api/v1"},
    key_variables=("OPENROUTER_API_KEY",),
)
GROQ = replace(
    OPENROUTER,
    provider="groq",
    options={"base_url": "https://api.groq.com/openai/v1"},
    key_variables=("GROQ_API_KEY",),
)
DEEPSEEK = replace(
    OPENROUTER,
    provider="deepseek",
    options={"base_url": "https://api.deepseek.com"},
    key_variables=("DEEPSEEK_API_KEY",),
)

__getattr__ = lazy_front(__name__, {"adapter": ["OpenAIChatAdapter"]})
