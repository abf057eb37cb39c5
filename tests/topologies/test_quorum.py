"""A majority of independent servers: what it does while all of them are well."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from kit.leaks import no_leaks
from kit.quorum import fleet_of
from kit.servers import free_port, wait_until
from kit.sides import AsyncioSide
from lockfast import aio
from lockfast.errors import LeaseLost, Misused, NotAcquired, NotHeld, Refused, Unreachable
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from kit.quorum import Masters
    from kit.servers import Server
    from kit.sides import Side
    from topologies.conftest import Proxied, StartMasters


# Which servers.


def test_lock_is_held_by_a_majority_and_given_back_everywhere(side: Side, five: Masters, name: str) -> None:
    lf, other = side.client(five.urls), side.client(five.urls)
    with lf.lock(name) as grant:
        assert len(grant.nodes) >= 3
        wait_until(lambda: five.holding(name) == [0, 1, 2, 3, 4])
        assert other.lock(name).try_acquire() is None
        assert grant.fence > 0
    five.wait_free(name)
    with other.lock(name) as later:
        assert later.fence > grant.fence
    five.wait_free(name)


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_clients_that_users_have_are_taken_as_servers(side: Side, trio: Masters, name: str, library: str) -> None:
    module = pytest.importorskip(library)
    kind = module.Redis if library == "redis" else module.Valkey
    clients = [kind.from_url(url) for url in trio.urls]
    with side.client([*clients[:2], trio.urls[2]]).lock(name):
        wait_until(lambda: trio.holding(name) == [0, 1, 2])
    trio.wait_free(name)
    for client in clients:
        client.close()


def test_one_text_may_name_them_all(side: Side, trio: Masters, name: str) -> None:
    for text in (",".join(trio.urls), " ".join(trio.urls), ", ".join(trio.urls)):
        with side.client(text).lock(name) as grant:
            assert len(grant.nodes) >= 2
    trio.wait_free(name)


def test_one_server_in_a_list_is_a_plain_client(side: Side, trio: Masters, name: str) -> None:
    lf = side.client([trio.urls[1]])
    with lf.lock(name) as grant:
        assert grant.nodes == ()
        assert trio.holding(name) == [1]
    assert trio.is_free(name)


@pytest.mark.parametrize("make", [Lockfast, aio.Lockfast])
def test_servers_that_cannot_be_a_majority_are_refused_by_name(make: Any, trio: Masters) -> None:
    a, b, c = trio.urls
    for wrong, words in (
        ([], "at least one"),
        ([a, b], "both would have to answer"),
        ([a, b, a], f"{trio[0].port}/0 is named twice"),
        ([a, b, None], "must be named"),
        ([a, b, ""], "must be named"),
        ([a, b, f"{a},{b},{c}"], "name no sentinel, cluster or list"),
        ([a, b, 7], "must be a URL, or a client"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            make(wrong)
    with pytest.raises(ValueError, match="for a majority of several servers"):
        make(a, max_lease=5)
    with pytest.raises(ValueError, match="at least 1 second, got 0"):
        make([a, b, c], max_lease=0.5)
    with pytest.raises(ValueError, match=r"node_timeout must be between 0\.005 and the timeout of 2"):
        make([a, b, c], node_timeout=3)


@pytest.mark.parametrize("make", [Lockfast, aio.Lockfast])
def test_an_even_number_of_servers_is_warned_of_where_it_is_named(make: Any, five: Masters) -> None:
    with pytest.warns(UserWarning, match="4 servers bear no more failures than 3: name an odd number") as caught:
        make(five.urls[:4])
    assert caught[0].filename == __file__


def test_an_even_number_of_servers_needs_more_than_half(side: Side, five: Masters, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lf = side.client(five.urls[:4])
    with lf.lock(name) as grant:
        assert len(grant.nodes) >= 3
    five.wait_free(name)


@pytest.mark.parametrize("twice", ["host", "unix", "db"])
def test_a_server_that_is_named_twice_in_other_words_is_refused(
    side: Side, trio: Masters, name: str, twice: str
) -> None:
    a, b, _ = trio.urls
    again = {
        "host": a.replace("127.0.0.1", "localhost"),
        "unix": trio[0].unix_url,
        "db": a[:-1] + "3",
    }[twice]
    lf = side.client([a, b, again], timeout=5)
    with pytest.raises(Refused, match="one and the same server: it would vote twice") as caught:
        while True:  # the two that are different may be there first, and are a majority
            lf.lock(name).acquire(wait=1).release()
    assert str(trio[0].port) in str(caught.value)
    assert caught.value.code == "SAME"
    trio.wait_free(name)


def test_servers_that_turn_the_client_down_are_told_at_once(side: Side, trio: Masters, name: str) -> None:
    """A wrong password at most of them: to wait would not help. At one of them it is as if that one were down."""
    wrong = [url.replace("redis://", "redis://:nonsense@") for url in trio.urls]
    with pytest.raises(Refused, match=r"too few can; .*: refuses: ") as caught:
        side.client([*wrong[:2], trio.urls[2]]).lock(name).acquire(wait=30)
    assert "nonsense" not in str(caught.value)
    assert caught.value.code
    with side.client([wrong[0], *trio.urls[1:]]).lock(name) as grant:
        assert len(grant.nodes) == 2
    trio.wait_free(name)


def test_a_server_of_a_cluster_is_no_independent_one(side: Side, trio: Masters, fresh_server: Any, name: str) -> None:
    clustered = fresh_server(extra=("--cluster-enabled", "yes", "--cluster-port", str(free_port())))
    with pytest.raises(Unreachable, match="part of a cluster: a quorum is of independent"):
        side.client([trio.urls[0], clustered.url, "redis://127.0.0.1:1"], timeout=0.5).lock(name).acquire(wait=0.2)


def test_a_name_that_is_in_use_as_another_kind_is_refused(side: Side, trio: Masters, name: str) -> None:
    lf = side.client(trio.urls)
    with Book(side, lf, name).read, pytest.raises(Refused, match="in use as a read/write lock"):
        lf.lock(name).acquire(wait=1)
    trio.wait_free(name)


# What can be held.


def test_read_write_locks_work_by_majority(side: Side, five: Masters, name: str) -> None:
    mine, others, thirds = (Book(side, side.client(five.urls), name) for _ in range(3))
    with mine.read, others.read:
        assert thirds.write.try_acquire() is None
    with mine.write as writing:
        assert others.read.try_acquire() is None
        assert others.write.try_acquire() is None
        writing.downgrade()
        with others.read:
            assert thirds.write.try_acquire() is None
    five.wait_free(name)
    with others.write as later:
        assert later.fence > writing.fence
    five.wait_free(name)


class Book:
    """A read/write lock as either side has it: what `rwlock` returns is plain on both, so its locks are wrapped."""

    def __init__(self, side: Side, lf: Lockfast, name: str) -> None:
        wrap = side.wrap if isinstance(side, AsyncioSide) else lambda lock: lock
        self.read: Any = wrap(lf.rwlock(name).read())
        self.write: Any = wrap(lf.rwlock(name).write())


def test_the_same_thread_or_task_may_enter_again(side: Side, trio: Masters, name: str) -> None:
    lf, other = side.client(trio.urls), side.client(trio.urls)
    if isinstance(side, AsyncioSide):

        async def twice() -> None:
            rlock = lf.twin_of.rlock(name)  # type: ignore[attr-defined]
            async with rlock as outer, rlock as inner:
                assert inner.fence == outer.fence

        side.run(twice())
    else:
        with lf.rlock(name) as outer, lf.rlock(name) as inner:
            assert inner.fence == outer.fence
            assert other.rlock(name).try_acquire() is None
    trio.wait_free(name)


def test_several_at_once_are_held_by_majorities_and_all_given_back(side: Side, trio: Masters, name: str) -> None:
    lf, other = side.client(trio.urls), side.client(trio.urls)
    names = [f"{name}-{part}" for part in "abc"]
    with lf.locks(*names):
        for one in names:
            assert other.lock(one).try_acquire() is None
    with other.lock(names[1]):
        with pytest.raises(NotAcquired):
            lf.locks(*names, wait=0.1).acquire()
        for one in (names[0], names[2]):
            trio.wait_free(one)
    for one in names:
        trio.wait_free(one)


def test_a_hold_is_extended_on_all_servers(side: Side, trio: Masters, name: str) -> None:
    lf = side.client(trio.urls)
    grant = lf.lock(name, lease=2, renew=False).acquire()
    grant.extend(20)
    assert 19 < grant.remaining < 20
    wait_until(lambda: all(trio.look(place, name).holders[0].lease_left > 19 for place in range(3)))
    grant.release()
    trio.wait_free(name)


# max_lease.


def test_max_lease_is_stored_and_another_is_refused_by_name(side: Side, trio: Masters, short: str) -> None:
    trio.mark(short)
    first = side.client(trio.urls, prefix=short, max_lease=7)
    with first.lock("x", lease=7):
        pass
    wait_until(lambda: {server.command("GET", f"{short}:quorum") for server in trio} == {b"7000"})
    with pytest.raises(Refused, match=r"keeps max_lease=7 for this quorum, this client has 8") as caught:
        side.client(trio.urls, prefix=short, max_lease=8).lock("x", lease=1).acquire(wait=1)
    assert f"{short}:quorum" in str(caught.value)
    assert caught.value.code == "MAXLEASE"
    takes = side.client(trio.urls, prefix=short)
    with pytest.raises(ValueError, match="8 s together, max_lease of this quorum is 7"):
        takes.lock("x", lease=8).acquire(wait=1)
    with takes.lock("x", lease=7):
        assert fleet_of(takes).max_lease_s == 7
    trio.wait_free("x", short)


def test_longer_leases_are_refused_before_anything_is_sent(side: Side, trio: Masters, short: str) -> None:
    trio.mark(short)
    lf = side.client(trio.urls, prefix=short, max_lease=5)
    with pytest.raises(ValueError, match="6 s together, max_lease of this quorum is 5"):
        lf.lock("x", lease=6).acquire()
    with pytest.raises(ValueError, match=r"6\.5 s together"):
        lf.lock("x", lease=4, grace=2.5).acquire()
    for server in trio:
        assert server.command("EXISTS", f"{short}:{{x}}") == 0
    with lf.lock("x", lease=5) as grant:
        with pytest.raises(ValueError, match="6 s together"):
            grant.extend(6)
        assert 4 < grant.remaining < 5
        assert grant.held
    trio.wait_free("x", short)


@pytest.mark.slow
def test_a_client_that_names_none_does_not_bring_its_own_to_a_server_that_forgot(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """Or one such client would make the quorum useless for all: the others would find two of them stored."""
    masters = start_masters(3)
    for server in masters.servers[:2]:
        server.command("SET", "lockfast:quorum", "1000")
    lf = side.client(masters.urls)
    with lf.lock(name, lease=1, wait=10):
        assert fleet_of(lf).max_lease_s == 1
    wait_until(lambda: masters[2].command("GET", "lockfast:quorum") == b"1000")
    with side.client(masters.urls, max_lease=1).lock(name, lease=1, wait=10):
        pass


# Waiting.


@pytest.mark.slow
def test_waiters_are_let_in_by_push_in_the_order_they_came(side: Side, five: Masters, name: str) -> None:
    lf = side.client(five.urls, node_timeout=1)
    grant = lf.lock(name).acquire()
    order: list[int] = []

    def take(number: int) -> None:
        with lf.lock(name, wait=30):
            order.append(number)

    waiting = []
    for number in range(5):
        waiting.append(side.spawn(take, number))
        five.wait_waiting(name, number + 1)
    assert sorted(five.waiting(name)) == [0, 0, 0, 0, 5], "all of them at one door"
    grant.release()
    for one in waiting:
        one.result()
    assert order == [0, 1, 2, 3, 4]
    five.wait_free(name)


@pytest.mark.slow
def test_those_who_wait_send_nothing_but_heartbeats(side: Side, proxied_five: Proxied, name: str) -> None:
    masters = proxied_five.masters
    waiter, holder = side.client(proxied_five.urls, node_timeout=1), side.client(masters.urls)
    with waiter.lock(f"{name}-warm"):
        wait_until(lambda: all(node.run_id for node in fleet_of(waiter).nodes), what="all are connected")
    grant = holder.lock(name).acquire()

    def take() -> None:
        with waiter.lock(name, wait=30):
            pass

    waiting = [side.spawn(take) for _ in range(10)]
    masters.wait_waiting(name, 10)
    door = masters.waiting(name).index(10)
    others = [proxy for place, proxy in enumerate(proxied_five.proxies) if place != door]
    quiet_for(others, 0.5)
    marks = [len(proxy.requests) for proxy in proxied_five.proxies]
    wait_until(lambda: len(proxied_five.proxies[door].requests) >= marks[door] + 10, what="heartbeats of all")
    seen = [proxy.seen(since=mark) for proxy, mark in zip(proxied_five.proxies, marks, strict=True)]
    assert [len(found) for place, found in enumerate(seen) if place != door] == [0, 0, 0, 0]
    assert {request.command for request in seen[door]} == {"EVALSHA"}
    grant.release()
    for one in waiting:
        one.result()
    masters.wait_free(name)


def quiet_for(proxies: list[Any], seconds: float) -> None:
    """Until these have seen no request for a while."""

    def total() -> int:
        return sum(len(proxy.requests) for proxy in proxies)

    seen = -1
    over = threading.Event()
    while seen != total():
        seen = total()
        over.wait(seconds)


def test_a_wait_that_is_over_leaves_nothing(side: Side, trio: Masters, name: str) -> None:
    lf, other = side.client(trio.urls), side.client(trio.urls)
    with lf.lock(name) as grant:
        with pytest.raises(NotAcquired, match=r"held by others for the 0\.1 s"):
            other.lock(name).acquire(wait=0.1)
        assert other.lock(name).try_acquire() is None
        wait_until(lambda: not any(trio.waiting(name)))
        assert all(trio.look(place, name).holders[0].ticket.startswith(grant.ticket) for place in trio.holding(name))
    trio.wait_free(name)


# All requests first, and a majority is enough.


def test_all_requests_are_written_before_any_reply_is_read(side: Side, proxied_five: Proxied, name: str) -> None:
    lf = side.client(proxied_five.urls, node_timeout=1.5)
    with lf.lock(name):
        pass
    late = [proxy.when("EVALSHA", containing=name).delay_reply() for proxy in proxied_five.proxies]
    waiting = side.spawn(lf.lock(name).acquire, wait=10)
    for rule in late:
        rule.wait_hit()  # each server has run it, and not one reply has been let through
    assert not waiting.done
    for rule in late[1:4]:
        rule.let_go()
    grant = waiting.result()
    assert len(grant.nodes) == 3, "three are enough"
    for rule in late:
        rule.let_go()
    grant.extend()
    wait_until(lambda: len(grant.nodes) == 5, what="they are used again")
    grant.release()
    proxied_five.masters.wait_free(name)


def test_a_late_yes_is_kept(side: Side, proxied_trio: Proxied, name: str) -> None:
    """It counts without being asked for again: with the next thing that is read from there."""
    lf = side.client(proxied_trio.urls, node_timeout=1.5)
    with lf.lock(name):
        pass
    proxied_trio.masters.wait_free(name)
    late = proxied_trio.proxies[2].when("EVALSHA", containing=name).delay_reply()
    grant = lf.lock(name).acquire()
    assert len(grant.nodes) == 2
    late.wait_hit()
    late.let_go()

    def look() -> bool:
        with lf.lock(f"{name}-else"):
            pass
        return len(grant.nodes) == 3

    wait_until(look)
    grant.release()
    proxied_trio.masters.wait_free(name)


# Misuse and endings.


def test_release_twice_and_by_another_thread(side: Side, trio: Masters, name: str) -> None:
    lf = side.client(trio.urls)
    grant = lf.lock(name).acquire()
    side.spawn(grant.release).result()
    with pytest.raises(NotHeld, match="released before"):
        grant.release()
    assert not grant.lost
    trio.wait_free(name)


def test_grants_name_no_servers_once_they_are_over(side: Side, trio: Masters, name: str) -> None:
    grant = side.client(trio.urls).lock(name).acquire()
    assert {trio.at(where.removesuffix("/0")).port for where in grant.nodes} <= {server.port for server in trio}
    grant.release()
    assert grant.nodes == ()


@pytest.mark.slow
def test_threads_and_tasks_share_a_client(side: Side, five: Masters, name: str) -> None:
    lf = side.client(five.urls)
    inside: list[int] = []
    served: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with lf.lock(name, wait=60) as grant:
                inside.append(number)
                assert inside == [number]
                served.append(grant.fence)
                inside.remove(number)

    for one in [side.spawn(work, number) for number in range(8)]:
        one.result()
    assert served == sorted(served)
    assert len(set(served)) == 40
    five.wait_free(name)


def test_close_ends_those_who_wait_and_gives_back_what_is_held(side: Side, trio: Masters, name: str) -> None:
    assert trio.is_free(name)  # the eyes of the test have their connections from here on
    with no_leaks():
        lf = side.client(trio.urls)
        held = lf.lock(name).acquire()
        waiting = side.spawn(lf.lock(name).acquire, wait=30)
        trio.wait_waiting(name, 1)
        lf.close()
        assert isinstance(waiting.error(), Misused)
        trio.wait_free(name)
        with pytest.raises(Misused):
            lf.lock(name).acquire()
        assert not held.held


@pytest.mark.slow
def test_nothing_is_leaked_with_servers_down_and_frozen(side: Side, start_masters: StartMasters, name: str) -> None:
    masters = start_masters(5, appendonly=True)
    masters[1].kill9()
    masters[3].pause()
    with no_leaks(grace_s=4):
        lf = side.client(masters.urls, timeout=0.5, max_lease=60)
        for _ in range(3):
            with lf.lock(name):
                pass
        lf.close()
    masters.heal()
    masters.wait_free(name)


def test_emptied_majority_is_a_loss_at_the_next_renewal(side: Side, start_masters: StartMasters, name: str) -> None:
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls)
    with lf.lock(f"{name}-warm"):
        wait_until(lambda: all(node.run_id for node in fleet_of(lf).nodes), what="all are connected")
    grant = lf.lock(name, lease=30).acquire()
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    empty(masters[0])
    grant.extend()
    assert grant.held, "one of three may forget"
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    empty(masters[1])
    empty(masters[2])
    with pytest.raises(LeaseLost, match="a majority of the servers no longer knows it"):
        grant.extend()
    with pytest.raises(LeaseLost):
        grant.release()
    masters.wait_free(name)


def empty(server: Server) -> None:
    """Its names, as FLUSHALL would; the max_lease stays."""
    for key in server.command("KEYS", "*"):
        if b"quorum" not in key:
            server.command("DEL", key)
