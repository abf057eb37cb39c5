"""What several locks at once are made of on both sides: the checks before anything is sent, and what is held."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockfast import specs
from lockfast.errors import Misused
from lockfast.flows import ending, group, several
from lockfast.flows.group import Asks
from lockfast.grants import HELD, Hold
from lockfast.locks import MAX_ASKS, LockBase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Call, Flow
    from lockfast.grants import GrantView

D = TypeVar("D")
L = TypeVar("L", bound=LockBase[Any, Any])
G = TypeVar("G", bound="GrantView[Any]")

MOST_REMEMBERED = 10  # names of a group that a client remembers
_making = threading.Lock()

Keeping = dict["Ask", tuple[bool, float | None]]  # whether each is renewed, and for how long at most


def name_of(thing: object) -> Any:
    """One of several that is no lock: a name. TypeError for what has two locks in it; names.py sees to the rest."""
    if hasattr(thing, "read") and hasattr(thing, "write"):
        raise TypeError(f"{thing!r} is a way to read and one to write: hand over .read() or .write()")
    return thing


def _asks(driver: Any, asks: tuple[Ask, ...]) -> Asks:
    """The same for the same asks: programs name the same locks again and again. See locks.py, whose store it shares."""
    if len(asks) > MOST_REMEMBERED:
        return Asks(asks)
    known: Asks | None = driver.asks.get(asks)
    if known is None:
        if len(driver.asks) >= MAX_ASKS:
            driver.asks.clear()
        known = driver.asks[asks] = Asks(asks)
    return known


class LocksBase(Generic[D, L]):
    """Several locks, of any kind, to be held together or not at all. Share it, use it again."""

    __slots__ = ("_asks", "_driver", "_entered", "_keeping", "_locks", "_special", "_wait_s", "_wary")

    def __init__(self, driver: D, locks: tuple[L, ...], wait: float | None) -> None:
        if not locks:
            raise ValueError("name at least one lock")
        keys = set()  # two names may look the same in print
        for lock in locks:
            if lock.WHY_NOT_ONE_OF_SEVERAL:
                raise ValueError(f"{lock!r} cannot be one of several: {lock.WHY_NOT_ONE_OF_SEVERAL}")
            if lock._driver is not driver:
                raise ValueError(f"{lock!r} belongs to another client")
            if lock._ask.name.keys in keys:
                raise ValueError(f"{lock.name!r} is named twice: it would wait for itself")
            keys.add(lock._ask.name.keys)
        self._driver = driver
        self._locks = locks
        self._asks = _asks(driver, tuple([lock._ask for lock in locks]))
        # The bound of a hold counts from when all are held: it is for bodies that hang, not for long waits.
        self._keeping: Keeping = {lock._ask: (lock._renew, None) for lock in locks}
        self._wary = [lock for lock in locks if lock.MAY_WAIT_FOR_ITSELF]
        self._special = [
            (place, lock)
            for place, lock in enumerate(locks)
            if lock._max_hold_s is not None or lock._on_lost is not None
        ]
        self._wait_s = specs.wait_seconds(wait)
        self._entered: list[tuple[object, Any]] = []  # the grants of the blocks that are running, innermost last

    def __repr__(self) -> str:
        return f"<Locks {', '.join(repr(lock.name) for lock in self._locks)}>"

    def _left_by(self, me: object) -> Any:
        """The grants of the innermost block that `me` (a thread, a task) is in; taken off the list."""
        for place in range(len(self._entered) - 1, -1, -1):
            if self._entered[place][0] == me:
                return self._entered.pop(place)[1]
        raise Misused(f"{self!r}: no `with` block was entered here")


class GrantsView(Generic[D, G]):
    """What holds that were taken together show without asking the server.

    grants: what they are handed out by; None where these are plain, and made only when somebody wants them.
    stem: what all their tickets begin with, if one request has taken them all.
    """

    __slots__ = ("_asks", "_driver", "_grants", "_holds", "_stem")

    def __init__(self, grants: tuple[G, ...] | None, holds: list[Hold], stem: str, driver: D, asks: Asks) -> None:
        self._grants = grants
        self._holds = holds
        self._stem = stem
        self._driver = driver
        self._asks = asks

    def __repr__(self) -> str:
        return f"<Grants {', '.join(repr(hold.ask.name.shown) for hold in self._holds)}>"

    def __del__(self) -> None:
        # As GrantView.__del__ for those that were not made.
        if self._grants is None:
            for hold in self._holds:
                if hold.state is HELD:
                    hold.orphaned = True

    def _make(self, hold: Hold) -> G:
        raise NotImplementedError

    def _each(self) -> tuple[G, ...]:
        with _making:  # if two threads made them, one would drop its own, and with them the holds
            if self._grants is None:
                self._grants = tuple([self._make(hold) for hold in self._holds])
            return self._grants

    def __iter__(self) -> Iterator[G]:
        return iter(self._each())

    def __len__(self) -> int:
        return len(self._holds)

    def __getitem__(self, place: int) -> G:
        return self._each()[place]

    @property
    def held(self) -> bool:
        """Whether all of them are sure at this moment."""
        return all(hold.held() for hold in self._holds)

    @property
    def lost(self) -> bool:
        """Whether any of them is no longer sure."""
        return any(not hold.held() and hold.why_lost for hold in self._holds)

    def check(self) -> None:
        """Raise LeaseLost if any of them is no longer sure, NotHeld if it was released."""
        for hold in self._holds:
            hold.check()

    def _conclude(self, keeper: ending.Keeps, error: BaseException | None, failure: Exception) -> bool:
        """What a block does about a release that failed: see ending.conclude."""
        return ending.conclude(self._holds[0], keeper, error, failure)


class Holder:
    """Makes holds of what a flow was granted: the flow's `group.Holder`."""

    __slots__ = ("_driver", "_keeping", "_kept", "keeper")

    def __init__(self, driver: Any, keeping: Keeping) -> None:
        self._driver = driver
        self._keeping = keeping
        self.keeper = driver.keeper
        self._kept: list[Hold] = []

    def new_ticket(self) -> str:
        ticket: str = self._driver.new_ticket()
        return ticket

    def keep(self, ask: Ask, ticket: str, held: Held) -> Hold:
        renew, max_hold_s = self._keeping[ask]
        hold = Hold(ask, ticket, held, self._driver.era, renew)
        if max_hold_s is not None:
            hold.end_after(max_hold_s)
        self._kept.append(hold)
        self.keeper.watch(hold)
        return hold

    def abandon(self) -> None:
        """Nobody has a grant of what was kept, and nobody will: let the keeper give it back."""
        for hold in self._kept:
            hold.orphaned = True


