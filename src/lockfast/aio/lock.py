"""Locks and grants, for asyncio."""

from __future__ import annotations

import asyncio
from functools import wraps
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast import specs, templates
from lockfast.drivers.aio import Asyncio
from lockfast.errors import LockfastError, Misused, NotAcquired
from lockfast.flows import ending, renewal
from lockfast.grants import GrantView, Hold, log
from lockfast.locks import UNSET, LockBase, Unset, one_server_only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.flows.guarding import Word

F = TypeVar("F", bound="Callable[..., Any]")


class Lock(LockBase[Asyncio, "Grant"]):
    """What to acquire, and how. Share it, acquire it from many tasks, use it again: what is held is in the grants."""

    __slots__ = ()
    MAY_AWAIT = True

    async def acquire(self, *, wait: float | Unset | None = UNSET) -> Grant:
        """Hold the lock, queueing up to `wait` seconds (the lock's own unless given; None as long as it takes).

        Raises NotAcquired when the wait is over, Unreachable when the server does not answer, Refused when it says
        no. Keep the grant: only it can release the hold.
        """
        return await self._acquire(self._wait_s if wait is UNSET else specs.wait_seconds(wait))

    async def try_acquire(self) -> Grant | None:
        """Hold the lock if it is free at this moment; None otherwise. Never waits for another holder."""
        try:
            return await self._acquire(0.0)
        except NotAcquired:
            return None

    async def _acquire(self, wait_s: float | None) -> Grant:
        driver, ask = self._driver, self._ask
        driver.enter()
        ticket = driver.new_ticket()
        acquiring = driver.acquiring
        acquiring.add(ticket)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            if self._told is None:
                held = await driver.acquire(ask, ticket, wait_s)
            else:
                from lockfast.flows import handing

                held = await driver.run(handing.adopt(self._told, ask, ticket, driver.env))
            hold = Hold(ask, ticket, held, driver.era, self._renew)
            if self._max_hold_s is not None:
                hold.end_after(self._max_hold_s)
            if driver.closing:  # closed in this very moment: nobody could release it later
                await driver.release(hold)
                raise Misused("this client was closed while an acquire was waiting")
        finally:
            acquiring.discard(ticket)
        if self._on_lost is not None:
            self._tell_when_lost(hold)
        if self._renew or self._on_lost is not None:
            driver.keeper.watch(hold)
        else:
            driver.keeper.note(hold)
        return self._grant(hold)

    def _tell_when_lost(self, hold: Hold) -> None:
        on_lost, driver = self._on_lost, self._driver
        if on_lost is not None:
            hold.when_lost(lambda: driver.soon(lambda: driver.spawn(_tell(on_lost, Grant(hold, driver)))))

    def _grant(self, hold: Hold) -> Grant:
        """What is handed to the caller."""
        return Grant(hold, self._driver)

    async def __aenter__(self) -> Grant:
        grant = await self._acquire(self._wait_s)
        task = asyncio.current_task()
        assert task is not None, "an async with block runs in a task"
        if self._cancel_on_loss:
            block = grant._block = Block(task)
            # In the next turn: if the body itself has just found the loss, it is on its way out already.
            grant._hold.when_lost(lambda: self._driver.soon(block.cancel))
            self._driver.keeper.watch(grant._hold)
        self._entered.append((task, grant))
        return grant

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        grant = self._entered_by(asyncio.current_task())
        was_cancelled_by_us = grant._block is not None and grant._block.leave()
        if grant._is_released:
            return  # the body has released it by itself
        if was_cancelled_by_us and isinstance(error, asyncio.CancelledError):
            # The cancellation was ours, and the caller must hear why.
            error = None
        try:
            await grant.release()
        except LockfastError as failure:
            if ending.conclude(grant._hold, self._driver.keeper, error, failure):
                raise

    def __call__(self, function: F) -> F:
        """Hold the lock around every call of `function`. The name is a template of its arguments: "order:{id}"."""
        import inspect

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator: its body runs after the call; use `async with` in it"
            )
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is not async: decorate it with a lock of lockfast.Lockfast")
        bind = templates.binder(function, self._parts)

        @wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self._named(bind(*args, **kwargs)):
                return await function(*args, **kwargs)

        return locked  # type: ignore[return-value]  # same call shape as `function`, which is all that F promises


