"""One look of a waiter that detects deadlocks, stepped by hand: when it looks, and for how long."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from lockfast import names
from lockfast.errors import Refused, Unreachable
from lockfast.flows import asks, detection
from lockfast.flows.effects import CallMany, Command, Env

if TYPE_CHECKING:
    from lockfast.flows.effects import Flow


class World:
    """A clock to be set, and a waiter that has been there since 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.env = Env(lambda: self.now, lambda: 0.0, 2.0)
        self.ask = asks.lock(names.make("p:x", ("a", "b|c")), 30)
        self.watch = detection.Watch(0.0, self.env)

    def look(self, at: float, ends_at: float = inf) -> Flow[float]:
        self.now = at
        return self.watch.look(self.ask, "client.agent_1.7", ends_at, self.env)


def outcome(flow: Flow[float]) -> float:
    """What a flow returns that wants nothing from the world."""
    with pytest.raises(StopIteration) as stopped:
        next(flow)
    result: float = stopped.value.value
    return result


def test_short_waits_do_not_look() -> None:
    world = World()
    assert outcome(world.look(at=0.1)) == detection.FIRST_LOOK_S
    assert outcome(world.look(at=0.1, ends_at=0.5)) == 0.5


def test_wait_that_is_nearly_over_does_not_look_and_does_not_spin() -> None:
    assert outcome(World().look(at=5.0, ends_at=5.05)) == 5.05


def test_announcement_comes_first_and_a_holder_that_does_not_wait_ends_the_look() -> None:
    world = World()
    flow = world.look(at=1.0)
    first: Any = next(flow)
    assert type(first) is Command
    assert first.args == ("SET", "p:x:waits:agent_1", "client.agent_1.7 a|b%7Cc", "PX", 6000)
    second: Any = flow.send(b"OK")
    assert type(second) is CallMany
    assert second.calls[0].args == (1,), "the queue may be long, and does not matter yet"
    state = b"1 lock 1 7 0 1 0 other.agent_2.1 99000 0 host 1"
    third: Any = flow.send([[0, state, [], [], b"", 1]])
    assert third.args == ("MGET", "p:x:waits:agent_2")
    with pytest.raises(StopIteration) as stopped:
        flow.send([None])
    assert stopped.value.value == 1.0 + 0.75 * detection.LOOK_EVERY_S


def test_no_request_may_take_longer_than_the_wait_has_left() -> None:
    flow = World().look(at=1.0, ends_at=1.25)
    first: Any = next(flow)
    assert first.by == 1.25
    unhurried: Any = next(World().look(at=1.0))
    assert unhurried.by == 2.0, "as long as any attempt"


def test_silence_of_the_server_is_left_to_the_heartbeat_and_its_refusal_is_told() -> None:
    world = World()
    flow = world.look(at=1.0)
    next(flow)
    with pytest.raises(StopIteration):
        flow.throw(Unreachable("no answer"))
    flow = world.look(at=2.0)
    next(flow)
    with pytest.raises(Refused):
        flow.throw(Refused("no", code="NOPERM"))
