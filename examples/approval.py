"""A person decides, as in LangChain's guide to a human in the loop; here about the changes, not only the arguments."""

from collections.abc import Callable
from typing import Any

from weakincentives import Conversation, Deny, MarkdownSection, OpenAIAdapter, Prompt, ToolContext, tool
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.runtime import Approve, PendingCall, ProviderAdapter


@tool(approval="effects", changes=(Filesystem,))
def write_file(path: str, content: str, context: ToolContext) -> str:
    """Write content to a file."""
    context.resources.get(Filesystem).write(path, content)
    return f"Wrote {len(content)} characters to {path}"


@tool(approval="call")
def execute_sql(query: str) -> str:
    """Run a SQL query."""
    return "Deleted 42 rows"


@tool(read_only=True)
def read_data(table: str) -> str:
    """Read rows from a table."""
    return f"3 rows from {table}"


def work(words: str, adapter: ProviderAdapter, files: Filesystem, approves: Callable[[PendingCall], bool]) -> str:
    section = MarkdownSection(key="t", title="Task", template="Work.", tools=[write_file, execute_sql, read_data])
    prompt: Prompt[Any] = Prompt(ns="examples", key="approval", sections=[section])
    chat = Conversation(prompt.bind(resources={Filesystem: files}), adapter=adapter)
    response = chat.send(words)
    while chat.pending:
        response = chat.decide({call.call_id: Approve() if approves(call) else Deny("No.") for call in chat.pending})
    return response.text


if __name__ == "__main__":
    print(
        work(input("Task: "), OpenAIAdapter("gpt-5.6"), HostFilesystem("."), lambda call: input(f"{call.text} ") == "y")
    )
