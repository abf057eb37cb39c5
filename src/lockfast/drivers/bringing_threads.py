"""Brings to servers of a quorum what was lost on its way, in threads: see undelivered.py."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockfast.clock import now
from lockfast.drivers.connection import connect, deliver
from lockfast.drivers.undelivered import TRY_S, packed
from lockfast.errors import LockfastError
from lockfast.flows.fleet import PROBE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockfast.drivers.connection import Connection
    from lockfast.drivers.undelivered import Undelivered
    from lockfast.endpoints import Endpoint
    from lockfast.flows.effects import Call


class Bringer:
    """At most one thread for each server, and only while something is to be brought there."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        undelivered: Undelivered,
        timeout_s: float,
        let_go: Callable[[Connection], None],
    ) -> None:
        self._endpoints = endpoints
        self._undelivered = undelivered
        self._timeout_s = timeout_s
        self._let_go = let_go

    def bring(self, place: int, call: Call) -> None:
        """Bring a request to a server over a connection of its own, as soon as that can be done."""
        if not self._undelivered.keep(place, call):
            return
        begun = False
        try:
            threading.Thread(target=self._deliver, args=(place,), name="lockfast-undo", daemon=True).start()
            begun = True
        except RuntimeError:
            pass  # no thread can be started: it is brought another time
        finally:
            if not begun:
                self._undelivered.stop(place)

    def close(self) -> None:
        """Wait a moment for what is under way; nothing is brought after that."""
        self._undelivered.close(min(TRY_S, self._timeout_s))

    def _deliver(self, place: int) -> None:
        """Bring what was lost there, until it is confirmed or of no more use."""
        try:
            self._bring_all(place, deliver, now() + self._timeout_s)
            while not self._undelivered.is_done(place):
                self._undelivered.pause(place, PROBE_S)
                # Not before the server has answered: one that hangs has the first request, and needs no more of them.
                self._bring_all(place, _connected, now() + min(TRY_S, self._timeout_s))
        except BaseException:
            self._undelivered.stop(place)
            raise

    def _bring_all(self, place: int, send: Callable[[Endpoint, str, float, bytes, int], Connection], by: float) -> None:
        calls, endpoint = self._undelivered.take(place), self._endpoints[place]
        if not calls:
            return
        try:
            connection = send(endpoint, endpoint.path, by, packed(calls), len(calls))
            try:
                replies = connection.read_each(by)
            finally:
                self._let_go(connection)
        except LockfastError:
            return
        self._undelivered.heard(place, calls, replies[-len(calls) :])  # behind those to the greeting, if that is new


def _connected(endpoint: Endpoint, socket_path: str, by: float, requests: bytes, count: int) -> Connection:
    """What `deliver` returns, of a server that has answered its greeting."""
    connection = connect(endpoint, socket_path, by)
    try:
        connection.send(requests, count)
    except BaseException:
        connection.close()
        raise
    return connection
