"""Playgrounds: with the on-call prompt, with a tool that needs approval, and with all kinds of sections and params."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from scripts.viewer_runs import RESOLUTION, on_call_template
from tests.mcp.servers import python_server
from weakincentives import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, Tool, ToolContext, tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt.overrides import JsonPromptOverridesStore
from weakincentives.viewer import AdapterChoice, Playground

SCRIPT = [call("read_section", section_key="logs"), call("search_logs", service="a", pattern="b"), RESOLUTION]
SECRET = "sk-ant-api03-" + "a1B2" * 24


def on_call(folder: Path) -> Playground:
    return Playground(
        on_call_template(),
        adapters=[AdapterChoice("scripted"), AdapterChoice("openai", ("gpt-5.6",), True, "set OPENAI_API_KEY")],
        make_adapter=lambda name: ScriptedAdapter(SCRIPT, model=name.partition(":")[2] or "scripted"),
        overrides=JsonPromptOverridesStore(folder / "overrides"),
    )


@tool(approval="effects", changes=(Filesystem,))
def pay(amount: int, to: str = "ann", *, context: ToolContext) -> str:
    "Pay an amount."
    assert context.filesystem is not None
    context.filesystem.write("log.txt", f"paid {amount} with {SECRET}\n", mode="append")
    return f"paid {amount}"


ask: Tool[Any, Any] = Tool(name="ask", description="Ask the user.", handler=None)
PAY = call("pay", amount=5)


def bills(files: InMemoryFilesystem) -> Prompt[None]:
    section = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay, ask])
    return Prompt(ns="tests", key="bills", sections=[section]).bind(resources={Filesystem: files})


def paying(folder: Path, files: InMemoryFilesystem | None = None, *script: Any) -> Playground:
    return Playground(
        bills(files or InMemoryFilesystem({"log.txt": "begin\n"})),
        adapters=[AdapterChoice("scripted")],
        make_adapter=lambda name: ScriptedAdapter(script or [PAY, "Done."]),
        overrides=JsonPromptOverridesStore(folder / "overrides"),
    )


@dataclass(frozen=True)
class Address:
    city: str
    street: str = ""


@dataclass(frozen=True)
class Customer:
    name: str
    since: date
    premium: bool = False
    visits: int = 0
    tone: Literal["warm", "brief"] = "warm"
    orders: list[str] = field(default_factory=list)
    address: Address | None = None


@tool
def cancel(order: str) -> str:
    "Cancel an order."
    return f"cancelled {order}"


LONG = "Orders can be cancelled until they are packed. " * 30
SHOP = Path(__file__).parent.parent / "mcp" / "shop.py"


def shop_template() -> PromptTemplate[None]:
    """Sections in sections, one that is off unless a customer is premium, and one that an MCP server fills."""
    from weakincentives.mcp import MCPSection

    closed = SectionVisibility.SUMMARY
    cancelling = MarkdownSection(
        key="cancelling",
        title="Cancelling",
        template=LONG,
        summary="How to cancel.",
        visibility=closed,
        tools=[cancel],
    )
    return PromptTemplate(
        ns="shop",
        key="desk",
        name="shop desk",
        sections=[
            MarkdownSection[Customer](
                key="customer",
                title="Customer",
                template="The customer is ${name} (${tone}), here since ${since}, with ${visits} visits: ${orders}.",
            ),
            MarkdownSection(
                key="orders",
                title="Orders",
                template="Orders have numbers.",
                summary="About orders.",
                visibility=closed,
                children=[cancelling, MarkdownSection(key="returns", title="Returns", template="Within 14 days.")],
            ),
            MarkdownSection[Customer](
                key="premium",
                title="Premium service",
                template="Answer within an hour.",
                enabled=lambda customer: customer.premium,
            ),
            MCPSection(
                key="stock",
                title="Stock",
                server=python_server(str(SHOP)),
                include=["get_stock", "list_items"],
            ),
            MarkdownSection(key="question", title="Question", template="Answer the question."),
        ],
    )


def shop(folder: Path, *adapters: AdapterChoice) -> Playground:
    """The adapters only count tokens and prices, unless one is scripted."""
    return Playground(
        shop_template(),
        adapters=adapters or [AdapterChoice("scripted"), AdapterChoice("openai", ("gpt-5.6",), True)],
        make_adapter=lambda name: ScriptedAdapter(["Hello."], model=name.partition(":")[2] or "scripted"),
        overrides=JsonPromptOverridesStore(folder / "overrides"),
    )
