"""Optimistic transactions, for threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, final

from lockfast.errors import Misused
from lockfast.flows import transaction as flow
from lockfast.transactions import check_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.drivers.plain_threads import Runs
    from lockfast.drivers.threads import Threads
    from lockfast.flows.attempt import Attempt
    from lockfast.flows.plain import Word
    from lockfast.sync.several import Grants, Locks
    from lockfast.transactions import Outcome, Plan

R = TypeVar("R")


@final
class Transaction:
    """What the function of a transaction is given: reads that run at once, then writes that are queued.

    It is good for one call of the function, in one thread. What is read comes as the server sends it: `bytes`.
    """

    __slots__ = ("_attempt", "_run")

    def __init__(self, attempt: Attempt, run: Any) -> None:
        self._attempt = attempt
        self._run = run

    def __repr__(self) -> str:
        return f"<Transaction, attempt {self._attempt.number}>"

    @property
    def attempt(self) -> int:
        """Which call of the function this is, counted from 1."""
        return self._attempt.number

    @property
    def conflicts(self) -> int:
        """How many of the calls before were in vain because another had written first."""
        return self._attempt.conflicts

    def get(self, key: str | bytes) -> bytes | None:
        """The text stored at a key; None when there is none. Raises as `read` does."""
        value: bytes | None = self._run(self._attempt.read(("GET", key)))
        return value

    def read(self, command: str, *words: Word, keys: Sequence[str | bytes] | None = None) -> Any:
        """Run a command that reads, now, and return its reply: `tx.read("HGET", "cart", "apples")`.

        keys: what it reads, for commands that are not known as ones that only read (those of modules, say).

        Raises ValueError when a key is not one of those that the transaction was given, Misused after the first
        write, Refused when the server says no. Let Unreachable travel: the transaction is tried again then.
        """
        return self._run(self._attempt.read((command, *words), keys))

    def set(self, key: str | bytes, value: Word) -> None:
        """Queue a SET."""
        self._attempt.write(("SET", key, value))

    def write(self, command: str, *words: Word) -> None:
        """Queue a command: `tx.write("HINCRBY", "cart", "apples", 1)`. Its reply is in the outcome.

        The key need not be one of those that the transaction was given. Raises TypeError or ValueError for what has
        no place in a transaction.
        """
        self._attempt.write((command, *words))


Function = Callable[[Transaction], R]


def run(driver: Threads, plain: Runs, fn: Function[R], plan: Plan, lock: Callable[[], Locks]) -> Outcome[R]:
    """Run a transaction to its end. lock: makes what it takes when it escalates."""
    check_plain(fn)
    mark = driver.new_ticket()
    driver.acquiring.add(mark)  # whoever closes the client waits for what is on its way
    try:
        if driver.closing:
            raise Misused("this client is closed")
        return plain.run(flow.run(plan, _Acts(fn, lock), plain.env))
    finally:
        driver.acquiring.discard(mark)


class _Acts:
    """What flows/transaction.py wants done here."""

    def __init__(self, fn: Function[Any], lock: Callable[[], Locks]) -> None:
        self._fn = fn
        self._lock = lock

    def body(self, attempt: Attempt) -> Callable[[Any], Any]:
        return lambda run: self._call(Transaction(attempt, run))

    def _call(self, tx: Transaction) -> Any:
        value = self._fn(tx)
        if hasattr(value, "__await__"):
            value.close()
            raise TypeError(f"{self._fn!r} is async, and nobody would await it here: use lockfast.aio")
        return value

    def take(self, wait_s: float | None) -> Callable[[Any], Grants]:
        return lambda _: self._lock().acquire(wait=wait_s)

    def give_back(self, grants: Grants) -> Callable[[Any], None]:
        return lambda _: grants.release()
