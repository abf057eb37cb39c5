"""Topologies for tests: whole once more before each test, so that one set of processes serves many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.sentinels import Sentinels
from kit.sides import make_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.sides import Side


@pytest.fixture(scope="session")
def shared_sentinels() -> Iterator[Sentinels]:
    with Sentinels() as group:
        yield group


@pytest.fixture
def sentinels(shared_sentinels: Sentinels) -> Sentinels:
    """A Valkey master with one replica and three sentinels, whole and empty."""
    shared_sentinels.heal()
    return shared_sentinels


@pytest.fixture
def threads() -> Iterator[Side]:
    """One side, for what is the same on both and takes long."""
    side = make_side("threads")
    yield side
    side.close()
