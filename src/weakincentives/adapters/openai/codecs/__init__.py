"""OpenAI's hosted tools, each loaded when it is first used."""

from weakincentives.adapters.hosted.codecs import LazyCodecs

CODECS = LazyCodecs(
    {
        "web_search": "weakincentives.adapters.openai.codecs.web_search:OpenAIWebSearchCodec",
        "code_interpreter": "weakincentives.adapters.openai.codecs.code_interpreter:OpenAICodeInterpreterCodec",
        "file_search": "weakincentives.adapters.openai.codecs.file_search:OpenAIFileSearchCodec",
    }
)

__all__ = ["CODECS"]
