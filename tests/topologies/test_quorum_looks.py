"""Looking at the names of a quorum: every server that answers is asked, and a majority has to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import Misused, Refused, Unreachable

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.sides import Side
    from topologies.conftest import Proxied


def with_wrong_password(url: str) -> str:
    return url.replace("redis://", "redis://:nonsense@")


def test_a_server_that_refuses_is_borne_as_one_that_is_down(side: Side, trio: Masters, name: str) -> None:
    with side.client(trio.urls).lock(name):
        looker = side.client([with_wrong_password(trio.urls[0]), *trio.urls[1:]])
        assert (name,) in looker.names()
        assert looker.inspect(name).holders
    trio.wait_free(name)


def test_servers_that_refuse_and_are_too_many_are_all_named(side: Side, trio: Masters, name: str) -> None:
    wrong = [with_wrong_password(url) for url in trio.urls]
    looker = side.client([*wrong[:2], trio.urls[2]])
    for look in (looker.names, lambda: looker.inspect(name)):
        with pytest.raises(Refused, match="2 of 3 servers have to answer, too few do; ") as caught:
            look()
        said = str(caught.value)
        assert caught.value.code == "ERR", "no password is set there"
        assert f":{trio[0].port}/0: " in said
        assert f":{trio[1].port}/0: " in said
        assert f":{trio[2].port}/0: " not in said
        assert "nonsense" not in said


def test_servers_that_hang_hold_up_no_majority_that_answers(side: Side, five: Masters, name: str) -> None:
    lf = side.client(five.urls, timeout=30.0)
    with lf.lock(name):
        five[0].pause()
        five[1].pause()
        began = now()
        assert lf.inspect(name).holders
        assert (name,) in lf.names()
        assert now() - began < 10, "not until the time-out"
        five.heal()
    five.wait_free(name)


def test_who_answers_a_moment_later_than_a_majority_is_heard_too(side: Side, proxied_trio: Proxied, name: str) -> None:
    masters = proxied_trio.masters
    with side.client(masters.urls[2]).lock(name, wait=0):  # known to one server only
        proxied_trio.proxies[2].when(times=None).delay_reply(0.02)
        looker = side.client(proxied_trio.urls, timeout=20.0, node_timeout=20.0)
        assert looker.inspect(name).holders
        assert (name,) in looker.names()


def test_a_server_that_is_down_holds_up_no_majority_that_answers(side: Side, proxied_trio: Proxied, name: str) -> None:
    proxied_trio.proxies[1].refuse()
    with side.client(proxied_trio.masters.urls[0]).lock(name, wait=0):
        looker = side.client(proxied_trio.urls, timeout=20.0, node_timeout=20.0)
        began = now()
        assert looker.inspect(name).holders
        assert (name,) in looker.names()
        assert now() - began < 5, "it is not tried again and again"


@pytest.mark.slow
def test_a_majority_that_is_down_is_waited_for_within_the_timeout(side: Side, proxied_trio: Proxied, name: str) -> None:
    with side.client(proxied_trio.masters.urls[0]).lock(name, wait=0):
        looker = side.client(proxied_trio.urls, timeout=20.0, node_timeout=20.0)
        cut = [proxy.when(times=None).cut_request() for proxy in proxied_trio.proxies[1:]]
        looking = side.spawn(looker.inspect, name)
        wait_until(lambda: all(each.hits > 3 for each in cut), what="asked several times, in vain")
        assert not looking.done
        for each in cut:
            each.cancel()
        assert looking.result().holders


@pytest.mark.slow
def test_servers_that_hang_and_are_too_many_are_waited_for_at_the_same_time(
    side: Side, five: Masters, name: str
) -> None:
    lf = side.client(five.urls, timeout=1.0)
    for place in range(3):
        five[place].pause()
    began = now()
    with pytest.raises(Unreachable, match="3 of 5 servers have to answer") as caught:
        lf.names()
    assert now() - began < 1.9
    for place in range(3):
        assert f":{five[place].port}/0: " in str(caught.value)
    five.heal()


def test_a_closed_client_looks_at_nothing(side: Side, trio: Masters, name: str) -> None:
    lf = side.client(trio.urls)
    lf.close()
    with pytest.raises(Misused, match="this client is closed"):
        lf.names()
    with pytest.raises(Misused, match="this client is closed"):
        lf.inspect(name)
