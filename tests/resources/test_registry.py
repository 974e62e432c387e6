import pytest

from weakincentives.resources import Binding, ResourceError, ResourceRegistry, Scope


class Clock:
    pass


class Config:
    pass


def test_a_registry_knows_what_it_binds():
    registry = ResourceRegistry.of(Binding(Clock, lambda r: Clock()), Binding(Config, lambda r: Config()))
    assert tuple(registry) == (Clock, Config)
    assert Clock in registry
    assert len(ResourceRegistry()) == 0


def test_merging_leaves_both_sides_alone_and_the_later_binding_wins():
    first, second = Clock(), Clock()
    left = ResourceRegistry.build({Clock: first})
    right = ResourceRegistry.build({Clock: second, Config: Config()})
    assert left.merge(right).create_context().get(Clock) is second
    assert left.create_context().get(Clock) is first
    assert Config not in left


def test_a_mapping_of_instances_can_be_merged():
    clock = Clock()
    assert ResourceRegistry().merge({Clock: clock}).create_context().get(Clock) is clock


def test_merging_nothing_gives_the_same_registry():
    registry = ResourceRegistry.build({Clock: Clock()})
    assert registry.merge(None) is registry
    assert registry.merge(ResourceRegistry()) is registry


def test_a_fallback_never_replaces_another_binding():
    mine, spare = Clock(), Clock()
    fallback = ResourceRegistry.of(Binding.instance(Clock, spare, fallback=True))
    for registry in (ResourceRegistry.build({Clock: mine}).merge(fallback), fallback.merge({Clock: mine})):
        assert registry.create_context().get(Clock) is mine
    assert ResourceRegistry().merge(fallback).create_context().get(Clock) is spare


def test_bindings_cannot_be_changed_through_the_registry():
    with pytest.raises(TypeError):
        ResourceRegistry().bindings[Clock] = Binding.instance(Clock, Clock())


def test_one_protocol_bound_twice_is_refused():
    with pytest.raises(ResourceError, match="Clock is bound twice"):
        ResourceRegistry.of(Binding(Clock, lambda r: Clock()), Binding(Clock, lambda r: Clock()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Binding("clock", lambda r: Clock()), "bound to a class or protocol, got 'clock'"),
        (lambda: Binding(Clock, Clock()), r"must be callable.*Binding\.instance\(Clock"),
        (lambda: Binding(Clock, lambda r: Clock(), scope="singleton"), "scope of Clock must be .*got 'singleton'"),
        (lambda: Binding(Clock, lambda r: Clock(), Scope.TOOL_CALL, eager=True), "only singletons"),
        (lambda: ResourceRegistry.build({Clock: None}), "resource for Clock must not be None; leave it out"),
        (lambda: ResourceRegistry.build({Clock: Binding.instance(Clock, Clock())}), r"pass bindings to of\(\)"),
        (lambda: ResourceRegistry.of(Clock()), "must be given Binding objects"),
        (lambda: ResourceRegistry().merge([Clock()]), "a ResourceRegistry or a mapping"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(make, message):
    with pytest.raises(ResourceError, match=message):
        make()


def test_a_binding_may_name_its_type_argument():
    clock = Clock()
    binding = Binding[Clock](Clock, lambda r: clock)
    assert ResourceRegistry.of(binding).create_context().get(Clock) is clock
