"""Conversations behind a web page, in the event protocols that front ends speak.

threads = Threads(lambda thread, request: Conversation(Prompt(template), adapter=OpenAIAdapter("gpt-5.6")))
app = Starlette(routes=[
    Route("/api/chat", vercel_ai(threads), methods=["GET", "POST"]),  # useChat and its transports
    Route("/agent", ag_ui(threads), methods=["GET", "POST"]),         # CopilotKit, assistant-ui, HttpAgent
])
"""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front, require_extra

if TYPE_CHECKING:
    from weakincentives.ui.durable import DurableThreads as DurableThreads
    from weakincentives.ui.endpoint import ag_ui as ag_ui, ui_messages as ui_messages, vercel_ai as vercel_ai
    from weakincentives.ui.threads import (
        StaleThreadError as StaleThreadError,
        ThreadLimits as ThreadLimits,
        Threads as Threads,
    )

__all__ = ["DurableThreads", "StaleThreadError", "ThreadLimits", "Threads", "ag_ui", "ui_messages", "vercel_ai"]

_load = lazy_front(
    __name__,
    {
        "durable": ["DurableThreads"],
        "endpoint": ["ag_ui", "ui_messages", "vercel_ai"],
        "threads": ["StaleThreadError", "ThreadLimits", "Threads"],
    },
)


def __getattr__(name: str) -> object:
    if name in __all__:
        require_extra("starlette", "ui", "weakincentives.ui")
    return _load(name)
