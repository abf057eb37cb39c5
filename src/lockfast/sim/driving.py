"""The third driver: runs flows on the connections of a simulated client.

It carries out the same effects as drivers/threads.py and drivers/aio.py, and the plain ones of drivers/plain_*.py;
how they use their connections is in `pooled.py` and `shared.py`, how they hear pushes in `hub.py`. Not imitated: the
PING in front of a `leave`, which only changes the order in which a real server writes to its sockets; here that order
is up to the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.drivers import wire
from lockfast.errors import LockfastError, Unreachable
from lockfast.flows import admission, ending, swapping
from lockfast.flows import quorum as by_majority
from lockfast.flows.effects import Call, CallMany, Command, Listen, Scatter, Sleep, Wait
from lockfast.flows.plain import Do, Everywhere, Pipeline, gone, is_clean
from lockfast.sim.hub import Hub
from lockfast.sim.lines import by_sha, by_text
from lockfast.sim.net import OPEN
from lockfast.sim.pooled import Pooled
from lockfast.sim.shared import Shared
from lockfast.sim.tasks import Cancelled, Pending, Task, until

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.grants import Hold
    from lockfast.sim.client import Client
    from lockfast.sim.net import Connection
    from lockfast.sim.quorum import Quorum
    from lockfast.sim.tasks import Steps

R = TypeVar("R")
STYLES = {"threads": Pooled, "asyncio": Shared}


class Work:
    """The caller's own work, in seconds of its own clock. It ends early when `over` is settled. Answer: None."""

    __slots__ = ("length_s", "over")

    def __init__(self, length_s: float, over: Pending | None = None) -> None:
        self.length_s = length_s
        self.over = over


class Run:
    """Run a flow as one call of the library: it has its connections to itself. Answer: what it returns."""

    __slots__ = ("flow",)

    def __init__(self, flow: Generator[Any, Any, Any]) -> None:
        self.flow = flow


class Take:
    """Acquire, as the drivers do it. Answer: what admission.acquire returns; throws what it raises."""

    __slots__ = ("ask", "ticket", "wait_s")

    def __init__(self, ask: Ask, ticket: str, wait_s: float | None) -> None:
        self.ask = ask
        self.ticket = ticket
        self.wait_s = wait_s


class Give:
    """Release, as the drivers do it. Answer: None; throws what ending.release raises."""

    __slots__ = ("hold",)

    def __init__(self, hold: Hold) -> None:
        self.hold = hold


class Frame:
    """One flow under way, and the connections on which its requests went out."""

    __slots__ = ("cancelled", "ends_private", "lane", "private", "unanswered")

    def __init__(self, of: Frame | None = None) -> None:
        """of: the flow that this one is a part of, whose own connections it may use."""
        self.cancelled = False
        self.lane: Any = None  # for `shared`: where the last request went out; for a quorum: the lane of the flow
        self.unanswered: list[Connection] = []  # for `pooled`: where requests went out without an answer
        self.private: dict[int, Connection] = {} if of is None else of.private  # by server
        self.ends_private = of is None


