"""What the drop-ins are made of: the wrong client or name is refused in the constructor, in words that help."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

import lockfast.compat.aio
from lockfast import Lockfast, compat
from lockfast.aio import Lockfast as AsyncioLockfast
from lockfast.compat import tasks, threads

if TYPE_CHECKING:
    from kit.servers import Server

KINDS = ["Lock", "RLock", "Semaphore", "BoundedSemaphore", "Barrier"]


def more(kind: str) -> list[int]:
    return [2] if kind == "Barrier" else []


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_of_threading_refuse_a_client_for_asyncio(valkey_server: Server, name: str, kind: str) -> None:
    """Its `acquire` would be true without having locked anything."""

    async def main() -> None:
        async with AsyncioLockfast(valkey_server.url) as alf:
            words = f"^threads.{kind} wants a lockfast.Lockfast, got lockfast.aio.Lockfast: use compat.tasks$"
            with pytest.raises(TypeError, match=words):
                getattr(threads, kind)(alf, name, *more(kind))

    asyncio.run(main())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "RLock"])
def test_shapes_of_asyncio_refuse_a_client_for_threads(valkey_server: Server, name: str, kind: str) -> None:
    words = f"^tasks.{kind} wants a lockfast.aio.Lockfast, got lockfast.Lockfast: use compat.threads$"
    with Lockfast(valkey_server.url) as lf, pytest.raises(TypeError, match=words):
        getattr(tasks, kind)(lf, name, *more(kind))


@pytest.mark.parametrize("module", [threads, tasks], ids=["threads", "tasks"])
@pytest.mark.parametrize("kind", ["Lock", "Semaphore", "Barrier"])
def test_swapped_arguments_are_told(valkey_server: Server, name: str, module: Any, kind: str) -> None:
    with Lockfast(valkey_server.url) as lf, pytest.raises(TypeError, match="got a str: the client comes first"):
        getattr(module, kind)(name, lf, *more(kind))


@pytest.mark.parametrize("kind", [compat.Lock, lockfast.compat.aio.Lock], ids=["threads", "asyncio"])
def test_lock_of_redis_py_refuses_what_is_no_client(valkey_server: Server, name: str, kind: Any) -> None:
    with pytest.raises(TypeError, match=r"^Lock wants a redis-py or valkey-py client, got a str$"):
        kind(valkey_server.url, name)
    with Lockfast(valkey_server.url) as lf, pytest.raises(TypeError, match=r"got lockfast\.Lockfast$"):
        kind(lf, name)


@pytest.mark.parametrize("kind", [compat.Lock, lockfast.compat.aio.Lock], ids=["threads", "asyncio"])
def test_missing_argument_is_told_in_the_name_of_the_class(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"^Lock\.__init__\(\) missing 1 required positional argument: 'name'$"):
        kind("x")
    assert list(inspect.signature(kind).parameters)[:2] == ["redis", "name"]


def test_lock_of_redis_py_takes_whole_numbers_as_names_and_refuses_other_things(valkey_server: Server) -> None:
    client = redis.Redis.from_url(valkey_server.url)
    lock = compat.Lock(client, 5)
    assert lock.acquire(blocking=False)
    assert not compat.Lock(client, "5").acquire(blocking=False)
    lock.release()
    wrong: Any
    for wrong in (None, True, 1.5, ["x"]):
        with pytest.raises(TypeError, match="name of a lock is str, bytes or int, got"):
            compat.Lock(client, wrong)
    compat.close(client)
    client.close()
