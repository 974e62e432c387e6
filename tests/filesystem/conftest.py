import pytest

from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem


@pytest.fixture(params=["memory", "host", "host-tracking", "branch", "branch of a branch"])
def fs(request, tmp_path):
    """An empty filesystem of each kind: the contract holds for all of them."""
    if request.param == "memory":
        return InMemoryFilesystem()
    root = tmp_path / "root"
    root.mkdir()
    host = HostFilesystem(root, track_external=request.param == "host-tracking")
    if not request.param.startswith("branch"):
        return host
    branch = host.branch()
    if request.param == "branch":
        return branch
    branch.write("gone/file", "x")
    branch.delete("gone", recursive=True)
    return branch.branch()


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    return path
