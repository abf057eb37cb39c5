"""The textbook locks and semaphores, each as its text gives it, with what it is known to get wrong.

They are here to be compared, learned from, and used beside programs that have them already. For anything else use
`lockfast.Lockfast`. Each recipe is one file; its head says where it comes from, what it promises and how it breaks.

    from lockfast.classic import Client, SetNxPxLock        # asyncio: from lockfast.classic.aio import Client

    with Client("redis://cache") as client:
        lock = SetNxPxLock("orders:42", lease=30)
        taken = client.acquire(lock)                        # None when it was not to be had
        if taken is not None:
            ...
            client.release(lock, taken)                     # False when it had passed to somebody else
"""

from __future__ import annotations

from lockfast.classic.blind_del import BlindDelLock
from lockfast.classic.client import Client
from lockfast.classic.counting_semaphore import CountingSemaphore
from lockfast.classic.fair_semaphore import FairSemaphore
from lockfast.classic.fine_grained import FineGrainedLock
from lockfast.classic.getset import GetSetLock
from lockfast.classic.keyed_semaphore import KeyedSemaphore
from lockfast.classic.optimistic import OptimisticLock
from lockfast.classic.race_free_semaphore import RaceFreeSemaphore
from lockfast.classic.redlock import Redlock
from lockfast.classic.refreshing_semaphore import RefreshingSemaphore
from lockfast.classic.set_nx_px import SetNxPxLock
from lockfast.classic.simple import SimpleLock
from lockfast.classic.taken import Taken, Updated
from lockfast.classic.timed import TimeoutLock

# The rows of the lab. KeyedSemaphore is the other form of the counting semaphore.
ALL: dict[str, type] = {
    "optimistic": OptimisticLock,
    "setnx": SimpleLock,
    "setnx-expire": TimeoutLock,
    "getset": GetSetLock,
    "set-nx-px": SetNxPxLock,
    "set-nx-px-blind-del": BlindDelLock,
    "fine-grained": FineGrainedLock,
    "counting-semaphore": CountingSemaphore,
    "fair-semaphore": FairSemaphore,
    "refreshing-semaphore": RefreshingSemaphore,
    "race-free-semaphore": RaceFreeSemaphore,
    "redlock": Redlock,
}

__all__ = [
    "ALL",
    "BlindDelLock",
    "Client",
    "CountingSemaphore",
    "FairSemaphore",
    "FineGrainedLock",
    "GetSetLock",
    "KeyedSemaphore",
    "OptimisticLock",
    "RaceFreeSemaphore",
    "Redlock",
    "RefreshingSemaphore",
    "SetNxPxLock",
    "SimpleLock",
    "Taken",
    "TimeoutLock",
    "Updated",
]
