"""A conversation with tools that write state and files, and one with an effect outside."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives import (
    Conversation,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    Session,
    ToolContext,
    WorkspaceSection,
    tool,
)
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Tool
from weakincentives.session import Snapshot, reducer


@dataclass(frozen=True)
class Noted:
    text: str


@dataclass(frozen=True)
class Notes:
    texts: tuple[str, ...] = ()

    @reducer(on=Noted)
    def add(self, event: Noted) -> Notes:
        return replace(self, texts=(*self.texts, event.text))


@dataclass(frozen=True)
class Tone:
    tone: str


@tool
def note(text: str, context: ToolContext) -> str:
    "Note a text."
    context.session.dispatch(Noted(text))
    return "Noted."


@tool
def write(path: str, text: str, context: ToolContext) -> str:
    "Write a file."
    assert context.filesystem is not None
    context.filesystem.write(path, text)
    return "Written."


@tool(approval="effects", changes=(Filesystem,))
def publish(text: str, context: ToolContext) -> str:
    "Publish a text."
    assert context.filesystem is not None
    context.filesystem.write("published.txt", text)
    return "Published."


@dataclass
class Desk:
    """A prompt with these tools, and the mails that were sent."""

    mails: list[str] = field(default_factory=list)
    extra: tuple[Tool[Any, Any], ...] = ()

    def chat(self, *lines: Any, session: Session | None = None, files: Filesystem | None = None) -> Conversation[Any]:
        prompt = Prompt(self.template()).bind(Tone("plain"))
        if files is not None:
            prompt.bind(resources={Filesystem: files})
        return Conversation(prompt, adapter=ScriptedAdapter([*lines]), session=session)

    def restarted(self, chat: Conversation[Any], *lines: Any, files: Filesystem | None = None) -> Conversation[Any]:
        """The conversation in another process, from its snapshot."""
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
        return self.chat(*lines, session=session, files=files)

    def template(self) -> PromptTemplate[Any]:
        def unsend(params: Any, *, context: ToolContext) -> None:
            self.mails.append(f"not {params.text}")

        @tool(compensate=unsend)
        def mail(text: str) -> str:
            "Send a mail."
            self.mails.append(text)
            return "Sent."

        return PromptTemplate(
            ns="tests",
            key="desk",
            sections=[
                WorkspaceSection(),
                MarkdownSection[Tone](
                    key="task", title="Task", template="Be $tone.", tools=[note, write, publish, mail]
                ),
                MarkdownSection(
                    key="more",
                    title="More",
                    template="The whole text.",
                    summary="A summary.",
                    visibility=SectionVisibility.SUMMARY,
                    tools=self.extra,
                ),
            ],
        )


def texts(chat: Conversation[Any]) -> list[str]:
    """What user and model have said."""
    return [each.text for each in chat.messages if each.role in ("user", "assistant") and not each.kind and each.text]
