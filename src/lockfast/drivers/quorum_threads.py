"""Runs flows in threads over a majority of independent servers."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.clock import now
from lockfast.drivers.bringing_threads import Bringer
from lockfast.drivers.connection import connect
from lockfast.drivers.hub_threads import Hub
from lockfast.drivers.introducing import introducing
from lockfast.drivers.looks import Looks
from lockfast.drivers.quorum_lines import DRAIN_S, GRACE_S, LOOKS_S, Lane, Line
from lockfast.drivers.threads import Threads
from lockfast.drivers.undelivered import Undelivered
from lockfast.errors import LockfastError, Misused, Refused, Unreachable
from lockfast.flows import ending, quorum
from lockfast.flows.effects import Env, Listen, Scatter, Sleep, Wait
from lockfast.flows.fleet import ASKS_AGAIN_S, NOT_AGREED, Fleet, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.connection import Connection
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Effect, Flow
    from lockfast.grants import Hold
    from lockfast.topologies import Quorum

R = TypeVar("R")
MOST_SPARE = 8


class QuorumThreads(Threads):
    """The driver of one client of several servers."""

    def __init__(
        self,
        servers: Quorum,
        timeout_s: float,
        prefix: str,
        label: str | None,
        node_timeout_s: float,
        max_lease_s: float | None,
    ) -> None:
        self._servers = servers
        self._node_timeout_s = node_timeout_s
        self._max_lease_s = max_lease_s
        super().__init__(servers.nodes[0], timeout_s, prefix, label)
        self.where = servers.where

    def _start(self) -> None:
        super()._start()
        self.env.connected = False
        self._lanes: deque[Lane] = deque()
        self._spare: list[deque[Line]] = [deque() for _ in self._servers.nodes]
        self._looks_at = 0.0
        self._arrived = threading.Condition()  # told whenever a connection has been made, or not
        nodes = []
        for place, endpoint in enumerate(self._servers.nodes):
            env = Env(now, random.random, self.env.timeout_s)
            env.introduce(*self.env.me)
            env.place = place
            nodes.append(Node(endpoint.where, env))
        self.fleet = self.env.fleet = Fleet(nodes, self._node_timeout_s, self._max_lease_s)
        self._undelivered = Undelivered(self.fleet)
        self._bringer = Bringer(self._servers.nodes, self._undelivered, self.env.timeout_s, self._let_go)
        self._hubs = [Hub(node.env, self.env.me[0], self._connector(place)) for place, node in enumerate(nodes)]

    def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Held:
        """Run quorum.acquire."""
        return self._run_soon(quorum.acquire(ask, ticket, wait_s, self.env))

    def release(self, hold: Hold) -> None:
        """Run ending.release."""
        self._run_soon(ending.release(hold, self.keeper, self.env))

    def look(self, make: Callable[[Env], Flow[R]]) -> list[R]:
        """Look at every server that answers, all at once. Raises Unreachable or Refused when these are no majority."""
        if self.closed:
            raise Misused("this client is closed")
        looks: Looks[R] = Looks(self._servers.nodes)
        changed = threading.Condition()

        def look_at(place: int) -> None:
            reader = Threads(self._servers.nodes[place], self.env.timeout_s, self.prefix, None)
            reader.env.enough = partial(looks.stumbles, place)
            told: Callable[[], None]
            try:
                told = partial(looks.found, place, reader.run(make(reader.env)))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the caller hears of it
                told = partial(looks.failed, place, error)
            finally:
                reader.close()
            with changed:
                told()
                changed.notify_all()

        for place in range(len(self._servers.nodes)):
            self._beside(look_at, place)
        with changed:
            changed.wait_for(lambda: looks.is_enough or not looks.missing)  # each ends in time by itself
            changed.wait_for(lambda: not looks.hopeful, self.fleet.node_timeout_s)
            return looks.judge()

    def run(self, flow: Flow[R]) -> R:
        """Run a flow to its end: see Threads. What has come since is heard first, wherever nobody is reading.

        A renewal judges by the votes that were heard: one whose reply lies in a socket would pass for never given.
        """
        for _ in range(len(self._lanes)):
            self._look_into(self._lanes.popleft, everything=True)
        return super().run(flow)

    def _run_soon(self, flow: Flow[R]) -> R:
        """The same where it is enough to hear what is late on the lane that is used next."""
        try:
            is_due = self._lanes[-1].is_due(now())
        except IndexError:
            is_due = False  # there is none
        if is_due:
            self._look_into(self._lanes.pop, everything=False)
        return super().run(flow)

    def _look_into(self, take: Callable[[], Lane], everything: bool) -> None:
        try:
            lane = take()
        except IndexError:
            return
        try:
            self._catch_up(lane, everything)
        finally:
            self._lanes.append(lane)

    def _perform(self, effect: Effect) -> Any:
        if type(effect) is Scatter:
            self._scatter(effect)
            return None
        if type(effect) is Wait:
            return self._hubs[effect.place].wait(effect.ticket, effect.until)
        if type(effect) is Listen:
            return self._hubs[effect.place].listen(effect.by)
        assert type(effect) is Sleep
        time.sleep(effect.delay_s)
        return None

    def _scatter(self, effect: Scatter) -> None:
        if self.closed:
            raise Misused("this client is closed")
        try:
            lane = self._lanes.pop()
        except IndexError:
            lane = Lane(len(self._servers.nodes), self._node_timeout_s)
        try:
            self._catch_up(lane)
            if None in lane.lines and any(lane.lines[place] is None for place in effect.places):
                self._fill(lane, effect)
            lane.is_suspect = True
            trip = lane.write(effect, now(), self._bringer.bring)
            lane.gather(trip, effect.enough, effect.by)
            lane.is_suspect = False
        finally:
            self._lanes.append(lane)
            if self.closed:
                self._close_lanes()
        self._probe_the_silent()

    # Connections.

    def _fill(self, lane: Lane, effect: Scatter) -> None:
        """Have lines where there are none: as many as are soon there, and enough for a majority if that can be."""
        missing = [place for place in effect.places if lane.lines[place] is None and not self._take_spare(lane, place)]
        if not missing or (effect.behind and effect.enough()):
            return
        for place in missing:
            if not lane.dialling[place]:
                self.fleet.nodes[place].looked_at = now()
                begun = False
                try:
                    lane.dialling[place] = True
                    begun = self._begin(place, self._dial_for, lane, place)
                finally:
                    if not begun:
                        lane.dialling[place] = False  # else nobody would ever dial here again
        needed = min(self.fleet.majority, len(effect.places))
        by = effect.by
        with self._arrived:
            while True:
                missing = [place for place in missing if not self._take_spare(lane, place)]
                dialling = [place for place in missing if lane.dialling[place]]
                if not dialling:
                    return
                hopeful = self.fleet.ready(now())  # lines to servers that hang make no majority
                if len([place for place in effect.places if place not in missing and place in hopeful]) >= needed:
                    by, needed = min(by, now() + GRACE_S), len(effect.places) + 1
                left_s = by - now()
                if left_s <= 0:
                    return
                self._arrived.wait(left_s)

    def _catch_up(self, lane: Lane, everything: bool = False) -> None:
        """Hear what has come, and see what hangs: the line, if there is another to the same server, or the server."""
        if lane.is_suspect:
            lane.mend()
        for line in lane.catch_up(everything):
            if self._spare[line.place]:
                connection = line.connection
                connection.owed = len(line.owed)  # so that it stays open for a while: what was written must still run
                lane.remove(line, f"{connection.where} does not answer")
                self._take_spare(lane, line.place)
                self._let_go(connection)
            else:
                line.node.asked(line.silent_since)

    def _take_spare(self, lane: Lane, place: int) -> bool:
        try:
            lane.add(self._spare[place].pop())
        except IndexError:
            return False
        return True

    def _dial_for(self, lane: Lane, place: int) -> None:
        try:
            self._make_spare(place, now() + self.env.attempt_s)
        finally:
            with self._arrived:
                lane.dialling[place] = False
                self._arrived.notify_all()

    def _make_spare(self, place: int, by: float) -> None:
        """A line that anybody can take; or the reason why there is none, kept with the node."""
        node = self.fleet.nodes[place]
        try:
            line = Line(place, node, self._introduced(place, by))
        except LockfastError as failure:
            node.fell_silent(str(failure), failure.code if isinstance(failure, Refused) else "")
            return
        self.env.connected = True
        spare = self._spare[place]
        spare.append(line)
        if self.closed or len(spare) > MOST_SPARE:
            spare.popleft().connection.close()

    def _introduced(self, place: int, by: float) -> Connection:
        """A connection whose server has said who it is, and since when."""
        connection = self._connector(place)(by)
        steps = introducing(self.fleet, place, self.prefix, connection.endpoint, self._undelivered)
        try:
            step = next(steps)
            while True:
                replies: list[Any] = []
                if step is not None:
                    connection.send(*step)
                    replies = connection.read_each(by)
                elif now() >= by or self.closed:
                    raise Unreachable(NOT_AGREED, sent=False)
                else:
                    time.sleep(ASKS_AGAIN_S)
                step = steps.send(replies)
        except StopIteration:
            return connection
        except BaseException:
            connection.close()
            raise

    def _connector(self, place: int) -> Callable[[float], Connection]:
        endpoint = self._servers.nodes[place]

        def dial(by: float) -> Connection:
            if self.closed:
                raise Misused("this client is closed")
            return connect(endpoint, endpoint.path, by, self._tick_s)

        return dial

    def _probe_the_silent(self) -> None:
        """Look after servers that do not answer, beside everything else."""
        moment = now()
        if moment < self._looks_at:
            return
        self._looks_at = moment + LOOKS_S
        for place in self.fleet.to_probe(moment):
            node = self.fleet.nodes[place]
            node.looked_at = moment
            begun = False
            try:
                node.probing = True
                begun = self._begin(place, self._probe, place)
            finally:
                if not begun:
                    node.probing = False  # else nobody would ever look again

    def _probe(self, place: int) -> None:
        try:
            self._make_spare(place, now() + self.env.attempt_s)
        finally:
            self.fleet.nodes[place].probing = False

    def _begin(self, place: int, work: Any, *args: Any) -> bool:
        """Start what connects to a server. False if no thread can be started: it counts as down, others may be well."""
        try:
            self._beside(work, *args)
        except RuntimeError as error:
            self.fleet.nodes[place].fell_silent(f"cannot begin to connect: {error}")
            return False
        return True

    @staticmethod
    def _beside(work: Any, *args: Any) -> None:
        threading.Thread(target=work, args=args, name="lockfast-connect", daemon=True).start()

    # Its end.

    def stop_acquiring(self) -> None:
        self.closing = self.fleet.closing = True
        for hub in self._hubs:
            hub.close()
        super().stop_acquiring()

    def close(self) -> None:
        self._undelivered.end()
        super().close()
        self._close_lanes()
        self._bringer.close()
        self._lingering.close()

    def _close_lanes(self) -> None:
        by = now() + DRAIN_S
        while self._lanes:
            lane = self._lanes.pop()
            lane.drain(by)
            lane.close()
        for spare in self._spare:
            while spare:
                spare.pop().connection.close()

    def forget(self) -> None:
        inherited = [line.connection for lane in self._lanes for line in lane.lines if line is not None]
        inherited += [line.connection for spare in self._spare for line in spare]
        hubs = self._hubs
        super().forget()
        for hub in hubs:
            hub.forget()
        for connection in inherited:
            connection.close()
