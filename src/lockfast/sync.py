"""The public side for threads. The asyncio twin, with the same names, is `lockfast.aio`."""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from lockfast import endpoints, names, specs, templates
from lockfast.clock import now
from lockfast.drivers.identity import new_id
from lockfast.drivers.threads import Threads
from lockfast.errors import LeaseLost, LockfastError, Misused, NotAcquired, NotHeld, Unreachable
from lockfast.flows import admission, looking, renewal
from lockfast.grants import HELD, LOST, RELEASED, Hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lockfast.snapshots import Snapshot

F = TypeVar("F", bound="Callable[..., Any]")


class _Unset:
    def __repr__(self) -> str:
        return "the lock's own"


UNSET: Final = _Unset()


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
        takes, 0 to ask once. renew: keep the lease going while held. on_lost: called with the grant, from another
        thread, when the hold is no longer sure. cancel_on_loss: asyncio only, where the body is cancelled on loss;
        a thread cannot be stopped, so here a body must call `grant.check()`.
        """
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
        that still runs is no longer alone; only the fence protects then.
        """
        made = names.make(self._prefix, (name, *parts))
        return self._driver.run(looking.break_lock(made, reason, self._driver.env))

    def close(self) -> None:
        """Give back what is still held and close every connection. Acquires that wait elsewhere raise `Misused`."""
        driver = self._driver
        if driver.closed:
            return
        for hold in driver.keeper.holds():
            try:
                _release(driver, hold)
            except LockfastError:
                pass  # lost, or not confirmed: the lease ends it
        driver.close()

    def __enter__(self) -> Lockfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lock:
    """What to acquire, and how. Holds no state: share it, acquire it from many threads, use it again."""

    __slots__ = ("_ask", "_driver", "_entered", "_on_lost", "_parts", "_prefix", "_renew", "_wait_s", "cancel_on_loss")

    def __init__(
        self,
        driver: Threads,
        prefix: str,
        parts: tuple[str | int, ...],
        lease: float,
        wait: float | None,
        renew: bool,
        on_lost: Callable[[Grant], object] | None,
        cancel_on_loss: bool,
    ) -> None:
        self._driver = driver
        self._prefix = prefix
        self._parts = parts
        self._ask = specs.lock(names.make(prefix, parts), lease)
        self._wait_s = specs.wait_seconds(wait)
        self._renew = renew
        self._on_lost = on_lost
        self.cancel_on_loss = cancel_on_loss
        self._entered: list[tuple[int, Grant]] = []  # grants of running `with` blocks, by thread

    def __repr__(self) -> str:
        return f"<Lock {self.name!r}>"

    @property
    def name(self) -> str:
        return self._ask.name.shown

    @property
    def lease(self) -> float:
        return self._ask.lease_s

    @property
    def wait(self) -> float | None:
        return self._wait_s

    def acquire(self, *, wait: float | None | _Unset = UNSET) -> Grant:
        """Hold the lock, queueing up to `wait` seconds (the lock's own unless given).

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
        held = driver.run(admission.acquire(self._ask, new_id(), wait_s, driver.env))
        hold = Hold(self._ask, held, driver.era, self._renew)
        grant = Grant(driver, hold)
        on_lost = self._on_lost
        if on_lost is not None:
            hold.when_lost(lambda: _tell(on_lost, Grant(driver, hold)))
        if self._renew or on_lost is not None:
            driver.keeper.watch(hold)
        return grant

    def __enter__(self) -> Grant:
        grant = self._acquire(self._wait_s)
        self._entered.append((threading.get_ident(), grant))
        return grant

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        grant = self._leave_block()
        try:
            _release(grant._driver, grant._hold)
        except Unreachable as failure:
            # The body ran under the lock to its end. Raising now would make callers do it again; the keeper sees
            # to it that the server hears of the release, and the lease ends it otherwise.
            _log_unconfirmed(grant, failure)
        except NotHeld:
            if error is None and grant._hold.state is not RELEASED:
                raise  # the parent of this forked process holds it
        except LeaseLost as loss:
            if error is None:
                raise
            # The body's own error is what its caller must see; the loss is told beside it.
            if error is not loss and not isinstance(error, LeaseLost):
                error.add_note(f"lockfast: {loss}")

    def _leave_block(self) -> Grant:
        """The grant of the innermost block of this thread; a block may also be left in another thread."""
        me = threading.get_ident()
        for i in range(len(self._entered) - 1, -1, -1):
            if self._entered[i][0] == me:
                return self._entered.pop(i)[1]
        if len(self._entered) == 1:
            return self._entered.pop()[1]
        raise Misused(f"{self.name!r}: this thread is in no `with` block of this lock")

    def __call__(self, function: F) -> F:
        """Hold the lock around every call of `function`. The name is a template of its arguments: "order:{order_id}"."""
        import inspect

        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is async: use the lock of lockfast.aio.Lockfast")
        bind = templates.binder(function, self._parts)

        @wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._named(bind(*args, **kwargs)):
                return function(*args, **kwargs)

        return locked  # type: ignore[return-value]  # same call shape as `function`, which is all that F promises

    def _named(self, parts: tuple[str | int, ...]) -> Lock:
        ask = self._ask
        return Lock(
            self._driver,
            self._prefix,
            parts,
            ask.lease_s,
            self._wait_s,
            self._renew,
            self._on_lost,
            self.cancel_on_loss,
        )


@final
class Grant:
    """A hold on a name: the proof of it, how long it is sure, and the way to end it."""

    __slots__ = ("_driver", "_hold")

    def __init__(self, driver: Threads, hold: Hold) -> None:
        self._driver = driver
        self._hold = hold

    def __repr__(self) -> str:
        hold = self._hold
        return f"<Grant {hold.ask.name.shown!r} fence={hold.fence} {hold.state}>"

    def __del__(self) -> None:
        # Nobody can release it any more. The keeper gives it back; without one the lease does.
        hold = self._hold
        if hold.state is HELD:
            hold.orphaned = True

    @property
    def name(self) -> str:
        return self._hold.ask.name.shown

    @property
    def ticket(self) -> str:
        """The random identity of this acquire: what proves ownership to the server."""
        return self._hold.ticket

    @property
    def fence(self) -> int:
        """Larger than that of any earlier grant of this name. Give it to what the lock protects, to refuse older ones."""
        return self._hold.fence

    @property
    def deadline(self) -> float:
        """Until when the hold is sure, on `lockfast.clock.now()`. Renewals raise it."""
        return self._hold.deadline

    @property
    def remaining(self) -> float:
        """Seconds for which the hold is sure; 0 when it is not held."""
        return max(0.0, self._hold.deadline - now()) if self._hold.held() else 0.0

    @property
    def held(self) -> bool:
        """Whether the hold is sure at this moment."""
        return self._hold.held()

    @property
    def lost(self) -> bool:
        """Whether it was held and is no longer sure. Final: it never becomes False again."""
        self._hold.held()
        return bool(self._hold.state is LOST)

    def check(self) -> None:
        """Raise LeaseLost if the hold is no longer sure, NotHeld if it was released. Call it before what must be safe."""
        self._hold.check()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the hold is lost, up to `timeout` seconds. False when it was not."""
        lost = threading.Event()
        self._hold.when_lost(lost.set)
        self._driver.keeper.watch(self._hold)
        lost.wait(timeout)
        return self.lost

    def extend(self, lease: float | None = None) -> None:
        """Renew now, with a new lease if one is given. Never shortens what is sure already.

        Raises LeaseLost when the hold is gone, Unreachable when the server does not answer before it would be.
        """
        hold = self._hold
        hold.check()
        if lease is not None:
            hold.lease_ms = round(specs.lease_seconds(lease) * 1000)
        due = renewal.Due(hold.ask.name.keys, hold.ticket, hold.fence, hold.lease_ms)
        env = self._driver.env
        deadline = self._driver.run(renewal.renew(due, min(now() + env.timeout_s, hold.deadline), env))
        if deadline > 0:
            hold.renewed(deadline, hold.lease_ms)
        else:
            hold.lose("the server no longer knows it (broken, flushed, or restarted empty)")
        hold.check()

    def release(self) -> None:
        """Give the hold back; the next in the queue has it at once.

        Raises LeaseLost when it had gone before (do not commit), NotHeld when it was released before, Unreachable
        when the server did not confirm: call again, or let the lease end it.
        """
        _release(self._driver, self._hold)


