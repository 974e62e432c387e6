import pytest

from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem


@pytest.fixture(params=["memory", "host", "host-tracking"])
def fs(request, tmp_path):
    """An empty filesystem of each kind: the contract holds for all of them."""
    if request.param == "memory":
        return InMemoryFilesystem()
    root = tmp_path / "root"
    root.mkdir()
    return HostFilesystem(root, track_external=request.param == "host-tracking")


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    return path
