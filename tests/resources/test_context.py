import threading
from contextlib import contextmanager

import pytest

from weakincentives.resources import (
    Binding,
    CircularDependencyError,
    ResourceCloseError,
    ResourceError,
    ResourceRegistry,
    Scope,
    ScopeError,
    UnboundResourceError,
)


class A:
    pass


class B:
    pass


class C:
    pass


class Closing:
    """Writes its name into a shared list when it is closed."""

    def __init__(self, log, name, error=None):
        self.log, self.name, self.error = log, name, error

    def close(self):
        self.log.append(self.name)
        if self.error:
            raise self.error


class AsyncClosing(Closing):
    async def close(self):
        super().close()


class AsyncOnly:
    def __init__(self, log, name):
        self.log, self.name = log, name

    async def aclose(self):
        self.log.append(self.name)


def context_of(*bindings):
    return ResourceRegistry.of(*bindings).create_context()


def test_a_singleton_is_built_once_at_the_first_get():
    built = []
    context = context_of(Binding(A, lambda r: built.append(1) or A()))
    assert built == []
    assert context.get(A) is context.get(A)
    assert built == [1]


def test_start_builds_only_the_eager_ones():
    built = []
    context = context_of(
        Binding(A, lambda r: built.append("a") or A()), Binding(B, lambda r: built.append("b") or B(), eager=True)
    )
    context.start()
    assert built == ["b"]


def test_a_prototype_is_new_for_everyone_who_asks():
    context = context_of(Binding(A, lambda r: A(), scope=Scope.PROTOTYPE))
    assert context.get(A) is not context.get(A)


def test_a_provider_resolves_its_own_dependencies():
    context = context_of(Binding(dict, lambda r: {"a": r.get(A), "b": r.get_optional(B)}), Binding(A, lambda r: A()))
    assert context.get(dict) == {"a": context.get(A), "b": None}


def test_what_is_not_bound_is_optional_or_an_error():
    context = context_of()
    assert context.get_optional(A) is None
    with pytest.raises(UnboundResourceError, match=r"No resource is bound to A; add Binding\(A, \.\.\.\)"):
        context.get(A)


def test_a_missing_dependency_shows_who_needs_it():
    context = context_of(Binding(A, lambda r: r.get(B)), Binding(B, lambda r: r.get(C)))
    with pytest.raises(UnboundResourceError, match=r"bound to C \(needed by A -> B -> C\)") as caught:
        context.get_optional(A)
    assert caught.value.chain == (A, B)


def test_a_circle_is_shown_as_a_chain():
    context = context_of(Binding(C, lambda r: r.get(A)), Binding(A, lambda r: r.get(B)), Binding(B, lambda r: r.get(A)))
    with pytest.raises(CircularDependencyError, match=r"circle: A -> B -> A$"):
        context.get(C)


def test_a_failing_provider_raises_its_own_error_with_the_chain_as_a_note():
    context = context_of(Binding(A, lambda r: r.get(B)), Binding(B, lambda r: 1 // 0))
    with pytest.raises(ZeroDivisionError) as caught:
        context.get(A)
    assert caught.value.__notes__ == ["While creating resource A -> B"]


def test_a_provider_that_failed_is_asked_again():
    answers = iter([ValueError("not yet"), A()])

    def provide(resolver):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    context = context_of(Binding(A, provide))
    with pytest.raises(ValueError, match="not yet"):
        context.get(A)
    assert isinstance(context.get(A), A)


async def _nothing(resolver):
    return None


def _generator(resolver):
    yield A()


async def _async_generator(resolver):
    yield A()


@contextmanager
def _yields_nothing(resolver):
    yield


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (lambda r: None, "got None"),
        (_nothing, "got None"),
        (_yields_nothing, "got None"),
        (_generator, "got a generator; decorate it with @contextmanager"),
        (_async_generator, "got a generator; decorate it with @asynccontextmanager"),
    ],
)
def test_a_provider_must_return_the_resource(provider, message):
    refused = pytest.raises(ResourceError, match=f"The provider of A must return the resource, {message}")
    with context_of(Binding(A, provider)) as context, refused:
        context.get(A)


def test_a_resolver_kept_for_later_gives_prototypes_of_its_own_kind():
    class Factory:
        def __init__(self, resolver):
            self.another = lambda: resolver.get(Factory)

    context = context_of(Binding(Factory, Factory, scope=Scope.PROTOTYPE))
    assert isinstance(context.get(Factory).another(), Factory)


def test_resources_close_in_reverse_order_of_construction():
    log = []
    with context_of(
        Binding(A, lambda r: (r.get(B), Closing(log, "a"))[1]),
        Binding(B, lambda r: Closing(log, "b")),
        Binding(C, lambda r: Closing(log, "c")),
    ) as context:
        context.get(C)
        context.get(A)
    assert log == ["a", "b", "c"]


def test_every_resource_closes_even_when_some_fail():
    log = []
    context = context_of(
        Binding(A, lambda r: Closing(log, "a", ValueError("a is stuck")), eager=True),
        Binding(B, lambda r: Closing(log, "b"), eager=True),
        Binding(C, lambda r: Closing(log, "c", KeyError("k")), eager=True),
    )
    context.start()
    with pytest.raises(ResourceCloseError, match=r"Could not close C: 'k'; A: a is stuck") as caught:
        context.close()
    assert log == ["c", "b", "a"]
    assert [type(error) for error in caught.value.exceptions] == [KeyError, ValueError]
    assert isinstance(caught.value, ExceptionGroup)


