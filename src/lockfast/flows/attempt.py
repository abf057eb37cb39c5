"""One attempt of a transaction, as the caller's function sees it: reads that run at once, writes that are queued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.errors import Misused, Unreachable
from lockfast.flows.plain import PASSING, Pipeline, checked
from lockfast.flows.reading import command, keys_read
from lockfast.transactions import as_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockfast.flows.plain import Env, Flow, Word, Words


class Attempt:
    """What one call of the function may read, and what it has queued.

    failure: set when a read has cost the connection, and with it the WATCH; then nothing of this attempt is sent.
    """

    __slots__ = ("_env", "_is_over", "_is_reading", "_keys", "conflicts", "failure", "number", "writes")

    def __init__(self, keys: Iterable[str | bytes], number: int, conflicts: int, env: Env) -> None:
        self.number = number
        self.conflicts = conflicts
        self.failure: Unreachable | None = None
        self.writes: list[Words] = []
        self._keys = {as_key(key) for key in keys}
        self._env = env
        self._is_over = False
        self._is_reading = False

    def read(self, words: Sequence[object], keys: Sequence[str | bytes] | None = None) -> Flow[Any]:
        """Run a command now, on the connection that watches. keys: what it reads, where that is not known here."""
        made = command(words)
        self._check_watched(made, keys)
        if self._is_over:
            raise Misused("this attempt of the transaction is over: read within the function that is given it")
        if self.writes:
            raise Misused(f"{made[0]!r} would not see what is queued: read first, then write")
        if self._is_reading:
            raise Misused("another read of this transaction is under way: one at a time")
        if self.failure is not None:
            raise self.failure
        self._is_reading = True
        try:
            (reply,) = yield Pipeline([made], self._env.now() + self._env.timeout_s / 2, private=True, same=True)
            raise_if_passing(reply)
        except GeneratorExit:
            raise
        except BaseException as struck:
            is_ours = isinstance(struck, Unreachable)
            self.failure = struck if is_ours else Unreachable("a read was given up in the middle", sent=False)  # type: ignore[assignment]
            raise
        finally:
            self._is_reading = False
        return checked(reply)

    def _check_watched(self, made: Words, named: Sequence[str | bytes] | None) -> None:
        if isinstance(named, (str, bytes)):
            raise TypeError(f"keys must be a list of keys, got {named!r}")
        keys: Sequence[Word] | None = keys_read(made) if named is None else named
        if keys is None:
            raise ValueError(
                f"{made[0]!r} is not known as a command that only reads: queue it by write(), or name its keys by keys="
            )
        for key in keys:
            if as_key(key) not in self._keys:
                raise ValueError(f"{key!r} is not watched, so nobody would notice a change: name it to transaction()")

    def write(self, words: Sequence[object]) -> None:
        """Queue a command."""
        made = command(words)
        if self._is_over:
            raise Misused("this attempt of the transaction is over: write within the function that is given it")
        self.writes.append(made)

    def end(self) -> None:
        """The function has ended; whoever still has the attempt can do nothing with it.

        A read that is still under way has the connection, so that EXEC will find none and is not sent.
        """
        self._is_over = True


def raise_if_passing(reply: object) -> None:
    """Raise Unreachable(sent=False) for an error reply of a server that will be fit again soon."""
    if isinstance(reply, Exception) and str(reply).partition(" ")[0] in PASSING:
        raise Unreachable(f"the server answers {str(reply)!r}", sent=False)
