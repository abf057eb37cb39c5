"""Leader election, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

from lockfast import names, specs
from lockfast.aio.lock import Grant, Lock
from lockfast.errors import Misused, NotAcquired
from lockfast.flows import election
from lockfast.locks import UNSET, Options, Unset
from lockfast.together import Holder

if TYPE_CHECKING:
    from lockfast.drivers.aio import Asyncio
    from lockfast.flows.election import Candidacy, Leader


@final
class Election:
    """One name that one process at a time leads, and that others observe. Share it: it holds no state."""

    __slots__ = ("_candidates", "_driver", "_options", "_parts", "_prefix", "_watched")

    def __init__(
        self, driver: Asyncio, prefix: str, parts: tuple[str | int, ...], value: str, options: Options
    ) -> None:
        self._driver = driver
        self._prefix = prefix
        self._parts = parts
        self._options = options
        self._candidates = election.Candidates(value)
        self._watched = names.watched(names.make(prefix, parts))
        self.campaign()  # refuses what cannot work, here and now

    def __repr__(self) -> str:
        return f"<Election {self.name!r}>"

    @property
    def name(self) -> str:
        return self._watched.shown

    def campaign(self, *, wait: float | Unset | None = UNSET) -> Campaign:
        """To lead: `async with election.campaign(wait=5) as leadership`. Candidates are served in the order they came.

        wait: seconds to queue (the election's own unless given; None as long as it takes).
        """
        options = self._options if isinstance(wait, Unset) else self._options._replace(wait=wait)
        return Campaign(self._driver, self._prefix, self._parts, self._candidates, options)

    async def try_campaign(self) -> Leadership | None:
        """Lead if nobody does at this moment; None otherwise. Never waits for another leader."""
        return await self.campaign().try_acquire()

    async def leader(self) -> Leader | None:
        """Who leads, as the server knows it at this moment; None when nobody does, or has not said so yet.

        Raises Unreachable when the server does not answer, Refused when the name is in use as something else.
        """
        self._driver.enter()
        return await self._driver.run(election.leader(self._watched, self._driver.new_ticket(), self._driver.env))

    def observe(self) -> Observation:
        """Follow who leads: `async for leader in election.observe()`. The present state first, then each change.

        It does not poll: the server tells of changes, and the end of a dead leader's lease is waited for. What is
        missed by a lost message is found within two seconds. States in between may be skipped, the last one never.
        Raises Misused when the client is closed.
        """
        if self._driver.closing:
            raise Misused("this client is closed")
        return Observation(self._driver, self._watched.shown, self._watched)


@final
class Campaign(Lock):
    """A candidacy: what is acquired to lead. It is used as a lock is."""

    __slots__ = ()
    WHY_NOT_ONE_OF_SEVERAL = "a leader has something to say first"
    _ask: Candidacy

    async def acquire(self, *, wait: float | Unset | None = UNSET) -> Leadership:
        """Lead, queueing up to `wait` seconds (the campaign's own unless given), and proclaim the election's value.

        Raises NotAcquired when the wait is over, Unreachable when the server does not answer, Refused when it says
        no. Keep the leadership: only it can resign.
        """
        return await self._acquire(self._wait_s if isinstance(wait, Unset) else specs.wait_seconds(wait))

    async def try_acquire(self) -> Leadership | None:
        """Lead if nobody does at this moment; None otherwise. Never waits for another leader."""
        try:
            return await self._acquire(0.0)
        except NotAcquired:
            return None

    async def _acquire(self, wait_s: float | None) -> Leadership:
        driver = self._driver
        self._driver.enter()
        mark = driver.new_ticket()
        driver.acquiring.add(mark)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            holder = Holder(driver, {self._ask: (self._renew, self._max_hold_s)})
            hold = await driver.run(election.campaign(self._ask, wait_s, driver.env, holder))
            leadership = Leadership(hold, driver)
            if driver.closing:  # closed in this very moment: nobody could resign later
                await leadership.release()
                raise Misused("this client was closed while an acquire was waiting")
            self._tell_when_lost(hold)
            return leadership
        finally:  # last: `close()` gives back what the keeper knows once nobody is acquiring
            driver.acquiring.discard(mark)

    async def __aenter__(self) -> Leadership:
        leadership = await super().__aenter__()
        assert isinstance(leadership, Leadership), "this is what _acquire makes"
        return leadership


@final
class Leadership(Grant):
    """A hold on an election: a grant with all that a grant has, and a value that others see."""

    __slots__ = ()

    async def proclaim(self, value: str) -> None:
        """Let everybody who observes see this value, in place of the one before.

        Raises LeaseLost when the leadership is gone (then nobody has seen it), Unreachable when the server does not
        answer while it is sure (then they may have).
        """
        checked = election.check_value(value)
        self._driver.enter()
        await self._driver.run(election.proclaim(self._hold, checked, self._driver.env))

    async def resign(self) -> None:
        """Lead no longer; the next candidate does at once. The same as `release()`."""
        await self.release()

    async def release(self) -> None:
        """Lead no longer; the next candidate does at once. Those who observe are told. Raises as `Grant.release`."""
        await super().release()
        if not self._driver.closing:
            await self._driver.run(election.farewell(self._hold, self._driver.env))


@final
class Observation:
    """Who leads, one state after the other: an iterator. For one task at a time; `aclose()` may come from another."""

    __slots__ = ("_driver", "_is_closed", "_last", "_name", "_ticket", "_watched")

    def __init__(self, driver: Asyncio, name: str, watched: names.Name) -> None:
        self._driver = driver
        self._name = name
        self._watched = watched
        self._ticket = ""
        self._last: object = election.UNSEEN
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Observation of {self._name!r}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Leader | None:
        """The next state: a leader with its value, or None while nobody leads.

        Ends when this or the client is closed. Raises Unreachable when the server was silent for half a minute; then
        ask again, or stop.
        """
        driver = self._driver
        if self._is_over():
            raise StopAsyncIteration
        self._driver.enter()
        self._ticket = self._ticket or driver.new_ticket()
        try:
            found = await driver.run(
                election.next_change(self._watched, self._ticket, self._last, self._is_over, driver.env)
            )
        except Misused:
            if not self._is_over():
                raise
        if self._is_over():
            raise StopAsyncIteration
        self._last = found
        return found

    def _is_over(self) -> bool:
        return self._is_closed or self._driver.closing

    async def aclose(self) -> None:
        """Observe no longer. A `next` that waits elsewhere ends."""
        if not self._is_over():
            self._is_closed = True
            if self._ticket:
                await self._driver.run(election.forget(self._watched, self._ticket, self._driver.env))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
