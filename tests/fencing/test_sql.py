"""Fences in SQL: the side table and the column, on every kind of connection."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from lockfast import LeaseLost, Misused, NotHeld, Stale, fencing
from lockfast.fencing import Fence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.databases import Database
    from kit.postgres import Postgres
    from kit.servers import Server
    from lockfast.sync import Lockfast

OLD, NEW = Fence("account:1", 1000), Fence("account:1", 1001)
ROW = {"id": 1}


def set_balance(db: Database, handed: Any, balance: int) -> None:
    db.execute(handed, f"UPDATE account SET balance = {balance} WHERE id = 1")


def test_claims_in_order_are_taken(db: Database) -> None:
    handed = db.connect()
    fencing.create(handed)
    fencing.create(handed)
    for fence, balance in ((OLD, 90), (OLD, 80), (NEW, 70), (NEW, 60)):
        fencing.claim(handed, fence)
        set_balance(db, handed, balance)
        db.commit(handed)
    assert db.balance == 60
    assert db.read("SELECT name, fence FROM lockfast_fences") == [("account:1", 1001)]


def test_older_claim_is_stale_and_its_writes_are_rolled_back(db: Database) -> None:
    handed = db.connect()
    fencing.create(handed)
    fencing.claim(handed, NEW)
    db.commit(handed)
    set_balance(db, handed, 90)  # the wrong order; the roll-back helps all the same
    with pytest.raises(Stale, match="newer fence of 'account:1' than 1000") as caught:
        fencing.claim(handed, OLD)
    assert (caught.value.name, caught.value.fence) == ("account:1", 1000)
    db.rollback(handed)
    assert db.balance == 100
    fencing.claim(handed, Fence("account:2", 1))
    db.rollback(handed)


def test_claim_that_was_rolled_back_was_never_made(db: Database) -> None:
    handed = db.connect()
    fencing.create(handed)
    db.commit(handed)
    fencing.claim(handed, NEW)
    db.rollback(handed)
    fencing.claim(handed, OLD)
    db.commit(handed)
    assert db.read("SELECT fence FROM lockfast_fences") == [(1000,)]


def test_table_can_have_another_name(db: Database) -> None:
    handed = db.connect()
    schema = "public." if "psycopg" in db.kind else "main."
    for table in ('"my fences"', f"{schema}fences_of_mine"):
        db.execute(handed, f"DROP TABLE IF EXISTS {table}")
        fencing.create(handed, table=table)
        fencing.claim(handed, NEW, table=table)
        with pytest.raises(Stale):
            fencing.claim(handed, OLD, table=table)
        db.execute(handed, f"DROP TABLE {table}")
    db.commit(handed)


def test_row_is_updated_by_the_same_or_a_newer_fence_only(db: Database) -> None:
    handed = db.connect()
    for fence, balance in ((OLD, 90), (OLD, 80), (NEW, 70)):
        assert fencing.update(handed, "account", {"balance": balance}, key=ROW, fence=fence)
        db.commit(handed)
        assert db.balance == balance
    with pytest.raises(Stale):
        fencing.update(handed, "account", {"balance": 1}, key=ROW, fence=OLD)
    db.commit(handed)  # although it should be rolled back
    assert db.read("SELECT id, balance, fence FROM account") == [(1, 70, 1001)]


def test_update_of_a_row_that_is_not_there_says_so(db: Database) -> None:
    handed = db.connect()
    assert fencing.update(handed, "account", {"balance": 1}, key={"id": 2}, fence=NEW) is False
    assert fencing.update(handed, "account", {"balance": 1}, key={"id": 1, "balance": 7}, fence=NEW) is False
    assert fencing.update(handed, "account", {}, key={"id": 1, "balance": 100}, fence=NEW) is True
    db.rollback(handed)


def test_update_of_several_rows_is_refused(db: Database) -> None:
    handed = db.connect()
    db.execute(handed, "INSERT INTO account (id, balance) VALUES (2, 100)")
    with pytest.raises(ValueError, match="2 rows of account"):
        fencing.update(handed, "account", {"balance": 1}, key={"balance": 100}, fence=NEW)
    db.rollback(handed)


def test_values_are_parameters_and_not_text(db: Database) -> None:
    handed = db.connect()
    fencing.create(handed)
    odd = Fence('it\'s 100% ?:p1 $1 "ü" %s', 5)
    fencing.claim(handed, odd)
    with pytest.raises(Stale):
        fencing.claim(handed, Fence(odd.name, 4))
    db.commit(handed)
    assert db.read("SELECT name FROM lockfast_fences") == [(odd.name,)]


NAMES = ["", "a b", "a;b", "a--", "account; DROP TABLE account", 'a"b', '"a"b"', "1a", "a.b.c.d", "a%b", "ü", 7]


@pytest.mark.parametrize("bad", NAMES)
def test_names_that_are_no_identifiers_are_refused(bad: Any) -> None:
    with sqlite_memory() as connection:
        for attempt in (
            lambda: fencing.create(connection, table=bad),
            lambda: fencing.claim(connection, NEW, table=bad),
            lambda: fencing.update(connection, bad, {"balance": 1}, key=ROW, fence=NEW),
            lambda: fencing.update(connection, "account", {bad: 1}, key=ROW, fence=NEW),
            lambda: fencing.update(connection, "account", {"balance": 1}, key={bad: 1}, fence=NEW),
            lambda: fencing.update(connection, "account", {"balance": 1}, key=ROW, fence=NEW, column=bad),
        ):
            with pytest.raises(ValueError, match="is named as in SQL"):
                attempt()


def test_bad_arguments_are_refused_with_what_they_are() -> None:
    with sqlite_memory() as connection:
        for bad in (7, "account:1", ("account:1", 7), None, object()):
            with pytest.raises(TypeError, match="fence is a grant"):
                fencing.claim(connection, bad)  # type: ignore[arg-type]
        for wrong in (Fence("a", 0), Fence("a", -1), Fence("", 1), Fence("a", 2**63), Fence("x" * 2000, 1)):
            with pytest.raises(ValueError, match="a Fence has"):
                fencing.claim(connection, wrong)
        for odd in (Fence(7, 7), Fence("a", "7"), Fence("a", True)):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="made of"):
                fencing.claim(connection, odd)
        with pytest.raises(ValueError, match="at least one column"):
            fencing.update(connection, "account", {"balance": 1}, key={}, fence=NEW)
        with pytest.raises(ValueError, match="id is None"):
            fencing.update(connection, "account", {"balance": 1}, key={"id": None}, fence=NEW)
        with pytest.raises(ValueError, match="leave it out"):
            fencing.update(connection, "account", {"fence": 1}, key=ROW, fence=NEW)
        with pytest.raises(ValueError, match="paramstyle"):
            fencing.claim(connection, NEW, paramstyle="odd")
    with pytest.raises(TypeError, match="is wanted"):
        fencing.claim(object(), NEW)


class sqlite_memory:  # noqa: N801 - used like the function that it stands for
    """A connection to a database in memory, closed at the end."""

    def __init__(self, **options: Any) -> None:
        self._connection: sqlite3.Connection = sqlite3.connect(":memory:", **options)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


# Grants


def test_grant_is_its_name_and_its_fence(lf: Lockfast, db: Database, name: str) -> None:
    handed = db.connect()
    fencing.create(handed)
    with lf.lock(name, "part") as grant:
        fencing.claim(handed, grant)
        assert fencing.update(handed, "account", {"balance": 90}, key=ROW, fence=grant)
        db.commit(handed)
    assert db.read("SELECT name, fence FROM lockfast_fences") == [(f"{name}|part", grant.fence)]
    with lf.lock(name, "part") as after:
        fencing.claim(handed, after)
        fencing.update(handed, "account", {"balance": 80}, key=ROW, fence=after)
        db.commit(handed)
    assert db.balance == 80


def test_names_that_only_look_alike_have_fences_of_their_own(lf: Lockfast, name: str) -> None:
    with lf.lock(name, "a") as one, lf.lock(f"{name}|a") as other:
        assert one.name == other.name
        names = [fencing.claim_statement(grant).parameters[0] for grant in (one, other)]  # type: ignore[index]
    assert names == [f"{name}|a", f"{name}%7Ca"]


def test_hold_that_came_too_late_is_lost(lf: Lockfast, db: Database, name: str) -> None:
    handed = db.connect()
    fencing.create(handed)
    grant = lf.lock(name).acquire()
    fencing.claim(handed, Fence(name, grant.fence + 1))
    db.commit(handed)
    with pytest.raises(Stale) as caught:
        fencing.claim(handed, grant)
    db.rollback(handed)
    assert (caught.value.name, caught.value.fence) == (name, grant.fence)
    assert grant.lost
    with pytest.raises(LeaseLost, match="a newer holder has written"):
        fencing.claim(handed, grant)
    with pytest.raises(LeaseLost):
        grant.release()


def test_holds_that_can_be_shared_are_refused(lf: Lockfast, name: str) -> None:
    shared: list[Any] = [
        lf.semaphore(name, limit=3).acquire(),
        lf.semaphore(name + "1", limit=1).acquire(),
        lf.semaphore(name + "2", limit=3, permits=3).acquire(),
        lf.rwlock(name + "3").read().acquire(),
        lf.rwlock(name + "4").write().acquire(),
    ]
    fencing.claim_statement(shared[-1])
    shared[-1].downgrade()
    with sqlite_memory() as connection:
        fencing.create(connection)
        for grant in shared:
            with pytest.raises(Misused, match="can be shared"):
                fencing.claim(connection, grant)
            with pytest.raises(Misused, match="can be shared"):
                fencing.update(connection, "account", {"balance": 1}, key=ROW, fence=grant)
            grant.release()


def test_holds_that_are_over_are_refused(lf: Lockfast, name: str) -> None:
    with sqlite_memory() as connection:
        fencing.create(connection)
        grant = lf.lock(name).acquire()
        grant.release()
        with pytest.raises(NotHeld):
            fencing.claim(connection, grant)
        lost = lf.lock(name).acquire()
        lf.break_lock(name, reason="test")
        with pytest.raises(LeaseLost):
            lost.extend()
        with pytest.raises(LeaseLost):
            fencing.claim(connection, lost)
        assert connection.execute("SELECT count(*) FROM lockfast_fences").fetchone() == (0,)


def test_several_locks_are_claimed_one_by_one(lf: Lockfast, name: str) -> None:
    with sqlite_memory() as connection, lf.locks(name, name + "b") as grants:
        fencing.create(connection)
        with pytest.raises(TypeError, match="fence is a grant"):
            fencing.claim(connection, grants)  # type: ignore[arg-type]
        for grant in grants:
            fencing.claim(connection, grant)
        assert connection.execute("SELECT count(*) FROM lockfast_fences").fetchone() == (2,)


def test_grants_of_asyncio_are_grants(valkey_server: Server, name: str) -> None:
    import asyncio

    from lockfast.aio import Lockfast

    async def work() -> None:
        async with Lockfast(valkey_server.url) as lf, lf.lock(name) as grant:
            with sqlite_memory() as connection:
                fencing.create(connection)
                fencing.claim(connection, grant)
                with pytest.raises(Stale):
                    fencing.claim(connection, Fence(name, grant.fence - 1))

    asyncio.run(work())


def test_fence_of_lockfast_run_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, valkey_server: Server
) -> None:
    with pytest.raises(Misused, match="lockfast run"):
        Fence.from_environment()
    for wrong in ("", "x", "-1"):
        monkeypatch.setenv("LOCKFAST_LOCK", "nightly")
        monkeypatch.setenv("LOCKFAST_FENCE", wrong)
        with pytest.raises(Misused, match="lockfast run"):
            Fence.from_environment()
    code = "from lockfast.fencing import Fence; print(*Fence.from_environment())"
    run = ["-m", "lockfast", "run", "night|ly", "--", sys.executable, "-c", code]
    done = subprocess.run(
        [sys.executable, *run],
        env={**os.environ, "LOCKFAST_URL": valkey_server.url},
        capture_output=True,
        text=True,
        check=True,
    )
    name, number = done.stdout.split()
    assert name == "night|ly"
    assert int(number) > 0


# Connections


def test_connection_in_autocommit_is_refused_by_claim_and_fine_for_update() -> None:
    with sqlite_memory(isolation_level=None) as connection:
        fencing.create(connection)
        connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence BIGINT)")
        connection.execute("INSERT INTO account VALUES (1, 100, NULL)")
        with pytest.raises(Misused, match="autocommit"):
            fencing.claim(connection, NEW)
        connection.execute("BEGIN")
        fencing.claim(connection, NEW)
        connection.execute("COMMIT")
        assert fencing.update(connection, "account", {"balance": 1}, key=ROW, fence=NEW)


@pytest.mark.needs_postgres
def test_connection_in_autocommit_is_refused_on_postgres_too(postgres: Postgres) -> None:
    with postgres.connect(autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS lockfast_fences")
        fencing.create(connection)
        with pytest.raises(Misused, match="autocommit"):
            fencing.claim(connection, NEW)
        with pytest.raises(Misused, match="autocommit"), connection.cursor() as cursor:
            fencing.claim(cursor, NEW)
        with connection.transaction():
            fencing.claim(connection, NEW)
    engine = sqlalchemy.create_engine(postgres.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as autocommit, pytest.raises(Misused, match="autocommit"):
        fencing.claim(autocommit, NEW)
    engine.dispose()


def test_connection_class_of_ones_own_is_known_by_what_it_extends() -> None:
    class Own(sqlite3.Connection):
        pass

    with sqlite_memory(factory=Own) as connection:
        fencing.create(connection)
        fencing.claim(connection, NEW)


class Wrapped:
    """Hides where it comes from, as tracing wrappers do."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def cursor(self) -> sqlite3.Cursor:
        return self._connection.cursor()


