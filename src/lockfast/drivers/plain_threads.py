"""Runs plain flows in threads: the textbook algorithms on real servers, over blocking connections of our own.

A connection is used by one flow at a time. It goes back to the pool of its server only when it is owed no reply,
watches nothing and is in no transaction; otherwise it is closed. Closing sends what was written (FIN, not RST), so a
command that was not answered in time may still run: that is what `Unreachable.sent` says.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lockfast.clock import now
from lockfast.drivers import forks, wire
from lockfast.drivers.connection import TICK_S, Connection, connect, deliver
from lockfast.drivers.door import Door
from lockfast.errors import LockfastError, Misused, Refused, Unreachable
from lockfast.flows.effects import Sleep
from lockfast.flows.plain import Do, Env, Everywhere, Pipeline, gone, is_clean

if TYPE_CHECKING:
    from lockfast.endpoints import Endpoint
    from lockfast.flows.plain import Effect, Flow

R = TypeVar("R")
TOKEN_BYTES = 20  # as the Redlock page has it


def new_token() -> str:
    """A random value that nobody else has."""
    return os.urandom(TOKEN_BYTES).hex()


class Runs(Protocol):
    """What runs the flow of a transaction."""

    env: Env

    def run(self, flow: Flow[R]) -> R: ...


class PlainThreads:
    """The driver of one client of one or several servers."""

    def __init__(self, endpoints: list[Endpoint], timeout_s: float) -> None:
        self.env = Env(now, time.time, new_token, random.random, len(endpoints), timeout_s)
        self.closed = False
        self.endpoints = endpoints
        self._pools = [Pool(endpoint, min(TICK_S, timeout_s / 8)) for endpoint in endpoints]
        self._private: dict[int, dict[int, Connection]] = {}  # what each flow under way keeps to itself
        forks.tell(self)

    def of(self, keys: tuple[str | bytes, ...]) -> Runs:
        """What runs a flow about these keys."""
        return self

    def run(self, flow: Flow[R]) -> R:
        """Run a flow to its end. What strikes in between (no answer, Ctrl-C) is thrown into it."""
        return self._run(flow, {})

    def _run(self, flow: Flow[R], private: dict[int, Connection]) -> R:
        """private: what the flow keeps to itself, by server; empty yet."""
        try:
            self._private[id(private)] = private
            return self._go_on(flow, private)
        finally:
            self._private.pop(id(private), None)
            for connection in private.values():
                connection.close()  # only those that are not clean are left

    def _go_on(self, flow: Flow[R], private: dict[int, Connection]) -> R:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                result: R = stop.value
                return result
            answer = error = None
            try:
                answer = self._perform(effect, private)
            except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
                error = struck

    def _perform(self, effect: Effect, private: dict[int, Connection]) -> Any:
        if type(effect) is Sleep:
            time.sleep(effect.delay_s)
            return None
        if type(effect) is Do:
            return effect.call(partial(self._go_on, private=private))
        if self.closed:
            raise Misused("this client is closed")
        if type(effect) is Everywhere:
            return self._everywhere(effect)
        assert type(effect) is Pipeline
        return self._pipeline(effect, private)

    def _pipeline(self, effect: Pipeline, private: dict[int, Connection]) -> list[Any]:
        pool = self._pool_of(effect, private)
        connection = private.pop(effect.server, None) if effect.private else None
        # Nothing is owed on it, so what there is to read is its end.
        if connection is not None and (not effect.same or _is_readable(connection)):
            connection.close()
            connection = None
        if effect.same and connection is None:
            raise gone(pool.door.endpoint.where)
        was_clean = connection is None
        if connection is None:
            connection = pool.take() or pool.connect(effect.by)
        try:
            connection.send(b"".join(map(wire.pack, effect.commands)), len(effect.commands))
            replies = connection.read_each(effect.by)
            if connection.address is not None:
                wire.check_moved(replies, connection.where)
        except BaseException:
            connection.close()
            pool.close_free()  # the others go to the same server and most likely failed with it
            raise
        if is_clean(effect.commands, replies, was_clean):
            self._give_back(pool, connection)
        elif effect.private:
            private[effect.server] = connection
        else:
            connection.close()
        return replies

    def _pool_of(self, effect: Pipeline, private: dict[int, Connection]) -> Pool:
        return self._pools[effect.server]

    def _everywhere(self, effect: Everywhere) -> list[Any]:
        request = wire.pack(effect.command)
        asked = [_Asked(pool) for pool in self._pools]
        try:
            # Those that a connection stands to are written to first; then the others are dialled, each by a thread of
            # its own: one that does not answer would use up the time of those after it.
            missing = [one for one in asked if not one.send(request)]
            for one in missing:
                one.dial(request, effect.by)
            for one in missing:
                one.wait_dialled(effect.by)
            answers = [one.read(effect.by) for one in asked]
        except BaseException:
            for one in asked:
                one.abandon()
            raise
        for one in asked:
            if one.connection is not None:
                self._give_back(one.pool, one.connection)
        return answers

    def _give_back(self, pool: Pool, connection: Connection) -> None:
        pool.free.append(connection)
        if self.closed:  # closed meanwhile: whoever closed may have missed this one
            pool.close_free()

    def stop(self) -> None:
        """Send nothing more. What is on its way is still answered."""
        self.closed = True

    def close(self) -> None:
        """Close every connection. What was taken stays taken."""
        self.closed = True
        for pool in self._pools:
            pool.close_free()
            pool.door.close()

    def forget(self) -> None:
        """In a forked child: own nothing of the parent's. Its sockets are closed here and stay open there."""
        for private in self._private.values():
            while private:
                private.popitem()[1].close()
        for pool in self._pools:
            pool.close_free()
            pool.door.forget()


