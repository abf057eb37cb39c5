"""Locks and grants, for threads."""

from __future__ import annotations

import threading
from functools import wraps
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast import specs, templates
from lockfast.drivers.threads import Threads
from lockfast.errors import LockfastError, Misused, NotAcquired
from lockfast.flows import ending, renewal
from lockfast.grants import GrantView, Hold, log
from lockfast.locks import UNSET, LockBase, Unset, one_server_only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.flows.admission import Held
    from lockfast.flows.guarding import Word

F = TypeVar("F", bound="Callable[..., Any]")


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
        driver, ask = self._driver, self._ask
        ticket = driver.new_ticket()
        acquiring = driver.acquiring
        acquiring.add(ticket)
        held: Held | None = None
        try:
            if driver.closing:
                raise Misused("this client is closed")
            if self._told is None:
                held = driver.acquire(ask, ticket, wait_s)
            else:
                from lockfast.flows import handing

                held = driver.run(handing.adopt(self._told, ask, ticket, driver.env))
            hold = Hold(ask, ticket, held, driver.era, self._renew)
            if self._max_hold_s is not None:
                hold.end_after(self._max_hold_s)
            grant = self._grant(hold)
            if driver.closing:  # closed in this very moment: nobody could release it later
                grant.release()
                raise Misused("this client was closed while an acquire was waiting")
            if self._on_lost is not None:
                self._tell_when_lost(hold)
            if self._renew or self._on_lost is not None:
                driver.keeper.watch(hold)
            else:
                driver.keeper.note(hold)
            return grant
        except LockfastError:
            raise
        except BaseException:  # Ctrl-C, before anybody had the grant
            if held is not None:
                ending.abandon(Hold(ask, ticket, held, driver.era, renews=False), driver.keeper)
            raise
        finally:  # last: `close()` gives back what the keeper knows once nobody is acquiring
            acquiring.discard(ticket)

    def _tell_when_lost(self, hold: Hold) -> None:
        on_lost, driver = self._on_lost, self._driver
        if on_lost is not None:
            # A grant of its own: the keeper must not keep the caller's alive.
            hold.when_lost(lambda: _tell(on_lost, Grant(hold, driver)))

    def _grant(self, hold: Hold) -> Grant:
        """What is handed to the caller."""
        return Grant(hold, self._driver)

    def __enter__(self) -> Grant:
        grant = self._acquire(self._wait_s)
        self._entered.append((threading.get_ident(), grant))
        return grant

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        grant = self._entered_by(threading.get_ident())
        if grant._is_released:
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

    def guard(self, *commands: Sequence[Word]) -> list[Any]:
        """Run commands on the lock's own server, all in one step, if the hold stands there; their replies, as bytes.

        Each is a tuple of its words: `guard(("SET", "balance", 90), ("INCR", "changes"))`. It runs once, even if a
        reply is lost. Any hold can guard, shared ones too: the server knows whose it is.
        Raises LeaseLost when the hold is gone: nothing was written, and nothing will be. ValueError for a command that
        the server does not know, that has a wrong number of arguments or cannot run in a script: nothing was written.
        Refused when one of them failed, as a command on a key of another type does: the others have run, as in EXEC.
        Unreachable when the server does not answer; if `.sent` is True, it may have run, or run yet while the hold
        stands.
        """
        from lockfast.flows import guarding

        one_server_only(self._driver.env, "guard")
        prepared = guarding.prepare(commands)
        driver = self._driver
        return driver.run(guarding.guard(self._hold, prepared, driver.new_ticket(), driver.env))

    def downgrade(self) -> None:
        """From the writer of a read/write lock to one of its readers, with nobody in between.

        Raises Misused when this is no write, and what `extend` raises. Whatever is raised then, it only reads from here
        on: others may be reading already. It may still keep them out until a renewal has told the server: call again,
        or leave that to the next one.
        """
        hold = self._hold
        if hold.ask.kind != "rwlock" or (hold.ask.weight != hold.ask.limit and not hold.is_lowering):
            raise Misused(f"{self.name!r}: only the writer of a read/write lock can become a reader")
        hold.check()
        self._driver.run(renewal.downgrade(hold, threading.current_thread(), self._driver.env))

    def export(self) -> str:
        """A text by which another process goes on with this hold: `Lockfast.adopt(text)`. Here it is over, unreleased.

        It is renewed once more, and not after that: adopt it before its lease ends. Raises what `extend` raises; then,
        LeaseLost aside, it is still held here.
        """
        from lockfast.flows import handing

        driver = self._driver
        one_server_only(driver.env, "export")
        text = driver.run(handing.export(self._hold, driver.prefix, driver.new_ticket(), driver.env))
        driver.keeper.unwatch(self._hold)
        return text

    def wait_revoked(self, timeout: float | None = None) -> bool:
        """Wait until somebody asks for this name (`Lockfast.revoke`), up to `timeout` seconds.

        False when nobody did, or the hold ended first.
        """
        from lockfast.flows import handing

        env = self._driver.env
        until = inf if timeout is None else env.now() + specs.seconds(timeout, "timeout")
        one_server_only(env, "wait_revoked")
        return self._driver.run(handing.wait_revoked(self._hold, until, env))

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
