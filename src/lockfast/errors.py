"""What can go wrong, one class for each different next step.

    LockfastError
    ├── NotAcquired   (TimeoutError)      waited, did not get it       → try later, or shed the work
    ├── LeaseLost                         had it, no longer sure of it → stop now, do not commit
    ├── NotHeld                           nothing here to release      → fix the calling code
    ├── Unreachable   (ConnectionError)   no answer from the server    → `.sent` tells if it may have run
    ├── Refused                           the server answered "no"     → its words are in the message
    ├── BrokenBarrier                     a party is missing           → reset the barrier, or give up
    └── Misused       (RuntimeError)      closed client, wrong loop    → fix the calling code

Bad arguments are plain `ValueError` and `TypeError`, raised before anything is sent.
"""

from __future__ import annotations


class LockfastError(Exception):
    """Base of every error that Lockfast raises on its own account."""


class NotAcquired(LockfastError, TimeoutError):
    """The lock was busy for as long as the caller was willing to wait. Nothing is left in the queue.

    Try again later, or shed the work. `name` is the lock's name, `waited_s` the patience that ran out.
    """

    def __init__(self, message: str, *, name: str = "", waited_s: float = 0.0) -> None:
        super().__init__(message)
        self.name = name
        self.waited_s = waited_s


class LeaseLost(LockfastError):
    """The hold is no longer sure: its lease ran out unrenewed, or the server no longer knows it.

    Stop now and do not commit: another client may hold the name already. `name` and `fence` tell which hold.
    """

    def __init__(self, message: str, *, name: str = "", fence: int = 0) -> None:
        super().__init__(message)
        self.name = name
        self.fence = fence


class NotHeld(LockfastError):
    """There is nothing to release or extend: released before, or held by the parent of this forked process.

    This is a mistake in the calling code; waiting or retrying will not help.
    """


class Unreachable(LockfastError, ConnectionError):
    """The server did not answer in time.

    `sent` is False when the request certainly did not run, True when it may have. An `acquire` that raises this
    has undone itself as far as it could; at worst the name is free again after one lease. A `release` that raises
    it can be called again.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Refused(LockfastError):
    """The server answered, and said no: READONLY, NOPERM, OOM, WRONGTYPE, a wrong password, another kind of lock.

    `code` is the first word of the server's answer. Retrying as it is will be refused again: mend the server,
    the account or the name, as the message says.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class BrokenBarrier(LockfastError):
    """The barrier is broken: a party that waited died, gave up or was cancelled, or somebody called abort() or reset().

    Nobody of this generation passes. Agree on whether to go on: `reset()` makes the barrier whole for everybody, and
    until then every `wait()` raises this. `name` is the barrier's name.
    """

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Misused(LockfastError, RuntimeError):
    """The client was closed, or (asyncio) belongs to another event loop or to the parent of this forked process.

    Make a client where it is used: one per process, and in asyncio one per event loop.
    """
