"""Databases of every kind, with the tables of the tests in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencing.databases import KINDS, POSTGRES_KINDS, Database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.servers import Server
    from lockfast.sync import Lockfast


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.needs_postgres) for kind in POSTGRES_KINDS)])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database; the test runs on SQLite and PostgreSQL, by DB-API and SQLAlchemy."""
    postgres = request.getfixturevalue("postgres") if request.param in POSTGRES_KINDS else None
    database = Database(request.param, tmp_path / "db", postgres)
    yield database
    database.close()


@pytest.fixture
def lf(valkey_server: Server) -> Iterator[Lockfast]:
    from lockfast import Lockfast

    with Lockfast(valkey_server.url) as client:
        yield client
