"""Blocking code in the simulator: the shipped classes of `lockfast.sync`, as callers of a simulated client.

Each caller has a thread of its own, and is at work only while the simulator waits for it: what it wants of the world
is handed over as an effect, and the simulator goes on from there. So a run is as repeatable as any other.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import pytest

from lockfast import together
from lockfast.errors import LockfastError
from lockfast.flows import asks
from lockfast.locks import Options
from lockfast.sim import runs
from lockfast.sim.client import PREFIX
from lockfast.sim.driving import Give, Run, Take, Work
from lockfast.sim.holding import Section, TellingHold, believe
from lockfast.sim.tasks import Cancelled, PowerOff
from lockfast.sync import lock as sync_lock
from lockfast.sync.lock import Lock
from lockfast.sync.rlock import RLock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from lockfast.drivers.threads import Threads
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Flow, Opening
    from lockfast.grants import Hold
    from lockfast.sim.client import Client
    from lockfast.sim.swarm import Visit
    from lockfast.sync.lock import Grant

_here = threading.local()


class Driver:
    """What `lockfast.sync` needs of drivers/threads.py, carried out by the simulator."""

    def __init__(self, client: Client) -> None:
        self.asks: dict[Any, Any] = {}
        self.client = client
        self.env, self.era, self.keeper = client.env, client.era, client.keeper
        self.closing = False
        self.acquiring: set[str] = set()
        self.entries: dict[tuple[str, object], Any] = {}

    @classmethod
    def of(cls, client: Client) -> Driver:
        """The one driver that all callers of a client share."""
        found: Driver | None = vars(client).get("driver")
        if found is None:
            found = client.driver = cls(client)  # type: ignore[attr-defined]  # a client of the simulator is a plain object
        return found

    def new_ticket(self) -> str:
        ticket = self.client.new_id()
        vars(_here).setdefault("issued", []).append(ticket)
        return ticket

    def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Held:
        return cast("Held", perform(Take(ask, ticket, wait_s)))

    def release(self, hold: Hold) -> None:
        perform(Give(hold))

    def open(self, opening: Opening[Any]) -> Any:
        return perform(Run(_open(opening)))

    def run(self, flow: Generator[Any, Any, Any]) -> Any:
        return perform(Run(flow))

    def lock(self, name: str, lease_s: float, renew: bool) -> Lock:
        return self._make(Lock, name, lease_s, renew)

    def rlock(self, name: str, lease_s: float, renew: bool) -> RLock:
        return cast("RLock", self._make(RLock, name, lease_s, renew))

    def _make(self, kind: type[Lock], name: str, lease_s: float, renew: bool) -> Lock:
        options = Options(lease_s, None, renew, None, cancel_on_loss=False, grace=0.0, max_hold=None, detect=False)
        return kind(cast("Threads", self), PREFIX, (name,), asks.lock, options)


def _open(opening: Opening[Any]) -> Flow[Any]:
    """As drivers/threads.py does it."""
    call = opening.prepare()
    answer: Any = None
    error: BaseException | None = None
    flow: Flow[Any] | None = None
    if call is not None:
        try:
            answer = yield call
            result = opening.settle(answer)
            if result is not None:
                return result
        except GeneratorExit:
            raise
        except BaseException as struck:
            error = struck
        flow = opening.flow()
        assert flow.send(None) is call, "it begins with what was sent"
    flow = flow or opening.flow()
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        answer = error = None
        try:
            answer = yield effect
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as struck:
            error = struck


def issued() -> list[str]:
    """The tickets that this caller has been given since it last asked."""
    tickets: list[str] = vars(_here).get("issued", [])
    _here.issued = []
    return tickets


def perform(effect: Any) -> Any:
    """Want something of the world, from blocking code. Raises what the world throws in."""
    talk: _Talk = _here.talk
    return talk.ask(effect)


def work(length_s: float) -> None:
    perform(Work(length_s))


def blocking(client: Client, function: Callable[[], None]) -> Generator[Any, Any, None]:
    """The body of a simulated task that runs blocking code."""
    talk = _Talk(client, function)
    answer: Any = None
    error: BaseException | None = None
    while True:
        effect = talk.step(answer, error)
        if talk.ended:
            if talk.error is not None:
                raise talk.error
            return
        answer = error = None
        try:
            answer = yield effect
        except GeneratorExit:
            talk.step(None, PowerOff())
            raise
        except BaseException as struck:
            error = struck


class _Talk:
    """One caller's thread: either it is at work, or the simulator is."""

    def __init__(self, client: Client, function: Callable[[], None]) -> None:
        self._client = client
        self.ended = False
        self.error: BaseException | None = None
        self._function = function
        self._wanted: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._is_off = False
        self._thread: threading.Thread | None = None

    def step(self, answer: Any, error: BaseException | None) -> Any:
        """Let the thread go on until it wants something (returned), or has ended."""
        if isinstance(error, PowerOff):
            self._is_off = True  # nothing of it reaches the world any more
        if self._thread is None:
            if self._is_off:
                return None
            self._thread = threading.Thread(target=self._run, name="simulated", daemon=True)
            self._thread.start()
        else:
            self._answers.put((answer, error))
        wanted = self._wanted.get()
        if self.ended:
            self._thread.join()
        return wanted

    def ask(self, effect: Any) -> Any:
        if self._is_off or self._client.dead:
            raise PowerOff
        self._wanted.put(effect)
        answer, error = self._answers.get()
        if error is not None:
            raise error
        return answer

    def _run(self) -> None:
        _here.talk = self
        try:
            self._function()
        except BaseException as error:  # whatever it is belongs to the simulated task
            self.error = error
        self.ended = True
        self._wanted.put(None)


