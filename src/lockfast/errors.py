"""What can go wrong, one class for each different next step.

    LockfastError
    ├── NotAcquired   (TimeoutError)      waited, did not get it       → try later, or shed the work
    ├── Deadlock                          waits in a circle            → release what you hold, start again
    ├── LeaseLost                         had it, no longer sure of it → stop now, do not commit
    ├── NotHeld                           nothing here to release      → fix the calling code
    ├── Unreachable   (ConnectionError)   no answer from the server    → `.sent` tells if it may have run
    ├── Refused                           the server answered "no"     → its words are in the message
    └── Misused       (RuntimeError)      closed client, wrong loop    → fix the calling code

Bad arguments are plain `ValueError` and `TypeError`, raised before anything is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockfast.waitfor import Cycle


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


class Deadlock(LockfastError):
    """The acquire waited in a circle: for others who wait, in the end, for what this thread or task holds.

    Release what you hold and start again; nothing is left in the queue. Of each circle only the youngest waiter is
    told, so that the others can go on. `name` is what was waited for; `cycle` has a step for each waiter of the circle:
    `who`, `waits_for`, `held_by`, beginning with this one. In a circle of one it waits for itself: mend the code.
    """

    def __init__(self, message: str, *, name: str = "", cycle: Cycle = ()) -> None:
        super().__init__(message)
        self.name = name
        self.cycle = cycle


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


class Misused(LockfastError, RuntimeError):
    """The client was closed, or (asyncio) belongs to another event loop or to the parent of this forked process.

    Make a client where it is used: one per process, and in asyncio one per event loop.
    """
