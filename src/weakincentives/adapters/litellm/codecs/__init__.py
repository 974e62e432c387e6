"""The hosted tool that LiteLLM knows for every provider behind it."""

from weakincentives.adapters.hosted.codecs import LazyCodecs

CODECS = LazyCodecs({"web_search": "weakincentives.adapters.litellm.codecs.web_search:LiteLLMWebSearchCodec"})

__all__ = ["CODECS"]
