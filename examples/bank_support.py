"""Bank support, as in the example of Pydantic AI: a customer, a database, a tool, and an answer with a type."""

import sys
from dataclasses import dataclass

from pydantic import BaseModel, Field

from weakincentives import Conversation, MarkdownSection, OpenAIAdapter, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import ProviderAdapter


@dataclass(frozen=True)
class Customer:
    id: int
    name: str


class Bank:
    """Stands in for a database."""

    def balance(self, customer_id: int, include_pending: bool) -> float:
        if customer_id != 123:
            raise LookupError(f"there is no customer {customer_id}")
        return 123.45 if include_pending else 100.00


class Support(BaseModel):
    advice: str = Field(description="what to tell the customer")
    block_card: bool = Field(description="whether to block the customer's card")
    risk: int = Field(ge=0, le=10, description="how risky the query is")


@tool(read_only=True)
def customer_balance(include_pending: bool, *, context: ToolContext) -> str:
    "The balance of the customer's account."
    customer, bank = context.resources.get(Customer), context.resources.get(Bank)
    return f"${bank.balance(customer.id, include_pending):.2f}"


TASK = "Support a customer of our bank called ${name}. Reply with their name, and judge the risk of what they ask."
section = MarkdownSection[Customer](key="task", title="Task", template=TASK, tools=[customer_balance])
template = PromptTemplate[Support](ns="examples", key="bank", sections=[section])


def ask(question: str, customer: Customer, adapter: ProviderAdapter) -> Support:
    prompt = Prompt(template).bind(customer, resources={Customer: customer, Bank: Bank()})
    return Conversation(prompt, adapter=adapter).send(question).require_output()


if __name__ == "__main__":
    question = " ".join(sys.argv[1:]) or "I just lost my card!"
    print(ask(question, Customer(123, "John"), OpenAIAdapter("gpt-5.6")))
