"""The sides for threads and for asyncio have the same names and signatures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import lockfast.aio
import lockfast.sync

CLASSES = ["Lockfast", "Lock", "Grant", "Semaphore", "RWLock", "ReadLock", "WriteLock", "RLock", "Locks", "Grants"]
CLASSES += ["Transaction", "Election", "Campaign", "Leadership", "Observation", "Latch", "Barrier"]
AWAITED = {"names", "inspect", "break_lock", "close", "acquire", "try_acquire", "wait_lost", "extend", "release"}
AWAITED |= {"downgrade", "resize", "guard", "revoke", "wait_revoked", "export", "adopt", "transaction", "deadlocks"}
AWAITED |= {"try_campaign", "leader", "proclaim", "resign", "__next__"}
AWAITED_OF = {  # and those of one class alone
    "Transaction": {"get", "read"},
    "Latch": {"count_down", "count", "wait"},
    "Barrier": {"wait", "abort", "reset", "n_waiting", "is_broken"},
}
OTHER_NAMES = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
OTHER_NAMES |= {"__aiter__": "__iter__", "__anext__": "__next__"}
MADE_BY_THE_LIBRARY = {
    "Grant",
    "RWLock",
    "Locks",
    "Grants",
    "Election",
    "Leadership",
    "Observation",
    "Latch",
    "Barrier",
}
SPECIAL = {"__enter__", "__exit__", "__call__", "__init__", "__repr__", "__iter__", "__next__"}


def public(kind: type) -> dict[str, Any]:
    """What users see of a class, under the names of the side for threads."""
    found = {}
    for name in dir(kind):
        common = OTHER_NAMES.get(name, name)
        if common in SPECIAL or not common.startswith("_"):
            found[common] = inspect.getattr_static(kind, name)
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_both_sides_have_the_same_members(name: str) -> None:
    assert set(public(getattr(lockfast.sync, name))) == set(public(getattr(lockfast.aio, name)))


@pytest.mark.parametrize("name", CLASSES)
def test_both_sides_have_the_same_signatures(name: str) -> None:
    theirs = public(getattr(lockfast.aio, name))
    compared = set()
    for member, mine in public(getattr(lockfast.sync, name)).items():
        other = theirs[member]
        assert type(mine) is type(other), member
        if not inspect.isfunction(mine):
            continue
        mine_signature, other_signature = inspect.signature(mine), inspect.signature(other)
        if name in MADE_BY_THE_LIBRARY and member == "__init__":
            continue  # made by the library only; it is given the driver of its side
        assert mine_signature == other_signature, member
        compared.add(member)
    assert compared >= {"__repr__"}


@pytest.mark.parametrize("name", CLASSES)
def test_what_may_wait_is_awaited_and_nothing_else(name: str) -> None:
    for member, mine in public(getattr(lockfast.sync, name)).items():
        if not inspect.isfunction(mine):
            continue
        other = public(getattr(lockfast.aio, name))[member]
        assert not inspect.iscoroutinefunction(mine)
        expected = member in AWAITED | AWAITED_OF.get(name, set()) | {"__enter__", "__exit__"}
        assert inspect.iscoroutinefunction(other) is expected, member


@pytest.mark.parametrize("name", CLASSES)
def test_everything_public_says_what_it_is(name: str) -> None:
    for module in (lockfast.sync, lockfast.aio):
        kind = getattr(module, name)
        assert kind.__doc__
        for member, value in public(kind).items():
            if member.startswith("__") or member in {"name", "lease", "wait"}:
                continue
            assert inspect.getdoc(value), f"{module.__name__}.{name}.{member}"


def test_modules_offer_the_same_classes() -> None:
    for module in (lockfast.sync, lockfast.aio):
        own = {
            name
            for name, value in [(name, getattr(module, name)) for name in module.__all__]
            if inspect.isclass(value) and value.__module__.startswith(module.__name__) and not name.startswith("_")
        }
        assert own == set(CLASSES)
