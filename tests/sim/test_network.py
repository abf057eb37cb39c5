"""Connections: ordered, and broken in all the ways of TCP. A counter on the server tells what has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lockfast.errors import Unreachable
from lockfast.flows.plain import Pipeline
from lockfast.sim.driving import Run, Work
from lockfast.sim.faults import Counted, Fault
from lockfast.sim.net import KEEP_ALIVE_S, Connection
from lockfast.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.sim.client import Client
    from lockfast.sim.node import Node
    from lockfast.sim.tasks import Task

    Body = Generator[Any, Any, Any]

DIAL, FIRST = 1, 2  # which message of a client is which: the first one connects


class Place:
    """One server, one client, and what the client's requests came to."""

    def __init__(self, *faults: Fault, seed: int = 1) -> None:
        self.world = World(seed)
        self.node: Node = self.world.add_server("s1")
        self.client: Client = self.world.add_client("a", [self.node])
        self.client.faults = Counted(faults)

    def ask(self, *commands: tuple[str, ...], within_s: float = 1.0, at: float = 0.0) -> Task:
        def body(client: Client) -> Body:
            yield Work(at)
            return (yield Run(_send(client, list(commands), within_s)))

        return self.client.start(body)

    def stored(self, key: str) -> bytes | None:
        return self.node.server.store.string(key.encode())


def _send(client: Client, commands: list[tuple[str, ...]], within_s: float) -> Body:
    return (yield Pipeline(list(commands), client.now() + within_s))


COUNT = ("INCR", "n")


def test_a_request_runs_and_its_reply_comes_back() -> None:
    place = Place()
    task = place.ask(COUNT, COUNT)
    place.world.run(1.0)
    assert task.result() == [1, 2]
    assert place.stored("n") == b"2"


@pytest.mark.parametrize(
    ("kind", "ran", "told_after_s"),
    [("lost", None, 1.0), ("reset", None, 0.1), ("answer lost", b"1", 1.0), ("answer reset", b"1", 0.1)],
)
def test_a_message_is_lost_before_it_runs_or_after(kind: str, ran: bytes | None, told_after_s: float) -> None:
    place = Place(Fault(kind, "a", nth=FIRST))
    task = place.ask(COUNT)
    place.world.run(told_after_s + 0.1)
    with pytest.raises(Unreachable) as caught:
        task.result()
    assert caught.value.sent
    assert place.stored("n") == ran


def test_a_connection_that_does_not_come_about_has_sent_nothing() -> None:
    for kind in ("lost", "reset"):
        place = Place(Fault(kind, "a", nth=DIAL))
        task = place.ask(COUNT)
        place.world.run(2.0)
        with pytest.raises(Unreachable) as caught:
            task.result()
        assert not caught.value.sent
        assert place.stored("n") is None


def test_what_is_slow_delays_what_is_behind_it_on_the_same_connection_only() -> None:
    place = Place()
    connections = [Connection(place.client, place.node) for _ in range(2)]
    place.world.run(0.1)
    place.client.faults = Counted([Fault("slow", "a", nth=1, length_s=0.5)])
    connections[0].send([(("SET", "slow", "1"), None)])
    connections[0].send([(("SET", "behind", "1"), None)])
    connections[1].send([(("SET", "beside", "1"), None)])
    place.world.run(0.5)
    assert [place.stored(key) for key in ("slow", "behind", "beside")] == [None, None, b"1"]
    place.world.run(1.0)
    assert [place.stored(key) for key in ("slow", "behind", "beside")] == [b"1", b"1", b"1"]


@pytest.mark.parametrize("seed", range(5))
def test_one_connection_keeps_its_order_and_several_overtake_each_other(seed: int) -> None:
    place = Place(seed=seed)
    place.world.spread_s = 0.2
    connections = [Connection(place.client, place.node) for _ in range(3)]
    place.world.run(1.0)
    order: list[tuple[int, int]] = []
    execute = place.node.server.execute

    def noting(session: Any, args: tuple[Any, ...]) -> Any:
        order.append((int(args[1]), int(args[2])))
        return execute(session, args)

    place.node.server.execute = noting  # type: ignore[method-assign]  # looks over the server's shoulder
    answers = [
        connection.send([(("SET", str(number), str(turn)), None)])[0]
        for turn in range(10)
        for number, connection in enumerate(connections)
    ]
    place.world.run(5.0)
    assert all(answer.value == b"OK" for answer in answers)
    for number in range(3):
        assert [turn for one, turn in order if one == number] == list(range(10))
    assert order != sorted(order, key=lambda pair: pair[1])


