"""Leader election, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

from lockfast import names, specs
from lockfast.errors import Misused, NotAcquired
from lockfast.flows import election
from lockfast.locks import UNSET, Options, Unset
from lockfast.sync.lock import Grant, Lock
from lockfast.together import Holder

if TYPE_CHECKING:
    from lockfast.drivers.threads import Threads
    from lockfast.flows.election import Candidacy, Leader


@final
class Election:
    """One name that one process at a time leads, and that others observe. Share it: it holds no state."""

    __slots__ = ("_candidates", "_driver", "_options", "_parts", "_prefix", "_watched")

    def __init__(
        self, driver: Threads, prefix: str, parts: tuple[str | int, ...], value: str, options: Options
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
        """To lead: `with election.campaign(wait=5) as leadership`. Candidates are served in the order they came.

        wait: seconds to queue (the election's own unless given; None as long as it takes).
        """
        options = self._options if isinstance(wait, Unset) else self._options._replace(wait=wait)
        return Campaign(self._driver, self._prefix, self._parts, self._candidates, options)

    def try_campaign(self) -> Leadership | None:
        """Lead if nobody does at this moment; None otherwise. Never waits for another leader."""
        return self.campaign().try_acquire()

    def leader(self) -> Leader | None:
        """Who leads, as the server knows it at this moment; None when nobody does, or has not said so yet.

        Raises Unreachable when the server does not answer, Refused when the name is in use as something else.
        """
        return self._driver.run(election.leader(self._watched, self._driver.new_ticket(), self._driver.env))

    def observe(self) -> Observation:
        """Follow who leads: `for leader in election.observe()`. The present state first, then each change.

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

    def acquire(self, *, wait: float | Unset | None = UNSET) -> Leadership:
        """Lead, queueing up to `wait` seconds (the campaign's own unless given), and proclaim the election's value.

        Raises NotAcquired when the wait is over, Unreachable when the server does not answer, Refused when it says
        no. Keep the leadership: only it can resign.
        """
        return self._acquire(self._wait_s if isinstance(wait, Unset) else specs.wait_seconds(wait))

    def try_acquire(self) -> Leadership | None:
        """Lead if nobody does at this moment; None otherwise. Never waits for another leader."""
        try:
            return self._acquire(0.0)
        except NotAcquired:
            return None

    def _acquire(self, wait_s: float | None) -> Leadership:
        driver = self._driver
        mark = driver.new_ticket()
        holder = Holder(driver, {self._ask: (self._renew, self._max_hold_s)})
        driver.acquiring.add(mark)
        try:
            if driver.closing:
                raise Misused("this client is closed")
            hold = driver.run(election.campaign(self._ask, wait_s, driver.env, holder))
            leadership = Leadership(hold, driver)
            if driver.closing:  # closed in this very moment: nobody could resign later
                leadership.release()
                raise Misused("this client was closed while an acquire was waiting")
            self._tell_when_lost(hold)
            return leadership
        except BaseException:  # also an interrupt: what is renewed and in nobody's hands would never end
            holder.abandon()
            raise
        finally:  # last: `close()` gives back what the keeper knows once nobody is acquiring
            driver.acquiring.discard(mark)

    def __enter__(self) -> Leadership:
        leadership = super().__enter__()
        assert isinstance(leadership, Leadership), "this is what _acquire makes"
        return leadership


@final
class Leadership(Grant):
    """A hold on an election: a grant with all that a grant has, and a value that others see."""

    __slots__ = ()

    def proclaim(self, value: str) -> None:
        """Let everybody who observes see this value, in place of the one before.

        Raises LeaseLost when the leadership is gone (then nobody has seen it), Unreachable when the server does not
        answer while it is sure (then they may have).
        """
        checked = election.check_value(value)
        self._driver.run(election.proclaim(self._hold, checked, self._driver.env))

    def resign(self) -> None:
        """Lead no longer; the next candidate does at once. The same as `release()`."""
        self.release()

    def release(self) -> None:
        """Lead no longer; the next candidate does at once. Those who observe are told. Raises as `Grant.release`."""
        super().release()
        if not self._driver.closing:
            self._driver.run(election.farewell(self._hold, self._driver.env))


@final
class Observation:
    """Who leads, one state after the other: an iterator. For one thread at a time; `close()` may come from another."""

    __slots__ = ("_driver", "_is_closed", "_last", "_name", "_ticket", "_watched")

    def __init__(self, driver: Threads, name: str, watched: names.Name) -> None:
        self._driver = driver
        self._name = name
        self._watched = watched
        self._ticket = ""
        self._last: object = election.UNSEEN
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Observation of {self._name!r}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Leader | None:
        """The next state: a leader with its value, or None while nobody leads.

        Ends when this or the client is closed. Raises Unreachable when the server was silent for half a minute; then
        ask again, or stop.
        """
        driver = self._driver
        if self._is_over():
            raise StopIteration
        self._ticket = self._ticket or driver.new_ticket()
        try:
            found = driver.run(election.next_change(self._watched, self._ticket, self._last, self._is_over, driver.env))
        except Misused:
            if not self._is_over():
                raise
        if self._is_over():
            raise StopIteration
        self._last = found
        return found

    def _is_over(self) -> bool:
        return self._is_closed or self._driver.closing

    def close(self) -> None:
        """Observe no longer. A `next` that waits elsewhere ends."""
        if not self._is_over():
            self._is_closed = True
            if self._ticket:
                self._driver.run(election.forget(self._watched, self._ticket, self._driver.env))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
