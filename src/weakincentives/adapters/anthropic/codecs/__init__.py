"""Anthropic's hosted tools, each loaded when it is first used."""

from weakincentives.adapters.hosted.codecs import LazyCodecs

CODECS = LazyCodecs(
    {
        "web_search": "weakincentives.adapters.anthropic.codecs.web_search:AnthropicWebSearchCodec",
        "web_fetch": "weakincentives.adapters.anthropic.codecs.web_fetch:AnthropicWebFetchCodec",
        "code_interpreter": "weakincentives.adapters.anthropic.codecs.code_interpreter:AnthropicCodeInterpreterCodec",
    }
)

__all__ = ["CODECS"]
