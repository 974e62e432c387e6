"""A call of the CLI's own tools that a person has approved, made by a CLI of its own.

The CLI that wrote the call was stopped, perhaps long ago. This one resumes the conversation, in which it has read the
same files, and calls a model on loopback, which makes the one call. No service is called.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from weakincentives.adapters.claude_agent_sdk.channel import ClaudeChannel, Settings
from weakincentives.adapters.claude_agent_sdk.cli import KEYS
from weakincentives.adapters.claude_agent_sdk.server import CallingModel
from weakincentives.adapters.claude_agent_sdk.wire import PROVIDER
from weakincentives.content import Image
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.prompt import ToolResult
from weakincentives.runtime import Message, ModelRequest, ToolCall
from weakincentives.runtime.spi import Workers, finish

_workers = Workers("wink-claude-calls")


async def replay(
    settings: Settings, call: ToolCall, messages: Sequence[Message], prompt_name: str, deadline: Deadline | None
) -> ToolResult[None]:
    """Make the call and return its result, as the model would have read it."""
    model = CallingModel(call)
    channel = ClaudeChannel(_offline(settings, model.url))
    try:
        await model.start()
        request = ModelRequest(prompt_name, tuple(messages), deadline=deadline)
        reply = await channel.call_async(request)
        if model.result is None:
            said = Message("assistant", reply.text, items=reply.items, provider=PROVIDER)
            await channel.call_async(replace(request, messages=(*request.messages, said)))
    finally:
        closing = _workers.call(partial(channel.close))
        cancelled = await finish(closing)
        await model.close()
        if cancelled is not None:
            raise cancelled
    if model.result is None:
        raise PromptEvaluationError(
            f"Claude Code did not run the approved call of {call.name}.", prompt_name=prompt_name, phase="tool"
        )
    return _result(model.result)


def _offline(settings: Settings, url: str) -> Settings:
    """The settings with which a CLI calls no model but ours; settings of the user might name another."""
    env = {name: value for name, value in settings.env.items() if not name.startswith("CLAUDE_CODE_USE_")}
    direct = ",".join(filter(None, (env.get("NO_PROXY"), "127.0.0.1")))
    env |= {"ANTHROPIC_BASE_URL": url, "NO_PROXY": direct, "no_proxy": direct}
    if not any(name in env for name in KEYS):
        env["ANTHROPIC_API_KEY"] = "none"
    return replace(settings, env=env, approval=frozenset(), options={**settings.options, "setting_sources": []})


def _result(block: dict[str, Any]) -> ToolResult[None]:
    content = block.get("content") or ""
    blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    images = [each["source"] for each in blocks if each["type"] == "image"]
    return ToolResult(
        "\n".join(each["text"] for each in blocks if each["type"] == "text"),
        success=not block.get("is_error"),
        attachments=tuple(
            Image.from_bytes(base64.b64decode(image["data"]), image["media_type"], name="image") for image in images
        ),
    )