def test_wrapped_connection_is_asked_for_its_paramstyle() -> None:
    with sqlite_memory() as connection:
        wrapped = Wrapped(connection)
        fencing.create(wrapped)
        with pytest.raises(TypeError, match="paramstyle='qmark'"):
            fencing.claim(wrapped, NEW)
        for paramstyle in ("qmark", "named"):
            fencing.claim(wrapped, NEW, paramstyle=paramstyle)


@pytest.fixture
def async_psycopg(postgres: Postgres) -> Iterator[Any]:
    import asyncio

    import psycopg

    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(psycopg.AsyncConnection.connect(postgres.address))
    yield connection, loop
    loop.run_until_complete(connection.close())
    loop.close()


@pytest.mark.needs_postgres
def test_awaited_driver_is_refused_and_runs_the_statement_by_itself(
    async_psycopg: Any, lf: Lockfast, name: str
) -> None:
    connection, loop = async_psycopg
    with pytest.raises(TypeError, match="claim_statement"):
        fencing.claim(connection, NEW)

    async def work() -> None:
        await connection.execute("CREATE TABLE IF NOT EXISTS lockfast_fences (name TEXT PRIMARY KEY, fence BIGINT)")
        with lf.lock(name) as grant:
            for fence, taken in ((grant, True), (grant, True), (Fence(name, grant.fence - 1), False)):
                cursor = await connection.execute(*fencing.claim_statement(fence, paramstyle="format"))
                assert (await cursor.fetchone() is not None) is taken
        await connection.rollback()

    loop.run_until_complete(work())


