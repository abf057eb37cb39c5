"""A server of a quorum that restarts without its memory: its votes do not count before all old leases have ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost, NotAcquired, Unreachable
from topologies.conftest import Proxied

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import Server
    from kit.sides import Side
    from topologies.conftest import StartMasters

pytestmark = pytest.mark.slow


def restart_empty(server: Server) -> None:
    """It comes back without its memory, and without what would show that it kept one."""
    server.restart("--appendonly", "no", keep=False)


def lose_disk(server: Server) -> None:
    """It comes back on a new disk, with the same settings."""
    server.restart(keep=False)


@pytest.mark.parametrize("forget", [restart_empty, lose_disk])
@pytest.mark.parametrize("who", ["was there before", "came after the restart"])
def test_a_server_that_restarts_empty_inside_a_lease_gives_nobody_a_second_hold(
    side: Side, start_masters: StartMasters, name: str, who: str, forget: Callable[[Server], None]
) -> None:
    """The story of three servers: A has 0 and 1, since 2 was down; 1 forgets; B would have 1 and 2."""
    masters = start_masters(3, appendonly=True)
    first, second = (side.client(masters.urls, node_timeout=1) for _ in range(2))  # a busy machine is no silence
    with second.lock(f"{name}-warm"):
        pass
    masters[2].kill9()
    grant = first.lock(name, lease=30).acquire()
    assert masters.holding(name) == [0, 1]
    masters[2].start()
    forget(masters[1])
    assert masters.holding(name) == [0]
    other = second if who == "was there before" else side.client(masters.urls, node_timeout=1)
    assert other.lock(name).try_acquire() is None
    with pytest.raises(NotAcquired):
        other.lock(name).acquire(wait=0.3)
    grant.extend()
    assert grant.held, "0 still knows it, and 2 has voted now"
    wait_until(lambda: 2 in masters.holding(name))
    grant.release()
    with other.lock(name, wait=5) as later:
        assert later.fence > grant.fence
        assert f":{masters[1].port}/" not in "".join(later.nodes), "it is not counted"


def test_an_append_only_file_that_is_switched_on_after_a_restart_does_not_end_the_wait(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """Whoever follows the doctor's advice just then must not have two holders for it."""
    masters = start_masters(3, appendonly=True)
    grant = side.client(masters.urls).lock(name, lease=30).acquire()
    for server in (masters[0], masters[1]):
        restart_empty(server)
        server.command("CONFIG", "SET", "appendonly", "yes")
        server.command("CONFIG", "SET", "appendfsync", "always")
    wait_until(lambda: all(server.info("persistence")["aof_rewrite_in_progress"] == "0" for server in masters))
    with pytest.raises(Unreachable, match="started less than max_lease"):
        side.client(masters.urls).lock(name).try_acquire()
    assert grant.held


