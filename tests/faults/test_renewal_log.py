"""Renewals that fail for a while are logged once, and once more when they work again, however often they were tried."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from kit.proxy import Proxy
from kit.quorum import Masters
from kit.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import Server
    from kit.sides import Side

pytestmark = pytest.mark.slow


@pytest.fixture(params=["one server", "majority"])
def proxies(request: pytest.FixtureRequest, valkey_server: Server) -> Iterator[list[Proxy]]:
    if request.param == "one server":
        proxies = [Proxy(valkey_server)]
        yield proxies
    else:
        with Masters(3, appendonly=True) as masters:
            proxies = [Proxy(server) for server in masters]
            yield proxies
    for proxy in proxies:
        proxy.close()


def test_an_outage_is_logged_once_and_its_end_once(
    side: Side, proxies: list[Proxy], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(words: str) -> int:
        return len([record for record in caplog.records if words in record.getMessage()])

    urls = [proxy.url for proxy in proxies]
    with (
        caplog.at_level(logging.INFO, "lockfast"),
        side.client(urls if len(urls) > 1 else urls[0], timeout=0.5) as lf,
        lf.lock(name, lease=1.5) as grant,
    ):
        hold = getattr(grant, "twin_of", grant)._hold
        for outage in (1, 2):
            for proxy in proxies:
                proxy.refuse()
            tries: set[float] = set()
            wait_until(lambda outage=outage: logged("failed, ") == outage, timeout_s=5)  # type: ignore[misc]
            wait_until(lambda tries=tries: len(tries | {hold.renew_at}) > 2 or tries.add(hold.renew_at))  # type: ignore[misc]
            for proxy in proxies:
                proxy.accept()
            wait_until(lambda outage=outage: logged("works again") == outage, timeout_s=5)  # type: ignore[misc]
            assert logged("failed, ") == outage
        assert logged(f"renewal of {name!r} failed, ") == 2
        grant.check()


def test_first_word_of_an_outage_says_who_does_not_answer(
    side: Side, proxies: list[Proxy], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def failures() -> list[str]:
        return [record.getMessage() for record in caplog.records if "failed, " in record.getMessage()]

    urls = [proxy.url for proxy in proxies]
    with (
        caplog.at_level(logging.INFO, "lockfast"),
        side.client(urls if len(urls) > 1 else urls[0], timeout=0.5) as lf,
        lf.lock(name, lease=3, cancel_on_loss=False) as grant,
    ):
        for proxy in proxies:
            proxy.blackhole()
        wait_until(failures, timeout_s=5)
        for proxy in proxies:
            assert f":{proxy.port}/0: does not answer" in failures()[0] or len(proxies) == 1
            assert f":{proxy.port}/0" in failures()[0]
            proxy.heal()
        wait_until(lambda: grant.remaining > 2.5, what="renewed again")
