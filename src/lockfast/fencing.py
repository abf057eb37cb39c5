"""Fences that a SQL database checks: a write is taken only if no newer holder has written before.

    with lf.lock("account:1") as grant, connection:            # one database transaction
        fencing.claim(connection, grant)                       # first; Stale if a newer holder was here
        connection.execute("UPDATE ...")

`claim` keeps the newest fence of each name in a table of its own (`create` makes it), and the row stays locked until
the transaction ends: whoever writes under this name waits there for its turn. `update` is for a table that has a column
for the fence; it is one statement and needs nothing else.

Both take a DB-API connection or cursor, or a Connection or Session of SQLAlchemy, and say what they want in SQL that
SQLite (3.35 and later) and PostgreSQL understand. For drivers that are awaited there is the text by itself:
`claim_statement` and `update_statement`. They commit nothing: that is the caller's, after the last write.

A fence guards what one holder at a time may change. Holds that can be shared are refused: theirs only identify them.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast import names
from lockfast.errors import Misused, Stale
from lockfast.grants import GrantView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lockfast.grants import Hold

TABLE = "lockfast_fences"
COLUMN = "fence"
MAX_FENCE = 2**63 - 1
_WORD = r'(?:[A-Za-z_][A-Za-z0-9_]*|"[A-Za-z0-9_$ -]+")'
_COLUMN_NAME = re.compile(_WORD)
_TABLE_NAME = re.compile(rf"(?:{_WORD}\.)?{_WORD}")
_MARKS = {
    "qmark": "?",
    "format": "%s",
    "numeric": ":{0}",
    "numeric_dollar": "${0}",
    "named": ":p{0}",
    "pyformat": "%(p{0})s",
}


class Fence(NamedTuple):
    """A fence without its grant: for a worker that was told which hold it works under, and cannot ask."""

    name: str
    number: int

    @classmethod
    def from_environment(cls) -> Fence:
        """That of the `lockfast run` which this process was started by. Raises Misused when there is none."""
        name, number = os.environ.get("LOCKFAST_LOCK", ""), os.environ.get("LOCKFAST_FENCE", "")
        if not name or not number.isdecimal():
            raise Misused("LOCKFAST_LOCK and LOCKFAST_FENCE are not set: start this with `lockfast run NAME -- …`")
        return cls(name, int(number))


class Statement(NamedTuple):
    """One SQL statement. It gives back a row if the write was taken, and none if it was not."""

    sql: str
    parameters: tuple[Any, ...] | dict[str, Any]


def create(connection: Any, *, table: str = TABLE) -> None:
    """Make the table that `claim` uses, if it is not there. Better still, put the same into your migrations."""
    sql = f"CREATE TABLE IF NOT EXISTS {_table(table)} (name VARCHAR(1024) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL)"
    _Cursor(connection, "qmark").run(lambda _: Statement(sql, ()))


def claim(connection: Any, fence: GrantView[Any] | Fence, *, table: str = TABLE, paramstyle: str | None = None) -> None:
    """Say that this hold is about to write, in the database transaction that writes. Call it first, read afterwards.

    Until that transaction ends, others that claim the name wait. One hold may claim as often as it likes.
    paramstyle: as DB-API has it, where it cannot be read from the driver of the connection.

    Raises Stale when a newer holder has claimed the name: roll back, do not try again. LeaseLost or NotHeld when the
    grant says by itself that it is over, Misused for a hold that can be shared and for a connection in autocommit.
    An error of the database (a serialization failure, a locked file) is its own: roll back, `grant.check()`, and run
    the whole transaction again.
    """
    cursor = _Cursor(connection, paramstyle)
    if not cursor.run(lambda style: claim_statement(fence, table=table, paramstyle=style)):
        raise _stale(fence, table)
    if not cursor.in_transaction():
        raise Misused("claim() guards the writes of one transaction, and this connection is in autocommit: begin one")


def update(
    connection: Any,
    table: str,
    values: Mapping[str, object],
    *,
    key: Mapping[str, object],
    fence: GrantView[Any] | Fence,
    column: str = COLUMN,
    paramstyle: str | None = None,
) -> bool:
    """Update the one row that `key` names, if the fence in it is not newer. False when there is no such row.

    The row's own column keeps the fence of its last writer; NULL is older than any. Raises Stale when a newer holder
    has written the row: nothing was changed. The rest is as for `claim`, but for this autocommit will do.
    """
    cursor = _Cursor(connection, paramstyle)
    written = cursor.run(
        lambda style: update_statement(table, values, key=key, fence=fence, column=column, paramstyle=style)
    )
    if len(written) > 1:
        raise ValueError(f"key names {len(written)} rows of {table}, not one: roll back, and name a whole primary key")
    if written:
        return True
    if not cursor.run(lambda style: _look(table, key, column, style)):
        return False
    raise _stale(fence, table)


def claim_statement(fence: GrantView[Any] | Fence, *, table: str = TABLE, paramstyle: str = "qmark") -> Statement:
    """What `claim` runs. If it gives back no row, a newer holder was here: raise Stale, roll back.

    paramstyle: as DB-API has it, or numeric_dollar ($1, as asyncpg wants it).
    """
    name, number = _read(fence)
    mark, made = _marks(paramstyle)
    return made(
        f"INSERT INTO {_table(table)} AS held (name, fence) VALUES ({mark(name)}, {mark(number)})"
        " ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE held.fence <= excluded.fence RETURNING fence"
    )


def update_statement(
    table: str,
    values: Mapping[str, object],
    *,
    key: Mapping[str, object],
    fence: GrantView[Any] | Fence,
    column: str = COLUMN,
    paramstyle: str = "qmark",
) -> Statement:
    """What `update` runs. If it gives back no row, a newer holder has written, or there is no such row."""
    if column in values or column in key:
        raise ValueError(f"{column} is written by the fence: leave it out of values and key")
    _, number = _read(fence)
    mark, made = _marks(paramstyle)
    changes = [f"{_column(name)} = {mark(value)}" for name, value in values.items()]
    changes.append(f"{_column(column)} = {mark(number)}")
    return made(
        f"UPDATE {_table(table)} SET {', '.join(changes)} WHERE {_where(key, mark)}"
        f" AND ({column} IS NULL OR {column} <= {mark(number)}) RETURNING {column}"
    )


def _look(table: str, key: Mapping[str, object], column: str, paramstyle: str) -> Statement:
    mark, made = _marks(paramstyle)
    return made(f"SELECT {_column(column)} FROM {_table(table)} WHERE {_where(key, mark)}")


def _where(key: Mapping[str, object], mark: Callable[[object], str]) -> str:
    if not key:
        raise ValueError("key names the row: it needs at least one column")
    for name, value in key.items():
        if value is None:
            raise ValueError(f"key: {name} is None, which no row has")
    return " AND ".join([f"{_column(name)} = {mark(value)}" for name, value in key.items()])


def _read(fence: object) -> Fence:
    """Name and number of a hold that may guard something."""
    if isinstance(fence, GrantView):
        hold: Hold = fence._hold
        hold.check()
        if hold.ask.kind == "semaphore" or hold.ask.weight < hold.ask.limit:
            raise Misused(f"{fence!r} can be shared, and its fence only identifies it: hold a lock, or write()")
        return Fence(names.spelled(hold.ask.name)[1], hold.fence)
    if not isinstance(fence, Fence):
        raise TypeError(f"fence is a grant, or fencing.Fence(name, number), got {fence!r}")
    name, number = fence
    if not isinstance(name, str) or isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"a Fence is made of a str and an int, got {fence!r}")
    if not name or len(name) > names.MAX_NAME_BYTES or not 0 < number <= MAX_FENCE:
        raise ValueError(f"a Fence has a name and a number of its grant, got {fence!r}")
    return fence


def _stale(fence: GrantView[Any] | Fence, table: str) -> Stale:
    if isinstance(fence, GrantView):
        fence._hold.lose("a newer holder has written")
        name, number = fence.name, fence.fence
    else:
        name, number = fence
    words = f"{table} has seen a newer fence of {name!r} than {number}: roll back, the hold is over"
    return Stale(words, name=name, fence=number)


def _table(name: str) -> str:
    if not isinstance(name, str) or not _TABLE_NAME.fullmatch(name):
        raise ValueError(f'a table is named as in SQL (account, app.account, "order"), got {name!r}')
    return name


def _column(name: str) -> str:
    if not isinstance(name, str) or not _COLUMN_NAME.fullmatch(name):
        raise ValueError(f'a column is named as in SQL (balance, "order"), got {name!r}')
    return name


def _marks(paramstyle: str) -> tuple[Callable[[object], str], Callable[[str], Statement]]:
    """A function that notes a parameter and gives its place in the text, and one that puts all together."""
    if paramstyle not in _MARKS:
        raise ValueError(f"paramstyle is one of {', '.join(_MARKS)}, got {paramstyle!r}")
    values: list[object] = []

    def mark(value: object) -> str:
        values.append(value)
        return _MARKS[paramstyle].format(len(values))

    def made(sql: str) -> Statement:
        if paramstyle in ("named", "pyformat"):
            return Statement(sql, {f"p{place}": value for place, value in enumerate(values, 1)})
        return Statement(sql, tuple(values))

    return mark, made


class _Cursor:
    """A way to run statements on whatever was handed in."""

    def __init__(self, handed: Any, paramstyle: str | None) -> None:
        if hasattr(handed, "run_sync"):
            raise TypeError("for SQLAlchemy's asyncio: await connection.run_sync(fencing.claim, grant)")
        if hasattr(handed, "get_bind") and callable(getattr(handed, "connection", None)):
            handed = handed.connection()  # a Session of SQLAlchemy: the connection of its transaction
        self._handed = handed
        self._alchemy = hasattr(handed, "exec_driver_sql")
        if self._alchemy:
            paramstyle = handed.dialect.paramstyle
        elif not hasattr(handed, "cursor") and not hasattr(handed, "execute"):
            raise TypeError(f"a connection or cursor of DB-API or SQLAlchemy is wanted, got {handed!r}")
        self._style = paramstyle or _style_of(handed)

    def run(self, make: Callable[[str], Statement]) -> list[Any]:
        """Run a statement, and give back its rows."""
        statement = make(self._style)
        if self._alchemy:
            result = self._handed.exec_driver_sql(*statement)
            return list(result) if result.returns_rows else []
        own = self._handed.cursor() if hasattr(self._handed, "cursor") else None
        cursor = self._handed if own is None else own
        try:
            done = cursor.execute(*statement)
            if hasattr(done, "__await__"):
                done.close()
                raise TypeError("this driver is awaited: run what claim_statement() or update_statement() gives")
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            if own is not None and not hasattr(type(own), "__aenter__"):
                own.close()

    def in_transaction(self) -> bool:
        """Whether what was just run can still be rolled back; True where the driver does not tell."""
        raw = self._handed
        if self._alchemy:
            raw = raw.connection.dbapi_connection
        elif not hasattr(raw, "cursor"):
            raw = getattr(raw, "connection", raw)
        if hasattr(raw, "in_transaction"):  # sqlite3
            return bool(raw.in_transaction)
        status = getattr(getattr(raw, "info", None), "transaction_status", None)  # psycopg: 0 is idle
        return status is None or int(status) != 0


def _style_of(handed: object) -> str:
    """The paramstyle of the driver: the module that the connection's class, or one that it extends, comes from."""
    for kind in type(handed).__mro__:
        module = sys.modules.get(kind.__module__.partition(".")[0])
        style = getattr(module, "paramstyle", None)
        if isinstance(style, str):
            return style
    raise TypeError(f"{type(handed).__qualname__} does not tell its paramstyle: name it, paramstyle='qmark'")
