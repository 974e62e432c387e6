"""The support desk: a handbook of summaries, each with its tools, and the customer's question.

The question comes last because it is the only part that changes from run to run. Each section of the handbook is a
Markdown file with its summary and title on top. There is one tool per action, offered with the section that
explains it; the shop's data is a small SQLite database in memory, created for each run.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from weakincentives.errors import ToolValidationError
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    TextSection,
    Tool,
    ToolContext,
    ToolResult,
    markdown_sections,
    tool,
)
from weakincentives.resources import Binding, ResourceRegistry

QUESTIONS = (
    "Where is order FH-20417 right now?",
    "How long does the money take to come back to my PayPal account?",
    "What is the price of a new pump for the Tower?",
    "I will be travelling for two weeks in July, how do my herbs survive?",
    "Please refund 20 euros for order FH-20391, it arrived damaged.",
    "My strawberry seeds have not come up after two weeks, is that normal?",
)

Part = Literal["pump", "filter sponge", "seal set", "LED panel", "power supply", "float sensor", "tank", "lid"]
OrderNumber = Annotated[str, "The number of the order, such as FH-12345."]
MemberNumber = Annotated[str, "The number of the member, such as M-1234."]

_INSTRUCTIONS = """\
You answer customers of Fernhill, who makes the indoor garden Sprig. The handbook below is summarized. Open the section
that answers the question, use the tools that come with it, and answer in one to three sentences from what it says."""


@dataclass(frozen=True, slots=True)
class Question:
    """The customer's question."""

    text: str


@cache
def template(visibility: SectionVisibility = SectionVisibility.SUMMARY) -> PromptTemplate[None]:
    """The desk's prompt for one question; with FULL, the whole handbook at once."""
    question = MarkdownSection[Question](title="Question", key="question", template="${text}", role="user")
    return _template("support-desk", visibility, question)


@cache
def chat() -> PromptTemplate[None]:
    """The desk's prompt for a conversation."""
    return _template("support-chat", SectionVisibility.SUMMARY)


def _template(key: str, visibility: SectionVisibility, *last: Section[Any]) -> PromptTemplate[None]:
    pages = [
        TextSection(
            title=page.title,
            key=page.key,
            text=page.text,
            summary=page.summary,
            visibility=visibility,
            tools=_TOOLS.get(page.key, ()),
        )
        for page in handbook()
    ]
    return PromptTemplate(
        ns="demo",
        key=key,
        name="support desk",
        sections=[
            MarkdownSection(title="Task", key="task", template=_INSTRUCTIONS),
            *pages,
            *last,
        ],
        resources=ResourceRegistry.of(Binding(Store, lambda _: Store())),
    )


def ask(question: str) -> Prompt[None]:
    """The prompt for one question, with its own database."""
    return Prompt(template()).bind(Question(question))


@cache
def handbook() -> tuple[TextSection[None], ...]:
    """The sections of the handbook, without their tools."""
    return tuple(markdown_sections(Path(__file__).with_name("handbook")))


@tool(read_only=True)
def lookup_order(order_number: OrderNumber, *, context: ToolContext) -> ToolResult[None]:
    """Look up the state of an order by its number."""
    order = _order(context, order_number)
    return ToolResult(
        f"Order {order['number']} ({order['item']}, {order['paid']:.2f} euros, to {order['country']}) is "
        f"{order['state']}: {order['note']}."
    )


@tool
def change_delivery_address(
    order_number: OrderNumber,
    address: Annotated[str, "The whole new address, in the same country."],
    *,
    context: ToolContext,
) -> ToolResult[None]:
    """Change where an order that is not packed yet goes."""
    order = _order(context, order_number)
    if order["state"] not in ("received", "picking"):
        raise ToolValidationError(
            f"Order {order['number']} is {order['state']}; its address can no longer be changed here."
        )
    _store(context).change("UPDATE orders SET address = ? WHERE number = ?", (address, order["number"]))
    return ToolResult(f"Order {order['number']} now goes to: {address}.")


