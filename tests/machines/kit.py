"""What the state machines share: two clients of a real server, waiters that can be cancelled, and one plain queue.

A machine takes random steps through the public API, and after each of them the server must say what a few lines of
Python say: who holds how much, who waits in which order. Nothing sleeps: who queues is waited for until the server
has it, and who is let in until its acquire has returned. The steps are the same in every run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kit.servers import wait_until
from kit.sides import AsyncioSide, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.servers import Server
    from lockfast.snapshots import Snapshot
    from lockfast.sync import Grant, Lock, Lockfast

PATIENCE_S = 10.0  # longer than anything here takes, also on a machine that is busy with other things
STEPS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    stateful_step_count=20,
    phases=(Phase.generate,),  # a failure is often a wait that comes to nothing: too slow to look for a shorter one
    suppress_health_check=list(HealthCheck),
)
MOST_WAITERS = 5
CLIENT = st.integers(0, 1)  # threads, asyncio
WHICH = st.integers(0, 11)  # of those that are there, counted round
_numbers = itertools.count(1)


def bare(thing: Any) -> Any:
    """What the test's wrapper stands for, to be handed to the library."""
    return getattr(thing, "twin_of", thing)


class World:
    """A client for threads and one for asyncio, of one server, for all runs of a machine."""

    def __init__(self, server: Server) -> None:
        self.sides = [Side(), AsyncioSide()]
        self.clients: list[Lockfast] = [side.client(server.url) for side in self.sides]
        self.eye = self.clients[0]

    def inspect(self, *parts: str) -> Snapshot:
        return self.eye.inspect(*parts)

    def wrapped(self, client: int, made: Any) -> Any:
        """What the library made, as blocking code uses it."""
        side = self.sides[client]
        return side.wrap(made) if isinstance(side, AsyncioSide) else made

    def each(self, grants: Any) -> list[Any]:
        """The grants of several at once, as blocking code uses them."""
        if hasattr(grants, "twin_of"):
            return [self.wrapped(1, grant) for grant in grants.twin_of]
        return list(grants)

    def apart(self, call: Callable[[], Any]) -> Any:
        """The same call, from a thread or a task of its own."""
        return self.sides[0].spawn(call).result(PATIENCE_S)

    def waiter(self, acquire: Callable[[], Any]) -> Waiter:
        """Begin an acquire that will have to wait."""
        return Waiter(self, acquire, is_async=hasattr(acquire, "func"))

    def close(self) -> None:
        for side in self.sides:
            side.close()


class Waiter:
    """An acquire under way, in a thread of its own or in a task. Only a task can be cancelled."""

    def __init__(self, world: World, acquire: Callable[[], Any], is_async: bool) -> None:
        self._side = world.sides[is_async]
        self.can_be_cancelled = is_async
        if isinstance(self._side, AsyncioSide):
            method = acquire.args[0]  # type: ignore[attr-defined]  # a Twin's call of the method that is awaited below
            self._future: Any = asyncio.run_coroutine_threadsafe(method(), self._side.loop)
        else:
            self._spawned = self._side.spawn(acquire)

    @property
    def done(self) -> bool:
        return bool(self._future.done() if self.can_be_cancelled else self._spawned.done)

    def result(self) -> Any:
        """What was acquired; waits until it is."""
        if isinstance(self._side, AsyncioSide):
            return self._side.wrap(self._future.result(PATIENCE_S))
        return self._spawned.result(PATIENCE_S)

    def error(self) -> BaseException | None:
        """What the acquire raised; waits until it did."""
        if self.can_be_cancelled:
            error: BaseException | None = self._future.exception(PATIENCE_S)
            return error
        return self._spawned.error(PATIENCE_S)

    def cancel(self) -> None:
        self._future.cancel()


