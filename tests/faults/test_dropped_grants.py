"""A grant that nobody has any more is given back soon, whatever went wrong before, and not at a garbage collection."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

import pytest

from kit.servers import wait_until
from kit.small_shapes import SERVICE, OneSentinel
from lockfast.clock import now
from lockfast.errors import LockfastError, NotAcquired, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults.conftest import Eyes
    from kit.proxy import Proxy
    from kit.servers import Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.slow


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: it is the client that forgets or keeps."""
    return "valkey"


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """What is in a cycle stays for the whole test."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture
def lf(side: Side, proxy: Proxy) -> Lockfast:
    """A client that is connected, and loses what the test wants it to."""
    client = side.client(proxy.url, timeout=0.5)
    with client.lock("warm-up"):
        pass
    return client


def is_given_back(lf: Lockfast, name: str, caplog: pytest.LogCaptureFixture) -> None:
    words = f"a grant of {name!r} was dropped without release(); it is being given back"
    wait_until(lambda: words in [record.getMessage() for record in caplog.records], timeout_s=5, what="the warning")
    wait_until(lambda: not lf.inspect(name).holders, timeout_s=5, what="given back")


@pytest.mark.parametrize("fault", ["drop_reply", "drop_reply_and_cut", "swallow_request"])
def test_grant_of_an_acquire_that_lost_a_message(
    proxy: Proxy, lf: Lockfast, eyes: Eyes, name: str, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    lost = getattr(proxy.when("EVALSHA", containing=name), fault)()
    with caplog.at_level(logging.WARNING, "lockfast"):
        grant = lf.lock(name, lease=30).acquire(wait=10)
        assert lost.hits == 1
        assert eyes.holder(name) == grant.ticket
        del grant
        is_given_back(lf, name, caplog)


def test_grant_of_an_acquire_that_was_refused_a_connection(
    proxy: Proxy, side: Side, lf: Lockfast, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuse()
    tries: list[float] = []
    # Asked for a number behind each attempt that failed.
    getattr(lf, "twin_of", lf)._driver.env.jitter = lambda: tries.append(now()) or 0.5  # type: ignore[func-returns-value]
    acquiring = side.spawn(lf.lock(name, lease=30).acquire, wait=10)
    wait_until(lambda: len(tries) > 1, what="refused")
    proxy.accept()
    with caplog.at_level(logging.WARNING, "lockfast"):
        acquiring.result()
        del acquiring
        is_given_back(lf, name, caplog)


def test_grant_of_an_acquire_that_asked_a_sentinel_which_is_down(
    server: Server, side: Side, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with OneSentinel(server) as sentinel, caplog.at_level(logging.WARNING, "lockfast"):
        lf = side.client(f"sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/{SERVICE}")
        lf.lock(name, lease=30).acquire(wait=10)
        is_given_back(lf, name, caplog)
        lf.close()


def test_grant_of_a_function_in_which_another_acquire_failed(
    proxy: Proxy, lf: Lockfast, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def forgets() -> list[type]:
        grant = lf.lock(name, lease=30).acquire()
        failures = [fails(name)]
        proxy.refuse()
        failures.append(fails("other"))
        proxy.accept()
        assert grant.held
        return failures

    def fails(name: str) -> type:
        try:  # not pytest.raises, which keeps the traceback, and by that every frame
            lf.lock(name, lease=30).acquire(wait=0)
        except LockfastError as error:
            return type(error)
        raise AssertionError("it was to fail")

    with caplog.at_level(logging.WARNING, "lockfast"):
        assert forgets() == [NotAcquired, Unreachable]
        is_given_back(lf, name, caplog)
