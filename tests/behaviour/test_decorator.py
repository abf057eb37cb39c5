"""A lock as a decorator: held around every call, on a name made from the arguments."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import holder
from lockfast import Lockfast as SyncLockfast
from lockfast import NotAcquired
from lockfast.aio import Lockfast as AsyncioLockfast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kit.servers import Server
    from kit.sides import AsyncioSide
    from lockfast.sync import Lockfast


def test_lock_is_held_around_the_call_and_only_then(lf: Lockfast, other: Lockfast, name: str) -> None:
    def work(value: int, *, twice: bool = False) -> int:
        """Doubles, perhaps."""
        assert holder(other, name)
        return value * 2 if twice else value

    locked = lf.lock(name)(work)
    assert locked(21, twice=True) == 42
    assert locked(7) == 7
    assert holder(other, name) is None
    assert (locked.__name__, locked.__doc__) == ("work", "Doubles, perhaps.")


def test_name_is_made_from_the_arguments(lf: Lockfast, other: Lockfast, name: str) -> None:
    held: list[list[tuple[str, ...]]] = []

    def work(order: int, item: str = "none", *more: int, **options: str) -> None:
        held.append(other.names())

    locked = lf.lock(name, "order:{order}", "{item}", 7)(work)
    locked(42)
    locked(order=43, item="pen")
    locked(44, "a|b", 1, 2, colour="red")
    assert held == [
        [(name, "order:42", "none", "7")],
        [(name, "order:43", "pen", "7")],
        [(name, "order:44", "a|b", "7")],
    ]


def test_template_reaches_into_arguments_and_formats_them(lf: Lockfast, other: Lockfast, name: str) -> None:
    class Order:
        number = 42

    def work(order: Order, amounts: list[float], **options: str) -> list[tuple[str, ...]]:
        return other.names()

    template = name + "-{order.number:05d}-{amounts[1]:.1f}-{{x}}"
    assert lf.lock(template)(work)(Order(), [1.0, 2.25]) == [(name + "-00042-2.2-{x}",)]


def test_calls_with_different_names_do_not_wait_for_each_other(lf: Lockfast, name: str) -> None:
    def work(key: str) -> str:
        if key == "a":
            return locked("b")
        return "inner"

    locked = lf.lock(name, "{key}", wait=0)(work)
    assert locked("a") == "inner"
    with pytest.raises(NotAcquired):
        locked_self("c", lf, name)


def locked_self(key: str, lf: Lockfast, name: str) -> None:
    def work(key: str) -> None:
        lf.lock(name, "{key}", wait=0)(work)(key)

    lf.lock(name, "{key}", wait=0)(work)(key)


def test_methods_can_be_decorated_and_named_by_their_object(lf: Lockfast, other: Lockfast, name: str) -> None:
    def work(self: Any, value: int) -> list[tuple[str, ...]]:
        return other.names()

    class Shop:
        ident = "s1"
        sell = lf.lock(name, "{self.ident}")(work)

    assert Shop().sell(1) == [(name, "s1")]


def test_busy_name_keeps_the_function_from_being_called(lf: Lockfast, other: Lockfast, name: str) -> None:
    calls: list[int] = []
    locked = lf.lock(name, wait=0)(calls.append)
    with other.lock(name), pytest.raises(NotAcquired):
        locked(1)
    assert calls == []


def test_error_of_the_function_comes_out_and_the_lock_is_free(lf: Lockfast, name: str) -> None:
    def work() -> None:
        raise LookupError("own")

    with pytest.raises(LookupError, match="own"):
        lf.lock(name)(work)()
    assert holder(lf, name) is None


@pytest.mark.parametrize("template", ["{missing}", "x{missing.attribute}", "{missing[0]}", "{}", "{0}", "half{", "}x"])
@pytest.mark.parametrize("client", [SyncLockfast, AsyncioLockfast])
def test_template_that_fits_no_parameter_is_refused_at_decoration(client: Any, template: str) -> None:
    def work(order: int) -> None: ...

    async def awork(order: int) -> None: ...

    with pytest.raises(ValueError):
        client("redis://localhost").lock(template)(work if client is SyncLockfast else awork)


def test_template_is_a_plain_name_outside_of_decoration(lf: Lockfast) -> None:
    with lf.lock("{order}") as grant:
        assert grant.name == "{order}"
        assert lf.names() == [("{order}",)]


def plain(order: int = 1) -> None: ...


async def coroutine(order: int = 1) -> None: ...


def generator(order: int = 1) -> Iterator[int]:
    yield order


async def async_generator(order: int = 1) -> AsyncIterator[int]:
    yield order


@pytest.mark.parametrize("function", [coroutine, async_generator, generator])
def test_threads_side_refuses_functions_whose_body_would_run_without_the_lock(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        SyncLockfast("redis://localhost").lock("x")(function)


@pytest.mark.parametrize("function", [plain, async_generator, generator])
def test_asyncio_side_refuses_functions_whose_body_would_run_without_the_lock(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        AsyncioLockfast("redis://localhost").lock("x")(function)


def test_async_function_stays_one(aside: AsyncioSide, server: Server, name: str) -> None:
    async def run() -> list[tuple[str, ...]]:
        async with AsyncioLockfast(server.url) as lf:

            @lf.lock(name, "{order}")
            async def work(order: int) -> list[tuple[str, ...]]:
                return await lf.names()

            assert inspect.iscoroutinefunction(work)
            return await work(order=5)

    assert aside.run(run()) == [(name, "5")]