def test_an_interrupt_during_close_still_closes_the_rest_and_goes_on():
    log = []
    context = context_of(
        Binding(A, lambda r: Closing(log, "a")), Binding(B, lambda r: Closing(log, "b", KeyboardInterrupt()))
    )
    context.get(A), context.get(B)
    with pytest.raises(KeyboardInterrupt):
        context.close()
    assert log == ["b", "a"]


def test_a_failing_close_does_not_hide_the_error_of_the_block():
    context = context_of(Binding(A, lambda r: Closing([], "a", ValueError("stuck")), eager=True))
    with pytest.raises(RuntimeError, match="the block") as caught, context:
        raise RuntimeError("the block")
    assert caught.value.__notes__ == ["Could not close A: stuck (1 sub-exception)"]


def test_instances_given_by_the_caller_are_not_closed():
    log = []
    mine, bound = Closing(log, "mine"), Closing(log, "bound")
    registry = ResourceRegistry.build({A: mine}).merge(ResourceRegistry.of(Binding.instance(B, bound)))
    with registry.create_context() as context:
        assert (context.get(A), context.get(B)) == (mine, bound)
    assert log == []


def test_prototypes_close_with_the_context_that_built_them():
    log = []
    with context_of(Binding(A, lambda r: Closing(log, len(log)), scope=Scope.PROTOTYPE)) as context:
        context.get(A), context.get(A)
        assert log == []
    assert log == [0, 0]


def test_closing_twice_is_harmless_and_a_closed_context_says_so():
    log = []
    context = context_of(Binding(A, lambda r: Closing(log, "a")))
    context.get(A)
    context.close()
    context.close()
    assert log == ["a"]
    with pytest.raises(ResourceError, match="context is closed"):
        context.get(A)


def test_a_start_that_fails_closes_what_it_built():
    log = []
    context = context_of(Binding(A, lambda r: Closing(log, "a"), eager=True), Binding(B, lambda r: 1 // 0, eager=True))
    with pytest.raises(ZeroDivisionError):
        context.start()
    assert log == ["a"]


def test_async_closers_are_run_by_a_sync_close():
    log = []
    with context_of(
        Binding(A, lambda r: AsyncClosing(log, "close"), eager=True),
        Binding(B, lambda r: AsyncOnly(log, "aclose"), eager=True),
    ):
        pass
    assert log == ["aclose", "close"]


async def test_async_closers_are_run_by_a_sync_close_inside_a_running_loop():
    log = []
    with context_of(Binding(B, lambda r: AsyncOnly(log, "aclose"), eager=True)):
        pass
    assert log == ["aclose"]


async def test_aclose_awaits_async_closers_and_calls_sync_ones():
    log = []
    async with context_of(
        Binding(A, lambda r: Closing(log, "sync"), eager=True),
        Binding(B, lambda r: AsyncOnly(log, "aclose"), eager=True),
        Binding(C, lambda r: AsyncClosing(log, "stuck", ValueError("x")), eager=True),
    ) as context:
        with pytest.raises(ResourceCloseError, match="C: x"):
            await context.aclose()
    assert log == ["stuck", "aclose", "sync"]


def test_a_tool_call_resource_lives_for_one_call():
    log = []
    context = context_of(Binding(A, lambda r: Closing(log, "a"), scope=Scope.TOOL_CALL))
    with context.tool_scope() as first:
        one = first.get(A)
        assert first.get(A) is one
    assert log == ["a"]
    with context.tool_scope() as second:
        assert second.get(A) is not one


def test_singletons_are_shared_by_tool_scopes_and_outlive_them():
    log = []
    with context_of(
        Binding(A, lambda r: Closing(log, "a")), Binding(B, lambda r: [r.get(A)], scope=Scope.TOOL_CALL)
    ) as context:
        with context.tool_scope() as scope:
            assert scope.get(B)[0] is scope.get(A)
        assert log == []
        assert context.get(A) is not None
    assert log == ["a"]


def test_a_tool_call_resource_outside_a_tool_call_is_refused_with_the_way_out():
    context = context_of(Binding(A, lambda r: A(), scope=Scope.TOOL_CALL))
    with pytest.raises(ScopeError, match=r"A lives for one tool call; get it inside .*tool_scope\(\)"):
        context.get(A)


def test_a_singleton_cannot_capture_a_tool_call_resource():
    context = context_of(
        Binding(A, lambda r: r.get(B)),
        Binding(B, lambda r: r.get(C), scope=Scope.PROTOTYPE),
        Binding(C, lambda r: C(), scope=Scope.TOOL_CALL),
    )
    with context.tool_scope() as scope:
        with pytest.raises(ScopeError, match=r"C lives for one tool call but B outlives it \(A -> B -> C\)"):
            scope.get(A)
        assert isinstance(scope.get(B), C)


def test_a_singleton_is_built_once_by_many_threads():
    built = []
    barrier = threading.Barrier(8)
    context = context_of(
        Binding(A, lambda r: built.append(r.get(B)) or A()), Binding(B, lambda r: built.append(1) or B())
    )
    seen = []

    def ask():
        barrier.wait()
        with context.tool_scope() as scope:
            seen.append(scope.get(A))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, seen))) == 1
    assert len(built) == 2
