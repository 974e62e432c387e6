"""Accounts of users, which a section loads with the resources of one of them, and the ways to give it another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from tests.disclosure.desk import SUMMARY
from weakincentives.adapters.scripted import call
from weakincentives.prompt import (
    LateContent,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Section,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import Binding, ResourceRegistry, ScopedResourceContext
from weakincentives.runtime import ModelRequest


@dataclass(frozen=True)
class User:
    """All users are equal, as objects of a client library may be."""

    name: str = field(compare=False)


ALICE, BOB, ZOE = User("alice"), User("bob"), User("zoe")
USERS = (ALICE, BOB, ZOE)


def secret(context: ToolContext) -> str:
    return f"balance-of-{context.resources.get(User).name}"


class Account(Section[None]):
    """A section about the user whose resources it was loaded with; it counts how often it is."""

    loads = 0

    def render_body(self, params: None) -> str:
        return ""

    def load(self, resources: ScopedResourceContext) -> LateContent:
        self.loads += 1
        name = resources.get(User).name
        pay = Tool[None, None](
            name=f"pay_{name}", description="Pays.", handler=lambda params, *, context: ToolResult(secret(context))
        )
        card = MarkdownSection(key="card", title="Card", template=f"Card of {name}.", summary=f"A card of {name}.")
        return LateContent((pay,), (card,), f"Account of {name}.")


def template(**options: Any) -> PromptTemplate[Any]:
    account = Account(key="account", title="Account", summary="The account.", visibility=SUMMARY)
    sections = [MarkdownSection(key="task", title="Task", template="Help."), account]
    return PromptTemplate(ns="tests", key="accounts", sections=sections, **options)


def script(user: User) -> list[Any]:
    return [call("read_section", section_key="account"), call(f"pay_{user.name}"), "Done."]


def shown(requests: Sequence[ModelRequest]) -> str:
    """Everything that these requests show to a model."""
    lines: list[str] = []
    for request in requests:
        lines.extend(message.text for message in request.messages)
        lines.extend(tool.definition for tool in request.tools)
    return "\n".join(lines)


def assert_own(user: User, requests: Sequence[ModelRequest]) -> None:
    """The requests show what is the user's, and nothing that is another's."""
    text = shown(requests)
    assert f"Account of {user.name}." in text and f"balance-of-{user.name}" in text
    assert [each.name for each in USERS if each is not user and each.name in text] == []


# The ways in which the same template gets another user's resources.

CURRENT = [ALICE]
Way = Callable[[User], Prompt[Any]]


def copied() -> Way:
    base = Prompt(template())
    return lambda user: copy(base).bind(resources={User: user})


def copied_from_the_last() -> Way:
    last = [Prompt(template())]

    def prompt_for(user: User) -> Prompt[Any]:
        last[0] = copy(last[0]).bind(resources={User: user})
        return last[0]

    return prompt_for


def bound_again() -> Way:
    base = Prompt(template())
    return lambda user: base.bind(resources={User: user})


def from_a_factory() -> Way:
    base = Prompt(template(resources=ResourceRegistry.of(Binding(User, lambda _: CURRENT[0], eager=True))))

    def prompt_for(user: User) -> Prompt[Any]:
        CURRENT[0] = user
        return base

    return prompt_for


def from_a_bound_factory() -> Way:
    base = Prompt(template()).bind(resources=ResourceRegistry.of(Binding(User, lambda _: CURRENT[0], eager=True)))

    def prompt_for(user: User) -> Prompt[Any]:
        CURRENT[0] = user
        return base

    return prompt_for


WAYS = [copied, copied_from_the_last, bound_again, from_a_factory, from_a_bound_factory]


class Replies:
    """A model that reads the account, pays, and answers, in each exchange of a user."""

    def __init__(self, user: User) -> None:
        self._user = user

    def __call__(self, request: ModelRequest) -> Any:
        read, pay, answer = script(self._user)
        last = [message for message in request.messages if message.by_user or message.role == "tool"][-1]
        if last.by_user:
            return read
        return pay if last.name == "read_section" else answer