class Pool:
    """The connections to one server that are free at the moment."""

    __slots__ = ("_tick_s", "door", "free")

    def __init__(self, endpoint: Endpoint, tick_s: float) -> None:
        self.door = Door(endpoint)
        self.free: list[Connection] = []
        self._tick_s = tick_s

    def take(self) -> Connection | None:
        """A free connection that the server has not closed meanwhile, or None."""
        while True:
            try:
                connection = self.free.pop()
            except IndexError:
                return None
            if not _is_readable(connection):
                return connection
            connection.close()  # nothing is owed on it, so what there is to read is its end

    def connect(self, by: float) -> Connection:
        """A new connection that is let in. Raises Unreachable(sent=False) or Refused."""
        door = self.door
        try:
            return connect(door.endpoint, door.path(), by, self._tick_s)
        except Unreachable as failure:
            door.revive(failure, by)
        return connect(door.endpoint, door.path(), by, self._tick_s)

    def deliver(self, request: bytes, by: float) -> Connection:
        """A new connection on which the request follows the greeting at once. What is owed on it is read later.

        Where the greeting decides on account or database, its answer is waited for: a refused one would leave the
        request to run elsewhere.
        """
        door = self.door
        if not door.endpoint.lets_anybody_in:
            connection = self.connect(by)
            connection.send(request, 1)
            return connection
        try:
            return deliver(door.endpoint, door.path(), by, request)
        except Unreachable as failure:
            door.revive(failure, by)
        return deliver(door.endpoint, door.path(), by, request)

    def close_free(self) -> None:
        while True:
            try:
                self.free.pop().close()
            except IndexError:
                return


class _Asked:
    """One server's part in a question to all."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.connection: Connection | None = None  # where the answer will come from, and then is free again
        self._failure: LockfastError | None = None
        self._lock = threading.Lock()
        self._abandoned = False
        self._dialling: threading.Thread | None = None

    def send(self, request: bytes) -> bool:
        """Write to a free connection; False when there is none."""
        connection = self.pool.take()
        if connection is None:
            return False
        try:
            connection.send(request, 1)
        except Unreachable:
            connection.close()
            return False
        self.connection = connection
        return True

    def dial(self, request: bytes, by: float) -> None:
        """Bring the request over a new connection, in the background."""

        def work() -> None:
            try:
                connection = self.pool.deliver(request, by)
            except LockfastError as failure:
                self._failure = failure
                return
            with self._lock:
                if self._abandoned:
                    connection.close()
                else:
                    self.connection = connection

        self._dialling = threading.Thread(target=work, name="lockfast-dial", daemon=True)
        self._dialling.start()

    def wait_dialled(self, by: float) -> None:
        assert self._dialling is not None
        self._dialling.join(max(by - now(), 0.0))

    def read(self, by: float) -> Any:
        """The server's answer, if it comes by then. A connection that fails is dropped."""
        with self._lock:
            connection = self.connection
            self._abandoned = connection is None
        where = self.pool.door.endpoint.where
        if connection is None:
            return self._failure or Unreachable(f"cannot connect to {where} in time", sent=False)
        try:
            *greeted, reply = connection.read_each(by)
            if greeted:
                wire.check_greeting(self.pool.door.endpoint.greeting(), greeted, where)
            return reply
        except (Unreachable, Refused) as failure:
            self.connection = None
            connection.close()
            return failure

    def abandon(self) -> None:
        """Drop the connection, or what is becoming one."""
        with self._lock:
            self._abandoned = True
            connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


def _is_readable(connection: Connection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
