"""Runs flows in threads, over a small pool of blocking connections."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.clock import now
from lockfast.drivers import forks, trips, wire
from lockfast.drivers.connection import TICK_S
from lockfast.drivers.hub_threads import Hub
from lockfast.drivers.identity import agent_of_thread, new_client_id, new_ticket, owner_text
from lockfast.drivers.keeper_threads import Keeper
from lockfast.drivers.pool import Lingering, Pool
from lockfast.drivers.wire import PING, ReplyError, evalsha
from lockfast.errors import LockfastError
from lockfast.flows import admission, ending, swapping
from lockfast.flows.admission import at_once
from lockfast.flows.effects import Call, CallMany, Command, Env, Listen, Sleep, Wait
from lockfast.flows.swapping import SWAPPED
from lockfast.grants import Era
from lockfast.names import channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.drivers.connection import Connection
    from lockfast.drivers.plain_threads import PlainThreads
    from lockfast.endpoints import Endpoint
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.effects import Effect, Flow, Opening
    from lockfast.flows.scripts import Bound
    from lockfast.grants import Hold

R = TypeVar("R")


class Threads:
    """The driver of one client: its pool, its push hub, and what it remembers."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, prefix: str, label: str | None) -> None:
        self.endpoint = endpoint
        self.where = endpoint.where  # for messages
        self.closing = False  # no new acquires
        self.closed = False  # no requests at all
        self.env = self._new_env(timeout_s)
        self.prefix = prefix
        self._label = label
        self._tick_s = min(TICK_S, timeout_s / 8)
        self.asks: dict[tuple[object, ...], Ask] = {}  # what locks of this client ask for; see locks.py
        self._start()
        forks.tell(self)

    def _new_env(self, timeout_s: float) -> Env:
        return Env(now, random.random, timeout_s)

    def _start(self) -> None:
        """Begin a life in this process: nothing held, nothing connected, a channel of its own."""
        self.era = Era()
        self._id = new_client_id()
        own_channel = channel(self.prefix, self._id)
        self.env.introduce(own_channel, owner_text(self._label))
        self.env.listening = 0
        self.acquiring: set[str] = set()  # tickets of acquires that are under way
        self.entries: dict[tuple[str, object], Any] = {}  # re-entrant holds, by key and thread
        self._lingering = Lingering()
        self._let_go = self._lingering.let_go
        self._open(own_channel)
        self.keeper = Keeper(self.env, self.run)

    def _open(self, own_channel: str) -> None:
        """Get ready to connect."""
        self.env.swaps_from, self.env.young_s = now() + swapping.AFTER_S, swapping.YOUNG_S
        self._pool = Pool(self.endpoint, self.env, self._tick_s)
        self._free = self._pool.free
        self.hub = Hub(self.env, own_channel, self._pool.connect)

    def new_plain(self) -> PlainThreads:
        """What runs transactions."""
        from lockfast.drivers.plain_threads import PlainThreads

        return PlainThreads([self.endpoint], self.env.timeout_s)

    def new_ticket(self) -> str:
        """A ticket for the thread that asks."""
        return new_ticket(self._id, agent_of_thread())

    def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Held:
        """Run admission.acquire. Its first request is sent from here, as most need no more than that."""
        env = self.env
        if env.replicas:
            return self.run(admission.acquire(ask, ticket, wait_s, env))
        lane: Connection | None = None
        sent = now()
        by = sent + env.attempt_s
        bound, args = ask.admit(env, wait_s), (env.seen.get(ask.name.shown, 0), ticket)
        try:
            try:
                lane = self._free.pop()
            except IndexError:
                lane = self._pool.dial(by)
            answer: Any = lane.call(evalsha(bound, args), by)
            held = at_once(ask, answer, sent, env)
            if held is not None:
                answered, lane = lane, None  # in this order: what is in the pool may be another's already
                self._free.append(answered)
                if self.closed:  # as in Pool.give_back
                    self._pool.close_free()
                return held
            first = [answer, None]
        except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
            # Its traceback leads to this frame, and so to the grant that the caller is about to make: kept in a local,
            # it would be a cycle, and nobody would notice when the grant is dropped. Who runs the flow empties this.
            first = [None, struck]
        flow = admission.acquire(ask, ticket, wait_s, env, sent)
        return self._follow(flow, Call(bound, args, by), lane, first)

    def release(self, hold: Hold) -> None:
        """Run ending.release, its first request from here as well."""
        try:
            self._release(hold)
        except LockfastError:
            raise
        except BaseException:
            ending.rescue(hold, self.keeper)
            raise

    def _release(self, hold: Hold) -> None:
        env, keeper = self.env, self.keeper
        moment = now()
        if not ending.begin(hold, keeper, moment):
            return
        if hold.unsure or hold.why_lost:
            self.run(ending.finish(hold, keeper, env))
            return
        lane: Connection | None = None
        stood = False
        by = moment + env.attempt_s
        swaps = swapping.is_due(hold, moment, env)
        try:
            try:
                lane = self._free.pop()
            except IndexError:
                lane = self._pool.dial(by)
            if swaps:
                answer: Any = lane.call(wire.swap(hold.ask.swap, hold.fence, hold.ticket), by)
                stood = answer == SWAPPED
            else:
                request = evalsha(hold.ask.leave, (hold.ticket,))
                # Servers write pending replies last in, first out. A PING in front puts this connection into that list
                # before the receiver of a grant, so that the next holder is written to first.
                answer = lane.call(PING + request, by, 2) if env.listening else lane.call(request, by)
                stood = answer == 1
            first = [answer, None]
            if stood:
                answered, lane = lane, None
                self._free.append(answered)
                if self.closed:
                    self._pool.close_free()
        except BaseException as struck:  # noqa: BLE001 - as above
            first = [None, struck]
        if stood:
            ending.end(hold, True)
            if first[1] is not None:
                raise first.pop()  # Ctrl-C, when all was done
            return
        call = None if swaps else Call(hold.ask.leave, (hold.ticket,), by)
        self._follow(ending.finish(hold, keeper, env, swaps), call, lane, first)

    def open(self, opening: Opening[R]) -> R:
        """Run a flow whose first request is sent from here in the same way."""
        call = opening.prepare()
        if call is None:
            return self.run(opening.flow())
        lane: Connection | None = None
        try:
            try:
                lane = self._free.pop()
            except IndexError:
                lane = self._pool.dial(call.by)
            answer: Any = lane.call(evalsha(call.bound, call.args), call.by)
            result = opening.settle(answer)
            if result is not None:
                answered, lane = lane, None
                self._free.append(answered)
                if self.closed:
                    self._pool.close_free()
                return result
            first = [answer, None]
        except BaseException as struck:  # noqa: BLE001 - as above
            first = [None, struck]
        return self._follow(opening.flow(), call, lane, first)

    def _follow(self, flow: Flow[R], call: Call | None, lane: Connection | None, first: list[Any]) -> R:
        """Run a flow whose first request has been sent, and came to this answer or error.

        call: that request, if it was a script. lane: where it was sent, unless that is in the pool again.
        """
        unanswered: list[Connection] = []
        try:
            if lane is not None and first[1] is None:
                if type(first[0]) is ReplyError and call is not None:
                    first[0] = self._retold(lane, call.bound, call.args, call.by, first[0])
                answered, lane = lane, None
                self._pool.give_back(answered)
                if type(first[0]) is ReplyError:
                    first[1] = self._refusal(answered, first[0])
        except BaseException as struck:  # noqa: BLE001 - as above
            first[1] = struck
        if lane is not None:
            unanswered.append(lane)
            self._pool.close_free()  # the others go to the same server and most likely failed with it
        return self._go_on(flow, unanswered, first)

    def run(self, flow: Flow[R]) -> R:
        """Run a flow to its end. What strikes in between (no answer, Ctrl-C) is thrown into it, so that it can undo."""
        return self._go_on(flow, [], [])

    def look(self, make: Callable[[Env], Flow[R]]) -> list[R]:
        """What the flow that `make` returns finds: at each server, where there are several."""
        return [self.run(make(self.env))]

    def _go_on(self, flow: Flow[R], unanswered: list[Connection], first: list[Any]) -> R:
        """Run a flow. first: what its first request came to, answer and error, if that has been sent already.

        It is emptied, so that nobody has the error any more. unanswered: where its requests went out without an answer.
        """
        answer: Any = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    effect = flow.send(answer) if error is None else flow.throw(error)
                except StopIteration as stop:
                    result: R = stop.value
                    return result
                except BaseException as struck:
                    if getattr(flow, "gi_frame", None) is None:
                        raise  # what the flow ended with
                    # Ctrl-C, after the flow had asked for something and before that was begun: it has to undo.
                    answer, error = None, struck
                    continue
                answer = error = None
                if first:
                    answer, error = first
                    first.clear()
                    if type(effect) is Command or (type(effect) is Call and not effect.behind):
                        continue
                    answer = error = None  # interrupted before it began: this is its undo
                try:
                    if type(effect) is not Call:
                        answer = self._perform(effect)
                    elif effect.behind:
                        self._undo(effect, unanswered)
                    else:
                        answer = self._call(effect, unanswered)
                except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
                    error = struck
        finally:
            error = None  # as in acquire
            for connection in unanswered:
                self._let_go(connection)

    def _call(self, call: Call, unanswered: list[Connection]) -> Any:
        """Run a script. If that fails on a connection, it is added to `unanswered`: what was sent may still run."""
        by = call.by
        lane = self._pool.take(by)
        try:
            if call.copies is not None:
                answer: Any = trips.only(trips.on_connection(lane, [call], call.copies, by))
            else:
                answer = lane.call(evalsha(call.bound, call.args), by)
            if type(answer) is ReplyError:
                answer = self._retold(lane, call.bound, call.args, by, answer)
        except BaseException:
            unanswered.append(lane)
            self._pool.close_free()  # the others go to the same server and most likely failed with it
            raise
        self._pool.give_back(lane)
        return answer

    def _undo(self, call: Call, unanswered: list[Connection]) -> None:
        """Send a `leave` behind every request that it may have to undo."""
        # With its text: a server that forgot the script cannot ask for it here.
        self._pool.undo(wire.eval_text(call.bound, call.args), call.by, unanswered, self._let_go)

    def _retold(
        self, connection: Connection, bound: Bound, args: tuple[str | int | bytes, ...], by: float, reply: Exception
    ) -> Any:
        """The answer after all, when the server had only forgotten the script; otherwise raises what it means."""
        answer: Any = reply
        if wire.is_noscript(reply):
            answer = connection.bring(wire.eval_text(bound, args), by)
        if isinstance(answer, wire.ReplyError):
            raise wire.failure(answer, connection.where, bound, connection.address is not None)
        return answer

    def _perform(self, effect: Effect) -> Any:
        if type(effect) is Wait:
            return self.hub.wait(effect.ticket, effect.until)
        if type(effect) is Listen:
            return self.hub.listen(effect.by)
        if type(effect) is Sleep:
            time.sleep(effect.delay_s)
            return None
        if type(effect) is Command:
            return self._command(effect)
        assert type(effect) is CallMany
        return self._call_many(effect)

    def _call_many(self, effect: CallMany) -> Any:
        connection = self._pool.take(effect.by)
        try:
            answers, copied = trips.on_connection(connection, effect.calls, effect.copies, effect.by)
        except BaseException:
            self._let_go(connection)
            self._pool.close_free()  # as in _call
            raise
        self._pool.give_back(connection)
        return answers if effect.copies is None else (answers, copied)

    def _command(self, effect: Command) -> Any:
        connection = self._pool.take(effect.by)
        try:
            reply = connection.call(wire.pack(effect.args), effect.by)
        except BaseException:
            self._let_go(connection)
            self._pool.close_free()  # as in _call
            raise
        self._pool.give_back(connection)
        if isinstance(reply, wire.ReplyError):
            raise self._refusal(connection, reply)
        return reply

    def _refusal(self, connection: Connection, reply: Exception) -> LockfastError:
        """What it means that a plain command was refused on a connection that is in the pool again."""
        if connection.address is not None:
            self._pool.close_free()  # this one too: it may be no master any more
        return wire.failure(reply, connection.where, None, connection.address is not None)

    def stop_acquiring(self) -> None:
        """Let nobody in any more: acquires that wait in other threads end with Misused, and leave the queue."""
        self.closing = True
        self._hang_up()
        gives_up_at = now() + self.env.timeout_s
        while self.acquiring and now() < gives_up_at:
            time.sleep(0.001)

    def close(self) -> None:
        """End the keeper and close every connection, after one more try for releases that were not confirmed."""
        self.keeper.close()
        try:
            for hold in list(self.keeper.ledger.unconfirmed.values()):
                self.run(self.keeper.ledger.finish_one(hold, self.env))
        except LockfastError:
            pass  # the lease ends what could not be confirmed now
        self.closed = True
        self._shut()
        self._lingering.close()

    def _hang_up(self) -> None:
        self.hub.close()

    def _shut(self) -> None:
        self.hub.close()
        self._pool.close()

    def _owned(self) -> list[forks.Forgets]:
        return [self.hub, self._pool]

    def forget(self) -> None:
        """In a forked child: own nothing of the parent's. Its sockets are closed here and stay open there."""
        self.era.ended = True
        owned, lingering = self._owned(), self._lingering
        self._start()
        for one in owned:
            one.forget()
        lingering.close()
