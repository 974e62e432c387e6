import pytest

from weakincentives.resources import Binding, ResourceRegistry, ResourceRestoreError, Scope, Snapshotable


class Counter:
    """A snapshotable resource that also remembers the world outside it, in `disk`."""

    def __init__(self, disk=None):
        self.disk = {} if disk is None else disk
        self.closed = False

    def add(self, name):
        self.disk[name] = self.disk.get(name, 0) + 1

    def snapshot(self):
        return dict(self.disk)

    def restore(self, snapshot):
        self.disk.clear()
        self.disk.update(snapshot)

    def close(self):
        self.closed = True


class Other(Counter):
    pass


class Stuck(Counter):
    def restore(self, snapshot):
        raise ValueError("cannot go back")


class Plain:
    def __init__(self, counter=None):
        self.counter = counter


def test_anything_with_snapshot_and_restore_is_snapshotable():
    assert isinstance(Counter(), Snapshotable)
    assert not isinstance(Plain(), Snapshotable)


def test_restore_brings_back_every_built_snapshotable_resource():
    context = ResourceRegistry.of(
        Binding(Counter, lambda r: Counter(), eager=True), Binding(Other, lambda r: Other(), eager=True)
    ).create_context()
    context.start()
    context.get(Counter).add("kept")
    snapshot = context.snapshot()
    context.get(Counter).add("lost")
    context.get(Other).add("lost")
    context.restore(snapshot)
    assert (context.get(Counter).disk, context.get(Other).disk) == ({"kept": 1}, {})
    assert set(snapshot) == {Counter, Other}


def test_an_instance_is_in_the_snapshot_before_anyone_asked_for_it():
    counter = Counter()
    context = ResourceRegistry.build({Counter: counter}).create_context()
    snapshot = context.snapshot()
    context.get(Counter).add("lost")
    context.restore(snapshot)
    assert (counter.disk, counter.closed) == ({}, False)
    assert context.get(Counter) is counter


def test_what_was_built_after_the_snapshot_is_rolled_back_closed_and_built_anew():
    disk = {"before": 1}
    context = ResourceRegistry.of(
        Binding(Counter, lambda r: Counter(disk)), Binding(Plain, lambda r: Plain(r.get(Counter)))
    ).create_context()
    snapshot = context.snapshot()
    plain, counter = context.get(Plain), context.get(Counter)
    counter.add("lost")
    context.restore(snapshot)
    assert (disk, counter.closed) == ({"before": 1}, True)
    assert context.get(Plain) is not plain
    assert context.get(Plain).counter is context.get(Counter) is not counter


def test_a_tool_scope_restores_its_own_resources_and_the_shared_ones():
    disk = {}
    shared = Other()
    context = (
        ResourceRegistry.of(Binding(Counter, lambda r: Counter(disk), scope=Scope.TOOL_CALL))
        .merge({Other: shared})
        .create_context()
    )
    snapshot = context.snapshot()
    with context.tool_scope() as scope:
        scope.get(Counter).add("lost")
        scope.get(Other).add("lost")
        scope.restore(snapshot)
    assert (disk, shared.disk) == ({}, {})


def test_a_snapshot_can_be_restored_more_than_once():
    counter = Counter()
    context = ResourceRegistry.build({Counter: counter}).create_context()
    snapshot = context.snapshot()
    for _ in range(2):
        counter.add("lost")
        context.restore(snapshot)
        assert counter.disk == {}


def test_one_failing_restore_does_not_stop_the_others():
    counter = Counter()
    context = ResourceRegistry.build({Counter: counter, Stuck: Stuck()}).create_context()
    snapshot = context.snapshot()
    counter.add("lost")
    with pytest.raises(ResourceRestoreError, match="Could not restore Stuck: cannot go back"):
        context.restore(snapshot)
    assert counter.disk == {}


def test_prototypes_are_left_out_of_snapshots():
    context = ResourceRegistry.of(Binding(Counter, lambda r: Counter(), scope=Scope.PROTOTYPE)).create_context()
    mine = context.get(Counter)
    snapshot = context.snapshot()
    mine.add("kept")
    context.restore(snapshot)
    assert (mine.disk, mine.closed, len(snapshot)) == ({"kept": 1}, False, 0)
