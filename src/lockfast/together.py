"""What several locks at once are made of on both sides: the checks before anything is sent, and what is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockfast import specs
from lockfast.errors import Misused
from lockfast.flows import ending
from lockfast.flows.several import Asks
from lockfast.grants import Hold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.grants import GrantView
    from lockfast.locks import LockBase

D = TypeVar("D")
L = TypeVar("L", bound="LockBase[Any, Any]")
G = TypeVar("G", bound="GrantView[Any]")

Keeping = dict["Ask", tuple[bool, float | None]]  # whether each is renewed, and for how long at most


def name_of(thing: object) -> Any:
    """One of several that is no lock: a name. TypeError for what has two locks in it; names.py sees to the rest."""
    if hasattr(thing, "read") and hasattr(thing, "write"):
        raise TypeError(f"{thing!r} is a way to read and one to write: hand over .read() or .write()")
    return thing


class LocksBase(Generic[D, L]):
    """Several locks, of any kind, to be held together or not at all. Share it, use it again."""

    __slots__ = ("_asks", "_driver", "_entered", "_keeping", "_locks", "_wait_s")

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
        self._asks = Asks([lock._ask for lock in locks])
        # The bound of a hold counts from when all are held: it is for bodies that hang, not for long waits.
        self._keeping: Keeping = {lock._ask: (lock._renew, None) for lock in locks}
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
    """What holds that were taken together show without asking the server."""

    __slots__ = ("_asks", "_driver", "_grants")

    def __init__(self, grants: tuple[G, ...], driver: D, asks: Asks) -> None:
        self._grants = grants
        self._driver = driver
        self._asks = asks

    def __repr__(self) -> str:
        return f"<Grants {', '.join(repr(grant.name) for grant in self._grants)}>"

    def __iter__(self) -> Iterator[G]:
        return iter(self._grants)

    def __len__(self) -> int:
        return len(self._grants)

    def __getitem__(self, place: int) -> G:
        return self._grants[place]

    @property
    def held(self) -> bool:
        """Whether all of them are sure at this moment."""
        return all(grant.held for grant in self._grants)

    @property
    def lost(self) -> bool:
        """Whether any of them is no longer sure."""
        return any(grant.lost for grant in self._grants)

    def check(self) -> None:
        """Raise LeaseLost if any of them is no longer sure, NotHeld if it was released."""
        for grant in self._grants:
            grant.check()

    def _holds(self) -> list[Hold]:
        """Those that were not given back one by one."""
        return [grant._hold for grant in self._grants if not grant._is_released]

    def _conclude(self, keeper: ending.Keeps, error: BaseException | None, failure: Exception) -> bool:
        """What a block does about a release that failed: see ending.conclude."""
        return ending.conclude(self._grants[0]._hold, keeper, error, failure)


class Holder:
    """Makes holds of what a flow was granted: the flow's `several.Holder`."""

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
