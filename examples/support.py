"""A support agent with 15 sections and 20 tools:  python examples/support.py [--adapter openai:gpt-5.6] ["question"]

The first request has the open sections and a line for each closed one. What the customer asks decides which sections
open and which tools appear. Tools are transactions: a failed call changes neither the shop nor the session.
Without `--adapter`, a script plays the model, so that you can see the steps without a key.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Any, Literal

from weakincentives import (
    Budget,
    Conversation,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Section,
    SectionVisibility,
    Tool,
    ToolContext,
    adapter_for,
    call,
    reducer,
    tool,
)
from weakincentives.errors import ToolValidationError
from weakincentives.runtime import ProviderAdapter, ToolInvoked

TODAY = date(2026, 11, 16)


# Params fill the placeholders of sections; here they also say on whose behalf the tools act.
@dataclass(frozen=True)
class Customer:
    id: int
    name: str
    email: str
    member: bool = False


@dataclass(frozen=True)
class Order:
    number: int
    customer: int
    product: str
    cents: int
    bought: date
    status: Literal["paid", "unpaid", "shipped", "returning", "refunded"]
    address: str


# The typed answer: the reply for the customer, and what your own program does with the case.
@dataclass(frozen=True)
class Reply:
    text: str
    topic: Literal["order", "shipping", "return", "warranty", "billing", "account", "product", "other"]
    needs_a_person: bool = False


class Shop:
    """Stands in for a database. `snapshot` and `restore` make it part of every tool's transaction.

    The rows are frozen, so a snapshot is a copy of the dictionaries and not of what is in them.
    """

    def __init__(self, customers: list[Customer], orders: list[Order], stock: dict[str, int]) -> None:
        self.customers = {customer.id: customer for customer in customers}
        self.orders = {order.number: order for order in orders}
        self.stock = dict(stock)

    def snapshot(self) -> tuple[dict[int, Customer], dict[int, Order], dict[str, int]]:
        return dict(self.customers), dict(self.orders), dict(self.stock)

    def restore(self, saved: tuple[dict[int, Customer], dict[int, Order], dict[str, int]]) -> None:
        customers, orders, stock = saved
        self.customers, self.orders, self.stock = dict(customers), dict(orders), dict(stock)


class Bank:
    """Stands in for a payment provider, which has the last word on every transfer."""

    def __init__(self, limit_cents: int = 50_000) -> None:
        self.limit_cents = limit_cents

    def transfer(self, cents: int, *, idempotency_key: str) -> str:
        if cents > self.limit_cents:
            raise ToolValidationError(f"The bank transfers at most {self.limit_cents / 100:.2f} EUR; ask a person.")
        return f"T{cents}-{idempotency_key[-6:]}"


# State of the session: events that tools dispatch, and a class that reduces them.
@dataclass(frozen=True)
class CaseNote:
    kind: Literal["refund", "claim", "return", "escalation"]
    text: str


@dataclass(frozen=True)
class Case:
    """What was done in this conversation, for the person who may take it over."""

    notes: tuple[CaseNote, ...] = ()

    @reducer(on=CaseNote)
    def add(self, note: CaseNote) -> Case:
        return replace(self, notes=(*self.notes, note))


Number = Annotated[int, "the order number, as in the confirmation"]


def own_order(number: int, context: ToolContext) -> Order:
    """An order of this customer. The model does not choose whose orders it sees."""
    customer, order = context.resources.get(Customer), context.resources.get(Shop).orders.get(number)
    if order is None or order.customer != customer.id:
        # For failures that you expect: the model reads the text and can ask the customer.
        raise ToolValidationError(f"{customer.name} has no order {number}.")
    return order


def change(order: Order, context: ToolContext, **fields: Any) -> Order:
    changed = replace(order, **fields)
    context.resources.get(Shop).orders[order.number] = changed
    return changed


# Lookups are read-only: they run concurrently and need no snapshot.
@tool(read_only=True)
def list_orders(*, context: ToolContext) -> list[Order]:
    "All orders of the customer."
    customer = context.resources.get(Customer)
    return [order for order in context.resources.get(Shop).orders.values() if order.customer == customer.id]


@tool(read_only=True)
def find_order(order: Number, *, context: ToolContext) -> Order:
    "One order: product, price, date, status and address."
    return own_order(order, context)


@tool(read_only=True)
def track_parcel(order: Number, *, context: ToolContext) -> str:
    "Where a parcel is."
    return "In Lyon, due tomorrow." if own_order(order, context).status == "shipped" else "It has not left yet."


@tool
def change_address(order: Number, address: str, *, context: ToolContext) -> str:
    "Send an order that has not left to another address."
    found = own_order(order, context)
    if found.status not in ("paid", "unpaid"):
        raise ToolValidationError("The parcel has left; its address cannot be changed.")
    return f"Order {order} goes to {change(found, context, address=address).address}."


@tool
def send_again(order: Number, *, context: ToolContext) -> str:
    "Send a lost or damaged parcel again."
    found, shop = own_order(order, context), context.resources.get(Shop)
    shop.stock[found.product] -= 1
    if shop.stock[found.product] < 0:
        # The line above has changed the stock already: raising undoes that.
        raise ToolValidationError(f"No {found.product} is left; offer a refund.")
    change(found, context, status="paid")
    return f"Another {found.product} leaves today."


@tool(read_only=True)
def customs_status(order: Number, *, context: ToolContext) -> str:
    "Whether customs holds a parcel."
    own_order(order, context)
    return "Released."


@tool
def open_return(order: Number, reason: str, *, context: ToolContext) -> str:
    "Register a return."
    found = own_order(order, context)
    if (TODAY - found.bought).days > 30:
        raise ToolValidationError(f"Order {order} was bought on {found.bought}; returns end after 30 days.")
    change(found, context, status="returning")
    context.session.dispatch(CaseNote("return", f"Order {order}: {reason}"))
    return f"The return of order {order} is registered."


@tool(read_only=True)
def return_label(order: Number, *, context: ToolContext) -> str:
    "The address of the label for a registered return."
    if own_order(order, context).status != "returning":
        raise ToolValidationError("Register the return first, with open_return.")
    return f"https://shop.example/labels/{order}.pdf"


@tool
def refund(order: Number, *, context: ToolContext) -> str:
    "Give the money for an order back."
    found = change(own_order(order, context), context, status="refunded")
    context.session.dispatch(CaseNote("refund", f"Order {order}: {found.cents / 100:.2f} EUR"))
    # If the bank refuses, order and note are as before. The key makes a repeated call harmless.
    receipt = context.resources.get(Bank).transfer(found.cents, idempotency_key=context.idempotency_key)
    return f"{found.cents / 100:.2f} EUR are on their way, receipt {receipt}."


@tool(read_only=True)
def warranty_until(order: Number, *, context: ToolContext) -> date:
    "The last day of an order's warranty."
    bought = own_order(order, context).bought
    return bought.replace(year=bought.year + 2)


@tool
def open_claim(order: Number, defect: str, *, context: ToolContext) -> str:
    "Open a warranty claim."
    own_order(order, context)
    context.session.dispatch(CaseNote("claim", f"Order {order}: {defect}"))
    return "The claim is open; the workshop writes within two days."


@tool(read_only=True)
def invoice(order: Number, *, context: ToolContext) -> str:
    "The address of an invoice."
    return f"https://shop.example/invoices/{own_order(order, context).number}.pdf"


@tool
def correct_invoice(order: Number, company: str, vat_number: str, *, context: ToolContext) -> str:
    "Write an invoice to a company."
    own_order(order, context)
    return f"The invoice of order {order} is written to {company}, {vat_number}."


@tool(read_only=True)
def payment_status(order: Number, *, context: ToolContext) -> Literal["paid", "unpaid"]:
    "Whether an order is paid."
    return "unpaid" if own_order(order, context).status == "unpaid" else "paid"


@tool
def payment_link(order: Number, *, context: ToolContext) -> str:
    "A link with which the customer pays an unpaid order."
    if own_order(order, context).status != "unpaid":
        raise ToolValidationError(f"Order {order} is paid.")
    return f"https://shop.example/pay/{order}"


@tool
def change_email(email: str, *, context: ToolContext) -> str:
    "Change the customer's email address."
    customer = context.resources.get(Customer)
    context.resources.get(Shop).customers[customer.id] = replace(customer, email=email)
    return f"We write to {email} from now on."


@tool
def close_account(*, context: ToolContext) -> str:
    "Close the customer's account."
    del context.resources.get(Shop).customers[context.resources.get(Customer).id]
    return "The account is closed."


@tool(read_only=True)
def export_data(*, context: ToolContext) -> Customer:
    "Everything that is stored about the customer."
    return context.resources.get(Shop).customers[context.resources.get(Customer).id]


@tool(read_only=True)
def in_stock(product: str, *, context: ToolContext) -> int:
    "How many of a product are left."
    return context.resources.get(Shop).stock.get(product, 0)


@tool
def escalate(reason: str, *, context: ToolContext) -> str:
    "Hand the case to a person."
    context.session.dispatch(CaseNote("escalation", reason))
    return "A person answers within an hour."


def closed(
    key: str, summary: str, text: str, tools: list[Tool[Any, Any]], *children: Section[Any]
) -> MarkdownSection[None]:
    """A section of which the model sees the summary until it opens it."""
    return MarkdownSection(
        key=key,
        title=key.title(),
        summary=summary,
        template=text,
        visibility=SectionVisibility.SUMMARY,
        tools=tools,
        children=children,
    )


template = PromptTemplate[Reply](
    ns="examples",
    key="support",
    sections=[
        MarkdownSection[Customer](
            key="task",
            title="Task",
            template="Answer ${name}, a customer of our tea shop. Open the section their question is about first.",
            children=[MarkdownSection(key="tone", title="Tone", template="Be brief and warm. Never promise a date.")],
        ),
        # Nearly every question needs these, so they are always open.
        MarkdownSection(
            key="orders",
            title="Orders",
            template="Look an order up before you say anything about it.",
            tools=[list_orders, find_order],
        ),
        # Only members have this one: for others it does not exist.
        MarkdownSection[Customer](
            key="loyalty",
            title="Loyalty",
            template="${name} is a member: shipping is free, also for what they send back.",
            enabled=lambda customer: customer.member,
        ),
        closed(
            "shipping",
            "Where parcels are, changed addresses, lost and damaged parcels.",
            "Parcels take three days. One is lost if it has not moved for a week; send it again without asking why.",
            [track_parcel, change_address, send_again],
            closed(
                "customs",
                "Parcels that leave the European Union.",
                "Customs may hold a parcel for ten days. Duties are paid by the customer.",
                [customs_status],
            ),
        ),
        closed(
            "returns",
            "Sending goods back, and when that is possible.",
            "Goods go back within 30 days, unused. Opened tea is not taken back, unless it is spoiled.",
            [open_return, return_label],
            closed(
                "refunds",
                "When and how money is given back.",
                "Refund when the return is registered, or when a parcel is lost and the product sold out.",
                [refund],
            ),
        ),
        closed(
            "warranty",
            "Broken pots and kettles.",
            "Two years on everything but lids. Ask for the defect in the customer's words, then open a claim.",
            [warranty_until, open_claim],
        ),
        closed(
            "billing",
            "Invoices, company addresses, payments.",
            "Invoices can be corrected for the year in which they were written.",
            [invoice, correct_invoice],
            closed(
                "payments",
                "Orders that are not paid.",
                "An unpaid order is kept for a week. Send a link; never ask for a card number.",
                [payment_status, payment_link],
            ),
        ),
        closed(
            "account",
            "Email addresses, closing an account, stored data.",
            "Repeat a new address to the customer before you change it. Closing an account is final: ask twice.",
            [change_email, close_account],
            closed(
                "privacy",
                "What we store about a customer.",
                "A customer may see all stored data at any time.",
                [export_data],
            ),
        ),
        closed("products", "What we sell, and what is left.", "Products are named in lower case.", [in_stock]),
        closed(
            "escalation",
            "When a person must take over.",
            "Escalate threats, lawyers, the press, and what you could not solve in three steps.",
            [escalate],
        ),
    ],
)


def desk(customer: Customer, shop: Shop, adapter: ProviderAdapter, *, bank: Bank | None = None) -> Conversation[Reply]:
    """A conversation with one customer. The budget limits each exchange."""
    resources = {Customer: customer, Shop: shop, Bank: bank or Bank()}
    prompt = Prompt(template).bind(customer, resources=resources)
    return Conversation(prompt, adapter=adapter, budget=Budget(max_turns=12))


ANN = Customer(1, "Ann", "ann@example.com", member=True)


def sample_shop() -> Shop:
    orders = [
        Order(7, ANN.id, "teapot", 4_900, date(2026, 11, 2), "shipped", "1 Mill Lane"),
        Order(8, ANN.id, "samovar", 89_000, date(2026, 11, 9), "shipped", "1 Mill Lane"),
        Order(9, 2, "kettle", 6_500, date(2026, 11, 9), "paid", "2 Hill Road"),
    ]
    return Shop([ANN], orders, {"teapot": 1, "kettle": 3})


SCRIPT = [
    call("find_order", order=7),
    call("read_section", section_key="returns"),
    call("open_return", order=7, reason="The lid does not fit."),
    call("read_section", section_key="returns.refunds"),
    call("refund", order=7),
    Reply("Ann, the return of your teapot is registered and 49.00 EUR are on their way.", "return"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", help="for example openai:gpt-5.6; without it, a script plays the model")
    parser.add_argument(
        "question", nargs="?", default="The lid of my teapot (order 7) does not fit. Money back, please!"
    )
    arguments = parser.parse_args()
    adapter = adapter_for(arguments.adapter) if arguments.adapter else ScriptedAdapter(SCRIPT)
    with desk(ANN, sample_shop(), adapter) as chat:
        reply = chat.send(arguments.question).require_output()
        for event in chat.session[ToolInvoked].all():
            print(f"  {event.name}: {event.result.render().splitlines()[0]}")
        case = chat.session[Case].latest() or Case()
        print(reply.text, *(f"  noted: {note.kind}, {note.text}" for note in case.notes), sep="\n")


if __name__ == "__main__":
    main()
