"""Distributed locks on Redis and Valkey that hand over at once, in order, and tell the holder when they are gone.

    from lockfast import Lockfast

    lf = Lockfast()                                   # or Lockfast("redis://host:6379/0")
    with lf.lock("orders:42", lease=30, wait=5) as grant:
        save(order, fence=grant.fence)

For asyncio: `from lockfast.aio import Lockfast`, the same names with `await`.
"""

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
from lockfast.flows.election import Leader
from lockfast.sync import (
    Barrier,
    Election,
    Grant,
    Grants,
    Latch,
    Leadership,
    Lock,
    Lockfast,
    Locks,
    RLock,
    RWLock,
    Semaphore,
    Transaction,
)
from lockfast.transactions import Outcome

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
