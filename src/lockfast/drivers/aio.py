"""Runs flows in asyncio tasks, over one connection per client that all of them share."""

from __future__ import annotations

import asyncio
import random
from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.clock import now
from lockfast.drivers import forks, trips, wire
from lockfast.drivers.hub_aio import Hub
from lockfast.drivers.identity import agent_of_task, new_client_id, new_ticket, owner_text
from lockfast.drivers.keeper_aio import Keeper
from lockfast.drivers.line import Line
from lockfast.drivers.wire import PING, ReplyError, evalsha
from lockfast.errors import LockfastError, Misused, Unreachable
from lockfast.flows import admission, ending, swapping
from lockfast.flows.admission import at_once
from lockfast.flows.effects import Call, CallMany, Command, Env, Listen, Sleep, Wait
from lockfast.flows.swapping import SWAPPED
from lockfast.grants import Era
from lockfast.names import channel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lockfast.drivers.link import Link
    from lockfast.drivers.plain_aio import PlainAsyncio
    from lockfast.endpoints import Endpoint
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.flows.copying import Copies
    from lockfast.flows.effects import Effect, Flow, Opening
    from lockfast.flows.scripts import Bound
    from lockfast.grants import Hold

R = TypeVar("R")


class Asyncio:
    """The driver of one client in one event loop: its link, its push hub, and what it remembers."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, prefix: str, label: str | None) -> None:
        self.endpoint = endpoint
        self.where = endpoint.where  # for messages
        self.prefix = prefix
        self.closing = False  # no new acquires
        self.closed = False  # no requests at all
        self.asks: dict[tuple[object, ...], Ask] = {}  # what locks of this client ask for; see locks.py
        self.acquiring: set[str] = set()  # tickets of acquires that are under way
        self.entries: dict[tuple[str, object], Any] = {}  # re-entrant holds, by key and task
        self.era = Era()
        self._id = new_client_id()
        own_channel = channel(prefix, self._id)
        self.env = self._new_env(timeout_s)
        self.env.introduce(own_channel, owner_text(label))
        self._open(own_channel)
        self.keeper = Keeper(self.env, self.run)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._undoing: set[asyncio.Future[Any]] = set()
        self._spawned: set[asyncio.Task[None]] = set()
        forks.tell(self)

    def _new_env(self, timeout_s: float) -> Env:
        return Env(now, random.random, timeout_s)

    def _open(self, own_channel: str) -> None:
        """Get ready to connect."""
        self.env.swaps_from, self.env.young_s = now() + swapping.AFTER_S, swapping.YOUNG_S
        self._line = Line(self.endpoint, self.env)
        self.hub = Hub(self.env, own_channel, self._line.connect)

    def enter(self) -> None:
        """Check that the client is used where it belongs: its own loop, its own process, not closed."""
        if self.era.ended:
            raise Misused("this client belongs to the process that this one was forked from: make one here")
        loop = get_running_loop()
        if self._loop is loop and not self.closed:
            return
        if self._loop is not None and self._loop is not loop:
            state = "a closed" if self._loop.is_closed() else "another"
            raise Misused(f"this client belongs to {state} event loop: make one in each loop")
        if self.closed:
            raise Misused("this client is closed")
        self._loop = loop

    def soon(self, callback: Callable[[], object]) -> None:
        """Call back in the next turn of the loop, from whatever thread this is."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside everything else, and keep it from being forgotten."""
        task = asyncio.get_running_loop().create_task(work, name="lockfast-on-lost")
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    def new_plain(self) -> PlainAsyncio:
        """What runs transactions."""
        from lockfast.drivers.plain_aio import PlainAsyncio

        return PlainAsyncio([self.endpoint], self.env.timeout_s)

    def new_ticket(self) -> str:
        """A ticket for the task that asks."""
        return new_ticket(self._id, agent_of_task(asyncio.current_task()))

    async def acquire(self, ask: Ask, ticket: str, wait_s: float | None) -> Held:
        """Run admission.acquire. Its first request is sent from here, as most need no more than that."""
        env = self.env
        sent = now()
        lane = self._line.link
        if lane is None or not lane.usable or env.replicas:
            return await self.run(admission.acquire(ask, ticket, wait_s, env))
        by = sent + env.attempt_s
        bound, args = ask.admit(env, wait_s), (env.seen.get(ask.name.shown, 0), ticket)
        try:
            answer: Any = await lane.ask(evalsha(bound, args), by)
            held = at_once(ask, answer, sent, env)
            if held is not None:
                return held
            if type(answer) is ReplyError:
                answer = await self._retold(lane, bound, args, by, answer)
            first = [answer, None]
        except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
            first = [None, struck]  # not in a local: drivers/threads.py says why
        return await self._go_on(admission.acquire(ask, ticket, wait_s, env, sent), [lane], first)

    async def release(self, hold: Hold) -> None:
        """Run ending.release, its first request from here as well."""
        env, keeper = self.env, self.keeper
        moment = now()
        if not ending.begin(hold, keeper, moment):
            return
        lane = self._line.link
        if hold.unsure or hold.why_lost or lane is None or not lane.usable:
            await self.run(ending.finish(hold, keeper, env))
            return
        answer: Any = None
        bound, args, by = hold.ask.leave, (hold.ticket,), moment + env.attempt_s
        swaps = swapping.is_due(hold, moment, env)
        try:
            if swaps:
                answer = await lane.ask(wire.swap(hold.ask.swap, hold.fence, hold.ticket), by)
                if type(answer) is ReplyError:
                    raise self._meaning(answer, lane, None)
            else:
                request = evalsha(bound, args)
                # The next holder is written to before this client is; drivers/threads.py says why.
                answer = await (lane.ask(PING + request, by, 1) if env.listening else lane.ask(request, by))
                if type(answer) is ReplyError:
                    answer = await self._retold(lane, bound, args, by, answer)
            first = [answer, None]
        except BaseException as struck:  # noqa: BLE001 - as above
            first = [None, struck]
        if answer == (SWAPPED if swaps else 1):
            ending.end(hold, True)
            return
        await self._go_on(ending.finish(hold, keeper, env, swaps), [lane], first)

    async def open(self, opening: Opening[R]) -> R:
        """Run a flow whose first request is sent from here in the same way."""
        call = opening.prepare()
        if call is None:  # as always in clusters, which have more than one line
            return await self.run(opening.flow())
        lane = self._line.link
        if lane is None or not lane.usable:
            return await self.run(opening.flow())
        try:
            answer: Any = await lane.ask(evalsha(call.bound, call.args), call.by)
            result = opening.settle(answer)
            if result is not None:
                return result
            if type(answer) is ReplyError:
                answer = await self._retold(lane, call.bound, call.args, call.by, answer)
            first = [answer, None]
        except BaseException as struck:  # noqa: BLE001 - as above
            first = [None, struck]
        return await self._go_on(opening.flow(), [lane], first)

    async def run(self, flow: Flow[R]) -> R:
        """Run a flow to its end. A cancelled task has its CancelledError thrown into the flow, so that it can undo."""
        return await self._go_on(flow, [], [])

    async def look(self, make: Callable[[Env], Flow[R]]) -> list[R]:
        """What the flow that `make` returns finds: at each server, where there are several."""
        return [await self.run(make(self.env))]

    async def _go_on(self, flow: Flow[R], lanes: list[Link], first: list[Any]) -> R:
        """Run a flow. first: what its first request came to, answer and error, if that has been sent already.

        It is emptied, so that nobody has the error any more. lanes: where its last request went out.
        """
        answer: Any = None
        error: BaseException | None = None
        cancelled = False
        try:
            while True:
                try:
                    effect = flow.send(answer) if error is None else flow.throw(error)
                except StopIteration as stop:
                    result: R = stop.value
                    return result
                answer = error = None
                if first:
                    answer, error = first
                    first.clear()
                    cancelled = error is not None and not isinstance(error, Exception)
                    continue
                try:
                    if type(effect) is not Call:
                        answer = await self._perform(effect)
                    elif effect.behind:
                        undoing = self._undo(effect, lanes)
                        if not cancelled:  # who gave up by themselves can wait a moment until they have left
                            await asyncio.wait([undoing], timeout=max(effect.by - now(), 0.0))
                    else:
                        if self.closed:
                            raise Misused("this client is closed")
                        answer = await self._call(effect, lanes)
                except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
                    error = struck
                    cancelled = cancelled or not isinstance(struck, Exception)
        finally:
            error = None

    async def _call(self, call: Call, lanes: list[Link]) -> Any:
        """Run a script."""
        if call.copies is not None:
            lane = await self._line.alone(call.by)
            lanes[:] = [lane]
            return trips.only(await self._trip(lane, [call], call.copies, call.by))
        lane = await self._line.linked(call.by)
        lanes[:] = [lane]
        answer = await lane.ask(evalsha(call.bound, call.args), call.by)
        if type(answer) is ReplyError:
            answer = await self._retold(lane, call.bound, call.args, call.by, answer)
        return answer

    async def _retold(
        self, link: Link, bound: Bound, args: tuple[str | int | bytes, ...], by: float, reply: Exception
    ) -> Any:
        """The answer after all, when the server had only forgotten the script; otherwise raises what it means."""
        self.env.connected = True
        answer: Any = reply
        if wire.is_noscript(reply):
            answer = await link.bring(wire.eval_text(bound, args), by)
        if isinstance(answer, wire.ReplyError):
            raise self._meaning(answer, link, bound)
        return answer

    def _meaning(self, reply: Exception, link: Link, bound: Bound | None) -> LockfastError:
        """What an error reply means. A link to a server that is no master any more is not used again."""
        failure = wire.failure(reply, link.where, bound, link.address is not None)
        if link.address is not None and isinstance(failure, Unreachable):
            link.retire()
        return failure

    def _undo(self, call: Call, lanes: list[Link]) -> asyncio.Future[Any]:
        """Send a `leave` behind the request that it undoes: its place in the line makes it safe to go on.

        Written here and now, and no task is begun for it: the loop may be about to end. Only if the line is broken is
        it brought over a new one, in the background and within the client's time-out.
        """
        if not lanes:
            return self._bring(call)
        lane = lanes[-1]
        sent = lane.request(wire.eval_text(call.bound, call.args), now() + self.env.timeout_s)
        self._undoing.add(sent)

        def answered(sent: asyncio.Future[Any]) -> None:
            self._undoing.discard(sent)
            if sent.cancelled() or self.closed:
                return
            refusal = sent.exception() or sent.result()
            if isinstance(refusal, ReplyError):
                self._meaning(refusal, lane, None)  # it is no master any more, say, and has undone nothing
            if isinstance(refusal, Exception):
                self._bring(call)

        sent.add_done_callback(answered)
        return sent

    def _bring(self, call: Call) -> asyncio.Future[Any]:
        task = asyncio.get_running_loop().create_task(self._bring_anew(call), name="lockfast-undo")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        return task

    async def _bring_anew(self, call: Call) -> None:
        by = now() + self.env.timeout_s
        try:
            link = await self._line.linked(by)
            await link.request(wire.eval_text(call.bound, call.args), by)
        except LockfastError:
            pass  # the place ends by itself in seconds, a hold with its lease

    async def _perform(self, effect: Effect) -> Any:
        if type(effect) is Wait:
            return await self.hub.wait(effect.ticket, effect.until)
        if type(effect) is Listen:
            return await self.hub.listen(effect.by)
        if type(effect) is Sleep:
            return await asyncio.sleep(effect.delay_s)
        if type(effect) is Command:
            link = await self._line.linked(effect.by)
            reply = await link.request(wire.pack(effect.args), effect.by)
            if isinstance(reply, wire.ReplyError):
                raise self._meaning(reply, link, None)
            return reply
        assert type(effect) is CallMany
        return await self._call_many(effect)

    async def _call_many(self, effect: CallMany) -> Any:
        if effect.copies is not None:
            return await self._trip(await self._line.alone(effect.by), effect.calls, effect.copies, effect.by)
        link = await self._line.linked(effect.by)
        try:
            answers, _ = await trips.on_link(link, effect.calls, None, effect.by)
        except Unreachable:
            if link.address is not None:
                link.retire()
            raise
        return answers

    async def _trip(self, link: Link, calls: list[Call], copies: Copies, by: float) -> trips.Answers:
        """Run scripts, and see how many replicas have what they wrote, on a link that nobody else uses meanwhile."""
        try:
            answers = await trips.on_link(link, calls, copies, by)
        except BaseException:
            link.retire()
            raise
        self._line.free.append(link)
        return answers

    async def stop_acquiring(self) -> None:
        """Let nobody in any more: acquires that wait in other tasks end with Misused, and leave the queue."""
        self.closing = True
        self._hang_up()
        gives_up_at = now() + self.env.timeout_s
        while self.acquiring and now() < gives_up_at:  # noqa: ASYNC110 - once per client, and for a moment only
            await asyncio.sleep(0.001)

    def _hang_up(self) -> None:
        self.hub.close()

    def _lines(self) -> list[Line]:
        return [self._line]

    def _tasks(self) -> list[asyncio.Future[Any]]:
        """What is under way beside the flows."""
        return [*(task for line in self._lines() for task in line.tasks()), *self._undoing]

    async def close(self) -> None:
        """Close every connection, after what is being undone has been sent."""
        gives_up_at = now() + self.env.timeout_s
        while self._undoing and now() < gives_up_at:
            await asyncio.wait(self._undoing, timeout=gives_up_at - now())
        await self.keeper.close()
        try:
            for hold in list(self.keeper.ledger.unconfirmed.values()):
                await self.run(self.keeper.ledger.finish_one(hold, self.env))
        except LockfastError:
            pass  # the lease ends what could not be confirmed now
        await self._drain()
        self.closed = True
        lines = self._lines()
        for line in lines:
            line.closed = True
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        links = [link for line in lines for link in line.links]
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.ended for link in links], timeout=1.0)
        for link in links:
            link.abort()  # TLS waits for the other side's good-bye, which one that hangs does not say
        for line in lines:
            line.door.close()

    async def _drain(self) -> None:
        """What is to be waited for before the connections end: here everybody who asked has been answered."""

    def forget(self) -> None:
        """In a forked child: own nothing of the parent's. The loop does not run here, so neither does the client."""
        self.era.ended = True
        self._loop = None
