"""Pages in this process that fold the events of a protocol into what they show, as the published clients do."""

from __future__ import annotations

import json
from typing import Any

from tests.ui.server import Page, chunks
from weakincentives.ui import Threads

WAITING = ("input-available", "approval-requested")


class Visitor:
    """A page: `states` are those of its calls by id, and `questions` the open ones, by the id of their call.

    If it is `strict`, the page has all calls of its thread, and no other page decides about them.
    """

    path = ""
    strict = True

    def __init__(self, threads: Threads, thread: str = "t1") -> None:
        self.thread = thread
        self.connect(threads)
        self.states: dict[str, str] = {}
        self.questions: dict[str, dict[str, Any]] = {}
        self.unanswered: list[str] = []
        self.text, self.asked = "", False
        self.sent: list[str] = []

    def connect(self, threads: Threads) -> None:
        self._page = Page(threads, self.path)

    @property
    def received(self) -> bytes:
        return bytes(self._page.received)

    async def post(self, **body: Any) -> str:
        """Send a request and show what comes; the error if it was refused or failed, else ''."""
        status, answer = await self._page.post({"id": self.thread, "threadId": self.thread, "runId": "r", **body})
        if status != 200:
            return f"{status} {json.loads(answer)['error']}"
        self.text, self.asked = "", False
        return "".join(str(self.show(chunk) or "") for chunk in chunks(answer))

    def show(self, chunk: dict[str, Any]) -> str | None:
        raise NotImplementedError

    def user(self, text: str, *, again: bool = False) -> list[dict[str, Any]]:
        """The user's messages, the newest with this text; if it comes `again`, it is the last one."""
        if not again:
            self.sent.append(f"m{id(self)}-{len(self.sent)}")
        newest = {"content": text, "parts": [{"type": "text", "text": text}]}
        return [{"id": key, "role": "user", **(newest if key == self.sent[-1] else {})} for key in self.sent]

    def _ended(self, call_id: str, state: str) -> None:
        self.states[call_id] = state
        self.questions.pop(call_id, None)


class VercelVisitor(Visitor):
    path = "vercel"

    def part(self, call_id: str, state: str, **fields: Any) -> dict[str, Any]:
        return {"type": "dynamic-tool", "toolName": "?", "toolCallId": call_id, "state": state, "input": {}, **fields}

    async def say(self, text: str, *, again: bool = False, **fields: Any) -> str:
        return await self.post(messages=self.user(text, again=again), **fields)

    async def tell(self, *parts: dict[str, Any]) -> str:
        return await self.post(messages=[{"id": "a1", "role": "assistant", "parts": parts}], messageId="a1")

    async def decide(self, call_id: str, approved: Any, reason: str | None = None) -> str:
        approval = {**self.questions[call_id], "approved": approved, "reason": reason}
        return await self.tell(self.part(call_id, "approval-responded", approval=approval))

    async def answer(self, call_id: str, text: Any) -> str:
        if call_id in self.unanswered:
            self.states[call_id] = "output-available"
        return await self.tell(self.part(call_id, "output-available", output=text))

    def show(self, chunk: dict[str, Any]) -> str | None:
        match chunk:
            case {"type": "tool-input-available", "toolCallId": call_id}:
                assert not self.strict or self.states.get(call_id) not in WAITING
                self.states[call_id] = "input-available"
            case {"type": "tool-approval-request", "toolCallId": call_id}:
                self.states[call_id], self.asked = "approval-requested", True
                self.questions[call_id] = {"id": chunk["approvalId"], "descriptor": chunk["approvalDescriptor"]}
            case {"type": "tool-output-available" | "tool-output-denied" | "tool-output-error" as kind}:
                assert not self.strict or self.states[chunk["toolCallId"]] in WAITING
                self._ended(chunk["toolCallId"], kind.removeprefix("tool-"))
            case {"type": "text-delta", "delta": text}:
                self.text += text
            case {"type": "finish", "finishReason": reason}:
                waits = self.asked or "input-available" in self.states.values()
                assert not self.strict or (reason == "tool-calls") == waits
                self.unanswered = [call_id for call_id, state in self.states.items() if state == "input-available"]
            case {"type": "error", "errorText": text}:
                return str(text)
        return None

    async def reload(self) -> None:
        self.states, self.questions = {}, {}
        messages = json.loads((await self._page.get(f"id={self.thread}"))[1])
        self.sent = [message["id"] for message in messages if message["role"] == "user"]
        for part in (part for message in messages for part in message["parts"] if part["type"] == "dynamic-tool"):
            self.states[part["toolCallId"]] = part["state"]
            if part["state"] == "approval-requested":
                self.questions[part["toolCallId"]] = part["approval"]
        self.unanswered = [call_id for call_id, state in self.states.items() if state == "input-available"]

    def shown(self, call_id: str) -> dict[str, Any]:
        """What code reads of a question."""
        found: dict[str, Any] = self.questions[call_id]["descriptor"]
        return found


