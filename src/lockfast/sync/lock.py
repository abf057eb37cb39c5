"""The public side for threads. The asyncio twin, with the same names, is `lockfast.aio`."""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

from lockfast import endpoints, names, specs, templates
from lockfast.drivers.identity import new_id
from lockfast.drivers.threads import Threads
from lockfast.errors import LockfastError, Misused, NotAcquired
from lockfast.flows import ending, looking, renewal
from lockfast.grants import GrantView, Hold, log
from lockfast.locks import UNSET, LockBase, Unset

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.snapshots import Snapshot

F = TypeVar("F", bound="Callable[..., Any]")
CO_COROUTINE = 0x80  # what inspect.iscoroutinefunction looks at, without the cost of importing inspect


class Lockfast:
    """A client of one server: makes locks, keeps them, and tells who holds what. Share it among threads.

    server: a redis://, rediss:// or unix:// URL (or the same with valkey), or a redis-py or valkey-py client whose
        settings are copied. None: the URL in $LOCKFAST_URL, or else the embedded server of this user on this host.
    timeout: seconds that one request may take in all, retries included, before `Unreachable`.
    prefix: what every key and channel starts with. Clients with different prefixes do not see each other.
    label: text shown with everything this client holds, in `lockfast show`.

    Nothing is connected before the first use. `close()` gives back what is still held.
    """

    def __init__(
        self, server: object = None, *, timeout: float = 2.0, prefix: str = "lockfast", label: str | None = None
    ) -> None:
        self._prefix = names.check_prefix(prefix)
        self._driver = Threads(endpoints.find(server), specs.timeout_seconds(timeout), self._prefix, label)

    def __repr__(self) -> str:
        return f"<Lockfast {self._driver.endpoint.where}>"

    def lock(
        self,
        name: str,
        *parts: str | int,
        lease: float = 30.0,
        wait: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Grant], object] | None = None,
        cancel_on_loss: bool = True,
    ) -> Lock:
        """A lock that one holder at a time can have, first come, first served.

        name, parts: what is locked; parts name a piece of a larger thing, and never collide with other names.
        lease: seconds the server keeps the hold if this process dies. wait: seconds to queue; None as long as it
        takes, 0 to ask once. renew: keep the lease going while held. on_lost: called with the grant, in a thread of
        its own, when the hold is no longer sure. cancel_on_loss: for asyncio, where the body is cancelled on loss;
        a thread cannot be stopped, so here a body must call `grant.check()`.

        Raises TypeError or ValueError for arguments that cannot work; nothing is sent before an acquire.
        """
        if getattr(getattr(on_lost, "__code__", None), "co_flags", 0) & CO_COROUTINE:
            raise TypeError("on_lost is async, and nobody would await it here: use lockfast.aio, or a plain function")
        return Lock(self._driver, self._prefix, (name, *parts), lease, wait, renew, on_lost, cancel_on_loss)

    def names(self) -> list[tuple[str, ...]]:
        """The names that are held or waited for, each as its parts, sorted."""
        return self._driver.run(looking.in_use(self._prefix, self._driver.env))

    def inspect(self, name: str, *parts: str | int) -> Snapshot:
        """Holders and waiters of one name, in order. Changes nothing."""
        made = names.make(self._prefix, (name, *parts))
        return self._driver.run(looking.inspect(made, self._driver.env))

    def break_lock(self, name: str, *parts: str | int, reason: str) -> Snapshot:
        """Take a name away from whoever holds it, hand it to the next, and record why. Returns what was there before.

        The holder learns of it at its next renewal. Only for operators who know that it is dead or stuck: a body
        that still runs is no longer alone; only the fence protects then. Raises NotHeld when nobody holds it.
        """
        made = names.make(self._prefix, (name, *parts))
        return self._driver.run(looking.break_lock(made, reason, self._driver.env))

    def close(self) -> None:
        """Give back what is still held and close every connection. Acquires that wait elsewhere raise `Misused`."""
        driver = self._driver
        if driver.closing:
            return
        driver.stop_acquiring()
        for hold in list(driver.keeper.ledger.holds.values()):
            try:
                driver.release(hold)
            except LockfastError:
                pass  # lost, or not confirmed: the lease ends it
        driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Lock(LockBase[Threads, "Grant"]):
    """What to acquire, and how. Share it, acquire it from many threads, use it again: what is held is in the grants."""

    __slots__ = ()

    def acquire(self, *, wait: float | Unset | None = UNSET) -> Grant:
        """Hold the lock, queueing up to `wait` seconds (the lock's own unless given; None as long as it takes).

        Raises NotAcquired when the wait is over, Unreachable when the server does not answer, Refused when it says
        no. Keep the grant: only it can release the hold.
        """
        return self._acquire(self._wait_s if wait is UNSET else specs.wait_seconds(wait))

    def try_acquire(self) -> Grant | None:
        """Hold the lock if it is free at this moment; None otherwise. Never waits for another holder."""
        try:
            return self._acquire(0.0)
        except NotAcquired:
            return None

    def _acquire(self, wait_s: float | None) -> Grant:
        driver = self._driver
        ticket = new_id()
        driver.acquiring.add(ticket)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            held = driver.acquire(self._ask, ticket, wait_s)
            hold = Hold(self._ask, ticket, held, driver.era, self._renew)
            grant = Grant(hold, driver)
            if driver.closing:  # closed in this very moment: nobody could release it later
                grant.release()
                raise Misused("this client was closed while an acquire was waiting")
            on_lost = self._on_lost
            if on_lost is not None:
                # A grant of its own: the keeper must not keep the caller's alive.
                hold.when_lost(lambda: _tell(on_lost, Grant(hold, driver)))
            if self._renew or on_lost is not None:
                driver.keeper.watch(hold)
            else:
                driver.keeper.note(hold)
            return grant
        finally:  # last: `close()` gives back what the keeper knows once nobody is acquiring
            driver.acquiring.discard(ticket)

    def __enter__(self) -> Grant:
        grant = self._acquire(self._wait_s)
        self._entered.append((threading.get_ident(), grant))
        return grant

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        grant = self._entered_by(threading.get_ident())
        if grant._hold.told:
            return  # the body has released it by itself
        try:
            grant.release()
        except LockfastError as failure:
            if ending.conclude(grant._hold, self._driver.keeper, error, failure):
                raise

    def __call__(self, function: F) -> F:
        """Hold the lock around every call of `function`. The name is a template of its arguments: "order:{id}"."""
        import inspect

        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is async: decorate it with a lock of lockfast.aio.Lockfast")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator: its body runs after the call; use `with` in it")
        bind = templates.binder(function, self._parts)

        @wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._named(bind(*args, **kwargs)):
                return function(*args, **kwargs)

        return locked  # type: ignore[return-value]  # same call shape as `function`, which is all that F promises