@pytest.mark.needs_postgres
def test_sqlalchemy_asyncio_goes_through_run_sync(postgres: Postgres) -> None:
    import asyncio

    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def work() -> None:
        engine = create_async_engine(postgres.url)
        async with engine.begin() as connection:
            with pytest.raises(TypeError, match="run_sync"):
                fencing.claim(connection, NEW)
            await connection.exec_driver_sql("DROP TABLE IF EXISTS lockfast_fences")
            await connection.run_sync(fencing.create)
            await connection.run_sync(fencing.claim, NEW)
        async with AsyncSession(engine) as session:
            with pytest.raises(Stale):
                await session.run_sync(fencing.claim, OLD)
            await session.rollback()
        await engine.dispose()

    asyncio.run(work())


def test_statements_are_written_in_every_style() -> None:
    wanted = {
        "qmark": ("VALUES (?, ?)", ("account:1", 1001)),
        "format": ("VALUES (%s, %s)", ("account:1", 1001)),
        "numeric": ("VALUES (:1, :2)", ("account:1", 1001)),
        "numeric_dollar": ("VALUES ($1, $2)", ("account:1", 1001)),
        "named": ("VALUES (:p1, :p2)", {"p1": "account:1", "p2": 1001}),
        "pyformat": ("VALUES (%(p1)s, %(p2)s)", {"p1": "account:1", "p2": 1001}),
    }
    for paramstyle, (part, parameters) in wanted.items():
        sql, given = fencing.claim_statement(NEW, paramstyle=paramstyle)
        assert part in sql
        assert given == parameters
    sql, given = fencing.update_statement("account", {"balance": 9}, key=ROW, fence=NEW, paramstyle="numeric_dollar")
    assert sql.startswith(
        "UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND (fence IS NULL OR fence <= $4)"
    )
    assert given == (9, 1001, 1, 1001)


def test_nothing_but_the_standard_library_is_loaded() -> None:
    heavy = "sqlalchemy", "psycopg", "sqlite3"
    code = f"import sys; from lockfast import fencing; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
