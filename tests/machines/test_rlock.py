"""A re-entrant lock against a counter and a queue. Who enters is a thread or a task that stays the same throughout."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast import NotHeld
from lockfast.drivers.identity import agent_of_task, agent_of_thread
from lockfast.waitfor import agent_of
from machines.kit import PATIENCE_S, STEPS, WHICH, World, bare, run_machine, world_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from kit.servers import Server

AGENT = st.integers(0, 3)  # two threads of one client, two tasks of another
_numbers = itertools.count(1)


class ThreadAgent:
    """One thread that does what it is told, one thing after the other."""

    def __init__(self, lf: Any) -> None:
        self.lf = lf
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._thread.start()
        self.id: str = self.begin(agent_of_thread).result(PATIENCE_S)

    def begin(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((call, future))
        return future

    def _run(self) -> None:
        while (told := self._calls.get()) is not None:
            call, future = told
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(PATIENCE_S)


class TaskAgent:
    """One task that does what it is told."""

    def __init__(self, lf: Any, side: AsyncioSide) -> None:
        self.lf = bare(lf)
        self._side = side
        self._calls: asyncio.Queue[tuple[Callable[[], Any], Future[Any]] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.run_coroutine_threadsafe(self._run(), side.loop)
        self.id: str = self.begin(_own_id).result(PATIENCE_S)

    def begin(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._side.loop.call_soon_threadsafe(self._calls.put_nowait, (call, future))
        return future

    def cancel(self) -> None:
        assert self._task is not None
        self._side.loop.call_soon_threadsafe(self._task.cancel)

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        assert self._task is not None
        while (told := await self._calls.get()) is not None:
            call, future = told
            try:
                future.set_result(await call())
            except asyncio.CancelledError as error:
                self._task.uncancel()
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        self._side.loop.call_soon_threadsafe(self._calls.put_nowait, None)
        self._ended.result(PATIENCE_S)


async def _own_id() -> str:
    return agent_of_task(asyncio.current_task())


class ReEntrantMachine(RuleBasedStateMachine):
    world: ClassVar[World]
    taken: ClassVar[Counter[str]]
    agents: ClassVar[list[ThreadAgent | TaskAgent]]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"machine-rlock-{next(_numbers)}"
        self.owner: int | None = None
        self.entries: list[Any] = []
        self.queue: list[int] = []
        self.waiting: dict[int, Future[Any]] = {}
        self.newest = 0

    @initialize(others=st.permutations(range(4)))
    def come_together(self, others: list[int]) -> None:
        for agent in others[:3]:
            self.enter(agent, waits=True)

    @rule(agent=AGENT, waits=st.booleans())
    def enter(self, agent: int, waits: bool) -> None:
        if agent in self.waiting:
            return
        lock = self.agents[agent].lf.rlock(self.name)
        gets_it = self.owner == agent or (self.owner is None and not self.queue)
        if gets_it or not waits:
            entry = self.agents[agent].begin(lock.try_acquire).result(PATIENCE_S)
            assert (entry is not None) == gets_it
            if entry is not None:
                self._entered(agent, entry)
            return
        self.waiting[agent] = self.agents[agent].begin(lock.acquire)
        self.queue.append(agent)
        self._wait_for_the_queue()
        self.taken["queued"] += 1

    @precondition(lambda self: self.entries)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        """Any of the entries is as good as another; the last one hands over."""
        assert self.owner is not None
        entry = self.entries.pop(which % len(self.entries))
        self.agents[self.owner].begin(entry.release).result(PATIENCE_S)
        self.taken["left"] += 1
        with pytest.raises(NotHeld):
            self.agents[self.owner].begin(entry.release).result(PATIENCE_S)
        if self.entries:
            return
        self.owner = None
        if self.queue:
            agent = self.queue.pop(0)
            self._entered(agent, self.waiting.pop(agent).result(PATIENCE_S))
            self.taken["let in"] += 1

    @precondition(lambda self: self.owner is not None)
    @rule(agent=AGENT)
    def ask_for_it_as_a_plain_lock(self, agent: int) -> None:
        """A plain lock of the same name is not re-entrant, not even for its owner."""
        if agent not in self.waiting:
            assert (
                self.agents[agent].begin(self.agents[agent].lf.lock(self.name).try_acquire).result(PATIENCE_S) is None
            )

    @precondition(lambda self: any(agent >= 2 for agent in self.queue))
    @rule(which=WHICH)
    def cancel_a_waiter(self, which: int) -> None:
        tasks = [agent for agent in self.queue if agent >= 2]
        agent = tasks[which % len(tasks)]
        self.queue.remove(agent)
        told = self.agents[agent]
        assert isinstance(told, TaskAgent)
        told.cancel()
        with pytest.raises(asyncio.CancelledError):
            self.waiting.pop(agent).result(PATIENCE_S)
        self._wait_for_the_queue()
        self.taken["cancelled"] += 1

    @invariant()
    def server_and_model_agree(self) -> None:
        seen = self.world.inspect(self.name)
        assert len(seen.holders) == (self.owner is not None)
        assert [agent_of(waiter.ticket) for waiter in seen.waiters] == [self.agents[agent].id for agent in self.queue]
        for entry in self.entries:
            assert entry.held
            assert entry.ticket == seen.holders[0].ticket
            assert entry.fence == seen.holders[0].fence

    def teardown(self) -> None:
        while self.entries:
            self.leave(0)
        assert not self.waiting

    def _entered(self, agent: int, entry: Any) -> None:
        if self.owner == agent:
            assert entry.fence == self.entries[0].fence
            self.taken["entered again"] += 1
        else:
            assert entry.fence > self.newest
        self.newest = entry.fence
        self.owner = agent
        self.entries.append(entry)

    def _wait_for_the_queue(self) -> None:
        length = len(self.queue)
        wait_until(
            lambda: len(self.world.inspect(self.name).waiters) == length, what=f"{length} wait", timeout_s=PATIENCE_S
        )


@pytest.fixture
def world(valkey_server: Server) -> Iterator[World]:
    with world_of(valkey_server) as made:
        yield made


@pytest.mark.slow
def test_entries_of_one_agent_are_counted_and_the_others_queue(world: World) -> None:
    side = world.sides[1]
    assert isinstance(side, AsyncioSide)
    threads, tasks = world.clients
    agents: list[ThreadAgent | TaskAgent] = [
        ThreadAgent(threads),
        ThreadAgent(threads),
        TaskAgent(tasks, side),
        TaskAgent(tasks, side),
    ]
    try:
        taken = run_machine(ReEntrantMachine, STEPS, world=world, agents=agents)
    finally:
        for agent in agents:
            agent.close()
    assert min(taken[what] for what in ("queued", "let in", "cancelled", "entered again", "left")) > 5, taken
