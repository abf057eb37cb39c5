"""What a player of a run on real servers does: a process of its own, with a real client of its own.

It does what players of the simulator do (stage.py): take, write, work, write again, give back. The resource it writes
to is the stage, at the other end of a socket; there it also says what it is up to, and at the points named in its part
it waits to be told to go on. What happens to it there (a signal, say) happens in mid-step.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lockfast import classic
from lockfast.classic import Client
from lockfast.clock import now
from lockfast.errors import Conflict, LockfastError, NotAcquired
from lockfast.lab.contender import BUSY, DONE, FAILED, PREFIX, STOPPED, Shape
from lockfast.lab.contenders import BY_KEY, Recipe
from lockfast.lab.own import Own, OwnSeveral
from lockfast.lab.stage import NAME, RETRY_S, TIMEOUT_S
from lockfast.lab.updates import OwnUpdate, Update
from lockfast.sync import Grants, Lockfast
from lockfast.sync.rlock import RLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.classic.taken import Updated
    from lockfast.sync.transaction import Transaction
    from lockfast.transactions import Outcome

    Change = Callable[[bytes | None], int]


@dataclass
class Part:
    """What one player does. stage: the socket of the stage. stops: where to wait for a word, once each."""

    name: str
    row: str
    stage: str
    urls: list[str]
    gaps_s: list[float]
    names: list[str]
    stops: list[str]
    lease_s: float
    patience_s: float
    limit: int
    rounds: int = 1
    tail_s: float = 0.0
    wall_skew_s: float = 0.0
    gives_up: bool = False

    @property
    def shape(self) -> Shape:
        return Shape(self.lease_s, self.patience_s, self.limit)


@dataclass
class Hold:
    """What a player has taken. sure: whether it is still its own, as far as it can tell."""

    sure: Callable[[], bool]
    give: Callable[[], bool]
    fence: int = 0


class Takes(Protocol):
    """A client of the algorithm. Returns BUSY or FAILED when it was not to be had."""

    def take(self, name: str) -> Hold | str: ...


class Line:
    """The way to the stage. Should the stage be gone, the play is over, and the player with it."""

    def __init__(self, part: Part) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(part.stage)
        self._answers = self._socket.makefile("rb")

    def tell(self, *words: str | float) -> None:
        try:
            self._socket.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            raise SystemExit from None

    def ask(self, *words: str | float) -> None:
        """Say something, and wait for the answer."""
        self.tell(*words)
        if not self._answers.readline():
            raise SystemExit


class Player:
    """One process on the stage."""

    def __init__(self, part: Part, line: Line) -> None:
        self._part = part
        self._line = line
        self._stops = set(part.stops)
        self._late_s = 0.0  # how much longer than asked for its longest sleep was: how busy the machine is

    def run(self) -> None:
        part, line = self._part, self._line
        step = self._updater() if isinstance(BY_KEY[part.row], Update) else self._taker()
        line.ask("ready", part.name)
        for left in reversed(range(part.rounds)):
            line.tell("waits")
            while True:
                outcome = step()
                if outcome in (DONE, STOPPED) or (outcome == FAILED and part.gives_up):
                    break
                _pause(RETRY_S if len(part.names) == 1 else 0.5)
            line.tell("done", left)
            _pause(0.05)

    def _taker(self) -> Callable[[], str]:
        part = self._part
        row = BY_KEY[part.row]
        takes: Takes = _Own(part, row) if isinstance(row, Own) else _Textbook(part)
        names = part.names[:1] if isinstance(row, OwnSeveral) else part.names  # it takes the other one with it
        return lambda: self._section(takes, names, [])

    def _section(self, takes: Takes, names: list[str], held: list[Hold]) -> str:
        """Take all names, one inside the other, then write."""
        hold = takes.take(names[0])
        if isinstance(hold, str):
            if hold == FAILED:
                self._line.tell("fails")
            return hold
        self._line.tell("takes", names[0])
        self._stop("took")
        within = [*held, hold]
        outcome = self._section(takes, names[1:], within) if names[1:] else self._write_all(within)
        self._stop("release")
        try:
            self._line.tell("gives", "gives it back" if hold.give() else "gives back what was not its own any more")
        except LockfastError as failure:
            self._line.tell("gives", f"gives it back and hears no answer: {failure}")
        return outcome

    def _write_all(self, held: list[Hold]) -> str:
        for number, gap_s in enumerate(self._part.gaps_s):
            self._rest(gap_s)
            self._stop(f"work {number}")
            if not all(hold.sure() for hold in held):
                self._line.tell("stops")
                return STOPPED
            self._stop(f"write {number}")
            self._line.ask("write", number, held[-1].fence, self._late_s)
        self._rest(self._part.tail_s)
        return DONE

    def _updater(self) -> Callable[[], str]:
        part = self._part
        row = BY_KEY[part.row]
        assert isinstance(row, Update)

        def change(value: bytes | None) -> int:
            self._stop("update")
            self._rest(sum(part.gaps_s) + part.tail_s)
            return int(value or 0) + 1

        made = _transaction(part, row, change) if isinstance(row, OwnUpdate) else _optimistic(part, row, change)

        def update() -> str:
            try:
                updated = made()
            except Conflict:
                return BUSY
            except LockfastError:
                self._line.tell("unsure")
                return DONE
            if updated is None:
                return BUSY
            self._line.ask("updated", int(updated.value), updated.conflicts, self._late_s)
            return DONE

        return update

    def _stop(self, point: str) -> None:
        if point in self._stops:
            self._stops.discard(point)
            self._line.ask("at", point)

    def _rest(self, length_s: float) -> None:
        if length_s:
            ends_at = time.monotonic() + length_s
            time.sleep(length_s)
            self._late_s = max(self._late_s, time.monotonic() - ends_at)


class _Textbook:
    """One of the classics, through the client that is for everybody."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._client = _client(part)

    def take(self, name: str) -> Hold | str:
        client, row = self._client, BY_KEY[self._part.row]
        assert isinstance(row, Recipe)
        recipe: Any = row.make(name, self._part.shape)
        try:
            taken = client.acquire(recipe)
        except LockfastError:
            return FAILED
        if taken is None:
            return BUSY

        def refreshed() -> bool:
            try:
                return client.refresh(recipe, taken)
            except LockfastError:
                return False  # not sure any more: stop

        sure: Callable[[], bool] = lambda: True  # noqa: E731 - one of three
        if isinstance(recipe, classic.RefreshingSemaphore):
            sure = refreshed
        elif isinstance(recipe, classic.Redlock):
            ends_at = now() + taken.valid_s
            sure = lambda: now() < ends_at  # noqa: E731
        return Hold(sure, lambda: client.release(recipe, taken))


