"""A conversation for screenshots and tests of the viewer: a support desk that reads, shortens, goes back and asks.

Six exchanges: two that read sections, one with a picture and a call that fails, one that is undone, one that delegates,
and one that waits for a person; and a fork after the second. The model is scripted; everything else is the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import pack
from typing import Any
from zlib import compress, crc32

from scripts.viewer_runs import Narrated, line, section
from weakincentives import Conversation, Prompt, PromptTemplate, Session, ToolContext, delegate, tool
from weakincentives.adapters.scripted import call
from weakincentives.clock import FakeClock
from weakincentives.content import Image
from weakincentives.runtime import Compaction
from weakincentives.telemetry import record

MODEL = "gpt-5.4-mini"
PARCELS = """\
order     parcel        state        day
FH-20430  7-331-900     received     Mon
FH-20430  7-331-901     on its way   Tue"""


@dataclass(frozen=True)
class Refunded:
    order: str
    euros: int


@tool
def find_order(order: str) -> str:
    "Look up an order."
    return PARCELS


@tool
def new_lid(order: str, context: ToolContext) -> str:
    "Send a new lid."
    context.session.dispatch(Refunded(order, 0))
    if not order.startswith("FH-"):
        raise ValueError("an order number begins with FH-")
    return "A new lid is on its way."


@tool(approval="effects", changes=(Refunded,))
def refund(order: str, euros: int, context: ToolContext) -> str:
    "Pay money back."
    context.session.dispatch(Refunded(order, euros))
    return f"{euros} euros paid back."


def desk(clock: FakeClock) -> PromptTemplate[None]:
    note = PromptTemplate[None](
        ns="desk", key="note", name="note", sections=[section("task", "Task", "Write one line for the warehouse.")]
    )
    writer = Narrated([line("Pack FH-20430 again, with a new lid.")], clock, model=MODEL)
    text = "Our rule, and what it means for people who ask about it, with examples of each case that occurs. " * 12
    return PromptTemplate[None](
        ns="desk",
        key="support",
        name="support desk",
        sections=[
            section(
                "role",
                "Role",
                """
                You are the support desk of a shop for indoor gardens. Open the section
                that answers, and say what it says.
                """,
                tools=[delegate(note, description="Write to the warehouse.", adapter=writer)],
            ),
            section("orders", "Orders", text, "Where an order is, and when it comes.", tools=[find_order]),
            section(
                "shipping",
                "Shipping",
                f"{text}\n\n| country | days | price |\n|---|---|---|\n| Switzerland | 4 to 6 | 14 euros |\n",
                "Countries, days and prices.",
            ),
            section("repairs", "Repairs", text, "What to do when something is broken.", tools=[new_lid]),
            section("refunds", "Refunds", text, "When and how money is paid back.", tools=[refund]),
            section("privacy", "Privacy", text, "What may be read out."),
            section("warranty", "Warranty", text, "How long, and for what."),
        ],
    )


SCRIPT: list[Any] = [
    line("", call("read_section", section_key="orders")),
    line("", call("find_order", order="FH-20430")),
    "The first of two parcels was received on Monday; the other one is on its way.",
    line("", call("read_section", section_key="shipping")),
    "It costs **14 euros**, and takes 4 to 6 days:\n\n| country | days | price |\n|---|---|---|\n"
    "| Switzerland | 4 to 6 | 14 |",
    line("That lid is cracked.", call("read_section", section_key="repairs")),
    line("", call("new_lid", order="20430")),
    line("The number needs its letters.", call("new_lid", order="FH-20430")),
    "A new lid is on its way.",
    "Then nothing is sent.",
    line("", call("note")),
    "The warehouse knows.",
    line("", call("read_section", section_key="refunds")),
    line("The rule allows it.", call("refund", order="FH-20430", euros=12)),
]


def picture() -> Image:
    """A red square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", crc32(kind + data))

    header, pixels = pack(">IIBBBBB", 48, 48, 8, 2, 0, 0, 0), compress((b"\x00" + b"\xc0\x30\x20" * 48) * 48)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return Image.from_bytes(data, "image/png", name="lid.png")


def summarized(messages: Any) -> str:
    return "Order FH-20430: one parcel received, one on its way. Switzerland: 14 euros."


@contextmanager
def later(clock: FakeClock) -> Iterator[None]:
    yield
    clock.sleep(40)


def record_talk(path: Path) -> None:
    """Record the conversation and its fork."""
    clock = FakeClock(datetime.now(UTC) - timedelta(minutes=12))
    chat = Conversation(
        Prompt(desk(clock)),
        session=Session(clock=clock),
        adapter=Narrated(SCRIPT, clock, model=MODEL, tool_route="append"),
        compaction=Compaction(window=2_000, keep=1, by=summarized),
    )
    with record(path):
        for said in ("Where is my order FH-20430?", "What does it cost to ship to Switzerland?"):
            with later(clock):
                chat.send(said)
        fork = chat.fork()
        with later(clock):
            chat.send(["The lid arrived broken. Can I have a new one?", picture()])
        with later(clock):
            chat.send("No, leave it.")
        chat.rewind(next(point for point in reversed(chat.checkpoints()) if not point.turn))
        for said in ("Tell the warehouse.", "I would like 12 euros back for the first one."):
            with later(clock):
                chat.send(said)
        fork.adapter = Narrated(["To Norway it is 19 euros."], clock, model=MODEL)
        fork.send("And to Norway?")