class Block:
    """A running `async with` body that is cancelled when its hold is lost, as asyncio.timeout cancels its own."""

    __slots__ = ("_cancelled", "_cancelling", "_task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task: asyncio.Task[Any] | None = task
        self._cancelling = task.cancelling()
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the body, if it is still running."""
        if self._task is not None:
            self._cancelled = True
            self._task.cancel("the lock was lost")

    def leave(self) -> bool:
        """The body has ended. True when it was cancelled because of the loss, and for no other reason."""
        task, self._task = self._task, None
        return self._cancelled and task is not None and task.uncancel() <= self._cancelling


class Grant(GrantView[Asyncio]):
    """A hold on a name: the proof of it, how long it is sure, and the way to end it."""

    __slots__ = ("_block",)

    def __init__(self, hold: Hold, driver: Asyncio) -> None:
        super().__init__(hold, driver)
        self._block: Block | None = None

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the hold is lost, up to `timeout` seconds. False when it was not, or was released meanwhile."""
        self._driver.enter()
        over = asyncio.Event()
        self._hold.when_over(lambda: self._driver.soon(over.set))
        if self.held:
            self._driver.keeper.watch(self._hold)
            try:
                async with asyncio.timeout(timeout):
                    await over.wait()
            except TimeoutError:
                pass
        return self.lost

    async def extend(self, lease: float | None = None) -> None:
        """Renew now, with a new lease if one is given. Never shortens what is sure already.

        Raises LeaseLost when the hold is gone, Unreachable when the server does not answer while it is sure.
        """
        lease_ms = self._hold.lease_ms if lease is None else round(specs.lease_seconds(lease) * 1000)
        self._hold.check()
        self._driver.enter()
        await self._driver.run(renewal.extend(self._hold, lease_ms, self._driver.env))

    async def guard(self, *commands: Sequence[Word]) -> list[Any]:
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
        self._hold.check()
        self._driver.enter()
        driver = self._driver
        return await driver.run(guarding.guard(self._hold, prepared, driver.new_ticket(), driver.env))

    async def downgrade(self) -> None:
        """From the writer of a read/write lock to one of its readers, with nobody in between.

        Raises Misused when this is no write, and what `extend` raises. Whatever is raised then, it only reads from here
        on: others may be reading already. It may still keep them out until a renewal has told the server: call again,
        or leave that to the next one.
        """
        hold = self._hold
        if hold.ask.kind != "rwlock" or (hold.ask.weight != hold.ask.limit and not hold.is_lowering):
            raise Misused(f"{self.name!r}: only the writer of a read/write lock can become a reader")
        hold.check()
        self._driver.enter()
        await self._driver.run(renewal.downgrade(hold, asyncio.current_task(), self._driver.env))

    async def export(self) -> str:
        """A text by which another process goes on with this hold: `Lockfast.adopt(text)`. Here it is over, unreleased.

        It is renewed once more, and not after that: adopt it before its lease ends. Raises what `extend` raises; then,
        LeaseLost aside, it is still held here.
        """
        from lockfast.flows import handing

        self._driver.enter()
        driver = self._driver
        one_server_only(driver.env, "export")
        text = await driver.run(handing.export(self._hold, driver.prefix, driver.new_ticket(), driver.env))
        driver.keeper.unwatch(self._hold)
        return text

    async def wait_revoked(self, timeout: float | None = None) -> bool:
        """Wait until somebody asks for this name (`Lockfast.revoke`), up to `timeout` seconds.

        False when nobody did, or the hold ended first.
        """
        from lockfast.flows import handing

        self._driver.enter()
        env = self._driver.env
        until = inf if timeout is None else env.now() + specs.seconds(timeout, "timeout")
        one_server_only(env, "wait_revoked")
        return await self._driver.run(handing.wait_revoked(self._hold, until, env))

    async def release(self) -> None:
        """Give the hold back; the next in the queue has it at once.

        Raises LeaseLost when it had gone before (do not commit), NotHeld when it was released before, Unreachable
        when the server did not confirm: call again, or let the lease end it.
        """
        if not self._hold.era.ended:
            self._driver.enter()
        await self._driver.release(self._hold)


async def _tell(on_lost: Callable[[Grant], object], grant: Grant) -> None:
    """Run the user's callback, in the loop; it may be async."""
    try:
        result = on_lost(grant)
        if asyncio.iscoroutine(result):
            await result
    except Exception:  # noqa: BLE001 - a user's callback may raise anything; it is logged
        log().exception("on_lost of %r failed", grant.name)