class Line:
    """The model of one name: a limit, who holds how much of it, and who waits, first come first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.holders: dict[int, int] = {}
        self.queue: list[tuple[int, int]] = []

    def fits(self, weight: int) -> bool:
        """Whether somebody who comes now gets in."""
        return not self.queue and self._has_room(weight)

    def settle(self) -> list[int]:
        """Let in whoever is next while there is room for it; nobody overtakes. Returns who got in."""
        let_in = []
        while self.queue and self._has_room(self.queue[0][1]):
            who, weight = self.queue.pop(0)
            self.holders[who] = weight
            let_in.append(who)
        return let_in

    def _has_room(self, weight: int) -> bool:
        return sum(self.holders.values()) + weight <= self.limit


class OneName(RuleBasedStateMachine):
    """Holders and waiters of one name. A primitive says what can be asked for, and adds rules of its own."""

    world: ClassVar[World]
    taken: ClassVar[Counter[str]]  # how often something happened in all runs
    LIMIT = 1
    WEIGHTS: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.name = f"machine-{next(_numbers)}"
        self.model = Line(self.LIMIT)
        self.held: dict[int, Grant] = {}
        self.waiting: dict[int, Waiter] = {}
        self.tickets: dict[int, str] = {}
        self.newest = 0
        self._numbers = itertools.count(1)

    def lock(self, client: int, weight: int) -> Lock:
        """What is acquired by a client that wants so much."""
        raise NotImplementedError

    @initialize(wants=st.lists(st.tuples(CLIENT, WHICH), min_size=3, max_size=MOST_WAITERS))
    def come_together(self, wants: list[tuple[int, int]]) -> None:
        """A crowd to begin with: left to chance there would hardly ever be one."""
        self.prepare()
        for client, which in wants:
            self.ask(client, which, waits=True)

    def prepare(self) -> None:
        """What a primitive needs before the first acquire."""

    @rule(client=CLIENT, which=WHICH, waits=st.booleans())
    def ask(self, client: int, which: int, waits: bool) -> None:
        weight = self.WEIGHTS[which % len(self.WEIGHTS)]
        if weight > self.model.limit:
            return
        if waits and not self.model.fits(weight):
            if len(self.waiting) < MOST_WAITERS:
                self._queue_up(client, weight)
            return
        grant = self.world.apart(self.lock(client, weight).try_acquire)
        assert (grant is not None) == self.model.fits(weight)
        if grant is not None:
            who = next(self._numbers)
            self.model.holders[who] = weight
            self._got(who, grant)

    def _queue_up(self, client: int, weight: int) -> None:
        who = next(self._numbers)
        self.waiting[who] = self.world.waiter(self.lock(client, weight).acquire)
        self.model.queue.append((who, weight))
        self._wait_for_the_queue()
        self.tickets[who] = self.world.inspect(self.name).waiters[-1].ticket
        self.taken["queued"] += 1

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def release(self, which: int) -> None:
        who = list(self.held)[which % len(self.held)]
        self.held.pop(who).release()
        del self.model.holders[who]
        self._let_in()

    @precondition(lambda self: self.held)
    @rule(which=WHICH, lease=st.sampled_from([None, 0.1, 60]))
    def extend(self, which: int, lease: float | None) -> None:
        grant = list(self.held.values())[which % len(self.held)]
        before = grant.deadline
        grant.extend(lease)
        assert grant.deadline >= before

    @precondition(lambda self: any(waiter.can_be_cancelled for waiter in self.waiting.values()))
    @rule(which=WHICH)
    def cancel_a_waiter(self, which: int) -> None:
        those = [who for who, waiter in self.waiting.items() if waiter.can_be_cancelled]
        who = those[which % len(those)]
        self.waiting.pop(who).cancel()
        self.taken["cancelled"] += 1
        self.model.queue = [place for place in self.model.queue if place[0] != who]
        self._let_in()
        self._wait_for_the_queue()

    @invariant()
    def server_and_model_agree(self) -> None:
        seen = self.world.inspect(self.name)
        assert {holder.ticket: holder.weight for holder in seen.holders} == {
            self.tickets[who]: weight for who, weight in self.model.holders.items()
        }
        assert [(waiter.ticket, waiter.weight) for waiter in seen.waiters] == [
            (self.tickets[who], weight) for who, weight in self.model.queue
        ]
        fences = {holder.ticket: holder.fence for holder in seen.holders}
        for who, grant in self.held.items():
            assert grant.held
            assert grant.fence == fences[self.tickets[who]]
        for who, waiter in self.waiting.items():
            assert not waiter.done, f"{who} has not waited to its end"
        if seen.kind and (seen.holders or seen.waiters):
            assert seen.limit == self.model.limit

    def teardown(self) -> None:
        while self.held or self.waiting:  # whoever is let in is released in its turn
            assert self.held, "somebody waits for nobody"
            self.release(0)

    def _let_in(self) -> None:
        """Those whom the model lets in have it, and fences grow in that order."""
        for who in self.model.settle():
            self._got(who, self.waiting.pop(who).result())
            self.taken["let in"] += 1

    def _got(self, who: int, grant: Grant) -> None:
        assert grant.fence > self.newest
        self.newest = grant.fence
        self.held[who] = grant
        assert self.tickets.setdefault(who, grant.ticket) == grant.ticket

    def _wait_for_the_queue(self) -> None:
        length = len(self.model.queue)
        wait_until(
            lambda: len(self.world.inspect(self.name).waiters) == length, what=f"{length} wait", timeout_s=PATIENCE_S
        )


@contextmanager
def world_of(server: Server) -> Iterator[World]:
    world = World(server)
    try:
        yield world
    finally:
        world.close()


def run(machine: type[Any], server: Server, steps: settings = STEPS) -> Counter[str]:
    """Take the machine's steps on this server. Returns what happened in them, and how often."""
    with world_of(server) as world:
        return run_machine(machine, steps, world=world)


def run_machine(machine: type[Any], steps: settings, **given: Any) -> Counter[str]:
    """The same, with what the machine is given."""
    taken: Counter[str] = Counter()
    run_state_machine_as_test(type(machine.__name__, (machine,), {"taken": taken, **given}), settings=steps)
    return taken
