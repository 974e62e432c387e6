"""Random operations against a model: a dictionary of files and a set of directories."""

import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from weakincentives.filesystem import FilesystemError, HostFilesystem, InMemoryFilesystem

NAMES = st.sampled_from(["a", "b", "c.txt", "ü"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENT = st.one_of(st.text(max_size=5), st.binary(max_size=5), st.just(b"\n" * 20_000))


class Model:
    def __init__(self):
        self.files, self.directories = {}, {"."}

    def copy(self):
        model = Model()
        model.files, model.directories = dict(self.files), set(self.directories)
        return model

    def parents(self, path):
        names = path.split("/")
        return ["/".join(names[:depth]) for depth in range(1, len(names))]

    def blocked(self, path):
        return any(parent in self.files for parent in self.parents(path))

    def write(self, path, content, mode):
        if path in self.directories or self.blocked(path) or (mode == "create" and path in self.files):
            raise FilesystemError("refused")
        data = content.encode() if isinstance(content, str) else content
        self.directories.update(self.parents(path))
        self.files[path] = self.files.get(path, b"") + data if mode == "append" else data

    def mkdir(self, path, parents, exist_ok):
        missing = not parents and not set(self.parents(path)) <= self.directories
        exists = path in self.files or (path in self.directories and not exist_ok)
        if self.blocked(path) or missing or exists:
            raise FilesystemError("refused")
        self.directories.update([*self.parents(path), path])

    def delete(self, path, recursive):
        below = [p for p in [*self.files, *self.directories] if p.startswith(path + "/")]
        if (path not in self.files and path not in self.directories) or (below and not recursive):
            raise FilesystemError("refused")
        for gone in [path, *below]:
            self.files.pop(gone, None)
            self.directories.discard(gone)


class Machine(RuleBasedStateMachine):
    snapshots = Bundle("snapshots")

    def make(self):
        raise NotImplementedError

    @initialize()
    def begin(self):
        self.fs, self.model = self.make(), Model()

    def both(self, operation):
        outcomes = []
        for target in (self.model, self.fs):
            try:
                operation(target)
                outcomes.append("done")
            except FilesystemError:
                outcomes.append("refused")
        assert outcomes[0] == outcomes[1]

    @rule(path=PATHS, content=CONTENT, mode=st.sampled_from(["create", "overwrite", "append"]))
    def write(self, path, content, mode):
        self.both(lambda target: target.write(path, content, mode=mode))

    @rule(path=PATHS, parents=st.booleans(), exist_ok=st.booleans())
    def mkdir(self, path, parents, exist_ok):
        self.both(lambda target: target.mkdir(path, parents=parents, exist_ok=exist_ok))

    @rule(path=PATHS, recursive=st.booleans())
    def delete(self, path, recursive):
        self.both(lambda target: target.delete(path, recursive=recursive))

    @rule(target=snapshots)
    def snapshot(self):
        return self.fs.snapshot(), self.model.copy()

    @precondition(lambda self: hasattr(self, "fs"))
    @rule(saved=snapshots)
    def restore(self, saved):
        snapshot, model = saved
        self.fs.restore(snapshot)
        self.model = model.copy()

    @invariant()
    def agree(self):
        if not hasattr(self, "fs"):
            return
        files, directories = {}, {"."}

        def visit(path):
            for entry in self.fs.list(path):
                if entry.kind == "directory":
                    directories.add(entry.path)
                    visit(entry.path)
                else:
                    files[entry.path] = self.fs.read_bytes(entry.path)

        visit(".")
        assert (files, directories) == (self.model.files, self.model.directories)
        assert set(self.fs.glob("**")) == set(self.model.files)


class MemoryMachine(Machine):
    def make(self):
        return InMemoryFilesystem()


class HostMachine(Machine):
    tracking = False

    def make(self):
        self.root = tempfile.mkdtemp()
        return HostFilesystem(self.root, track_external=self.tracking, ignore=("c.txt",))

    def teardown(self):
        if hasattr(self, "fs"):
            self.fs.close()
            shutil.rmtree(self.root)


class TrackingMachine(HostMachine):
    tracking = True


@pytest.mark.parametrize("machine", [MemoryMachine, HostMachine, TrackingMachine])
def test_random_operations_and_restores_agree_with_a_model(machine):
    test = machine.TestCase()
    test.settings = settings(
        max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    test.runTest()
