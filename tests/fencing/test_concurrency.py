"""An old holder and a new one write from two connections at once, in every order, at every isolation level."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from fencing.databases import Database
from kit.servers import wait_until
from kit.sides import Spawned
from lockfast import Stale, fencing
from lockfast.fencing import Fence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.postgres import Postgres

OLD, NEW = Fence("account:1", 1000), Fence("account:1", 1001)
ROW = {"id": 1}
STRICT = ["REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def two(db: Database) -> tuple[Any, Any]:
    """A connection for the old holder, and one for the new."""
    with_table = db.connect()
    fencing.create(with_table)
    db.commit(with_table)
    return db.connect(), db.connect()


def subtract(db: Database, handed: Any, fence: Fence, amount: int) -> None:
    """Claim, read, write: what one holder does in its transaction."""
    fencing.claim(handed, fence)
    ((balance,),) = db.execute(handed, "SELECT balance FROM account WHERE id = 1")
    db.execute(handed, f"UPDATE account SET balance = {balance - amount} WHERE id = 1")


def test_old_holder_that_comes_second_is_stale(db: Database, two: tuple[Any, Any]) -> None:
    old, new = two
    subtract(db, new, NEW, 10)
    db.commit(new)
    with pytest.raises(Stale):
        subtract(db, old, OLD, 5)
    db.rollback(old)
    assert db.balance == 90


def test_old_holder_that_comes_first_is_seen_by_the_new_one(db: Database, two: tuple[Any, Any]) -> None:
    old, new = two
    subtract(db, old, OLD, 5)
    db.commit(old)
    subtract(db, new, NEW, 10)
    db.commit(new)
    assert db.balance == 85


def test_old_holder_waits_for_the_new_one_and_is_stale_then(db: Database, two: tuple[Any, Any]) -> None:
    old, new = two
    subtract(db, new, NEW, 10)
    waiting = Spawned(subtract, db, old, OLD, 5)
    settle(waiting)
    db.commit(new)
    assert isinstance(waiting.error(), Stale)
    db.rollback(old)
    assert db.balance == 90


def test_new_holder_waits_for_the_old_one_and_writes_upon_it(db: Database, two: tuple[Any, Any]) -> None:
    old, new = two
    subtract(db, old, OLD, 5)
    waiting = Spawned(subtract, db, new, NEW, 10)
    settle(waiting)
    db.commit(old)
    waiting.result()
    db.commit(new)
    assert db.balance == 85
    with pytest.raises(Stale):
        subtract(db, old, OLD, 5)
    db.rollback(old)


def test_old_holder_whose_transaction_began_first_is_stale(db: Database, two: tuple[Any, Any]) -> None:
    """It has read, and claims only then, which is the wrong order: what it read is no longer true, and it must hear."""
    old, new = two
    db.execute(old, "SELECT balance FROM account WHERE id = 1")
    subtract(db, new, NEW, 10)
    db.commit(new)
    with pytest.raises(Stale):
        subtract(db, old, OLD, 5)
    db.rollback(old)
    assert db.balance == 90


def test_two_writers_of_one_row_take_turns_at_its_fence(db: Database, two: tuple[Any, Any]) -> None:
    old, new = two
    fencing.update(new, "account", {"balance": 90}, key=ROW, fence=NEW)
    waiting = Spawned(fencing.update, old, "account", {"balance": 95}, key=ROW, fence=OLD)
    settle(waiting)
    db.commit(new)
    assert isinstance(waiting.error(), Stale)
    db.rollback(old)
    fencing.update(old, "account", {"balance": 80}, key=ROW, fence=NEW)
    db.commit(old)
    assert db.balance == 80


def test_new_writer_of_a_row_waits_for_the_old_one(db: Database, two: tuple[Any, Any]) -> None:
    old, new = two
    fencing.update(old, "account", {"balance": 95}, key=ROW, fence=OLD)
    waiting = Spawned(fencing.update, new, "account", {"balance": 90}, key=ROW, fence=NEW)
    settle(waiting)
    db.commit(old)
    assert waiting.result() is True
    db.commit(new)
    assert db.balance == 90


def settle(waiting: Spawned[Any]) -> None:
    """Give it the time to run into the lock of the other; it must not get past it."""
    with pytest.raises(TimeoutError):
        wait_until(lambda: waiting.done, timeout_s=0.05)


def test_snapshot_of_sqlite_that_is_too_old_is_a_locked_database_and_nothing_is_written(tmp_path: Path) -> None:
    db = Database("sqlite3", tmp_path / "db", None)
    old, new = db.connect(), db.connect()
    new.execute("PRAGMA journal_mode = WAL")
    fencing.create(new)
    db.commit(new)
    old.execute("BEGIN")
    db.execute(old, "SELECT balance FROM account")
    subtract(db, new, NEW, 10)
    db.commit(new)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        subtract(db, old, OLD, 5)
    db.rollback(old)
    with pytest.raises(Stale):
        subtract(db, old, OLD, 5)
    db.rollback(old)
    assert db.balance == 90
    db.close()


# Isolation levels of PostgreSQL


@pytest.fixture(params=["psycopg", "sqlalchemy psycopg"])
def strict(request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres) -> Iterator[Database]:
    database = Database(request.param, tmp_path, postgres)
    with_table = database.connect()
    fencing.create(with_table)
    database.commit(with_table)
    yield database
    database.close()


def sqlstate(error: BaseException | None) -> str:
    return str(getattr(getattr(error, "orig", error), "sqlstate", ""))


@pytest.mark.needs_postgres
@pytest.mark.parametrize("isolation", STRICT)
def test_snapshot_that_is_too_old_is_a_serialization_failure_and_nothing_is_written(
    strict: Database, isolation: str
) -> None:
    old, new = strict.connect(isolation), strict.connect(isolation)
    strict.execute(old, "SELECT balance FROM account")
    for fence, amount in ((NEW, 10), (NEW, 10)):
        subtract(strict, new, fence, amount)
        strict.commit(new)
    with pytest.raises(Exception, match=r"could not serialize|newer fence") as caught:
        subtract(strict, old, OLD, 5)
    assert isinstance(caught.value, Stale) or sqlstate(caught.value) == "40001"
    strict.rollback(old)
    with pytest.raises(Stale):
        subtract(strict, old, OLD, 5)
    strict.rollback(old)
    assert strict.balance == 80


@pytest.mark.needs_postgres
@pytest.mark.parametrize("isolation", STRICT)
def test_new_holder_that_waited_begins_again_and_gets_through(strict: Database, isolation: str) -> None:
    setup = strict.connect()
    fencing.claim(setup, Fence("account:1", 1))
    strict.commit(setup)
    old, new = strict.connect(isolation), strict.connect(isolation)
    subtract(strict, old, OLD, 5)
    waiting = Spawned(subtract, strict, new, NEW, 10)
    settle(waiting)
    strict.commit(old)
    assert sqlstate(waiting.error()) == "40001"
    strict.rollback(new)
    subtract(strict, new, NEW, 10)
    strict.commit(new)
    assert strict.balance == 85
