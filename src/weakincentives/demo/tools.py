"""What a support agent can do: one tool per action, each offered with the section that explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from weakincentives.demo.store import Store
from weakincentives.prompt import Tool, ToolContext, ToolResult

Part = Literal["pump", "filter sponge", "seal set", "LED panel", "power supply", "float sensor", "tank", "lid"]
OrderNumber = Annotated[str, "The number of the order, such as FH-12345."]
MemberNumber = Annotated[str, "The number of the member, such as M-1234."]


@dataclass(frozen=True, slots=True)
class LookupOrder:
    order_number: OrderNumber


@dataclass(frozen=True, slots=True)
class ChangeDeliveryAddress:
    order_number: OrderNumber
    address: Annotated[str, "The whole new address, in the same country."]


@dataclass(frozen=True, slots=True)
class IssueRefund:
    order_number: OrderNumber
    amount: Annotated[float, "Euros to refund."]
    reason: Literal["withdrawal", "damaged", "lost", "defect", "overcharge", "goodwill"]


@dataclass(frozen=True, slots=True)
class CreateReturnLabel:
    order_number: OrderNumber


@dataclass(frozen=True, slots=True)
class FindPart:
    model: Literal["Mini", "Six", "Tower"]
    part: Part


@dataclass(frozen=True, slots=True)
class ChangeSubscription:
    member_number: MemberNumber
    action: Literal["skip", "pause", "resume", "cancel"]


@dataclass(frozen=True, slots=True)
class Escalate:
    level: Literal["team lead", "specialist", "finance desk", "safety", "data protection officer"]
    summary: Annotated[str, "The case in a few sentences."]


def lookup_order(params: LookupOrder, *, context: ToolContext) -> ToolResult[None]:
    order = _order(context, params.order_number)
    if order is None:
        return _no_order(params.order_number)
    return ToolResult(
        f"Order {order['number']} ({order['item']}, {order['paid']:.2f} euros, to {order['country']}) is "
        f"{order['state']}: {order['note']}."
    )


def change_delivery_address(params: ChangeDeliveryAddress, *, context: ToolContext) -> ToolResult[None]:
    order = _order(context, params.order_number)
    if order is None:
        return _no_order(params.order_number)
    if order["state"] not in ("received", "picking"):
        return _refused(f"Order {order['number']} is {order['state']}; its address can no longer be changed here.")
    _store(context).change("UPDATE orders SET address = ? WHERE number = ?", (params.address, order["number"]))
    return ToolResult(f"Order {order['number']} now goes to: {params.address}.")


def issue_refund(params: IssueRefund, *, context: ToolContext) -> ToolResult[None]:
    order = _order(context, params.order_number)
    if order is None:
        return _no_order(params.order_number)
    left = order["paid"] - order["refunded"]
    if not 0 < params.amount <= left:
        return _refused(f"Order {order['number']} has {left:.2f} euros left to refund, not {params.amount:.2f}.")
    if params.amount > 150:
        return _refused(f"{params.amount:.2f} euros are more than an agent may approve (150); ask a team lead.")
    _store(context).change(
        "UPDATE orders SET refunded = refunded + ? WHERE number = ?", (params.amount, order["number"])
    )
    return ToolResult(f"Refunded {params.amount:.2f} euros for order {order['number']} ({params.reason}).")


def create_return_label(params: CreateReturnLabel, *, context: ToolContext) -> ToolResult[None]:
    order = _order(context, params.order_number)
    if order is None:
        return _no_order(params.order_number)
    if order["state"] != "delivered":
        return _refused(f"Order {order['number']} is {order['state']}; only delivered orders can be returned.")
    if order["label"]:
        return _refused(f"Order {order['number']} has an open label already: {order['label']}.")
    label = f"RL-{order['number'][3:]}"
    _store(context).change("UPDATE orders SET label = ? WHERE number = ?", (label, order["number"]))
    return ToolResult(f"Return label {label} for order {order['number']} was sent; it is valid for 14 days.")


def find_part(params: FindPart, *, context: ToolContext) -> ToolResult[None]:
    row = _store(context).one("SELECT * FROM parts WHERE model = ? AND part = ?", (params.model, params.part))
    if row is None:
        return _refused(f"There is no {params.part} for the {params.model}.")
    return ToolResult(
        f"The {row['part']} of the {row['model']} is {row['number']}, {row['price']:.0f} euros, "
        f"{row['stock']} in stock."
    )


def change_subscription(params: ChangeSubscription, *, context: ToolContext) -> ToolResult[None]:
    member = _store(context).one("SELECT * FROM members WHERE number = ?", (params.member_number,))
    if member is None:
        return _refused(f"There is no member {params.member_number}.")
    states = {"skip": "active", "pause": "paused", "resume": "active", "cancel": "cancelled"}
    _store(context).change(
        "UPDATE members SET state = ? WHERE number = ?", (states[params.action], params.member_number)
    )
    return ToolResult(
        f"Member {params.member_number} ({member['plan']}, {member['rhythm']}): {params.action} is done, "
        f"the membership is {states[params.action]}."
    )


def escalate(params: Escalate, *, context: ToolContext) -> ToolResult[None]:
    number = _store(context).change(
        "INSERT INTO tickets (level, summary) VALUES (?, ?)", (params.level, params.summary)
    )
    return ToolResult(f"Ticket {number} is with: {params.level}.")


def desk_tools() -> dict[str, tuple[Tool[Any, Any], ...]]:
    """The tools by section key."""
    return {
        "order-status": (
            Tool[LookupOrder, None](
                name="lookup_order",
                description="Look up the state of an order by its number.",
                handler=lookup_order,
                read_only=True,
            ),
        ),
        "address-change": (
            Tool[ChangeDeliveryAddress, None](
                name="change_delivery_address",
                description="Change where an order that is not packed yet goes.",
                handler=change_delivery_address,
            ),
        ),
        "refunds": (
            Tool[IssueRefund, None](
                name="issue_refund",
                description="Refund an amount in euros for an order.",
                handler=issue_refund,
            ),
        ),
        "returns": (
            Tool[CreateReturnLabel, None](
                name="create_return_label",
                description="Send the customer a label to return an order.",
                handler=create_return_label,
            ),
        ),
        "replacement-parts": (
            Tool[FindPart, None](
                name="find_part",
                description="Find the number, price and stock of a spare part.",
                handler=find_part,
                read_only=True,
            ),
        ),
        "pod-club": (
            Tool[ChangeSubscription, None](
                name="change_subscription",
                description="Skip, pause, resume or cancel a Pod Club membership.",
                handler=change_subscription,
            ),
        ),
        "escalation": (
            Tool[Escalate, None](
                name="escalate",
                description="Hand a case to somebody else, with a summary.",
                handler=escalate,
            ),
        ),
    }


def _store(context: ToolContext) -> Store:
    return context.resources.get(Store)


def _order(context: ToolContext, number: str) -> Any:
    return _store(context).one("SELECT * FROM orders WHERE number = ?", (number,))


def _no_order(number: str) -> ToolResult[None]:
    return _refused(f"There is no order {number}.")


def _refused(message: str) -> ToolResult[None]:
    return ToolResult(message, success=False)