Believed = tuple[Section, dict[str, Any]]


def enter(client: Client, grant: Grant, ask: Ask) -> Believed:
    """Write down that a caller believes what it was granted, until it says otherwise."""
    hold = grant._hold
    assert isinstance(hold, TellingHold)
    about = {
        "name": grant.name,
        "ticket": grant.ticket,
        "client": client.name,
        "weight": ask.weight,
        "limit": ask.limit,
    }
    section = Section(client, hold)
    believe(section, about)
    return section, about


def leave(client: Client, believed: list[Believed]) -> None:
    """Write down that a caller no longer acts on what it holds: its body has ended, in whatever way."""
    for section, about in believed:
        if not client.dead and section.hold.held():
            client.world.record("leaving", fence=section.hold.fence, **about)


class Blocking(runs._Caller):
    """A caller of `sim.runs` whose visits are blocking code."""

    def visit_all(self, client: Client) -> Generator[Any, Any, None]:
        return blocking(client, lambda: self._visit_all(client))

    def _visit_all(self, client: Client) -> None:
        for visit in self._visits:
            if self._run.is_quiet:
                break
            self._visit += 1
            try:
                work(visit.think_s)
                if visit.cancel_after_s is not None:
                    client.alarm(client.shown() + visit.cancel_after_s, False, self._cancel, self._visit)
                self.visit(client, visit)
            except (LockfastError, Cancelled):
                pass  # not acquired, lost, or cancelled: whoever it is goes on with something else
        self._visit = -1
        while not self._run.is_quiet:
            work(0.5)
        self.visit(client, replace(runs.LAST, name=self._visits[-1].name if self._visits else runs.LAST.name))

    def visit(self, client: Client, visit: Visit) -> None:
        """Acquire, work, release. Raises what they raise."""
        raise NotImplementedError


@contextmanager
def telling() -> Iterator[None]:
    """Holds tell of their renewals, as those of the simulator do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_lock, "Hold", TellingHold)
        patch.setattr(together, "Hold", TellingHold)
        yield