class Taking(Holder):
    """One acquire of several: what a driver sends first, what it makes of the reply, and the flow for all else."""

    __slots__ = ("_asked", "_asks", "_wait_s", "is_at_once", "stem")

    def __init__(self, driver: Any, asks: Asks, keeping: Keeping, wait_s: float | None) -> None:
        super().__init__(driver, keeping)
        self._asks = asks
        self._wait_s = wait_s
        self._asked: tuple[Call, float] | None = None
        self.stem: str = driver.new_ticket()
        self.is_at_once = False  # whether one request has taken them all

    def prepare(self) -> Call | None:
        env = self._driver.env
        sent = env.now()
        take = None if env.replicas else self._asks.take(self.stem, env, sent + env.attempt_s)
        if take is not None:
            self._asked = take, sent
        return take

    def settle(self, reply: Any) -> list[Hold] | None:
        assert self._asked is not None, "a reply is one to what was prepared"
        asks, driver, stem = self._asks, self._driver, self.stem
        held = group.at_once(asks, reply, self._asked[1], driver.env)
        if held is None:
            return None
        era, keeping, kept, watched = driver.era, self._keeping, self._kept, self.keeper.ledger.holds
        for ask, mark in asks.named:
            ticket = stem + mark
            hold = Hold(ask, ticket, held, era, keeping[ask][0])
            kept.append(hold)
            watched[ticket] = hold
        self.keeper.watch(hold)  # all of them are due at one time
        self.is_at_once = True
        return kept

    def flow(self) -> Flow[list[Hold]]:
        return several.acquire(self._asks, self._wait_s, self._driver.env, self, self.stem, self._asked)


class Giving:
    """One release of several, in the same way."""

    __slots__ = ("_asked", "_asks", "_driver", "_holds", "_stem")

    def __init__(self, grants: GrantsView[Any, Any]) -> None:
        self._driver = grants._driver
        self._asks = grants._asks
        self._holds = grants._holds
        self._stem = grants._stem
        self._asked: Call | None = None

    def prepare(self) -> Call | None:
        # From here on they are being given back.
        env, asks, holds = self._driver.env, self._asks, self._holds
        moment = env.now()
        by = moment + env.attempt_s
        give = asks.give(self._stem, holds[0].fence, by) if self._stem else asks.give_each(holds, env, by)
        if give is not None and group.begin(holds, self._driver.keeper, moment):
            self._asked = give
        return self._asked

    def settle(self, reply: Any) -> bool | None:
        return group.end(self._holds, reply)

    def flow(self) -> Flow[bool | None]:
        driver = self._driver
        if self._asked is not None:
            return several.finish(self._holds, self._asked, None, driver.keeper, driver.env)
        left = [hold for hold in self._holds if not hold.told]  # not given back one by one
        return several.release(left, driver.keeper, driver.env)
