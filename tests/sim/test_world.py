"""Virtual time, clocks that disagree, and what can befall a whole client: pauses, suspends, stalls, power cuts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lockfast.flows.effects import Sleep
from lockfast.sim import world as world_module
from lockfast.sim.clocks import Clock
from lockfast.sim.driving import Work
from lockfast.sim.tasks import Cancelled
from lockfast.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.sim.client import Client

    Body = Generator[Any, Any, Any]


@pytest.fixture
def world() -> World:
    return World(1)


@pytest.fixture
def client(world: World) -> Client:
    return world.add_client("a", [world.add_server("s1")])


def test_events_happen_in_order_of_time_and_then_of_making(world: World) -> None:
    seen: list[str] = []
    world.at(2.0, seen.append, "late")
    world.at(1.0, seen.append, "first")
    world.at(1.0, seen.append, "second")
    world.at(1.0, lambda: world.at(0.0, seen.append, "made in between, for the past"))
    world.run(1.5)
    assert seen == ["first", "second", "made in between, for the past"]
    assert world.now == 1.5
    world.run(3.0)
    assert seen[-1] == "late"


def test_a_timer_that_was_called_off_does_nothing(world: World) -> None:
    seen: list[str] = []
    world.at(1.0, seen.append, "x").cancel()
    world.run(2.0)
    assert seen == []


def test_a_world_that_goes_round_in_circles_is_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "MAX_STEPS", 100)

    def again() -> None:
        world.after(0.0, again)

    again()
    with pytest.raises(RuntimeError, match="no end after 100 steps"):
        world.run(1.0)


def test_two_of_one_name_are_refused(world: World, client: Client) -> None:
    with pytest.raises(ValueError, match="'s1' already"):
        world.add_server("s1")
    with pytest.raises(ValueError, match="'a' already"):
        world.add_client("a", [])


def test_a_clock_shows_its_own_seconds_and_a_timer_is_never_early() -> None:
    clock = Clock(skew_s=100.0, rate=1.01)
    assert clock.read(10.0) == pytest.approx(110.1)
    assert clock.true_at(110.1) == pytest.approx(10.0)
    for tenth in range(1000):
        shown = 100.0 + tenth / 10
        assert clock.read(clock.fires_at(shown)) >= shown
    clock.jump(-5.0)
    assert clock.read(10.0) == pytest.approx(105.1)


@pytest.mark.parametrize("clock", [(0.0, 0.0), (0.0, -1.0)])
def test_a_clock_that_stands_still_is_refused(clock: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="rate is above 0"):
        Clock(*clock)


def test_a_clients_clock_never_shows_less_than_nothing(world: World) -> None:
    with pytest.raises(ValueError, match="never negative"):
        world.add_client("b", [world.add_server("s1")], Clock(-1.0))


def test_a_client_sleeps_by_its_own_clock(world: World) -> None:
    client = world.add_client("slow", [world.add_server("s1")], Clock(rate=0.5))
    woken: list[float] = []
    client.start(lambda _: _note_after(world, woken, 1.0))
    world.run(10.0)
    assert woken == [pytest.approx(2.0, abs=1e-4)]


def test_a_wall_clock_jumps_and_the_clock_of_deadlines_does_not(world: World, client: Client) -> None:
    before = client.wall(), client.now()
    client.jump_wall(-7200.0)
    assert client.wall() - before[0] == -7200.0
    assert client.now() == before[1]


def _note_after(world: World, woken: list[float], delay_s: float) -> Body:
    yield Sleep(delay_s)
    woken.append(world.now)


def _note_for(world: World, woken: list[float], delay_s: float, _: Client) -> Body:
    return _note_after(world, woken, delay_s)


def test_what_falls_into_a_pause_happens_after_it(world: World, client: Client) -> None:
    woken: list[float] = []
    for delay_s in (0.5, 1.5, 4.0):
        client.start(partial(_note_for, world, woken, delay_s))
    world.at(1.0, client.pause, 2.0)
    world.run(10.0)
    assert woken == [pytest.approx(0.5, abs=1e-4), 3.0, pytest.approx(4.0, abs=1e-4)]


def test_timers_stand_still_while_a_machine_sleeps_and_its_clock_does_not(world: World, client: Client) -> None:
    woken: list[float] = []
    client.start(lambda _: _note_after(world, woken, 3.0))
    world.at(1.0, client.suspend, 5.0)
    world.run(20.0)
    assert woken == [pytest.approx(8.0, abs=1e-4)]
    assert client.now() == 20.0


def test_a_stall_lets_the_world_go_on_between_two_instructions(world: World, client: Client) -> None:
    seen: list[Any] = []

    def body(client: Client) -> Body:
        yield Work(1.0)
        before = client.now()
        client.stall(2.0)
        seen.append(("after", client.now() - before))

    client.start(body)
    client.start(lambda _: _note_after(world, seen, 1.5))
    world.at(2.0, lambda: seen.append("world"))
    world.run(10.0)
    assert seen[0] == "world"
    assert seen[1] == ("after", 2.0)
    assert seen[2] == pytest.approx(3.0, abs=1e-4)  # the other task of the same process had stopped as well


def test_after_a_power_cut_no_line_of_the_client_runs(world: World, client: Client) -> None:
    seen: list[str] = []

    def body(_: Client) -> Body:
        try:
            yield Work(5.0)
        except GeneratorExit:
            seen.append("closed")
            raise
        except BaseException:
            seen.append("cleaned up")
            raise
        seen.append("went on")

    client.start(body)
    world.at(1.0, client.crash)
    world.run(10.0)
    assert seen == ["closed"]
    assert [(event.what, event.client, event.at) for event in world.history] == [("crashed", "a", 1.0)]


def test_a_power_cut_also_ends_what_has_stalled(world: World, client: Client) -> None:
    seen: list[str] = []

    def body(client: Client) -> Body:
        yield Work(1.0)
        client.stall(2.0)
        seen.append("went on")

    client.start(body)
    world.at(2.0, client.crash)
    world.run(10.0)
    assert seen == []


def test_cancelling_strikes_where_the_task_waits(world: World, client: Client) -> None:
    seen: list[float] = []

    def body(_: Client) -> Body:
        try:
            yield Work(5.0)
        except Cancelled:
            seen.append(world.now)
            yield Work(1.0)
            raise

    task = client.start(body)
    world.at(2.0, task.cancel)
    world.run(10.0)
    assert seen == [2.0]
    with pytest.raises(Cancelled):
        task.result()


def test_a_mistake_in_a_body_comes_out_of_the_run(world: World, client: Client) -> None:
    def body(_: Client) -> Body:
        yield Work(1.0)
        raise ZeroDivisionError

    client.start(body)
    with pytest.raises(ZeroDivisionError):
        world.run(2.0)


def test_what_a_client_cannot_do_is_said(world: World, client: Client) -> None:
    def body(_: Client) -> Body:
        yield "an effect that nobody knows"

    client.start(body)
    with pytest.raises(TypeError, match="an effect that nobody knows"):
        world.run(2.0)
    with pytest.raises(ValueError, match="threads, asyncio"):
        world.add_client("b", client.servers, style="fibres")


def test_a_quiet_world_keeps_a_history_and_no_trace() -> None:
    for quiet in (True, False):
        world = World(1, quiet=quiet)
        world.say("a", "does something")
        world.record("quiet")
        assert len(world.trace) == (0 if quiet else 1)
        assert [event.what for event in world.history] == ["quiet"]
