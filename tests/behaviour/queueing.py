"""Steps that many tests share: wait until somebody is queued, or until a hold has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.servers import wait_until

if TYPE_CHECKING:
    from kit.sides import Side, Spawned
    from lockfast.sync import Grant, Lock, Lockfast

# Longer than anything here takes, also on a machine that is busy with other things.
PATIENCE_S = 20.0


def queued(lf: Lockfast, name: str) -> list[str]:
    """The tickets that wait, in order."""
    return [waiter.ticket for waiter in lf.inspect(name).waiters]


def wait_queued(lf: Lockfast, name: str, count: int = 1) -> None:
    wait_until(lambda: len(queued(lf, name)) == count, what=f"{count} queued for {name}", timeout_s=PATIENCE_S)


def holder(lf: Lockfast, name: str) -> str | None:
    """The ticket that holds, if any."""
    holders = lf.inspect(name).holders
    assert len(holders) <= 1
    return holders[0].ticket if holders else None


def wait_over(grant: Grant) -> None:
    """Until a hold that nobody renews is no longer sure."""
    wait_until(lambda: not grant.held, what="the hold to end", timeout_s=PATIENCE_S)


def waiting(side: Side, lf: Lockfast, lock: Lock, name: str, count: int = 1, **options: float) -> Spawned[Grant]:
    """An acquire that has joined the queue as number `count`."""
    spawned = side.spawn(lock.acquire, **options)
    wait_queued(lf, name, count)
    return spawned
