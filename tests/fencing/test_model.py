"""Random turns of holders with growing fences, against a model of a few lines."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockfast import Stale, fencing
from lockfast.fencing import Fence

if TYPE_CHECKING:
    from kit.postgres import Postgres

ROWS, NAMES = (1, 2), ("a", "b")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("claim", "update")),
        st.sampled_from(NAMES),
        st.sampled_from(ROWS),
        st.integers(1, 5),  # the fence: who holds it
        st.booleans(),  # commit, or roll back
    ),
    max_size=25,
)


class Model:
    """The newest fence of each name and row that was committed, and the last writer of each row."""

    def __init__(self) -> None:
        self.newest: dict[object, int] = {}
        self.writers: dict[int, int | None] = dict.fromkeys(ROWS)

    def takes(self, place: object, fence: int) -> bool:
        return fence >= self.newest.get(place, 0)


def step(connection: Any, model: Model, what: str, name: str, row: int, fence: int, commits: bool) -> None:
    """One transaction, on the database and in the model."""
    place = name if what == "claim" else row
    try:
        if what == "claim":
            fencing.claim(connection, Fence(name, fence))
        else:
            assert fencing.update(connection, "things", {"writer": fence}, key={"id": row}, fence=Fence(name, fence))
        taken = True
    except Stale:
        taken = False
    assert taken is model.takes(place, fence)
    if not taken or not commits:
        connection.rollback()
        return
    connection.commit()
    model.newest[place] = fence
    if what == "update":
        model.writers[row] = fence


def play(connection: Any, steps: list[tuple[str, str, int, int, bool]]) -> None:
    cursor = connection.cursor()
    for table in ("things", "lockfast_fences"):
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
    cursor.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, writer INTEGER, fence BIGINT)")
    cursor.execute(f"INSERT INTO things (id) VALUES {', '.join(f'({row})' for row in ROWS)}")
    fencing.create(connection)
    connection.commit()
    model = Model()
    for one in steps:
        step(connection, model, *one)
    cursor.execute("SELECT id, writer FROM things")
    assert dict(cursor.fetchall()) == model.writers
    cursor.execute("SELECT name, fence FROM lockfast_fences")
    assert dict(cursor.fetchall()) == {name: model.newest[name] for name in NAMES if name in model.newest}
    connection.rollback()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_sqlite_takes_what_the_model_takes(steps: list[tuple[str, str, int, int, bool]]) -> None:
    connection = sqlite3.connect(":memory:")
    try:
        play(connection, steps)
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.needs_postgres
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_postgres_takes_what_the_model_takes(postgres: Postgres, steps: list[tuple[str, str, int, int, bool]]) -> None:
    with postgres.connect() as connection:
        play(connection, steps)