def _release(driver: Threads, hold: Hold) -> None:
    was_sure = hold.begin_leave()
    driver.keeper.unwatch(hold)
    flow = admission.leave(hold.ask, hold.ticket, hold.unsure, driver.env, hold.leave_sent)
    try:
        stood = driver.run(flow)
    except Unreachable as failure:
        hold.leave_sent = hold.leave_sent or failure.sent
        if not was_sure:
            raise hold.loss() from failure
        raise
    except BaseException:
        hold.leave_sent = True  # struck with the request on its way, perhaps: the keeper makes sure
        driver.keeper.finish(hold)
        raise
    with hold.era.mutex:
        if not was_sure:
            loss: LeaseLost | None = hold.loss()
        elif stood:
            loss = None
        else:
            hold.why_lost = "the server no longer knew it at release (broken, flushed, or restarted empty)"
            loss = hold.loss()
        hold.state = RELEASED
    if loss is not None:
        raise loss


def _tell(on_lost: Callable[[Grant], object], grant: Grant) -> None:
    """Run the user's callback in a thread of its own: the timer has other holds to look after."""

    def call() -> None:
        try:
            on_lost(grant)
        except Exception:
            import logging

            logging.getLogger("lockfast").exception("on_lost of %r failed", grant.name)

    threading.Thread(target=call, name="lockfast-on-lost", daemon=True).start()


def _log_unconfirmed(grant: Grant, failure: Unreachable) -> None:
    import logging

    logging.getLogger("lockfast").warning("release of %r was not confirmed: %s", grant.name, failure)
    grant._driver.keeper.finish(grant._hold)


__all__ = ["Grant", "Lock", "Lockfast"]