class _Own:
    """One of Lockfast's own, as a program uses it."""

    def __init__(self, part: Part, row: Own) -> None:
        self._part = part
        self._row = row
        self._lockfast = _lockfast(part)

    def take(self, name: str) -> Hold | str:
        part = self._part
        try:
            lock = self._row.open(self._lockfast, name, part.shape)
            grant = lock.acquire()
            inner = lock.acquire() if isinstance(lock, RLock) else None
        except NotAcquired:
            return BUSY
        except LockfastError:
            return FAILED

        def give() -> bool:
            if inner is not None:
                inner.release()
            grant.release()
            return True

        first = grant[0] if isinstance(grant, Grants) else grant
        fence = first.fence if part.shape.limit == 1 else 0  # of several holders it guards nothing
        return Hold(lambda: grant.held, give, fence)


def _optimistic(part: Part, row: Update, change: Change) -> Callable[[], Updated | None]:
    client, recipe = _client(part), row.recipe(NAME, part.shape)
    return lambda: client.update(recipe, change)


def _transaction(part: Part, row: OwnUpdate, change: Change) -> Callable[[], Outcome[int]]:
    lf = _lockfast(part)

    def write(tx: Transaction) -> int:
        value = change(tx.get(NAME))
        tx.set(NAME, value)
        return value

    return lambda: lf.transaction(write, NAME, wait=part.patience_s * 4, escalate=row.escalate)


def _lockfast(part: Part) -> Lockfast:
    return Lockfast(part.urls[0], timeout=TIMEOUT_S, prefix=PREFIX)


def _client(part: Part) -> Client:
    client = Client(part.urls if len(part.urls) > 1 else part.urls[0], timeout=TIMEOUT_S)
    if part.wall_skew_s:
        # Nobody may set this machine's clock, so the player reads it with an offset.
        client._driver.env.wall = lambda: time.time() + part.wall_skew_s
    return client


def _pause(most_s: float) -> None:
    """A random pause before the next try, as the simulator's players make."""
    time.sleep(most_s * (0.2 + 0.8 * random.random()))


def main(part: dict[str, Any]) -> None:
    """Play a part in this process."""
    logging.disable()  # that a renewal failed is what is being played, not news for the terminal
    made = Part(**part)
    line = Line(made)
    try:
        Player(made, line).run()
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001 - a mistake of ours: the stage tells it, and no verdict is made of it
        line.tell("broke", traceback.format_exc())
    finally:
        os._exit(0)  # like a program that just ends: nothing is given back that was not given back before
