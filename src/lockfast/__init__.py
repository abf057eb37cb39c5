"""Distributed locks on Redis and Valkey that hand over at once, in order, and tell the holder when they are gone.

    from lockfast import Lockfast

    lf = Lockfast()                                   # or Lockfast("redis://host:6379/0")
    with lf.lock("orders:42", lease=30, wait=5) as grant:
        save(order, fence=grant.fence)

For asyncio: `from lockfast.aio import Lockfast`, the same names with `await`.
"""

from typing import TYPE_CHECKING

from lockfast._later import names_from
from lockfast._version import __version__
from lockfast.errors import (
    BrokenBarrier,
    Conflict,
    Deadlock,
    LeaseLost,
    LockfastError,
    Misused,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    PartlyWritten,
    Refused,
    Stale,
    Unreachable,
)
from lockfast.sync import Grant, Grants, Lock, Lockfast, Locks, RLock, RWLock, Semaphore

if TYPE_CHECKING:
    from lockfast.flows.election import Leader
    from lockfast.sync import Barrier, Election, Latch, Leadership, Transaction
    from lockfast.transactions import Outcome

__getattr__ = names_from(
    __name__,
    {
        "Leader": "lockfast.flows.election",
        "Outcome": "lockfast.transactions",
        **dict.fromkeys(("Barrier", "Election", "Latch", "Leadership", "Transaction"), "lockfast.sync"),
    },
)

__all__ = [
    "Barrier",
    "BrokenBarrier",
    "Conflict",
    "Deadlock",
    "Election",
    "Grant",
    "Grants",
    "Latch",
    "Leader",
    "Leadership",
    "LeaseLost",
    "Lock",
    "Lockfast",
    "LockfastError",
    "Locks",
    "Misused",
    "NotAcquired",
    "NotHeld",
    "Outcome",
    "OutcomeUnknown",
    "PartlyWritten",
    "RLock",
    "RWLock",
    "Refused",
    "Semaphore",
    "Stale",
    "Transaction",
    "Unreachable",
    "__version__",
]