class AgUiVisitor(Visitor):
    path = "ag-ui"
    tools: tuple[dict[str, Any], ...] = ()

    async def say(self, text: str, *, again: bool = False, **fields: Any) -> str:
        return await self.post(messages=self.user(text, again=again), tools=self.tools, **fields)

    async def resume(self, *entries: dict[str, Any]) -> str:
        messages = [{"id": "a1", "role": "assistant", "toolCalls": []}]
        return await self.post(messages=messages, resume=entries, tools=self.tools)

    async def resolve(self, call_id: str, payload: Any) -> str:
        entry = {"interruptId": self.questions[call_id]["id"], "status": "resolved", "payload": payload}
        return await self.resume(entry)

    async def decide(self, call_id: str, approved: Any, reason: str | None = None) -> str:
        return await self.resolve(call_id, {"approved": approved, "reason": reason})

    async def answer(self, call_id: str, text: Any) -> str:
        if call_id in self.unanswered:
            self.states[call_id] = "output-available"
        result = {"id": "r", "role": "tool", "toolCallId": call_id, "content": text}
        return await self.post(messages=[{"id": "a1", "role": "assistant"}, result], tools=self.tools)

    def show(self, chunk: dict[str, Any]) -> str | None:
        match chunk:
            case {"type": "TOOL_CALL_CHUNK", "toolCallId": call_id}:
                self.states[call_id] = "input-available"
            case {"type": "TOOL_CALL_RESULT", "toolCallId": call_id, "metadata": metadata}:
                assert not self.strict or self.states[call_id] in WAITING
                denied = "output-denied" if metadata.get("denied") else "output-error"
                self._ended(call_id, "output-available" if metadata["success"] else denied)
            case {"type": "RUN_FINISHED"}:
                self._interrupted(chunk.get("outcome", {}).get("interrupts", []))
                self.unanswered = chunk.get("outcome", {}).get("pendingToolCallIds", [])
            case {"type": "TEXT_MESSAGE_CHUNK", "delta": text}:
                self.text += text
            case {"type": "RUN_ERROR", "message": text}:
                return str(text)
        return None

    def _interrupted(self, interrupts: list[dict[str, Any]]) -> None:
        self.questions = {each["toolCallId"]: each for each in interrupts}
        self.states.update(dict.fromkeys(self.questions, "approval-requested"))

    async def reload(self) -> None:
        self.states = {}
        history = json.loads((await self._page.get(f"threadId={self.thread}"))[1])
        self.sent = [message["id"] for message in history["messages"] if message["role"] == "user"]
        for message in history["messages"]:
            for call in message.get("toolCalls", ()):
                self.states[call["id"]] = "input-available"
            if message["role"] == "tool":
                self.show({"type": "TOOL_CALL_RESULT", **message})
        self._interrupted(history["interrupts"])
        self.unanswered = [call_id for call_id, state in self.states.items() if state == "input-available"]

    def shown(self, call_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {"text": self.questions[call_id]["message"], **self.questions[call_id]["metadata"]}
        return found


VISITORS: dict[str, type[Any]] = {"vercel": VercelVisitor, "ag-ui": AgUiVisitor}