class Runner:
    """Runs the flows of one client."""

    def __init__(self, client: Client) -> None:
        if client.style not in STYLES:
            raise ValueError(f"style is one of {', '.join(STYLES)}, got {client.style!r}")
        self.client = client
        self.lines = [STYLES[client.style](client, node) for node in client.servers]
        self.hub = Hub(client, self.lines[0].connect, client.env)
        self.quorum: Quorum | None = None  # where a majority decides
        # The textbook algorithms take connections out of a pool, in threads and in asyncio.
        self._plain = [line if isinstance(line, Pooled) else Pooled(client, line.node) for line in self.lines]

    def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Steps[Held]:
        """Run admission.acquire. Its first request is sent from here, as most need no more than that."""
        env, frame = self.client.env, Frame()
        if self.quorum is not None:
            return (yield from self.run(by_majority.acquire(ask, ticket, wait_s, env)))
        if not self.lines[0].ready:
            return (yield from self.run(admission.acquire(ask, ticket, wait_s, env)))
        answer: Any = None
        error: BaseException | None = None
        sent = env.now()
        call = Call(ask.admit(env, wait_s), (env.seen.get(ask.name.shown, 0), ticket), sent + env.attempt_s)
        try:
            answer = yield from self.lines[0].call(call, frame)
            held = admission.at_once(ask, answer, sent, env)
            if held is not None:
                return held
        except GeneratorExit:
            raise
        except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
            error = struck
        flow = admission.acquire(ask, ticket, wait_s, env, sent)
        flow.send(None)
        return (yield from self._go_on(flow, answer, error, frame))

    def release(self, hold: Hold) -> Steps[None]:
        """Run ending.release, its first request from here as well."""
        env, keeper, frame = self.client.env, self.client.keeper, Frame()
        if not ending.begin(hold, keeper):
            return
        if hold.unsure or hold.why_lost or not self.lines[0].ready or self.quorum is not None:
            yield from self.run(ending.finish(hold, keeper, env))
            return
        answer: Any = None
        error: BaseException | None = None
        by = env.now() + env.attempt_s
        swaps = swapping.is_due(hold, env.now(), env)
        try:
            if swaps:
                command = hold.ask.swap.words(hold.fence, hold.ticket)
                answer = yield from self._perform(Command(command, by), frame)
            else:
                answer = yield from self.lines[0].call(Call(hold.ask.leave, (hold.ticket,), by), frame)
        except GeneratorExit:
            raise
        except BaseException as struck:  # noqa: BLE001 - as above
            error = struck
        if answer == (swapping.SWAPPED if swaps else 1):
            ending.end(hold, stood=True)
            return
        flow = ending.finish(hold, keeper, env, swaps)
        flow.send(None)
        yield from self._go_on(flow, answer, error, frame)

    def run(self, flow: Generator[Any, Any, R]) -> Steps[R]:
        """Run a flow to its end. What strikes in between is thrown into it, so that it can undo; power cuts are not."""
        return (yield from self._go_on(flow, None, None, Frame()))

    def _go_on(self, flow: Generator[Any, Any, R], answer: Any, error: BaseException | None, frame: Frame) -> Steps[R]:
        """Run the rest of a flow: first it is sent the answer, or thrown the error, that its last effect came to."""
        frame.cancelled = isinstance(error, Cancelled)
        while True:
            try:
                effect = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                self._end(frame)
                result: R = stop.value
                return result
            except GeneratorExit:
                raise
            except BaseException:
                self._end(frame)
                raise
            answer = error = None
            try:
                answer = yield from self._perform(effect, frame)
            except GeneratorExit:
                flow.close()
                raise
            except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
                error = struck
                frame.cancelled = frame.cancelled or isinstance(struck, Cancelled)

    def _perform(self, effect: Any, frame: Frame) -> Steps[Any]:
        kind = type(effect)
        client = self.client
        if kind is Call:
            if effect.behind:
                return (yield from self.lines[0].undo(effect, frame))
            return (yield from self.lines[0].call(effect, frame))
        if kind is Wait:
            hub = self.hub if self.quorum is None else self.quorum.hubs[effect.place]
            return (yield from hub.wait(effect.ticket, effect.until))
        if kind is Listen:
            hub = self.hub if self.quorum is None else self.quorum.hubs[effect.place]
            return (yield from hub.listen(effect.by))
        if kind is Scatter:
            assert self.quorum is not None, "only a client of a quorum has flows that do this"
            return (yield from self.quorum.scatter(effect, frame))
        if kind is Sleep:
            yield from until(None, client.shown() + effect.delay_s)
            return None
        if kind is Work:
            yield from until(effect.over, client.shown() + effect.length_s)
            return None
        if kind is Run:
            return (yield from self.run(effect.flow))
        if kind is Take:
            return (yield from self.acquire(effect.ask, effect.ticket, effect.wait_s))
        if kind is Give:
            return (yield from self.release(effect.hold))
        if kind is CallMany:
            return (yield from self._call_many(effect))
        if kind is Command:
            (reply,) = yield from self.lines[0].trip([(effect.args, None)], effect.by)
            if isinstance(reply, wire.ReplyError):
                raise wire.failure(reply, client.servers[0].name)
            return reply
        if kind is Pipeline:
            return (yield from self._pipeline(effect, frame))
        if kind is Do:
            return (yield from self._do(effect, frame))
        if kind is Everywhere:
            return (yield from self._everywhere(effect))
        raise TypeError(f"a simulated client cannot do {effect!r}")

    def _call_many(self, effect: CallMany) -> Steps[list[Any]]:
        lines = self.lines[0]
        replies = yield from lines.trip([by_sha(call) for call in effect.calls], effect.by)
        again = [place for place, reply in enumerate(replies) if wire.is_noscript(reply)]
        if again:
            told = yield from lines.trip([by_text(effect.calls[place]) for place in again], effect.by)
            for place, reply in zip(again, told, strict=True):
                replies[place] = reply
        where = self.client.servers[0].name
        return [wire.failure(reply, where) if isinstance(reply, wire.ReplyError) else reply for reply in replies]

    def _do(self, effect: Do, frame: Frame) -> Steps[Any]:
        """What is called yields effects of its own, and Pipelines on the connections of the flow that calls it."""

        def run(flow: Generator[Any, Any, R]) -> Steps[R]:
            return self._go_on(flow, None, None, Frame(frame))

        return (yield from run(effect.call(run)))

    def _pipeline(self, effect: Pipeline, frame: Frame) -> Steps[list[Any]]:
        pool = self._plain[effect.server]
        connection = frame.private.pop(effect.server, None) if effect.private else None
        if connection is not None and (not effect.same or connection.state is not OPEN):
            connection.close()
            connection = None
        if effect.same and connection is None:
            raise gone(pool.node.name)
        was_clean = connection is None
        if connection is None:
            connection = yield from pool.take_alive(effect.by)
        try:
            replies = yield from pool.ask_on(connection, [(words, None) for words in effect.commands], effect.by)
        except GeneratorExit:
            raise
        except BaseException:
            connection.close()
            pool.close_free()
            raise
        if is_clean(effect.commands, replies, was_clean):
            pool.give_back(connection)
        elif effect.private:
            frame.private[effect.server] = connection
        else:
            connection.close()
        return replies

    def _everywhere(self, effect: Everywhere) -> Steps[list[Any]]:
        """One task per server, so that none waits for another; whoever is late is given up at `by`."""
        trips = [
            Task(self.client, _outcome(pool.trip([(effect.command, None)], effect.by)), f"to {pool.node.name}")
            for pool in self._plain
        ]
        answers = []
        for trip in trips:
            yield from until(trip.ended, effect.by, tick=True)
            answers.append(trip.result() if trip.done else Unreachable("no answer in time"))
        return answers

    def _end(self, frame: Frame) -> None:
        """The flow has ended: its connections are given up, but what was written on them still runs."""
        if frame.ends_private:
            for connection in frame.private.values():
                connection.close()
        for connection in frame.unanswered:
            self.lines[0].let_go(connection)
        if self.quorum is not None:
            self.quorum.end(frame)


def _outcome(trip: Steps[list[Any]]) -> Steps[Any]:
    try:
        return (yield from trip)[0]
    except LockfastError as failure:
        return failure
