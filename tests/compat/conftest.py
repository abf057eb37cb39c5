"""redis-py's own Lock and ours, behind one face: the same test runs on both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.lock import Lock as RedisAsyncioLock
from redis.lock import Lock as RedisLock

import lockfast.compat
import lockfast.compat.aio
from kit.sides import AsyncioSide
from lockfast import Lockfast
from lockfast.compat import shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.proxy import Proxy, ProxyFor
    from kit.servers import Server
    from kit.sides import Side


class Locks:
    """Makes locks of one implementation, on one side, and meddles with them."""

    def __init__(self, implementation: str, side: Side, server: Server, url: str = "") -> None:
        self.is_ours = implementation == "lockfast"
        self._url = url or server.url
        self.side = side
        self.server = server
        self._spy = Lockfast(server.url)
        self.client: Any = self._in_loop(self._make_client)

    def _make_client(self) -> Any:
        kind = redis.asyncio.Redis if isinstance(self.side, AsyncioSide) else redis.Redis
        return kind.from_url(self._url)

    def __call__(self, name: str, **options: Any) -> Any:
        """A lock, with the blocking face of `kit.sides` if it is one for asyncio."""
        on_asyncio = isinstance(self.side, AsyncioSide)
        kinds = {
            (True, False): lockfast.compat.Lock,
            (True, True): lockfast.compat.aio.Lock,
            (False, False): RedisLock,
            (False, True): RedisAsyncioLock,
        }
        kind: Any = kinds[self.is_ours, on_asyncio]
        made = self._in_loop(lambda: kind(self.client, name, **options))
        return self.side.wrap(made) if isinstance(self.side, AsyncioSide) else made

    def token(self, lock: Any) -> Any:
        """`lock.local.token`, read where the lock lives."""
        return self._in_loop(lambda: getattr(lock, "twin_of", lock).local.token)

    def set_token(self, lock: Any, token: bytes | None) -> None:
        self._in_loop(lambda: setattr(getattr(lock, "twin_of", lock).local, "token", token))

    def steal(self, name: str) -> None:
        """Take the lock away from its holder, as an operator does."""
        if self.is_ours:
            self._spy.break_lock(name, reason="a test")
        else:
            self.server.command("DEL", name)

    def left_s(self, name: str) -> float:
        """How long the server would still keep the lock."""
        if self.is_ours:
            return max([holder.lease_left for holder in self._spy.inspect(name).holders], default=0.0)
        left_ms: int = self.server.command("PTTL", name)
        return left_ms / 1000

    def close(self) -> None:
        self._spy.close()
        if isinstance(self.side, AsyncioSide):
            self.side.run(lockfast.compat.aio.aclose(self.client))
            self.side.run(self.client.aclose())
        else:
            lockfast.compat.close(self.client)
            self.client.close()

    def _in_loop(self, function: Any) -> Any:
        if not isinstance(self.side, AsyncioSide):
            return function()

        async def call() -> Any:
            await asyncio.sleep(0)
            return function()

        return self.side.run(call())


@pytest.fixture(params=["lockfast", "redis-py"])
def implementation(request: pytest.FixtureRequest) -> str:
    made: str = request.param
    return made


@pytest.fixture
def locks(implementation: str, side: Side, server: Server) -> Iterator[Locks]:
    """Makes locks: `locks(name, timeout=10)`. The test runs on both implementations, both sides, both servers."""
    made = Locks(implementation, side, server)
    yield made
    made.close()


@pytest.fixture
def ours(side: Side, valkey_server: Server) -> Iterator[Locks]:
    """Makes locks of ours alone, on both sides: for what is different on purpose."""
    made = Locks("lockfast", side, valkey_server)
    yield made
    made.close()


@pytest.fixture
def proxied(
    side: Side, valkey_server: Server, proxy_for: ProxyFor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Locks, Proxy]]:
    """The same, with a proxy between, and less patience with it."""
    monkeypatch.setattr(shape, "TIMEOUT_S", 0.3)
    proxy = proxy_for(valkey_server)
    made = Locks("lockfast", side, valkey_server, proxy.url)
    yield made, proxy
    proxy.heal()
    made.close()
