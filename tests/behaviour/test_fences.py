"""Fences only grow, whatever becomes of the server, and leave nothing behind in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from behaviour.queueing import wait_over, waiting

if TYPE_CHECKING:
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

DAY_S = 86400


def one_fence(lf: Lockfast, name: str) -> int:
    with lf.lock(name, wait=10) as grant:
        return grant.fence


def growing(fences: list[int]) -> bool:
    return fences == sorted(set(fences))


def test_grow_from_grant_to_grant_and_from_client_to_client(lf: Lockfast, other: Lockfast, name: str) -> None:
    assert growing([one_fence(client, name) for client in (lf, other, lf, lf, other)])


def test_grow_through_a_hand_over_and_an_ended_lease(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    first = lf.lock(name, lease=0.1, renew=False).acquire()
    wait_over(first)
    second = lf.lock(name, wait=5).acquire()
    spawned = waiting(side, lf, other.lock(name), name)
    second.release()
    third = spawned.result()
    third.release()
    assert growing([first.fence, second.fence, third.fence, one_fence(lf, name)])


def test_grow_across_flushall(server: Server, lf: Lockfast, other: Lockfast, name: str) -> None:
    fences = []
    for client in (lf, other, lf, other):
        fences.append(one_fence(client, name))
        server.command("FLUSHALL")
    assert growing(fences)


def test_grow_across_a_server_that_restarts_empty(
    side: Side, fresh_server: FreshServer, server_kind: Kind, name: str
) -> None:
    server = fresh_server(server_kind)
    old = side.client(server.url)
    first = one_fence(old, name)
    server.restart(keep=False)
    second = one_fence(old, name)
    server.restart(keep=False)
    assert growing([first, second, one_fence(side.client(server.url), name), one_fence(old, name)])


@pytest.mark.needs_faketime
def test_grow_for_a_client_that_saw_them_although_clock_and_memory_of_the_server_went_back(
    side: Side, faketime_server: Server, name: str
) -> None:
    lf = side.client(faketime_server.url)
    first = one_fence(lf, name)
    faketime_server.clock_shift(-3600)
    faketime_server.command("FLUSHALL")
    second = one_fence(lf, name)
    third = one_fence(side.client(faketime_server.url), name)
    assert growing([first, second, third])


@pytest.mark.needs_faketime
def test_grow_although_the_clock_of_the_server_goes_back(side: Side, faketime_server: Server, name: str) -> None:
    first = one_fence(side.client(faketime_server.url), name)
    faketime_server.clock_shift(-3600)
    second = one_fence(side.client(faketime_server.url), name)
    assert growing([first, second])


@pytest.mark.needs_faketime
def test_are_forgotten_after_a_day_and_still_grow(side: Side, faketime_server: Server, name: str) -> None:
    lf = side.client(faketime_server.url)
    for i in range(50):
        one_fence(lf, f"{name}-{i}")
    first = one_fence(lf, name)
    assert faketime_server.command("DBSIZE") == 51
    faketime_server.clock_shift(2 * DAY_S)
    assert faketime_server.command("EXISTS", f"lockfast:{{{name}}}") == 0
    assert growing([first, one_fence(side.client(faketime_server.url), name)])


def test_names_used_once_leave_one_key_each_and_that_for_a_day(server: Server, lf: Lockfast, name: str) -> None:
    for i in range(100):
        one_fence(lf, f"{name}-{i}")
    keys = server.command("KEYS", "*")
    assert len(keys) == 100
    assert all(0 < server.command("TTL", key) <= DAY_S + 30 for key in keys)


def test_contended_name_leaves_nothing_but_its_fence(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    first = lf.lock(name).acquire()
    spawned = waiting(side, lf, other.lock(name), name)
    first.release()
    spawned.result().release()
    assert server.command("KEYS", "*") == [f"lockfast:{{{name}}}".encode()]
