"""`with prompt.resources:` and where resources are collected from."""

from __future__ import annotations

from typing import Any

import pytest

from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, WorkspaceSection
from weakincentives.resources import Binding, ResourceError, ResourceRegistry


class Client:
    def __init__(self, name: str = "template") -> None:
        self.name = name
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Bringing(MarkdownSection[None]):
    def __init__(self, key: str, client: Client, **kwargs: Any) -> None:
        self.client = client
        super().__init__(title=key, key=key, template="x", **kwargs)

    def resources(self) -> ResourceRegistry:
        return ResourceRegistry.build({Client: self.client})


def prompt(**kwargs: Any) -> Prompt[None]:
    return Prompt(PromptTemplate(ns="t", key="d", **kwargs))


def test_resources_outside_their_context_are_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"outside `with prompt\.resources:`"):
        prompt().resources.get(Client)


def test_later_sources_win_over_the_whole_depth_of_the_tree() -> None:
    deep = Bringing("c", Client("deep"))
    middle = MarkdownSection(title="b", key="b", template="x", children=[deep])
    sections = [MarkdownSection(title="a", key="a", template="x", children=[middle])]
    registry = ResourceRegistry.build({Client: Client("template")})
    bound = prompt(sections=sections, resources=registry)
    with bound.resources:
        assert bound.resources.get(Client).name == "deep"
    bound.bind(resources={Client: Client("bound")})
    with bound.resources:
        assert bound.resources.get(Client).name == "bound"


def test_entering_is_reentrant_and_the_outermost_exit_closes() -> None:
    bound = prompt(resources=ResourceRegistry.of(Binding(Client, lambda r: Client())))
    with bound.resources:
        client = bound.resources.get(Client)
        with bound.resources:
            assert bound.resources.get(Client) is client
        assert not client.closed
    assert client.closed


async def test_a_prompt_is_the_context_manager_of_its_resources() -> None:
    bound = prompt(resources=ResourceRegistry.of(Binding(Client, lambda r: Client())))
    with bound as entered:
        client = entered.resources.get(Client)
    async with bound:
        other = bound.resources.get(Client)
        assert entered is bound and client.closed and not other.closed
    assert other.closed


def test_a_workspace_in_memory_belongs_to_one_run() -> None:
    template = PromptTemplate(ns="t", key="d", sections=[WorkspaceSection()])
    with Prompt(template) as first, Prompt(template) as second:
        first.resources.get(Filesystem).write("secret", "of the first run")
        assert not second.resources.get(Filesystem).exists("secret")


def test_a_workspace_without_files_of_its_own_never_replaces_another() -> None:
    mine = InMemoryFilesystem()
    for sections in ([WorkspaceSection(mine), VfsToolsSection()], [VfsToolsSection(mine), WorkspaceSection()]):
        with prompt(sections=sections) as bound:
            assert bound.resources.get(Filesystem) is mine


def test_get_optional_answers_none_for_what_is_not_bound() -> None:
    bound = prompt()
    with bound.resources:
        assert bound.resources.get_optional(Client) is None


def test_resources_that_are_neither_registry_nor_mapping_are_refused() -> None:
    with pytest.raises(ResourceError, match="Resources must be a ResourceRegistry or a mapping of class to instance"):
        PromptTemplate(ns="a", key="b", resources=[str])
