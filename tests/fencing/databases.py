"""The same few steps on every kind of connection that `lockfast.fencing` takes."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from pathlib import Path

    from kit.postgres import Postgres

KINDS = ["sqlite3", "sqlite3 cursor", "sqlalchemy sqlite", "session sqlite"]
POSTGRES_KINDS = ["psycopg", "psycopg cursor", "sqlalchemy psycopg", "session psycopg"]
TABLES = ("lockfast_fences", "account")


class Database:
    """A database, and connections to it of one kind. The account has a row 1 and a column for its fence."""

    def __init__(self, kind: str, path: Path, postgres: Postgres | None) -> None:
        self.kind = kind
        self._path = path
        self._postgres = postgres
        self._opened: list[Any] = []
        self._engine = sqlalchemy.create_engine(self._url()) if " " in kind and "cursor" not in kind else None
        with_tables = self.connect()
        for table in TABLES:
            self.execute(with_tables, f"DROP TABLE IF EXISTS {table}")
        self.execute(with_tables, "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence BIGINT)")
        self.execute(with_tables, "INSERT INTO account (id, balance) VALUES (1, 100)")
        self.commit(with_tables)

    def connect(self, isolation: str = "") -> Any:
        """What is handed to `fencing`. isolation: as PostgreSQL names it."""
        if self._engine is not None:
            engine = self._engine.execution_options(isolation_level=isolation) if isolation else self._engine
            made: Any = Session(engine) if self.kind.startswith("session") else engine.connect()
        elif self._postgres is not None:
            made = self._postgres.connect()
            if isolation:
                import psycopg

                made.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_")]
        else:
            made = sqlite3.connect(self._path, timeout=5, check_same_thread=False)
        self._opened.append(made)
        return made.cursor() if self.kind.endswith("cursor") else made

    def execute(self, handed: Any, sql: str) -> list[Any]:
        if self._engine is not None:
            result = handed.execute(sqlalchemy.text(sql))
            return list(result) if result.returns_rows else []
        cursor = handed if self.kind.endswith("cursor") else handed.cursor()
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []

    def commit(self, handed: Any) -> None:
        (handed.connection if self.kind.endswith("cursor") else handed).commit()

    def rollback(self, handed: Any) -> None:
        (handed.connection if self.kind.endswith("cursor") else handed).rollback()

    def read(self, sql: str) -> list[Any]:
        """On a connection of its own: what was committed."""
        looking = self.connect()
        rows = [tuple(row) for row in self.execute(looking, sql)]
        self.rollback(looking)
        return rows

    @property
    def balance(self) -> int:
        ((balance,),) = self.read("SELECT balance FROM account WHERE id = 1")
        return int(balance)

    def close(self) -> None:
        for connection in self._opened:
            with suppress(Exception):
                connection.rollback()
            connection.close()
        if self._engine is not None:
            self._engine.dispose()

    def _url(self) -> str:
        return self._postgres.url if self._postgres is not None else f"sqlite:///{self._path}"
