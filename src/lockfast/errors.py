"""What can go wrong, one class for each different next step.

    LockfastError
    ├── NotAcquired   (TimeoutError)      waited, did not get it       → try later, or shed the work
    ├── Deadlock                          waits in a circle            → release what you hold, start again
    ├── LeaseLost                         had it, no longer sure of it → stop now, do not commit
    ├── Stale                             a newer holder has written   → stop now, roll back
    ├── NotHeld                           nothing here to release      → fix the calling code
    ├── Unreachable   (ConnectionError)   no answer from the server    → `.sent` tells if it may have run
    │   └── OutcomeUnknown                EXEC sent, reply lost        → look what is there before doing it again
    ├── Refused                           the server answered "no"     → its words are in the message
    │   └── PartlyWritten                 of a transaction, some ran   → mend the data, fix the calling code
    ├── Conflict                          others wrote first, always   → try later, or escalate
    ├── BrokenBarrier                     a party is missing           → reset the barrier, or give up
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


class Stale(LockfastError):
    """What the lock protects has seen a newer fence: another holder has written since. Raised by `lockfast.fencing`.

    Stop now and roll the transaction back. `name` and `fence` tell which hold came too late.
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


class Conflict(LockfastError):
    """A transaction whose keys were changed by others in every attempt that it was allowed. Nothing was written.

    Try later, or let it take the lock after fewer conflicts (`escalate`). `attempts` is how often the function was
    called, `conflicts` how often another was faster, `waited_s` how long it went on, `escalated` whether it had the
    lock in the end.
    """

    def __init__(
        self, message: str, *, attempts: int = 0, conflicts: int = 0, waited_s: float = 0.0, escalated: bool = False
    ) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.conflicts = conflicts
        self.waited_s = waited_s
        self.escalated = escalated


class OutcomeUnknown(Unreachable):
    """The EXEC of a transaction was sent and its reply lost: all of it was written, or nothing, or it still will be.

    It is not tried again, for it might be done twice. Look at what is stored (an id of your own in what you write
    tells) before you do it again. `attempts` and `conflicts` are as in `Conflict`; `sent` is always True.
    """

    def __init__(self, message: str, *, attempts: int = 0, conflicts: int = 0) -> None:
        super().__init__(message, sent=True)
        self.attempts = attempts
        self.conflicts = conflicts


class PartlyWritten(Refused):
    """A transaction was carried out and some of its commands failed, such as INCR of a text: the others stand.

    Redis and Valkey do not roll back. `replies` has what each command came to, in order, errors as exceptions: mend
    the data, and the code that queued a command which cannot work there.
    """

    def __init__(self, message: str, *, code: str = "", replies: tuple[object, ...] = ()) -> None:
        super().__init__(message, code=code)
        self.replies = replies
