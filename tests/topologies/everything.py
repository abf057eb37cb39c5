"""Every primitive once, contended, so that pushes happen: what an account or a server must be able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.servers import wait_until

if TYPE_CHECKING:
    from kit.sides import Side
    from lockfast.sync import Lockfast

WAIT_S = 10.0


def hand_over(side: Side, first: Any, second: Any, lf: Lockfast, name: str) -> None:
    """One lets the other in."""
    held = first.acquire(wait=WAIT_S)
    waiting = side.spawn(second.acquire, wait=WAIT_S)
    wait_until(lambda: waiting.done or lf.inspect(name).waiters, what="queued")
    held.release()
    waiting.result().release()


def everything(side: Side, lf: Lockfast, other: Lockfast, stem: str) -> None:
    """Raises whatever goes wrong."""
    both = getattr(side, "wrap", lambda made: made)
    name = f"{stem}-lock"
    hand_over(side, lf.lock(name), other.lock(name), lf, name)
    hand_over(side, lf.lock(name, detect=True), other.lock(name), lf, name)
    name = f"{stem}-queue"  # a second waiter asks where it stands; a first one may have its turn before it asks again
    held = lf.lock(name).acquire()
    queue = []
    for place in (1, 2):
        queue.append(side.spawn(other.lock(name).acquire, wait=WAIT_S))
        wait_until(
            lambda: queue[-1].done or len(lf.inspect(name).waiters) == place,  # noqa: B023 - called in this round
            what="queued",
        )
    held.release()
    for one in queue:
        one.result().release()
    name = f"{stem}-rlock"
    hand_over(side, lf.rlock(name), other.rlock(name), lf, name)
    name = f"{stem}-rwlock"
    hand_over(side, both(lf.rwlock(name).read()), both(other.rwlock(name).write()), lf, name)
    write = both(lf.rwlock(name).write()).acquire()
    write.downgrade()
    assert both(other.rwlock(name).read()).acquire(wait=0).release() is None
    write.release()

    name = f"{stem}-semaphore"
    parts = [lf.semaphore(name, limit=3).acquire(wait=0), other.semaphore(name, limit=3).acquire(wait=0)]
    waiting = side.spawn(other.semaphore(name, limit=3, permits=2).acquire, wait=WAIT_S)
    wait_until(lambda: waiting.done or lf.inspect(name).waiters, what="queued")
    parts[0].extend()
    lf.semaphore(name).resize(4)
    for part in (*parts, waiting.result()):
        part.release()

    with lf.locks(f"{stem}-a", f"{stem}-b"):
        taking = side.spawn(other.locks(f"{stem}-b", f"{stem}-a").acquire, wait=WAIT_S)
        wait_until(lambda: taking.done or lf.inspect(f"{stem}-a").waiters, what="queued")
    taking.result().release()

    name = f"{stem}-handing"
    exported = lf.lock(name).acquire().export()
    adopted = other.adopt(exported)
    heard = side.spawn(adopted.wait_revoked, WAIT_S)
    wait_until(lambda: lf.revoke(name) == 1 and (heard.done or adopted.revoked), what="asked to let go")
    assert heard.result()
    adopted.release()

    name = f"{stem}-broken"
    broken = other.lock(name, renew=False).acquire()
    lf.break_lock(name, reason="test")
    assert lf.lock(name).try_acquire() is not None
    assert broken.ticket

    elect(side, lf, other, f"{stem}-election")
    gather(side, lf, other, stem)


def elect(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    first = lf.election(name, value="first").campaign().acquire()
    second = side.spawn(other.election(name, value="second").campaign(wait=WAIT_S).acquire)
    seen: list[str] = []

    def watch() -> None:
        with other.election(name).observe() as leaders:
            for leader in leaders:
                seen.append(leader.value if leader else "")
                if seen[-1] == "second":
                    return

    observer = side.spawn(watch)
    wait_until(lambda: observer.done or seen, what="observed")
    first.proclaim("still first")
    first.resign()
    leadership = second.result()
    observer.result()
    leadership.resign()
    assert lf.election(name).leader() is None


def gather(side: Side, lf: Lockfast, other: Lockfast, stem: str) -> None:
    latch = lf.latch(f"{stem}-latch", count=2)
    opened = side.spawn(other.latch(f"{stem}-latch", count=2).wait, wait=WAIT_S)
    latch.count_down(once="a")
    latch.count_down(once="a")
    latch.count_down(once="b")
    opened.result()

    barrier, theirs = lf.barrier(f"{stem}-barrier", parties=2), other.barrier(f"{stem}-barrier", parties=2)
    for _ in range(2):
        waiting = side.spawn(theirs.wait, wait=WAIT_S)
        wait_until(lambda: waiting.done or barrier.n_waiting(), what="arrived")  # noqa: B023 - called in this round
        barrier.wait(wait=WAIT_S)
        waiting.result()
    waiting = side.spawn(theirs.wait, wait=WAIT_S)
    wait_until(lambda: waiting.done or barrier.n_waiting(), what="arrived")
    barrier.abort()
    waiting.error()
    assert barrier.is_broken()
    barrier.reset()
