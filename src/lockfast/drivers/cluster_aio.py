"""Runs flows in asyncio tasks against a cluster: a shared link and a push link for each master, requests sent by slot.

What is said in cluster_threads.py holds here as well.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast.clock import now
from lockfast.drivers import slots, wire
from lockfast.drivers.aio import Asyncio
from lockfast.drivers.cluster_threads import MIN_ASK_S, RETRY_S
from lockfast.drivers.line import Line, seen
from lockfast.drivers.rights import say_deaf
from lockfast.drivers.shards_aio import ShardHub
from lockfast.drivers.slots import SlotMap, slot_of, slot_of_name
from lockfast.drivers.wire import ReplyError
from lockfast.errors import LockfastError, Misused, Unreachable
from lockfast.flows import admission, ending
from lockfast.flows.effects import Call, Command, Listen, ShardedEnv, Wait

if TYPE_CHECKING:
    from lockfast.drivers.link import Link
    from lockfast.drivers.plain_aio import PlainAsyncio
    from lockfast.drivers.slots import Address
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import CallMany, Effect
    from lockfast.flows.scripts import Bound
    from lockfast.grants import Hold
    from lockfast.topologies import Cluster


class Node(NamedTuple):
    """One master."""

    address: Address
    line: Line
    hub: ShardHub


class ClusterAsyncio(Asyncio):
    """The driver of one client of a cluster in one event loop."""

    endpoint: Cluster
    env: ShardedEnv

    def _new_env(self, timeout_s: float) -> ShardedEnv:
        return ShardedEnv(now, random.random, timeout_s)

    def _open(self, own_channel: str) -> None:
        self.map = SlotMap(self.endpoint.seeds)
        self._nodes: dict[Address, Node] = {}
        self._numbers = itertools.count(1)
        self._learning: asyncio.Task[None] | None = None
        self._deaf = False

    def new_plain(self) -> PlainAsyncio:
        from lockfast.drivers.cluster_plain_aio import ClusterPlainAsyncio

        return ClusterPlainAsyncio(self)

    async def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Held:
        """Run admission.acquire."""
        return await self.run(admission.acquire(ask, ticket, wait_s, self.env))

    async def release(self, hold: Hold) -> None:
        """Run ending.release."""
        await self.run(ending.release(hold, self.keeper, self.env))

    # Which node

    def node_at(self, address: Address) -> Node:
        """The node at an address; nothing is connected by this."""
        node = self._nodes.get(address)
        if node is None:
            line = Line(self.endpoint.at(address), self.env)
            line.closed = self.closed
            node = self._nodes[address] = Node(address, line, ShardHub(self.env, line.connect, self._numbers))
            if self.closing:
                node.hub.close()
        return node

    async def owner_of(self, slot: int, by: float) -> Node:
        """The node that owns a slot, as far as is known; the map is asked for first if it is in doubt."""
        if self.closed:
            raise Misused("this client is closed")
        if self.map.is_doubted:
            await self._learn(by)
        address = self.map.owner(slot)
        if address is None:
            self.map.doubt()
            raise Unreachable(f"no node of {self.endpoint.where} serves slot {slot}", sent=False)
        return self.node_at(address)

    async def _learn(self, by: float) -> None:
        """Ask for the map. Shared: a cancelled task must not take the answer away from the others."""
        if self._learning is None:
            self._learning = asyncio.create_task(self._ask_around(by), name="lockfast-map")
            self._learning.add_done_callback(seen)
        learning = self._learning
        try:
            await asyncio.shield(learning)
        except asyncio.CancelledError:
            if self.closed and learning.cancelled():
                raise Misused("this client was closed while an acquire was waiting") from None
            raise

    async def _ask_around(self, by: float) -> None:
        """Ask one node after another for the map, until one tells it."""
        try:
            failures: list[LockfastError] = []
            for count, address in enumerate(self.map.candidates(random.randrange(1000))):
                moment = now()
                if count and moment >= by:
                    break
                try:  # a node that hangs must not use up the time of the others
                    ask_by = moment + max((by - moment) / 2, MIN_ASK_S)
                    reply = await self._ask(self.node_at(address), slots.CLUSTER_SLOTS, ask_by)
                except LockfastError as error:
                    failures.append(error)
                    continue
                if self.map.learn(reply, address):
                    return
                told = f"{self.endpoint.at(address).where} knows of no slots yet"
                failures.append(Unreachable(told, sent=False))
            raise slots.untold(failures)
        finally:
            self._learning = None

    async def _ask(self, node: Node, request: bytes, by: float) -> Any:
        """A plain request to one node. Raises Unreachable or Refused."""
        try:
            link = await self._linked(node, by)
            reply = await link.request(request, by)
        except Unreachable:
            self.map.doubt(node.address)
            raise
        if isinstance(reply, ReplyError):
            raise self._means(node, reply)
        return reply

    async def _linked(self, node: Node, by: float) -> Link:
        """The link to a node, if it stands by then. Others may go on waiting for it."""
        try:
            async with asyncio.timeout(max(by - now(), 0.0)):
                return await node.line.linked(by)
        except TimeoutError:
            raise Unreachable(f"cannot connect to {node.line.endpoint.where} in time", sent=False) from None

    def _means(self, node: Node, reply: Exception, bound: Bound | None = None) -> LockfastError:
        """What an error reply means to the flow, that is no redirect."""
        if slots.is_unfit(reply):
            self.map.doubt(node.address)
            return Unreachable(f"{node.line.endpoint.where} answers {str(reply)!r}", sent=False)
        return wire.failure(reply, node.line.endpoint.where, bound)

    # Requests

    async def _call(self, call: Call, lanes: list[Link]) -> Any:
        bound, args, by = call.bound, call.args, call.by
        slot = slot_of_name(bound.name)
        node = await self.owner_of(slot, by)
        request, asking = slots.evalsha(bound, args), False
        for _ in range(slots.MAX_REDIRECTS):
            try:
                lane = await self._linked(node, by)
                lanes[:] = [lane]
                answer = await self._say(lane, request, asking, by)
                if wire.is_noscript(answer):
                    text = slots.eval_text(bound, args)
                    answer = await (self._say(lane, text, asking, by) if asking else lane.bring(text, by))
            except Unreachable:
                self.map.doubt(node.address)
                raise
            if type(answer) is not ReplyError:
                return answer
            redirect = slots.redirect(answer, node.address)
            if redirect is None:
                raise self._means(node, answer, bound)
            if redirect.for_good:
                self.map.move(slot, redirect.address)
            node, asking = self.node_at(redirect.address), not redirect.for_good
        self.map.doubt()
        raise Unreachable(f"the nodes of {self.endpoint.where} do not agree on slot {slot} yet", sent=False)

    async def _say(self, lane: Link, request: bytes, asking: bool, by: float) -> Any:
        return await (lane.ask(slots.ASKING + request, by, 1) if asking else lane.ask(request, by))

    def _undo(self, call: Call, lanes: list[Link]) -> asyncio.Future[Any]:
        """Send a `leave` behind the request that it undoes, and to the slot's owner if that does not take it."""
        if not lanes:
            return self._bring(call)
        sent = lanes[-1].request(slots.eval_text(call.bound, call.args), now() + self.env.timeout_s)
        self._undoing.add(sent)

        def answered(sent: asyncio.Future[Any]) -> None:
            self._undoing.discard(sent)
            if sent.cancelled() or self.closed:
                return
            if sent.exception() is not None or isinstance(sent.result(), ReplyError):
                self._bring(call)

        sent.add_done_callback(answered)
        return sent

    async def _bring_anew(self, call: Call) -> None:
        by = now() + self.env.timeout_s
        while True:
            try:
                await self._call(Call(call.bound, call.args, by), [])
                return
            except Unreachable:
                if now() + RETRY_S >= by:
                    return  # the place ends by itself in seconds, a hold with its lease
            except LockfastError:
                return
            await asyncio.sleep(RETRY_S)

    async def _perform(self, effect: Effect) -> Any:
        if type(effect) is Wait:
            assert effect.name is not None
            address = self.map.owner(slot_of_name(effect.name))
            if address is None:
                return None
            channel = self.env.subscribed(effect.name)
            return await self.node_at(address).hub.wait_on(channel, effect.ticket, effect.until)
        if type(effect) is Listen:
            return await self._listen(effect)
        if type(effect) is Command:
            return await self._command(effect)
        return await super()._perform(effect)

    async def _listen(self, effect: Listen) -> int:
        assert effect.name is not None
        if self._deaf:
            return 0
        channel, slot = self.env.subscribed(effect.name), slot_of_name(effect.name)
        for _ in range(slots.MAX_REDIRECTS):
            node = await self.owner_of(slot, effect.by)
            try:
                return await node.hub.listen_to(channel, effect.by)
            except Unreachable:
                self.map.doubt(node.address)
                raise
            except ReplyError as reply:
                redirect = slots.redirect(reply, node.address)
                if redirect is not None:
                    self.map.move(redirect.slot, redirect.address)  # of whoever made the push link: it is shared
                    continue
                reason = self._means(node, reply)
                if isinstance(reason, Unreachable):
                    raise reason from None
                if not self._deaf:  # no right to subscribe or to publish: the waiters poll instead
                    say_deaf(reason)
                self._deaf = True
                return 0
        raise Unreachable(f"the nodes of {self.endpoint.where} do not agree on slot {slot} yet", sent=False)

    async def _call_many(self, effect: CallMany) -> list[Any]:
        calls, by = effect.calls, effect.by
        wanted = [(slot_of_name(call.bound.name), slots.evalsha(call.bound, call.args)) for call in calls]
        answers = await self._tour(wanted, by)
        for i, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            if type(answer) is ReplyError:
                try:  # a script that the node does not know yet, a slot that has moved, or a refusal
                    answers[i] = await self._call(Call(call.bound, call.args, by), [])
                except LockfastError as failure:
                    answers[i] = failure
        return answers

    async def _tour(self, wanted: list[tuple[int, bytes]], by: float) -> list[Any]:
        """Send each request to the owner of its slot, all at once, one write for each node.

        Answers a reply, an error reply or Unreachable for each, in order; a node that fails, fails only its own.
        """
        answers: list[Any] = [None] * len(wanted)
        places: dict[Address, list[int]] = {}
        if self.map.is_doubted:
            await self._learn(by)
        for place, (slot, _) in enumerate(wanted):
            try:
                places.setdefault((await self.owner_of(slot, by)).address, []).append(place)
            except Unreachable as failure:
                answers[place] = failure

        async def go(address: Address, mine: list[int]) -> None:
            try:
                link = await self._linked(self.node_at(address), by)
            except LockfastError as failure:
                self.map.doubt(address)
                for place in mine:
                    answers[place] = failure
                return
            futures = link.request_each(b"".join([wanted[place][1] for place in mine]), len(mine), by)
            replies = await asyncio.gather(*futures, return_exceptions=True)
            for place, reply in zip(mine, replies, strict=True):
                answers[place] = reply
                if isinstance(reply, Unreachable):
                    self.map.doubt(address)

        await asyncio.gather(*[go(address, mine) for address, mine in places.items()])
        return answers

    async def _command(self, effect: Command) -> Any:
        """A plain command of the reading side: SCAN over all masters, keys and names by their slots."""
        word, by = effect.args[0], effect.by
        if word == "SCAN":
            return await self._scan(effect)
        if word == "MGET":
            gets = [(slot_of(str(key)), wire.pack(("GET", key))) for key in effect.args[1:]]
            answers = await self._tour(gets, by)
            failure = next((one for one in answers if isinstance(one, Exception)), None)
            if failure is not None:
                raise Unreachable(str(failure), sent=False)
            return answers
        slot = slot_of(str(effect.args[1])) if effect.name is None else slot_of_name(effect.name)
        (answer,) = await self._tour([(slot, wire.pack(effect.args))], by)
        if isinstance(answer, ReplyError):
            redirect = slots.redirect(answer, ("", 0))
            if redirect is not None:
                self.map.doubt()
                raise Unreachable(f"slot {redirect.slot} has moved", sent=False)
            raise self._means(await self.owner_of(slot, by), answer)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _scan(self, effect: Command) -> tuple[bytes, list[bytes]]:
        cursor = effect.args[1]
        assert isinstance(cursor, bytes)
        if cursor == b"0":
            self.map.doubt()
        if self.map.is_doubted:  # also because the node that was to be asked did not answer
            await self._learn(effect.by)
        masters = self.map.masters()
        found = slots.next_to_scan(cursor, masters)
        if found is None:
            return b"0", []
        address, inner = found
        request = wire.pack(("SCAN", inner, *effect.args[2:]))
        inner, keys = await self._ask(self.node_at(address), request, effect.by)
        return slots.scan_cursor(cursor, address, inner, masters), keys

    # The end

    def _hang_up(self) -> None:
        for node in self._nodes.values():
            node.hub.close()

    def _lines(self) -> list[Line]:
        return [node.line for node in self._nodes.values()]

    def _tasks(self) -> list[asyncio.Future[Any]]:
        return [*super()._tasks(), *([] if self._learning is None else [self._learning])]