def test_nobody_notices_a_half_open_connection_until_the_kernel_does() -> None:
    place = Place(Fault("lost", "a", nth=FIRST))
    task = place.ask(COUNT, within_s=100.0)
    place.world.run(KEEP_ALIVE_S - 1)
    assert not task.done
    place.world.run(KEEP_ALIVE_S + 1)
    assert task.done


def test_bytes_of_a_connection_that_was_given_up_run_when_the_cut_heals() -> None:
    place = Place()
    place.world.at(0.5, place.client.cut, "server")
    place.world.at(20.0, place.client.heal)
    warm, task = place.ask(("PING",)), place.ask(COUNT, at=1.0)
    place.world.run(10.0)
    assert warm.done
    assert isinstance(task.ended.error, Unreachable)
    assert place.stored("n") is None
    place.world.run(21.0)
    assert place.stored("n") == b"1"


def test_a_cut_towards_the_client_lets_requests_run_and_keeps_the_replies() -> None:
    place = Place()
    place.world.at(0.5, place.client.cut, "client")
    place.world.at(2.0, place.client.heal)
    place.ask(("PING",))
    task = place.ask(COUNT, at=1.0, within_s=5.0)
    place.world.run(1.9)
    assert place.stored("n") == b"1"
    assert not task.done
    place.world.run(2.1)
    assert task.result() == [1]


def test_what_reaches_a_frozen_server_runs_when_it_thaws() -> None:
    place = Place()
    place.ask(("PING",))
    place.world.at(0.5, place.node.freeze, 3.0)
    task = place.ask(COUNT, at=1.0)
    place.world.run(3.4)
    assert isinstance(task.ended.error, Unreachable)
    assert place.stored("n") is None
    place.world.run(3.6)
    assert place.stored("n") == b"1"


@pytest.mark.parametrize(("power_off", "listeners"), [(True, 1), (False, 0)])
def test_a_server_takes_a_machine_without_power_for_alive_and_sees_a_process_die(
    power_off: bool, listeners: int
) -> None:
    place = Place()
    other = place.world.add_client("b", [place.node])
    connection = Connection(place.client, place.node)
    place.world.run(0.1)
    connection.send([(("SUBSCRIBE", "news"), None)])
    place.world.run(0.2)
    place.client.crash(power_off)
    task = other.start(lambda client: _send(client, [("PUBLISH", "news", "x")], 1.0))
    place.world.run(1.0)
    assert task.result() == [listeners]


def test_a_killed_server_is_noticed_and_a_power_cut_is_not() -> None:
    for power_off, noticed in ((False, True), (True, False)):
        place = Place()
        connection = Connection(place.client, place.node)
        place.world.run(0.1)
        place.node.crash(power_off)
        place.world.run(1.0)
        assert (connection.state == "ended") is noticed
        task = place.ask(COUNT, within_s=0.5)
        place.world.run(1.2)
        assert task.done is noticed  # refused at once, or silence
        place.world.run(2.0)
        assert isinstance(task.ended.error, Unreachable)


def test_a_server_that_came_back_does_not_know_the_connections_of_its_former_life() -> None:
    place = Place()
    place.ask(("PING",))
    place.world.run(0.1)
    place.node.crash(power_off=True)
    place.node.restart()
    task = place.ask(COUNT)
    place.world.run(0.2)
    assert "lost" in str(task.ended.error)
    assert place.stored("n") is None


def test_a_restart_keeps_the_data_or_not_and_never_the_scripts() -> None:
    for memory in (True, False):
        place = Place()
        place.ask(COUNT, ("EVAL", "return 1", "0"))
        place.world.run(0.1)
        place.node.restart(memory)
        assert place.stored("n") == (b"1" if memory else None)
        sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"  # of "return 1"
        task = place.ask(("EVALSHA", sha, "0"), at=0.1)
        place.world.run(1.0)
        assert str(task.result()[0]).startswith("NOSCRIPT")
        assert [event.what for event in place.world.history] == ([] if memory else ["server_lost_memory"])


def test_a_replica_takes_over_with_what_it_had() -> None:
    place = Place()
    place.ask(COUNT)
    place.world.run(0.1)
    place.node.replicate()
    place.ask(COUNT)
    place.world.run(0.2)
    place.node.fail_over()
    assert place.stored("n") == b"1"
    assert [event.what for event in place.world.history] == ["server_lost_memory"]


def test_a_servers_clock_jumps_for_its_scripts_too() -> None:
    place = Place()
    place.node.jump_clock(1000.0)
    task = place.ask(("TIME",))
    place.world.run(1.0)
    assert int(task.result()[0][0]) == 1_700_001_000
    assert [(event.what, event.lease) for event in place.world.history] == [("server_clock_jumped", 1000.0)]


def test_a_fault_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown fault 'gremlins': one of slow, lost"):
        Fault("gremlins", "a")
