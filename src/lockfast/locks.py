"""What a lock is made of on both sides: its name, its lease, its patience, and the blocks that it is entered by."""

from __future__ import annotations

import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from lockfast import names, specs
from lockfast.errors import Misused

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Env
    from lockfast.flows.handing import Exported
    from lockfast.grants import GrantView
    from lockfast.names import Name

D = TypeVar("D")
G = TypeVar("G", bound="GrantView[Any]")


class Unset:
    """Stands for an argument that was not given, where None means something."""

    def __repr__(self) -> str:
        return "<lock.wait>"


UNSET: Final = Unset()
CO_COROUTINE = 0x80  # what inspect.iscoroutinefunction looks at, without the cost of importing inspect
_leaving = threading.Lock()  # looking for a block and taking it off the list is one step


class Options(NamedTuple):
    """What every primitive can be told: see `Lockfast.lock`."""

    lease: float
    wait: float | None
    renew: bool
    on_lost: Callable[[Any], object] | None
    cancel_on_loss: bool
    grace: float
    max_hold: float | None
    detect: bool


def one_server_only(env: Env, what: str, instead: str = "use a client of one server for it") -> None:
    """Raise ValueError where a majority of servers decides: they carry one holder, or readers and a writer."""
    if env.fleet is not None:
        page = "docs/topologies/quorum.md#what-a-majority-cannot-carry"
        raise ValueError(f"{what} cannot be had of a majority of servers: {instead} (the counter-example: {page})")


MAX_ASKS = 1000  # that a client remembers
_NUMBERS = (int, float)


def _ask(
    driver: Any,
    prefix: str,
    parts: tuple[str | int, ...],
    ask_for: Callable[[Name, object, object], Ask],
    lease: object,
    grace: object,
    detect: bool,
) -> Ask:
    """What to ask for. Programs make the same lock again and again: to look it up takes a fraction of making it.

    Looked up only where equal means the same: True is 1 for a dict, and would not be refused as a lease.
    """
    key: tuple[object, ...] = ()
    plain = len(parts) == 1 and type(parts[0]) is str and type(lease) in _NUMBERS and type(grace) in _NUMBERS
    if plain and type(ask_for) is FunctionType and ask_for.__closure__ is None:
        key = (parts[0], lease, grace, detect, ask_for)
        known: Ask | None = driver.asks.get(key)
        if known is not None:
            return known
    ask = ask_for(names.make(prefix, parts), lease, grace)
    ask.detect = detect
    if key:
        if len(driver.asks) >= MAX_ASKS:
            driver.asks.clear()  # rather than an order of use, which would have to be kept on every look
        driver.asks[key] = ask
    return ask


class LockBase(Generic[D, G]):
    """The settings of one lock. Holds no state but the grants of the blocks that are running."""

    __slots__ = (
        "_ask",
        "_ask_for",
        "_cancel_on_loss",
        "_driver",
        "_entered",
        "_max_hold_s",
        "_on_lost",
        "_parts",
        "_prefix",
        "_renew",
        "_told",
        "_wait_s",
    )
    MAY_AWAIT = False  # whether an async `on_lost` would be awaited
    MAY_WAIT_FOR_ITSELF = False  # whether `_refuse_waiting_for_itself` has anything to look for
    WHY_NOT_ONE_OF_SEVERAL = ""  # what `locks` says of it, if it cannot be one of several

    def __init__(
        self,
        driver: D,
        prefix: str,
        parts: tuple[str | int, ...],
        ask_for: Callable[[Name, object, object], Ask],
        options: Options,
    ) -> None:
        lease, wait, renew, on_lost, cancel_on_loss, grace, max_hold, detect = options
        if not isinstance(renew, bool):
            raise TypeError(f"renew must be True or False, got {renew!r}")
        if not isinstance(detect, bool):
            raise TypeError(f"detect must be True or False, got {detect!r}")
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost must be callable, got {on_lost!r}")
        if not self.MAY_AWAIT and getattr(getattr(on_lost, "__code__", None), "co_flags", 0) & CO_COROUTINE:
            raise TypeError("on_lost is async, and nobody would await it here: use lockfast.aio, or a plain function")
        if detect:
            one_server_only(driver.env, "detect=True")  # type: ignore[attr-defined]  # a driver, of threads or asyncio
        self._driver = driver
        self._prefix = prefix
        self._parts = parts
        self._ask_for = ask_for
        self._max_hold_s = specs.max_hold_seconds(max_hold)
        if self._max_hold_s is not None:
            lease = min(specs.lease_seconds(lease), self._max_hold_s)
        self._ask = _ask(driver, prefix, parts, ask_for, lease, grace, detect)
        self._wait_s = specs.wait_seconds(wait)
        self._renew = renew
        self._on_lost = on_lost
        self._cancel_on_loss = cancel_on_loss
        self._told: Exported | None = None  # go on with this hold instead of asking for one
        self._entered: list[tuple[Any, G]] = []  # by thread or task, innermost last

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        return self._ask.name.shown

    @property
    def lease(self) -> float:
        return self._ask.lease_s

    @property
    def wait(self) -> float | None:
        return self._wait_s

    def _refuse_waiting_for_itself(self) -> None:
        """Raise Misused when whoever asks holds what this would wait for, as far as that can be known here."""

    def _named(self, parts: tuple[str | int, ...]) -> Any:
        """The same lock on another name, for a decorated function."""
        return type(self)(
            self._driver,
            self._prefix,
            parts,
            self._ask_for,
            Options(
                self._ask.lease_s,
                self._wait_s,
                self._renew,
                self._on_lost,
                self._cancel_on_loss,
                self._ask.grace_ms / 1000,
                self._max_hold_s,
                self._ask.detect,
            ),
        )

    def _entered_by(self, me: object) -> G:
        """The grant of the innermost block that `me` (a thread, a task) is in; taken off the list.

        A block may be left by another thread than entered it (fixtures, exit stacks): fine if there is just one.
        """
        entered = self._entered
        with _leaving:
            for i in range(len(entered) - 1, -1, -1):
                if entered[i][0] == me:
                    return entered.pop(i)[1]
            if len(entered) == 1:
                return entered.pop()[1]
        raise Misused(f"{self.name!r}: no `with` block of this lock was entered here")
