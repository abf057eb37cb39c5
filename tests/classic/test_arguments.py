"""What recipes and clients refuse, before anything is sent; the list of the rows; and the two sides' signatures."""

from __future__ import annotations

import inspect
import sys
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

import lockfast.classic
from lockfast import classic
from lockfast.classic import aio
from lockfast.classic.client import Client

ROWS = [
    *("optimistic", "setnx", "setnx-expire", "getset", "set-nx-px", "set-nx-px-blind-del", "fine-grained"),
    *("counting-semaphore", "fair-semaphore", "refreshing-semaphore", "race-free-semaphore", "redlock"),
]
OTHER_NAMES = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}


def make(kind: Any, name: Any = "x", **options: Any) -> Any:
    if kind is classic.FineGrainedLock:
        return kind(name, "part", **options)
    if "limit" in kind.__dataclass_fields__:
        return kind(name, options.pop("limit", 1), **options)
    return kind(name, **options)


KINDS = [*classic.ALL.values(), classic.KeyedSemaphore]
OPTIONS = [
    (kind, option)
    for kind in KINDS
    for option in inspect.signature(kind).parameters
    if option in {"acquire_timeout", "lock_timeout", "lease", "timeout", "retry_delay", "node_timeout", "lock_wait"}
]


def test_rows_are_the_twelve() -> None:
    assert list(classic.ALL) == ROWS


def test_all_is_complete_and_sorted() -> None:
    assert lockfast.classic.__all__ == sorted(lockfast.classic.__all__)
    assert {kind.__name__ for kind in classic.ALL.values()} <= set(classic.__all__)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_names(kind: Any) -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        make(kind, "")
    with pytest.raises(TypeError, match="name must be a text, got 7"):
        make(kind, 7)
    with pytest.raises(ValueError, match="UTF-8"):
        make(kind, "\ud800")
    with pytest.raises(TypeError, match="prefix must be a text"):
        make(kind, prefix=None)


@pytest.mark.parametrize(("kind", "option"), OPTIONS)
def test_bad_times(kind: Any, option: str) -> None:
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=option):
            make(kind, **{option: bad})
    for wrong in ("1", None, True, timedelta(seconds=1)):
        with pytest.raises(TypeError, match=f"{option} must be a number of seconds, got"):
            make(kind, **{option: wrong})
    if option not in {"acquire_timeout", "lock_wait"}:
        with pytest.raises(ValueError, match=option):
            make(kind, **{option: 0})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "limit" in inspect.signature(kind).parameters])
def test_bad_limits(kind: Any) -> None:
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"limit must be at least 1, got {bad}"):
            make(kind, limit=bad)
    for wrong in (1.5, "2", True, None):
        with pytest.raises(TypeError, match="limit must be a whole number"):
            make(kind, limit=wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classic.TimeoutLock("x", repair="no"), "repair must be one of 'missing', 'falsy', 'inverted'"),  # type: ignore[arg-type]
        (lambda: classic.TimeoutLock("x", release_by="no"), "release_by must be one of"),  # type: ignore[arg-type]
        (lambda: classic.SetNxPxLock("x", unit="MS"), "unit must be one of"),  # type: ignore[arg-type]
        (lambda: classic.SetNxPxLock("x", only_if="NO"), "only_if must be one of"),  # type: ignore[arg-type]
        (lambda: classic.RaceFreeSemaphore("x", 1, lock="setnx"), "lock must be one of"),  # type: ignore[arg-type]
        (lambda: classic.FineGrainedLock("x", ""), "part must not be empty"),
        (lambda: classic.OptimisticLock("x", ""), "field must not be empty"),
        (lambda: classic.Redlock("x", lease=0.05), "node_timeout must be much shorter than the lease"),
        (lambda: classic.Redlock("x", drift=1), "drift must be"),
        (lambda: classic.Redlock("x", drift=-0.1), "drift must be"),
    ],
)
def test_other_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("client", [Client, aio.Client])
def test_bad_servers(client: Any) -> None:
    with pytest.raises(ValueError, match="the list of servers is empty"):
        client([])
    with pytest.raises(TypeError, match="must name each"):
        client([None])
    with pytest.raises(ValueError, match="redis://a:6379/0 is named twice"):
        client(["redis://a", "redis://b", "redis://a"])
    with pytest.raises(ValueError, match="unknown scheme"):
        client("http://x")
    with pytest.raises(ValueError, match="timeout"):
        client("redis://x", timeout=0)
    assert repr(client(["redis://:secret@a", "redis://b"])) == "<classic.Client redis://a:6379/0, redis://b:6379/0>"


def test_recipes_can_be_shared_and_not_changed() -> None:
    for kind in KINDS:
        recipe = make(kind)
        assert recipe == make(kind)
        assert hash(recipe) == hash(make(kind))
        with pytest.raises(FrozenInstanceError):
            recipe.name = "y"


def public(kind: type) -> dict[str, Any]:
    found = {OTHER_NAMES.get(name, name): inspect.getattr_static(kind, name) for name in vars(kind)}
    own = {"__init__", "__repr__", "__enter__", "__exit__"}
    return {name: value for name, value in found.items() if not name.startswith("_") or name in own}


def test_both_sides_have_the_same_members_signatures_and_words() -> None:
    ours, theirs = public(Client), public(aio.Client)
    assert set(ours) == set(theirs) > {"acquire", "release", "refresh", "update", "hold", "close"}
    for name, mine in ours.items():
        mine_signature, other_signature = inspect.signature(mine), inspect.signature(theirs[name])
        assert list(mine_signature.parameters.values()) == list(other_signature.parameters.values()), name
        if name != "hold":
            assert mine_signature == other_signature, name
            awaited = name not in {"__init__", "__repr__"}
            assert inspect.iscoroutinefunction(theirs[name]) is awaited, name
        if not name.startswith("__"):
            doc = inspect.getdoc(theirs[name]) or ""
            assert doc.replace("async with", "with") == inspect.getdoc(mine) != "", name


def test_everything_public_says_what_it_is() -> None:
    for name in classic.__all__:
        value = getattr(classic, name)
        if not isinstance(value, type):
            continue
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}("), name
        for member in ("acquire", "release", "refresh", "update"):
            if hasattr(value, member):
                assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"


@pytest.mark.parametrize("kind", KINDS)
def test_head_of_every_recipe_says_where_it_is_from_what_it_promises_and_how_it_breaks(kind: type) -> None:
    head = sys.modules[kind.__module__].__doc__ or ""
    for word in ("From: ", "Promises: ", "Breaks: "):
        assert f"\n{word}" in head, kind.__name__