@final
class Grant(GrantView[Threads]):
    """A hold on a name: the proof of it, how long it is sure, and the way to end it."""

    __slots__ = ()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the hold is lost, up to `timeout` seconds. False when it was not, or was released meanwhile."""
        over = threading.Event()
        self._hold.when_over(over.set)
        if self.held:
            self._driver.keeper.watch(self._hold)
            over.wait(timeout)
        return self.lost

    def extend(self, lease: float | None = None) -> None:
        """Renew now, with a new lease if one is given. Never shortens what is sure already.

        Raises LeaseLost when the hold is gone, Unreachable when the server does not answer while it is sure.
        """
        lease_ms = self._hold.lease_ms if lease is None else round(specs.lease_seconds(lease) * 1000)
        self._driver.run(renewal.extend(self._hold, lease_ms, self._driver.env))

    def release(self) -> None:
        """Give the hold back; the next in the queue has it at once.

        Raises LeaseLost when it had gone before (do not commit), NotHeld when it was released before, Unreachable
        when the server did not confirm: call again, or let the lease end it.
        """
        self._driver.release(self._hold)


def _tell(on_lost: Callable[[Grant], object], grant: Grant) -> None:
    """Run the user's callback in a thread of its own: the timer has other holds to look after."""

    def call() -> None:
        try:
            on_lost(grant)
        except Exception:  # noqa: BLE001 - a user's callback may raise anything; it is logged
            log().exception("on_lost of %r failed", grant.name)

    threading.Thread(target=call, name="lockfast-on-lost", daemon=True).start()
