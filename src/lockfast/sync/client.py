"""A client of one server, a cluster or a majority, for threads: makes locks, keeps them, tells who holds what."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self, TypeVar

from lockfast import names
from lockfast.drivers import opening
from lockfast.errors import LockfastError
from lockfast.flows import asks, looking
from lockfast.locks import Options, one_server_only
from lockfast.sync.lock import Lock
from lockfast.sync.rlock import RLock
from lockfast.sync.rwlock import RWLock
from lockfast.sync.semaphore import Semaphore
from lockfast.sync.several import Locks
from lockfast.together import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.plain_threads import PlainThreads
    from lockfast.snapshots import Snapshot
    from lockfast.sync.barrier import Barrier
    from lockfast.sync.election import Election
    from lockfast.sync.latch import Latch
    from lockfast.sync.lock import Grant
    from lockfast.sync.transaction import Function
    from lockfast.transactions import Outcome
    from lockfast.waitfor import Cycle

R = TypeVar("R")

_making = threading.Lock()  # what is made on first use is made once


class Lockfast:
    """A client of your servers: makes locks, keeps them, and tells who holds what. Share it among threads.

    server: a redis://, rediss://, unix://, sentinel:// or cluster:// URL (or valkey://), or a redis-py or valkey-py
        client whose settings are copied. A list of three, five or more, or one text with commas between URLs: a
        majority of these independent servers decides (Redlock), for `lock`, `rlock`, `rwlock` and `locks`. None: the
        URL in $LOCKFAST_URL, or else the embedded server of this user on this host.
    timeout: seconds that one request may take in all, retries included, before `Unreachable`.
    prefix: what every key and channel starts with. Clients with different prefixes do not see each other.
    label: text shown with everything this client holds, in `lockfast show`.
    replicas: how many replicas must have every grant and renewal before it counts; with too few an acquire raises
        Refused. It makes losing a hold in a failover unlikely, not impossible: docs/topologies/sentinel.md.
    max_lease: for a majority of several servers, the longest lease that any client of them may ask for, the same
        everywhere; the servers keep it (60 unless named; as long as they have none, that takes all of them to answer).
        One that restarts without its memory is not counted for that long.
    node_timeout: how long one of them may take to answer before the others are asked without it; 0.05 where all are on
        this host, else 0.25.

    Nothing is connected before the first use. `close()` gives back what is still held.
    """

    def __init__(
        self,
        server: object = None,
        *,
        timeout: float = 2.0,
        prefix: str = "lockfast",
        label: str | None = None,
        replicas: int = 0,
        max_lease: float | None = None,
        node_timeout: float | None = None,
    ) -> None:
        given = opening.Given(server, timeout, prefix, label, replicas, max_lease, node_timeout)
        self._driver = opening.threads(given)
        self._prefix = prefix
        self._plain_made: PlainThreads | None = None

    def __repr__(self) -> str:
        return f"<Lockfast {self._driver.where}>"

    @property
    def _plain(self) -> PlainThreads:
        """What runs transactions; made with the first of them."""
        if self._plain_made is None:
            with _making:
                self._plain_made = self._plain_made or self._driver.new_plain()
        if self._driver.closing:
            self._plain_made.stop()
        return self._plain_made

    def lock(
        self,
        name: str,
        *parts: str | int,
        lease: float = 30.0,
        wait: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Grant], object] | None = None,
        cancel_on_loss: bool = True,
        grace: float = 0.0,
        max_hold: float | None = None,
        detect: bool = False,
    ) -> Lock:
        """A lock that one holder at a time can have, first come, first served.

        name, parts: what is locked; parts name a piece of a larger thing, and never collide with other names.
        lease: seconds the server keeps the hold if this process dies. wait: seconds to queue; None as long as it
        takes, 0 to ask once. renew: keep the lease going while held. on_lost: called with the grant, in a thread of
        its own, when the hold is no longer sure. cancel_on_loss: for asyncio, where the body is cancelled on loss;
        a thread cannot be stopped, so here a body must call `grant.check()`. detect: while waiting, look for a
        deadlock; the youngest waiter of the circle raises Deadlock. All waiters of the circle must ask for it.

        grace: seconds more than the lease that the name stays closed if the hold was not given back, for what its
        holder had under way when it gave up. max_hold: seconds after which the hold is lost although it was renewed,
        as a bound for bodies that hang.

        Raises TypeError or ValueError for arguments that cannot work; nothing is sent before an acquire.
        """
        options = Options(lease, wait, renew, on_lost, cancel_on_loss, grace, max_hold, detect)
        return Lock(self._driver, self._prefix, (name, *parts), asks.lock, options)

    def semaphore(
        self,
        name: str,
        *parts: str | int,
        limit: int | None = None,
        permits: int = 1,
        lease: float = 30.0,
        wait: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Grant], object] | None = None,
        cancel_on_loss: bool = True,
        grace: float = 0.0,
        max_hold: float | None = None,
        detect: bool = False,
    ) -> Semaphore:
        """Up to `limit` permits at once, first come, first served; nobody overtakes one that waits for several.

        limit: how many permits there are. It counts when nobody uses the name, and every user must name the same;
        None takes the one that is stored. permits: how many of them one acquire takes. The rest is as for `lock`.

        A grant's fence only identifies it: it guards nothing that several may hold.
        Raises TypeError or ValueError for arguments that cannot work; an acquire raises Refused when the name is in
        use with another limit.
        """
        options = Options(lease, wait, renew, on_lost, cancel_on_loss, grace, max_hold, detect)
        one_server_only(self._driver.env, "a semaphore")
        return Semaphore(self._driver, self._prefix, (name, *parts), asks.Permits(limit, permits), options)

    def rwlock(
        self,
        name: str,
        *parts: str | int,
        lease: float = 30.0,
        wait: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Grant], object] | None = None,
        cancel_on_loss: bool = True,
        grace: float = 0.0,
        max_hold: float | None = None,
        detect: bool = False,
    ) -> RWLock:
        """Many readers or one writer, first come, first served, so that neither starves.

        `read()` and `write()` are what is acquired; readers that follow each other are let in together. The options
        are those of `lock`.
        """
        options = Options(lease, wait, renew, on_lost, cancel_on_loss, grace, max_hold, detect)
        return RWLock(self._driver, self._prefix, (name, *parts), options)

    def rlock(
        self,
        name: str,
        *parts: str | int,
        lease: float = 30.0,
        wait: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Grant], object] | None = None,
        cancel_on_loss: bool = True,
        grace: float = 0.0,
        max_hold: float | None = None,
        detect: bool = False,
    ) -> RLock:
        """A lock that the thread which holds it may acquire again, as often as it likes; each acquire is released once.

        All entries share one hold and its fence. To others it is a lock like any other, also to one made by `lock`
        of the same name. The options are those of `lock`; the first entry's count.
        """
        options = Options(lease, wait, renew, on_lost, cancel_on_loss, grace, max_hold, detect)
        return RLock(self._driver, self._prefix, (name, *parts), asks.lock, options)

    def locks(self, *things: str | Lock, wait: float | None = None, lease: float = 30.0) -> Locks:
        """Several locks, all or none, whatever the order they are named in; nobody deadlocks by that.

        things: names, for plain locks with this lease, or what `lock`, `semaphore` and `rwlock` made. wait: seconds
        to queue for all of them together; the waits of their own do not count. Raises ValueError when one is named
        twice or belongs to another client.
        """
        made = tuple(thing if isinstance(thing, Lock) else self.lock(name_of(thing), lease=lease) for thing in things)
        return Locks(self._driver, made, wait)

    def election(
        self,
        name: str,
        *parts: str | int,
        lease: float = 30.0,
        value: str = "",
        wait: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Grant], object] | None = None,
        cancel_on_loss: bool = True,
        grace: float = 0.0,
        max_hold: float | None = None,
        detect: bool = False,
    ) -> Election:
        """One leader at a time, whom everybody can see.

        `campaign()` is what is acquired to lead, `leader()` and `observe()` tell who does. value: what this client
        proclaims when it begins to lead, such as its address. The other options are those of `lock`.
        """
        from lockfast.sync.election import Election

        one_server_only(self._driver.env, "an election")
        options = Options(lease, wait, renew, on_lost, cancel_on_loss, grace, max_hold, detect)
        return Election(self._driver, self._prefix, (name, *parts), value, options)

    def latch(self, name: str, *parts: str | int, count: int, lease: float = 86400.0) -> Latch:
        """A latch that opens when it has been counted down `count` times, by whomever.

        count: everybody must name the same. lease: seconds that the server keeps the latch after its last use, open or
        not; after that the name begins anew. At least a minute.
        """
        from lockfast.flows.latch import LatchSpec
        from lockfast.sync.latch import Latch

        one_server_only(self._driver.env, "a latch")
        return Latch(self._driver, LatchSpec(names.make(self._prefix, (name, *parts)), count, lease))

    def barrier(self, name: str, *parts: str | int, parties: int, lease: float = 30.0) -> Barrier:
        """A barrier at which `parties` wait for each other, again and again.

        lease: seconds after which a party that waits counts as dead if nothing is heard of it; the barrier is broken
        then. The server forgets a barrier that nobody has used for a day.
        """
        from lockfast.flows.barrier import BarrierSpec
        from lockfast.sync.barrier import Barrier

        one_server_only(self._driver.env, "a barrier")
        return Barrier(self._driver, BarrierSpec(names.make(self._prefix, (name, *parts)), parties, lease))

    def transaction(
        self,
        fn: Function[R],
        *keys: str | bytes,
        attempts: int = 20,
        wait: float | None = 10.0,
        escalate: int | None = 4,
    ) -> Outcome[R]:
        """Read, decide, and write only if nobody else has written meanwhile; else again. By WATCH, MULTI and EXEC.

        fn: called with a `Transaction` in every attempt; it reads, then queues writes, and what it returns is in the
        outcome. It may be called several times, so it should do nothing else that counts. keys: what is watched, your
        own keys as they are; only these can be read. attempts: how often fn is called at most. wait: seconds for which
        new attempts may begin; None for as long as there are attempts. escalate: after so many conflicts the lock on
        these keys is taken, so that others which escalate wait instead of colliding; None for never.

        Raises Conflict when others were always faster (nothing was written: try later), OutcomeUnknown when the reply
        of EXEC was lost (look before you do it again), Unreachable with `sent` False when the server does not answer
        (nothing was written), Refused when it says no, PartlyWritten when it carried out some of the commands only;
        and what fn raises, with nothing written.
        """
        from lockfast import transactions
        from lockfast.flows.transaction import LEASE_S
        from lockfast.sync.transaction import run

        one_server_only(self._driver.env, "a transaction")
        plan = transactions.plan(fn, keys, attempts, wait, escalate)

        def lock() -> Locks:
            return self.locks(*[self.lock(*transactions.lock_name(key), lease=LEASE_S) for key in plan.keys])

        return run(self._driver, self._plain.of(plan.keys), fn, plan, lock)

    def names(self) -> list[tuple[str, ...]]:
        """The names that are held or waited for, each as its parts, sorted."""
        found = self._driver.look(lambda env: looking.in_use(self._prefix, env))
        return sorted(set().union(*found))

    def inspect(self, name: str, *parts: str | int) -> Snapshot:
        """Holders and waiters of one name, in order. Changes nothing.

        Of several servers, what the one that knows most of it says: waiters queue at one of them.
        """
        made = names.make(self._prefix, (name, *parts))
        found = self._driver.look(lambda env: looking.inspect(made, env))
        return looking.fullest(found)

    def deadlocks(self) -> tuple[Cycle, ...]:
        """Every deadlock of this server and prefix, one circle of waiters for each; empty if there is none.

        Also those of waiters that do not detect any. Looks at all names, and at those of a circle twice, some seconds
        apart. Changes nothing: stop one of the waiters, or `break_lock` one of the names.
        """
        from lockfast.flows import deadlocks

        one_server_only(self._driver.env, "the search for deadlocks")
        return self._driver.run(deadlocks.find(self._prefix, self._driver.env))

    def break_lock(self, name: str, *parts: str | int, reason: str) -> Snapshot:
        """Take a name away from whoever holds it, hand it to the next, and record why. Returns what was there before.

        The holder learns of it at its next renewal. Only for operators who know that it is dead or stuck: a body
        that still runs is no longer alone; only the fence protects then. Raises NotHeld when nobody holds it.
        """
        made = names.make(self._prefix, (name, *parts))
        one_server_only(self._driver.env, "break_lock", "break it on each of them")
        return self._driver.run(looking.break_lock(made, reason, self._driver.env))

    def revoke(self, name: str, *parts: str | int) -> int:
        """Ask whoever holds a name to let go of it. Returns how many were asked; nobody is made to.

        They see `grant.revoked`, at their next renewal at the latest; `grant.wait_revoked()` hears of it at once.
        """
        from lockfast.flows import handing

        one_server_only(self._driver.env, "revoke", "revoke it on each of them")
        made = names.make(self._prefix, (name, *parts))
        return self._driver.run(handing.revoke(made, names.channel(self._prefix, ""), self._driver.env))

    def adopt(
        self,
        text: str,
        *,
        renew: bool = True,
        on_lost: Callable[[Grant], object] | None = None,
    ) -> Grant:
        """Go on with a hold that another process exported (`grant.export()`): the same name, lease and fence.

        It works once for each export, while the lease lasts. It is renewed, and given a ticket that only this client
        has, before the grant is returned. Raises LeaseLost when it had ended or was adopted by another (acquire
        anew), ValueError when the text is not what `export()` returned, and Unreachable when the server does not
        answer: then the hold is given back as far as it was taken over.
        """
        from lockfast.flows import handing

        one_server_only(self._driver.env, "adopt")
        told = handing.read(text, self._prefix)
        options = Options(
            told.lease_ms / 1000, None, renew, on_lost, True, told.grace_ms / 1000, told.max_hold_s, False
        )
        lock = Lock(self._driver, self._prefix, told.parts, told.ask_for, options)
        lock._told = told
        return lock._acquire(None)

    def close(self) -> None:
        """Give back what is still held and close every connection. Acquires that wait elsewhere raise `Misused`."""
        driver = self._driver
        if driver.closing:
            return
        plain = self._plain_made
        if plain is not None:
            plain.stop()
        driver.stop_acquiring()
        for hold in list(driver.keeper.ledger.holds.values()):
            try:
                driver.release(hold)
            except LockfastError:
                pass  # lost, or not confirmed: the lease ends it
        driver.close()
        if plain is not None:
            plain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
