from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable.postgres import new_database, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of the maintenance database of a real Postgres server."""
    with running_server() as server:
        yield server.get_uri()


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """An empty database on the real server."""
    return new_database(postgres)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind in turn."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "durable.db")