@tool
def issue_refund(
    order_number: OrderNumber,
    amount: Annotated[float, "Euros to refund."],
    reason: Literal["withdrawal", "damaged", "lost", "defect", "overcharge", "goodwill"],
    *,
    context: ToolContext,
) -> ToolResult[None]:
    """Refund an amount in euros for an order."""
    order = _order(context, order_number)
    left = order["paid"] - order["refunded"]
    if not 0 < amount <= left:
        raise ToolValidationError(f"Order {order['number']} has {left:.2f} euros left to refund, not {amount:.2f}.")
    if amount > 150:
        raise ToolValidationError(f"{amount:.2f} euros is more than an agent may approve (150); ask a team lead.")
    _store(context).change("UPDATE orders SET refunded = refunded + ? WHERE number = ?", (amount, order["number"]))
    return ToolResult(f"Refunded {amount:.2f} euros for order {order['number']} ({reason}).")


@tool
def create_return_label(order_number: OrderNumber, *, context: ToolContext) -> ToolResult[None]:
    """Send the customer a label to return an order."""
    order = _order(context, order_number)
    if order["state"] != "delivered":
        raise ToolValidationError(
            f"Order {order['number']} is {order['state']}; only delivered orders can be returned."
        )
    if order["label"]:
        raise ToolValidationError(f"Order {order['number']} has an open label already: {order['label']}.")
    label = f"RL-{order['number'][3:]}"
    _store(context).change("UPDATE orders SET label = ? WHERE number = ?", (label, order["number"]))
    return ToolResult(f"Return label {label} for order {order['number']} was sent; it is valid for 14 days.")


@tool(read_only=True)
def find_part(model: Literal["Mini", "Six", "Tower"], part: Part, *, context: ToolContext) -> ToolResult[None]:
    """Find the number, price and stock of a spare part."""
    row = _store(context).one("SELECT * FROM parts WHERE model = ? AND part = ?", (model, part))
    if row is None:
        raise ToolValidationError(f"There is no {part} for the {model}.")
    return ToolResult(
        f"The {row['part']} of the {row['model']} is {row['number']}, {row['price']:.0f} euros, "
        f"{row['stock']} in stock."
    )


@tool
def change_subscription(
    member_number: MemberNumber, action: Literal["skip", "pause", "resume", "cancel"], *, context: ToolContext
) -> ToolResult[None]:
    """Skip, pause, resume or cancel a Pod Club membership."""
    member = _store(context).one("SELECT * FROM members WHERE number = ?", (member_number,))
    if member is None:
        raise ToolValidationError(f"There is no member {member_number}.")
    states = {"skip": "active", "pause": "paused", "resume": "active", "cancel": "cancelled"}
    _store(context).change("UPDATE members SET state = ? WHERE number = ?", (states[action], member_number))
    return ToolResult(
        f"Member {member_number} ({member['plan']}, {member['rhythm']}): {action} is done, "
        f"the membership is {states[action]}."
    )


@tool
def escalate(
    level: Literal["team lead", "specialist", "finance desk", "safety", "data protection officer"],
    summary: Annotated[str, "The case in a few sentences."],
    *,
    context: ToolContext,
) -> ToolResult[None]:
    """Hand a case to somebody else, with a summary."""
    number = _store(context).change("INSERT INTO tickets (level, summary) VALUES (?, ?)", (level, summary))
    return ToolResult(f"Ticket {number} is with: {level}.")


def _store(context: ToolContext) -> Store:
    return context.resources.get(Store)


def _order(context: ToolContext, number: str) -> Any:
    order = _store(context).one("SELECT * FROM orders WHERE number = ?", (number,))
    if order is None:
        raise ToolValidationError(f"There is no order {number}.")
    return order


# The tools by section key.
_TOOLS: dict[str, tuple[Tool[Any, Any], ...]] = {
    "order-status": (lookup_order,),
    "address-change": (change_delivery_address,),
    "refunds": (issue_refund,),
    "returns": (create_return_label,),
    "replacement-parts": (find_part,),
    "pod-club": (change_subscription,),
    "escalation": (escalate,),
}

