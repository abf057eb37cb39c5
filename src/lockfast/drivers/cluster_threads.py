"""Runs flows in threads against a cluster: a pool and a push connection for each master, requests sent by slot.

A request goes to the node that owns the slot of its name. MOVED and ASK say that it did not run and where it belongs:
it is sent there at once, a few times at most. Everything else that may pass (TRYAGAIN, CLUSTERDOWN, a node that does
not answer) is told to the flow, which tries again within the caller's time; before that the map is asked for anew.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast.clock import now
from lockfast.drivers import slots, wire
from lockfast.drivers.pool import Pool
from lockfast.drivers.rights import say_deaf
from lockfast.drivers.shards_threads import ShardHub
from lockfast.drivers.slots import SlotMap, slot_of, slot_of_name
from lockfast.drivers.threads import Threads
from lockfast.drivers.wire import ReplyError
from lockfast.errors import LockfastError, Misused, Unreachable
from lockfast.flows import admission, ending
from lockfast.flows.effects import Listen, ShardedEnv, Wait

if TYPE_CHECKING:
    from lockfast.drivers import forks
    from lockfast.drivers.connection import Connection
    from lockfast.drivers.plain_threads import PlainThreads
    from lockfast.drivers.slots import Address
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Call, CallMany, Command, Effect
    from lockfast.flows.scripts import Bound
    from lockfast.grants import Hold
    from lockfast.topologies import Cluster

RETRY_S = 0.02  # between tries of what undoes an acquire
MIN_ASK_S = 0.05  # the least time that a node is given to tell the map


class Node(NamedTuple):
    """One master."""

    address: Address
    pool: Pool
    hub: ShardHub


class ClusterThreads(Threads):
    """The driver of one client of a cluster."""

    endpoint: Cluster
    env: ShardedEnv

    def _new_env(self, timeout_s: float) -> ShardedEnv:
        return ShardedEnv(now, random.random, timeout_s)

    def _open(self, own_channel: str) -> None:
        self.map = SlotMap(self.endpoint.seeds)
        self.env.heard.clear()
        self._nodes: dict[Address, Node] = {}
        self._numbers = itertools.count(1)
        self._making = threading.Lock()
        self._learning = threading.Lock()
        self._deaf = False

    def new_plain(self) -> PlainThreads:
        from lockfast.drivers.cluster_plain import ClusterPlainThreads

        return ClusterPlainThreads(self)

    def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Held:
        """Run admission.acquire."""
        return self.run(admission.acquire(ask, ticket, wait_s, self.env))

    def release(self, hold: Hold) -> None:
        """Run ending.release."""
        self.run(ending.release(hold, self.keeper, self.env))

    # Which node

    def node_at(self, address: Address) -> Node:
        """The node at an address; nothing is connected by this."""
        node = self._nodes.get(address)
        if node is None:
            with self._making:
                node = self._nodes.get(address)
                if node is None:
                    pool = Pool(self.endpoint.at(address), self.env, self._tick_s)
                    pool.closed = self.closed
                    node = Node(address, pool, ShardHub(self.env, pool.dial, self._numbers))
                    self._nodes[address] = node
                    if self.closing:
                        node.hub.close()
        return node

    def owner_of(self, slot: int, by: float) -> Node:
        """The node that owns a slot, as far as is known; the map is asked for first if it is in doubt."""
        if self.closed:
            raise Misused("this client is closed")
        if self.map.is_doubted:
            self._learn(by)
        address = self.map.owner(slot)
        if address is None:
            self.map.doubt()
            raise Unreachable(f"no node of {self.endpoint.where} serves slot {slot}", sent=False)
        return self.node_at(address)

    def _learn(self, by: float) -> None:
        """Ask one node after another for the map, until one tells it."""
        if not self._learning.acquire(timeout=max(by - now(), 0.0)):
            raise Unreachable("another thread is still asking for the cluster's map", sent=False)
        try:
            failures: list[LockfastError] = []
            for count, address in enumerate(self.map.candidates(random.randrange(1000))):
                if not self.map.is_doubted:  # another thread has asked meanwhile
                    return
                moment = now()
                if count and moment >= by:
                    break
                try:  # a node that hangs must not use up the time of the others
                    reply = self._ask(
                        self.node_at(address), slots.CLUSTER_SLOTS, moment + max((by - moment) / 2, MIN_ASK_S)
                    )
                except LockfastError as error:
                    failures.append(error)
                    continue
                if not self.map.learn(reply, address):
                    told = f"{self.endpoint.at(address).where} knows of no slots yet"
                    failures.append(Unreachable(told, sent=False))
            if self.map.is_doubted:
                raise slots.untold(failures)
        finally:
            self._learning.release()

    def _ask(self, node: Node, request: bytes, by: float) -> Any:
        """A plain request to one node. Raises Unreachable or Refused."""
        try:
            lane = node.pool.take(by)
        except Unreachable:
            self.map.doubt(node.address)
            raise
        try:
            reply = lane.call(request, by)
        except BaseException:
            self._fail(node)
            self._let_go(lane)
            raise
        node.pool.give_back(lane)
        if isinstance(reply, ReplyError):
            raise self._means(node, reply)
        return reply

    def _fail(self, node: Node) -> None:
        """A connection did not answer: most likely its node is in trouble, and the map has changed or will."""
        node.pool.close_free()
        self.map.doubt(node.address)

    def _means(self, node: Node, reply: Exception, bound: Bound | None = None) -> LockfastError:
        """What an error reply means to the flow, that is no redirect."""
        if slots.is_unfit(reply):
            self.map.doubt(node.address)
            return Unreachable(f"{node.pool.endpoint.where} answers {str(reply)!r}", sent=False)
        return wire.failure(reply, node.pool.endpoint.where, bound)

    # Requests

    def _call(self, call: Call, unanswered: list[Connection]) -> Any:
        bound, args, by = call.bound, call.args, call.by
        slot = slot_of_name(bound.name)
        node = self.owner_of(slot, by)
        request, asking = slots.evalsha(bound, args), False
        for _ in range(slots.MAX_REDIRECTS):
            try:
                lane = node.pool.take(by)
            except Unreachable:
                self.map.doubt(node.address)
                raise
            try:
                answer = self._say(lane, request, asking, by)
                if wire.is_noscript(answer):
                    text = slots.eval_text(bound, args)
                    answer = self._say(lane, text, asking, by) if asking else lane.bring(text, by)
            except BaseException:
                unanswered.append(lane)
                self._fail(node)
                raise
            node.pool.give_back(lane)
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

    def _say(self, lane: Connection, request: bytes, asking: bool, by: float) -> Any:
        return lane.call(slots.ASKING + request, by, 2) if asking else lane.call(request, by)

    def _undo(self, call: Call, unanswered: list[Connection]) -> None:
        """Send a `leave` behind every request that it may have to undo, and to the slot's owner if none answers.

        Where there is no answer it will run when the node gets to it; but the node may be none of ours any more.
        """
        request, read_by = slots.eval_text(call.bound, call.args), (now() + call.by) / 2
        is_done = False
        lanes, unanswered[:] = unanswered[::-1], []
        try:
            for lane in list(lanes):
                try:
                    lane.send(request, 1)
                except Unreachable:
                    lanes.remove(lane)
                    self._let_go(lane)
            for lane in lanes:
                try:
                    is_done = type(lane.read(read_by)) is not ReplyError or is_done
                except (TimeoutError, Unreachable):
                    pass
        finally:
            for lane in lanes:
                self._let_go(lane)
        while not is_done:  # ends with the time that this call has
            try:
                self._call(call, unanswered)
                return
            except Unreachable:
                if now() + RETRY_S >= call.by:
                    raise
            time.sleep(RETRY_S)

    def _perform(self, effect: Effect) -> Any:
        if type(effect) is Wait:
            assert effect.name is not None
            address = self.map.owner(slot_of_name(effect.name))
            if address is None:
                return None
            channel = self.env.subscribed(effect.name)
            return self.node_at(address).hub.wait_on(channel, effect.ticket, effect.until)
        if type(effect) is Listen:
            return self._listen(effect)
        return super()._perform(effect)

    def _listen(self, effect: Listen) -> int:
        assert effect.name is not None
        if self._deaf:
            return 0
        channel, slot = self.env.subscribed(effect.name), slot_of_name(effect.name)
        for _ in range(slots.MAX_REDIRECTS):
            node = self.owner_of(slot, effect.by)
            try:
                return node.hub.listen_to(channel, effect.by)
            except Unreachable:
                self.map.doubt(node.address)
                raise
            except ReplyError as reply:
                redirect = slots.redirect(reply, node.address)
                if redirect is not None:
                    self.map.move(redirect.slot, redirect.address)
                    continue
                reason = self._means(node, reply)
                if isinstance(reason, Unreachable):
                    raise reason from None
                with self._making:  # no right to subscribe or to publish: the waiters poll instead
                    is_told, self._deaf = self._deaf, True
                if not is_told:
                    say_deaf(reason)
                return 0
        raise Unreachable(f"the nodes of {self.endpoint.where} do not agree on slot {slot} yet", sent=False)

    def _call_many(self, effect: CallMany) -> list[Any]:
        calls, by = effect.calls, effect.by
        wanted = [(slot_of_name(call.bound.name), slots.evalsha(call.bound, call.args)) for call in calls]
        answers = self._tour(wanted, by)
        for i, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            if type(answer) is not ReplyError:
                continue
            unanswered: list[Connection] = []
            try:  # a script that the node does not know yet, a slot that has moved, or a refusal
                answers[i] = self._call(call, unanswered)
            except LockfastError as failure:
                answers[i] = failure
            finally:
                for lane in unanswered:
                    self._let_go(lane)
        return answers

    def _tour(self, wanted: list[tuple[int, bytes]], by: float) -> list[Any]:
        """Send each request to the owner of its slot: all nodes are written to before any is read from.

        Answers a reply, an error reply or Unreachable for each, in order; a node that fails, fails only its own.
        """
        answers: list[Any] = [None] * len(wanted)
        places: dict[Address, list[int]] = {}
        if self.map.is_doubted:
            self._learn(by)
        for place, (slot, _) in enumerate(wanted):
            try:
                places.setdefault(self.owner_of(slot, by).address, []).append(place)
            except Unreachable as failure:
                answers[place] = failure
        asked: list[tuple[Node, Connection, list[int]]] = []
        try:
            for count, (address, mine) in enumerate(places.items()):
                node, moment = self.node_at(address), now()
                try:  # the time is shared out: a node that cannot be dialled must not use up that of the others
                    lane = node.pool.take(moment + (by - moment) / (len(places) - count))
                except LockfastError as failure:
                    self.map.doubt(address)
                    self._tell_each(answers, mine, failure)
                    continue
                asked.append((node, lane, mine))
                try:
                    lane.send(b"".join([wanted[place][1] for place in mine]), len(mine))
                except Unreachable as failure:
                    self._tell_each(answers, mine, failure)
            for node, lane, mine in asked:
                if answers[mine[0]] is None:
                    try:
                        for place, reply in zip(mine, lane.read_each(by), strict=True):
                            answers[place] = reply
                    except Unreachable as failure:
                        self._tell_each(answers, mine, failure)
                if lane.owed:
                    self._fail(node)
        finally:
            for node, lane, _ in asked:
                if lane.owed:
                    self._let_go(lane)
                else:
                    node.pool.give_back(lane)
        return answers

    def _tell_each(self, answers: list[Any], places: list[int], failure: LockfastError) -> None:
        for place in places:
            answers[place] = (
                Unreachable(str(failure), sent=failure.sent) if isinstance(failure, Unreachable) else failure
            )

    def _command(self, effect: Command) -> Any:
        """A plain command of the reading side: SCAN over all masters, keys and names by their slots."""
        word, by = effect.args[0], effect.by
        if word == "SCAN":
            return self._scan(effect)
        if word == "MGET":
            gets = [(slot_of(str(key)), wire.pack(("GET", key))) for key in effect.args[1:]]
            answers = self._tour(gets, by)
            failure = next((one for one in answers if isinstance(one, Exception)), None)
            if failure is not None:
                raise Unreachable(str(failure), sent=False)
            return answers
        slot = slot_of(str(effect.args[1])) if effect.name is None else slot_of_name(effect.name)
        (answer,) = self._tour([(slot, wire.pack(effect.args))], by)
        if isinstance(answer, ReplyError):
            redirect = slots.redirect(answer, ("", 0))
            if redirect is not None:
                self.map.doubt()
                raise Unreachable(f"slot {redirect.slot} has moved", sent=False)
            raise self._means(self.owner_of(slot, by), answer)
        if isinstance(answer, LockfastError):
            raise answer
        return answer

    def _scan(self, effect: Command) -> tuple[bytes, list[bytes]]:
        cursor = effect.args[1]
        assert isinstance(cursor, bytes)
        if cursor == b"0":
            self.map.doubt()
        if self.map.is_doubted:  # also because the node that was to be asked did not answer
            self._learn(effect.by)
        masters = self.map.masters()
        found = slots.next_to_scan(cursor, masters)
        if found is None:
            return b"0", []
        address, inner = found
        inner, keys = self._ask(self.node_at(address), wire.pack(("SCAN", inner, *effect.args[2:])), effect.by)
        return slots.scan_cursor(cursor, address, inner, masters), keys

    # The end

    def _hang_up(self) -> None:
        with self._making:
            nodes = list(self._nodes.values())
        for node in nodes:
            node.hub.close()

    def _shut(self) -> None:
        self._hang_up()
        for node in list(self._nodes.values()):
            node.pool.close()

    def _owned(self) -> list[forks.Forgets]:
        return [one for node in self._nodes.values() for one in (node.hub, node.pool)]
