"""The third driver: the shipped flows, holds and keeper in a simulated process, in both styles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lockfast import names
from lockfast.errors import NotAcquired, Unreachable
from lockfast.flows import asks, looking
from lockfast.flows.effects import Listen, Push, Wait
from lockfast.flows.plain import Everywhere, Pipeline
from lockfast.sim.clocks import Clock
from lockfast.sim.driving import Run, Take, Work
from lockfast.sim.faults import Counted, Fault
from lockfast.sim.holding import hold
from lockfast.sim.tasks import Cancelled
from lockfast.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.sim.client import Client
    from lockfast.sim.holding import Section
    from lockfast.sim.node import Node
    from lockfast.sim.tasks import Task
    from lockfast.snapshots import Snapshot

    Body = Generator[Any, Any, Any]

NAME = names.make("lockfast", ("orders",))


@pytest.fixture(params=["threads", "asyncio"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Scene:
    """A server and as many clients of one style as are named."""

    def __init__(self, style: str) -> None:
        self.style = style
        self.world = World(1)
        self.node: Node = self.world.add_server("s1")

    def client(self, name: str, *faults: Fault, **more: Any) -> Client:
        client = self.world.add_client(name, [self.node], style=self.style, **more)
        client.faults = Counted(faults)
        return client

    def hold(
        self, client: Client, body: Any = 0.0, *, lease: float = 1.0, wait: float | None = None, **more: Any
    ) -> Task:
        """Start a section. Every client has a lock of its own, as every process has."""
        return client.start(lambda client: hold(client, asks.lock(NAME, lease), wait, body, **more))

    def seen(self) -> Snapshot:
        """What `inspect` tells somebody who looks now."""
        watcher = self.world.add_client(f"watcher{len(self.world.clients)}", [self.node])
        task = watcher.start(lambda client: _run(looking.inspect(NAME, client.env)))
        self.world.run(self.world.now + 0.1)
        snapshot: Snapshot = task.result()
        return snapshot

    def events(self, *whats: str) -> list[tuple[str, str]]:
        return [(event.what, event.ticket) for event in self.world.history if event.what in whats]


def _run(flow: Any) -> Body:
    return (yield Run(flow))


@pytest.fixture
def scene(style: str) -> Scene:
    return Scene(style)


def test_an_acquire_and_its_release_are_seen_by_both_sides(scene: Scene) -> None:
    task = scene.hold(scene.client("a"), 0.1)
    scene.world.run(1.0)
    assert task.result() is True
    assert [event.what for event in scene.world.history] == ["asked", "held", "granted", "leaving", "let_go", "left"]
    held, granted = scene.world.history[1:3]
    assert held.fence == granted.fence > 0
    assert granted.until < held.until
    assert "asks for 'orders' (ticket a.1)" in scene.world.trace[0]


def test_a_script_that_the_server_forgot_is_sent_again_with_its_text(scene: Scene) -> None:
    client = scene.client("a")
    scene.hold(client)
    scene.world.run(1.0)
    scene.node.flush_scripts()
    task = scene.hold(client)
    scene.world.run(2.0)
    assert task.result() is True
    assert sum("NOSCRIPT" in line for line in scene.world.trace) == 2


def test_whoever_waits_is_told_by_a_push_and_asks_no_second_time(scene: Scene) -> None:
    first, second = scene.client("a"), scene.client("b")
    scene.hold(first, 0.2)
    scene.world.run(0.05)
    scene.hold(second, lease=30.0)
    scene.world.run(1.0)
    lines = [line for line in scene.world.trace if line.split()[1] == "b"]
    told = next(number for number, line in enumerate(lines) if "is told: grant" in line)
    assert "has 'orders' (b.1)" in lines[told + 1]
    assert scene.events("granted") == [("granted", "a.1"), ("granted", "b.1")]


def test_several_callers_of_one_client_share_its_subscription(scene: Scene) -> None:
    client = scene.client("a")
    tasks = [scene.hold(client, 0.05) for _ in range(4)]
    scene.world.run(5.0)
    assert all(task.result() for task in tasks)
    assert sum("SUBSCRIBE" in line and "sends" in line for line in scene.world.trace) == 1
    order = [ticket for _, ticket in scene.events("granted")]
    assert order == sorted(order)


def test_a_push_for_a_ticket_that_nobody_waits_for_yet_is_kept(scene: Scene) -> None:
    client = scene.client("a")
    seen: list[Any] = []
    client.start(lambda client: _listen_then_wait(client, seen))
    scene.world.run(0.5)
    other = scene.client("b")
    other.start(lambda client: _publish(client, "lockfast:push:a", "grant t.1 7"))
    scene.world.run(5.0)
    assert seen == [Push("grant", 7)]


def _listen_then_wait(client: Client, seen: list[Any]) -> Body:
    assert (yield Listen(client.now() + 1.0)) == 1
    yield Work(2.0)
    seen.append((yield Wait("t.1", client.now())))


def _publish(client: Client, channel: str, words: str) -> Body:
    yield Pipeline([("PUBLISH", channel, words)], client.now() + 1.0)


def test_a_lost_subscription_is_seen_at_once_by_a_loop_and_by_threads_when_they_wait(style: str) -> None:
    scene = Scene(style)
    client = scene.client("a")
    seen: list[Any] = []
    client.start(lambda client: _listen_then_wait(client, seen))
    scene.world.run(0.5)
    assert client.env.listening == 1
    scene.node.restart()
    scene.world.run(1.0)
    assert client.env.listening == (0 if style == "asyncio" else 1)
    scene.world.run(5.0)
    assert seen == [None]
    assert client.env.listening == 0


def test_a_cancelled_acquire_leaves_behind_the_request_it_undoes(scene: Scene) -> None:
    """The request is slow: a `leave` on another connection would overtake it, and the place would stay."""
    scene.hold(scene.client("a"), 3.0, lease=5.0)
    scene.world.run(0.05)
    client = scene.client("b", Fault("slow", "b", nth=2, length_s=0.5))
    task = scene.hold(client)
    scene.world.at(0.1, task.cancel)
    scene.world.run(2.0)
    assert isinstance(task.ended.error, Cancelled)
    assert scene.events("queued", "unqueued") == [("queued", "b.1"), ("unqueued", "b.1")]
    assert scene.seen().waiters == ()


def test_an_undo_goes_out_on_the_connection_that_was_given_up(scene: Scene) -> None:
    """The first try is slow and given up, the second gets no connection; then the caller gives up."""
    scene.hold(scene.client("a"), 3.0, lease=5.0)
    scene.world.run(0.05)
    client = scene.client("b", Fault("slow", "b", nth=2, length_s=1.5), Fault("lost", "b", nth=3), timeout_s=1.0)
    task = scene.hold(client)
    scene.world.at(0.8, task.cancel)
    scene.world.run(3.0)
    asked, undone = [line for line in scene.world.trace if "(ticket b.1)" in line]
    assert asked.endswith("→ s1/1")
    assert undone.endswith("to undo it → s1/1")
    assert scene.events("queued", "unqueued") == [("queued", "b.1"), ("unqueued", "b.1")]


def test_an_undo_takes_another_connection_when_its_own_is_broken(scene: Scene) -> None:
    scene.hold(scene.client("a"), 5.0, lease=9.0)
    scene.world.run(0.05)
    client = scene.client("b", timeout_s=1.0)
    task = scene.hold(client)
    scene.world.run(0.5)
    assert [waiter.ticket for waiter in scene.seen().waiters] == ["b.1"]
    for connection in list(client.connections):
        connection.reset("test")
    scene.world.run(0.7)
    task.cancel()
    scene.world.run(2.0)
    assert scene.seen().waiters == ()


def test_a_wait_that_ends_raises_and_leaves_nothing(scene: Scene) -> None:
    scene.hold(scene.client("a"), 3.0, lease=5.0)
    scene.world.run(0.05)

    def body(client: Client) -> Body:
        return (yield Take(asks.lock(NAME, 1.0), "b.1", 0.5))

    task = scene.client("b").start(body)
    scene.world.run(2.0)
    with pytest.raises(NotAcquired):
        task.result()
    assert scene.seen().waiters == ()


def test_a_power_cut_sends_no_leave(scene: Scene) -> None:
    client = scene.client("a")
    scene.hold(client, 10.0, lease=3.0)
    scene.world.at(0.5, client.crash)
    scene.world.run(1.0)
    assert [holder.ticket for holder in scene.seen().holders] == ["a.1"]
    scene.world.run(4.0)
    assert scene.seen().holders == ()
    assert not any("gives back" in line for line in scene.world.trace)


def test_a_hold_is_renewed_for_as_long_as_the_body_runs(scene: Scene) -> None:
    task = scene.hold(scene.client("a"), 5.0, lease=0.5)
    scene.world.run(10.0)
    assert task.result() is True
    assert len(scene.events("renewed")) > 20
    assert scene.events("lost") == []


def test_loss_is_declared_while_a_renewal_hangs_and_before_another_gets_in(scene: Scene) -> None:
    first = scene.client("a")
    scene.hold(first, 5.0, lease=1.0)
    scene.world.run(0.1)
    scene.hold(scene.client("b"), 0.1)
    scene.world.at(0.2, first.cut, "both")
    scene.world.run(3.0)
    lost = next(event for event in scene.world.history if event.what == "lost")
    taken = next(event for event in scene.world.history if event.what == "held" and event.ticket == "b.1")
    assert 0.9 < lost.at < taken.at < 1.2


def test_a_hold_that_slept_through_its_lease_is_lost_on_waking(scene: Scene) -> None:
    client = scene.client("a")
    scene.hold(client, 5.0, lease=1.0)
    scene.world.at(0.5, client.suspend, 60.0)
    scene.world.run(63.0)
    lost = next(event for event in scene.world.history if event.what == "lost")
    assert 60.5 <= lost.at <= 61.6


def test_a_body_in_asyncio_ends_with_its_hold_and_one_in_a_thread_when_it_looks(scene: Scene) -> None:
    ended: list[float] = []

    def body(section: Section) -> Body:
        yield section.work(5.0) if scene.style == "asyncio" else Work(5.0)
        ended.append(scene.world.now)

    client = scene.client("a")
    task = scene.hold(client, body, lease=1.0)
    scene.world.at(0.5, client.cut, "both")
    scene.world.at(4.0, client.heal)
    scene.world.run(20.0)
    assert task.result() is False
    assert ended == [pytest.approx(1.3 if scene.style == "asyncio" else 5.0, abs=0.4)]


def test_a_release_that_was_not_confirmed_is_finished_by_the_keeper(scene: Scene) -> None:
    client = scene.client("a", timeout_s=0.5)
    scene.hold(client, 1.0, lease=20.0)
    scene.world.at(0.9, client.cut, "both")
    scene.world.at(4.0, client.heal)
    scene.world.run(8.0)
    assert scene.seen().holders == ()
    assert scene.events("let_go") == [("let_go", "a.1")]


def test_clocks_that_drift_and_skew_do_not_matter(scene: Scene) -> None:
    fast = scene.client("a", clock=Clock(1000.0, 1.0049))
    slow = scene.client("b", clock=Clock(5.0, 0.9951))
    tasks = [scene.hold(fast, 1.0, lease=0.4), scene.hold(slow, 1.0, lease=0.4)]
    scene.world.run(5.0)
    assert all(task.result() for task in tasks)


def test_watch_is_kept_on_a_connection_of_its_own_until_the_flow_ends(style: str) -> None:
    scene = Scene(style)
    client = scene.client("a")

    def change(client: Client, pause_s: float) -> Body:
        by = client.now() + 9.0
        yield Pipeline([("WATCH", "k"), ("GET", "k")], by, private=True)
        yield Work(pause_s)
        replies = yield Pipeline([("MULTI",), ("SET", "k", str(pause_s)), ("EXEC",)], by, private=True, same=True)
        return replies[-1]

    tasks = [client.start(lambda client, s=s: _run(change(client, s))) for s in (1.0, 0.5)]  # type: ignore[misc]
    scene.world.run(3.0)
    assert [task.result() for task in tasks] == [None, [b"OK"]]
    assert scene.node.server.store.string(b"k") == b"0.5"


def test_everywhere_asks_all_servers_at_once_and_does_not_wait_for_the_dead(style: str) -> None:
    world = World(1)
    nodes = [world.add_server(f"s{number}") for number in range(3)]
    client = world.add_client("a", nodes, style=style)
    nodes[1].crash(power_off=True)

    def body(client: Client) -> Body:
        return (yield Everywhere(("SET", "k", "v"), client.now() + 0.5))

    task = client.start(body)
    world.run(2.0)
    answers = task.result()
    assert answers[0] == answers[2] == b"OK"
    assert isinstance(answers[1], Unreachable)


def test_after_a_pause_anything_may_come_first_but_a_connection_keeps_its_order() -> None:
    orders = set()
    for seed in range(20):
        world = World(seed)
        client = world.add_client("a", [world.add_server("s1")])
        client.in_any_order = True
        order: list[str] = []
        client.pause(1.0)
        for source, what in (("x", "x1"), ("y", "y1"), ("x", "x2"), ("y", "y2")):
            client.deliver(source, order.append, what)
        world.run(2.0)
        assert order.index("x1") < order.index("x2")
        assert order.index("y1") < order.index("y2")
        orders.add(tuple(order))
    assert len(orders) > 3