def test_fsync_that_is_set_to_always_after_a_crash_does_not_end_the_wait(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """Its append-only file was there all the time, and may have missed the last votes."""
    masters = start_masters(3, appendonly=True)
    for server in masters:
        server.command("CONFIG", "SET", "appendfsync", "no")  # kill -9 loses nothing then, so that this test is steady
        server.command("SET", "lockfast:quorum", 1000)
    with side.client(masters.urls).lock(name, lease=1, wait=20):
        pass  # who came has seen that their writes may get lost
    wait_until(lambda: {server.command("GET", "lockfast:quorum:run") for server in masters} == {b""})
    for server in masters:
        server.command("SET", "lockfast:quorum", 60_000)
    for server in (masters[0], masters[1]):
        server.kill9()
        server.start()
    with pytest.raises(Unreachable, match="started less than max_lease"):
        side.client(masters.urls).lock(name).try_acquire()


def test_servers_that_keep_their_memory_wait_once_and_not_after_a_restart(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    masters = start_masters(3, appendonly=True)
    for server in masters:
        server.command("DEL", "lockfast:quorum:run")
    lf = side.client(masters.urls, max_lease=40)
    with pytest.raises(Unreachable, match="started less than max_lease"):
        lf.lock(name).try_acquire()
    marks = [server.command("GET", "lockfast:quorum:run") for server in masters]
    assert all(marks)
    for server, mark in zip(masters, marks, strict=True):
        server.command("SET", "lockfast:quorum:run", mark.split()[0] + b" 0")  # as if that time had passed
        server.kill9()
        server.start()
    with side.client(masters.urls).lock(name, wait=0):
        pass


def test_a_restart_inside_the_first_wait_does_not_end_it(side: Side, start_masters: StartMasters, name: str) -> None:
    """The run before had not counted yet, and this one knows no more than that."""
    masters = start_masters(3, appendonly=True)
    for server in masters:
        server.command("DEL", "lockfast:quorum:run")
    for _ in range(2):
        with pytest.raises(Unreachable, match="started less than max_lease"):
            side.client(masters.urls, max_lease=40).lock(name).try_acquire()
        wait_until(lambda: all(server.command("GET", "lockfast:quorum:run") for server in masters))
        for server in masters:
            server.kill9()
            server.start()
    with pytest.raises(Unreachable, match="started less than max_lease"):
        side.client(masters.urls, max_lease=40).lock(name).try_acquire()


def test_what_is_said_when_too_few_count_tells_how_long_it_takes(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls, max_lease=40)
    with lf.lock(name):
        pass
    masters[0].kill9()
    restart_empty(masters[1])
    for client in (lf, side.client(masters.urls)):
        for wait in (0, 0.2):
            began = now()
            with pytest.raises(Unreachable) as caught:
                client.lock(name).acquire(wait=wait)
            assert now() - began < 4
        said = str(caught.value)
        found = re.search(rf":{masters[1].port}/0: started less than max_lease \(40 s\) ago.* another ([\d.]+) s", said)
        assert found, said
        assert 30 < float(found[1]) < 42
        assert f":{masters[0].port}/0: " in said
        assert f":{masters[2].port}/0: " not in said
    assert masters.holding(name) == []


def test_a_server_that_kept_its_memory_counts_at_once_and_has_kept_its_vote(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    masters = start_masters(3, appendonly=True)
    lf, other = side.client(masters.urls, max_lease=60), side.client(masters.urls)
    masters[2].kill9()
    grant = lf.lock(name, lease=30).acquire()
    for place in (0, 1):
        masters[place].kill9()
        masters[place].start()
    masters[2].start()
    assert masters.holding(name) == [0, 1]
    for client in (other, side.client(masters.urls)):
        assert client.lock(name).try_acquire() is None
    grant.extend()
    assert grant.held
    grant.release()
    with side.client(masters.urls).lock(name, wait=5) as later:
        assert later.fence > grant.fence


def test_who_does_not_wait_still_meets_the_servers_that_are_slow_to_introduce_themselves(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    """Of three one is not counted: the third makes a majority, if it is given the time to say who it is."""
    masters = start_masters(3, appendonly=True)
    proxied = Proxied(masters)
    lose_disk(masters[1])
    late = proxied.proxies[2].when("INFO").delay_reply(0.3)
    with side.client(proxied.urls) as lf, lf.lock(name, wait=0) as grant:
        late.wait_hit()
        assert len(grant.nodes) == 2
    masters.wait_free(name)
    proxied.close()


def test_who_waits_waits_until_new_servers_count(side: Side, start_masters: StartMasters, name: str) -> None:
    started = now()
    masters = start_masters(3)
    lf = side.client(masters.urls, max_lease=1)
    with pytest.raises(Unreachable, match="is not counted for another"):
        lf.lock(name, lease=1).acquire(wait=0)
    with lf.lock(name, lease=1, wait=20):
        assert 1 < now() - started < 6
    masters.wait_free(name)


def test_who_waits_for_one_to_count_takes_another_that_comes_back_sooner(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls)
    with lf.lock(name):
        pass
    masters.wait_free(name)
    masters[0].kill9()
    restart_empty(masters[1])
    waiting = side.spawn(lf.lock(name).acquire, wait=50)
    wait_until(lambda: fleet_of(lf).counts_at() < float("inf"))
    masters[0].start()
    began = now()
    waiting.result().release()
    assert now() - began < 10


def test_a_majority_that_restarted_empty_is_a_loss_at_the_next_renewal(
    side: Side, start_masters: StartMasters, name: str
) -> None:
    masters = start_masters(3, appendonly=True)
    lf = side.client(masters.urls, timeout=10)  # time to connect anew, on a busy machine too
    with lf.lock(f"{name}-warm"):
        wait_until(lambda: all(node.run_id for node in fleet_of(lf).nodes))
    grant = lf.lock(name, lease=30).acquire()
    wait_until(lambda: masters.holding(name) == [0, 1, 2])
    for place in (0, 2):
        restart_empty(masters[place])
    with pytest.raises(LeaseLost, match="a majority of the servers no longer knows it"):
        grant.extend()
    with pytest.raises(LeaseLost):
        grant.release()