_SCHEMA = """
CREATE TABLE orders (
    number TEXT PRIMARY KEY, state TEXT, item TEXT, paid REAL, refunded REAL DEFAULT 0,
    country TEXT, address TEXT, note TEXT, label TEXT
);
CREATE TABLE parts (model TEXT, part TEXT, number TEXT, price REAL, stock INTEGER, PRIMARY KEY (model, part));
CREATE TABLE members (number TEXT PRIMARY KEY, plan TEXT, rhythm TEXT, state TEXT);
CREATE TABLE tickets (number INTEGER PRIMARY KEY, level TEXT, summary TEXT);
"""

_ORDERS = [
    ("FH-20417", "shipped", "Sprig Six, moss", 129.0, "Germany", "DHL 00340434161094, expected on Thursday"),
    ("FH-20388", "held", "Sprig Tower", 549.0, "Belgium", "out of stock for 3 days, the wait is 14 days at most"),
    ("FH-20391", "delivered", "Sprig Mini, chalk", 59.0, "Netherlands", "delivered to the customer on Monday"),
    ("FH-20402", "picking", "Kitchen herbs, 6 pods", 14.5, "France", "leaves today"),
    ("FH-20425", "packed", "Sprig Feed, 2 litres", 36.0, "Austria", "waiting for the carrier"),
    ("FH-20366P", "delivered", "Pod Club, Harvest", 33.0, "Ireland", "delivered on the 4th"),
    ("FH-20430", "received", "Sprig Six, slate", 129.0, "Denmark", "paid an hour ago"),
    ("FH-20377", "cancelled", "Gift card, 50 euros", 50.0, "Spain", "cancelled by the customer"),
]

_PARTS = {
    "pump": ("P-101", 14, "P-102", 16, "P-103", 34),
    "filter sponge": ("P-110", 5, "P-110", 5, "P-113", 9),
    "seal set": ("P-120", 6, "P-121", 7, "P-123", 12),
    "LED panel": ("P-130", 29, "P-131", 42, "P-133", 38),
    "power supply": ("P-140", 18, "P-140", 18, "P-143", 31),
    "float sensor": ("P-160", 8, "P-160", 8, "P-160", 8),
    "tank": ("P-170", 22, "P-171", 27, "P-173", 49),
    "lid": ("P-150", 9, "P-151", 11, "", 0),
}

_MEMBERS = [
    ("M-4417", "Kitchen", "every 6 weeks", "active"),
    ("M-4420", "Harvest", "every 12 weeks", "active"),
    ("M-4421", "Taste", "every 4 weeks", "paused"),
]


class Store:
    """The database of one run; a snapshot holds all of it, so that a failed tool call leaves nothing behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.row_factory = sqlite3.Row
        with self._database:
            self._database.executescript(_SCHEMA)
            self._database.executemany(
                "INSERT INTO orders (number, state, item, paid, country, note) VALUES (?, ?, ?, ?, ?, ?)", _ORDERS
            )
            self._database.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", _part_rows())
            self._database.executemany("INSERT INTO members VALUES (?, ?, ?, ?)", _MEMBERS)

    def one(self, question: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        """The first row, or None."""
        with self._lock:
            row: sqlite3.Row | None = self._database.execute(question, values).fetchone()
            return row

    def change(self, command: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement and return the id of a new row."""
        with self._lock, self._database:
            return self._database.execute(command, values).lastrowid or 0

    def snapshot(self) -> bytes:
        with self._lock:
            return self._database.serialize()

    def restore(self, snapshot: bytes) -> None:
        with self._lock:
            self._database.deserialize(snapshot)

    def close(self) -> None:
        self._database.close()


def _part_rows() -> list[tuple[str, str, str, float, int]]:
    rows = []
    for index, model in enumerate(("Mini", "Six", "Tower")):
        for stock, (part, numbers) in enumerate(_PARTS.items(), start=3):
            number, price = numbers[2 * index], numbers[2 * index + 1]
            if number:
                rows.append((model, part, str(number), float(price), stock * 4 - index))
    return rows
