"""Runs flows in asyncio tasks over a majority of independent servers: one link to each, which all tasks share."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from math import inf
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.clock import now
from lockfast.drivers import wire
from lockfast.drivers.aio import Asyncio
from lockfast.drivers.bringing_aio import Bringer
from lockfast.drivers.hub_aio import Hub
from lockfast.drivers.introducing import introducing
from lockfast.drivers.link import Link, connect
from lockfast.drivers.looks import Looks
from lockfast.drivers.quorum_lines import DRAIN_S, GRACE_S, LOOKS_S
from lockfast.drivers.quorum_replies import Heard, Trip
from lockfast.drivers.undelivered import Undelivered
from lockfast.drivers.wire import evalsha
from lockfast.errors import LockfastError, Misused, Refused, Unreachable
from lockfast.flows import ending, quorum
from lockfast.flows.effects import Env, Listen, Scatter, Sleep, Wait
from lockfast.flows.fleet import ASKS_AGAIN_S, NOT_AGREED, Fleet, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Call, Effect, Flow
    from lockfast.grants import Hold
    from lockfast.topologies import Quorum

R = TypeVar("R")


class QuorumAsyncio(Asyncio):
    """The driver of one client of several servers, in one event loop."""

    def __init__(
        self,
        servers: Quorum,
        timeout_s: float,
        prefix: str,
        label: str | None,
        node_timeout_s: float,
        max_lease_s: float | None,
    ) -> None:
        super().__init__(servers.nodes[0], timeout_s, prefix, label)
        self.where = servers.where
        self._servers = servers
        nodes = []
        for place, endpoint in enumerate(servers.nodes):
            env = Env(now, random.random, timeout_s)
            env.introduce(*self.env.me)
            env.place = place
            nodes.append(Node(endpoint.where, env))
        self.fleet = self.env.fleet = Fleet(nodes, node_timeout_s, max_lease_s)
        self._undelivered = Undelivered(self.fleet)
        self._bringer = Bringer(self._connector, self._undelivered, timeout_s, self._undoing, len(nodes))
        self._hubs = [Hub(node.env, self.env.me[0], self._connector(place)) for place, node in enumerate(nodes)]
        self._placed: list[Link | None] = [None] * len(nodes)
        self._dials: list[asyncio.Task[None] | None] = [None] * len(nodes)
        self._retired: list[set[Link]] = [set() for _ in nodes]  # given up, and open: what was written there may run
        self._looks_at = 0.0
        self._waiting: set[Trip] = set()  # those that tasks wait for
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = inf

    async def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Held:
        """Run quorum.acquire."""
        latest = now() - self.fleet.node_timeout_s
        for node in self.fleet.nodes:
            if node.asked_at <= latest:
                # If this loop stood still, replies lie in the sockets: they are read before a server passes for hung.
                # What is found in one turn is told in the next. (Who is cancelled here has asked for nothing yet.)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                break
        return await self.run(quorum.acquire(ask, ticket, wait_s, self.env))

    async def release(self, hold: Hold) -> None:
        """Run ending.release."""
        await self.run(ending.release(hold, self.keeper, self.env))

    async def run(self, flow: Flow[R]) -> R:
        """Run a flow to its end. A cancelled task has its CancelledError thrown into the flow, so that it can undo."""
        answer: Any = None
        error: BaseException | None = None
        cancelled = False
        while True:
            try:
                effect = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                result: R = stop.value
                return result
            answer = error = None
            try:
                if type(effect) is not Scatter:
                    answer = await self._perform(effect)
                elif cancelled and effect.behind:
                    self._write(effect)  # here and now: the loop may be about to end
                else:
                    await self._scatter(effect)
            except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
                error = struck
                cancelled = cancelled or not isinstance(struck, Exception)

    async def look(self, make: Callable[[Env], Flow[R]]) -> list[R]:
        """Look at every server that answers, all at once. Raises Unreachable or Refused when these are no majority."""
        if self.closed:
            raise Misused("this client is closed")
        looks: Looks[R] = Looks(self._servers.nodes)

        async def look_at(place: int) -> None:
            reader = Asyncio(self._servers.nodes[place], self.env.timeout_s, self.prefix, None)
            reader.env.enough = partial(looks.stumbles, place)
            try:
                looks.found(place, await reader.run(make(reader.env)))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller hears of it
                looks.failed(place, error)
            finally:
                await reader.close()

        async with asyncio.TaskGroup() as group:  # who is cancelled ends them, and their connections
            waiting = {group.create_task(look_at(place), name="lockfast-look") for place in self.fleet.everywhere}
            while waiting and not looks.is_enough:
                waiting = (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[1]
            if looks.hopeful:
                waiting = (await asyncio.wait(waiting, timeout=self.fleet.node_timeout_s))[1]
            for task in waiting:
                task.cancel()
        return looks.judge()

    async def _perform(self, effect: Effect) -> Any:
        if type(effect) is Wait:
            return await self._hubs[effect.place].wait(effect.ticket, effect.until)
        if type(effect) is Listen:
            return await self._hubs[effect.place].listen(effect.by)
        assert type(effect) is Sleep
        return await asyncio.sleep(effect.delay_s)

    @coroutine
    def _scatter(self, effect: Scatter) -> Generator[Any, None, None]:
        if self.closed:
            raise Misused("this client is closed")
        if None in self._placed and any(self._placed[place] is None for place in effect.places):
            yield from self._fill(effect).__await__()
        trip = self._write(effect)
        if trip.missing and not effect.enough():
            trip.is_awaited = True
            self._waiting.add(trip)
            if effect.by < self._rings_at:
                self._ring_at(effect.by)
            try:
                yield trip
            finally:
                self._waiting.discard(trip)
        self._probe_the_silent()

    def _write(self, effect: Scatter) -> Trip:
        """Send all requests of an effect."""
        moment = now()
        trip = Trip(self._loop or asyncio.get_running_loop(), effect, moment + self.env.timeout_s, self._bring_to)
        lines, nodes = self._placed, self.fleet.nodes
        packed: dict[Call, bytes] = {}  # most often all servers are asked the same
        requests = effect.make(lines)
        # What several tasks send is written together, and what is for one server; who is alone need not wait for that.
        is_alone = not self._waiting and len(requests) <= len(effect.places)
        trip.missing = len(requests)
        for index, (place, call) in enumerate(requests):
            link, node = lines[place], nodes[place]
            if link is None:
                trip.missing -= 1
                effect.hear(index, Unreachable("there is no connection to it", sent=False))
                if effect.behind:
                    self._bring_to(place, call)
                continue
            data = packed.get(call)
            if data is None:
                data = packed[call] = evalsha(call.bound, call.args)
            heard = Heard()
            heard.trip, heard.index, heard.call = trip, index, call
            heard.link, heard.node, heard.is_done = link, node, False
            if moment < node.asked_at:
                node.asked_at = moment
            try:
                link.post(data, heard, trip.link_by, is_alone)
            except Unreachable as failure:
                heard.fail(failure)
        return trip

    def _ring_at(self, moment: float) -> None:
        """Look then whose time is up. One timer is enough for all who wait."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings_at = moment
        self._alarm = asyncio.get_running_loop().call_later(max(moment - now(), 0.0), self._ring)

    def _ring(self) -> None:
        self._alarm, self._rings_at = None, inf
        moment = now()
        for trip in list(self._waiting):
            if trip.by <= moment:
                trip.settle(None)
        rings_at = min([trip.by for trip in self._waiting], default=inf)
        if rings_at < self._rings_at:
            self._ring_at(rings_at)

    # Connections.

    async def _fill(self, effect: Scatter) -> None:
        """Have links where there are none: as many as are soon there, and enough for a majority if that can be."""
        if effect.behind and effect.enough():
            return
        missing = [place for place in effect.places if self._placed[place] is None]
        for place in missing:
            self._dial(place)
        needed = min(self.fleet.majority, len(effect.places))
        by = effect.by
        while True:
            dials = [dial for dial in (self._dials[place] for place in missing) if dial is not None]
            if not dials:
                return
            # Links to servers that hang make no majority.
            hopeful = self.fleet.ready(now())
            if (
                len([place for place in effect.places if self._placed[place] is not None and place in hopeful])
                >= needed
            ):
                by, needed = min(by, now() + GRACE_S), len(effect.places) + 1
            left_s = by - now()
            if left_s <= 0:
                return
            await asyncio.wait(dials, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def _dial(self, place: int) -> None:
        """Begin to connect, unless that is under way. It goes on whoever is cancelled."""
        if self._dials[place] is not None or self.closed:
            return
        self.fleet.nodes[place].looked_at = now()
        self._dials[place] = asyncio.get_running_loop().create_task(self._introduce(place), name="lockfast-connect")

    async def _introduce(self, place: int) -> None:
        node = self.fleet.nodes[place]
        by = now() + self.env.attempt_s
        link: Link | None = None
        try:
            link = await self._connector(place)(by, self._when_ended(place), None)
            steps = introducing(self.fleet, place, self.prefix, link.endpoint, self._undelivered)
            step = next(steps)
            try:
                while True:
                    replies: list[Any] = []
                    if step is not None:
                        link.plain = link.endpoint.plain
                        replies = await link.request_many(*step, by)
                    elif now() >= by:
                        raise Unreachable(NOT_AGREED, sent=False)
                    else:
                        await asyncio.sleep(ASKS_AGAIN_S)
                    step = steps.send(replies)
            except StopIteration:
                link.plain = link.endpoint.plain
            self._placed[place] = link
            self.env.connected = True
        except LockfastError as failure:
            node.fell_silent(str(failure), failure.code if isinstance(failure, Refused) else "")
            if link is not None:
                link.close()
        finally:
            self._dials[place] = None

    def _bring_to(self, place: int, call: Call) -> None:
        """Bring a request to a server over a link of its own, as soon as that can be done.

        And behind whatever it may have to undo: a server that hangs will come to that first.
        """
        request, by = wire.eval_text(call.bound, call.args), now() + self.env.timeout_s
        for link in self._retired[place]:
            try:
                link.post(request, None, by)
            except Unreachable:
                pass  # it has ended
        if not self.closed:
            self._bringer.bring(place, call)

    def _connector(self, place: int) -> Any:
        endpoint = self._servers.nodes[place]

        async def dial(by: float, on_end: Callable[[Link], None], on_push: Callable[[Any], None] | None = None) -> Link:
            link = await connect(endpoint, endpoint.path, by, on_end, on_push)
            self._line.links.add(link)
            link.ended.add_done_callback(lambda _: self._line.links.discard(link))
            return link

        return dial

    def _when_ended(self, place: int) -> Callable[[Link], None]:
        def ended(link: Link) -> None:
            if self._placed[place] is link:
                self._placed[place] = None
                self._retired[place].add(link)
                link.ended.add_done_callback(lambda _: self._retired[place].discard(link))
                self.fleet.nodes[place].fell_silent("the connection was lost, or it does not answer")

        return ended

    def _probe_the_silent(self) -> None:
        """Look after servers that do not answer, beside everything else."""
        moment = now()
        if moment < self._looks_at:
            return
        self._looks_at = moment + LOOKS_S
        if self.fleet.to_probe(moment):
            # In the next turn: if this loop stood still, replies lie in sockets that this turn has yet to read.
            asyncio.get_running_loop().call_soon(self._probe)

    def _probe(self) -> None:
        """A link that is owed much is not trusted."""
        for place in self.fleet.to_probe(now()):
            link = self._placed[place]
            if link is not None:
                link.retire()
            self._dial(place)

    # Its end.

    async def stop_acquiring(self) -> None:
        self.closing = self.fleet.closing = True
        for hub in self._hubs:
            hub.close()
        await super().stop_acquiring()

    def _tasks(self) -> list[asyncio.Future[Any]]:
        return [*super()._tasks(), *(dial for dial in self._dials if dial is not None)]

    async def _drain(self) -> None:
        by = now() + DRAIN_S
        while now() < by and any(  # noqa: ASYNC110 - once per client, and for a moment only
            line is not None and line.owes and not node.why_down
            for line, node in zip(self._placed, self.fleet.nodes, strict=True)
        ):
            await asyncio.sleep(0.002)
        await self._bringer.finish()  # a link may have been lost only now, with a `leave` on it

    async def close(self) -> None:
        self._bringer.end()
        await super().close()
        if self._alarm is not None:
            self._alarm.cancel()
