"""Conversations behind a web page, in the event protocols that front ends speak.

threads = Threads(lambda thread: Conversation(Prompt(template), adapter=OpenAIAdapter("gpt-5.6")))
app = Starlette(routes=[
    Route("/api/chat", vercel_ai(threads), methods=["POST"]),  # useChat and its transports
    Route("/agent", ag_ui(threads), methods=["POST"]),         # CopilotKit, assistant-ui, HttpAgent
])
"""

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front, require_extra

if TYPE_CHECKING:
    from weakincentives.ui.protocols import Threads as Threads, ag_ui as ag_ui, vercel_ai as vercel_ai

__all__ = ["Threads", "ag_ui", "vercel_ai"]

_load = lazy_front(__name__, {"protocols": __all__})


def __getattr__(name: str) -> object:
    if name in __all__:
        require_extra("starlette", "ui", "weakincentives.ui")
    return _load(name)
