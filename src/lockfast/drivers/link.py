"""One asyncio connection that all tasks share: requests are written in batches, replies matched in order.

A task that is cancelled leaves its place in the line of expected replies, so nothing can get out of step. A link on
which a request was not answered in time is retired: nothing new goes there, except the `leave` that undoes what
was sent; it stays open until it is owed nothing more, so that what was written still runs.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Protocol

from lockfast.clock import now
from lockfast.drivers import dialling
from lockfast.drivers.connection import LEAST_S, keep_alive
from lockfast.drivers.dialect import knows_no_flags, plainly
from lockfast.drivers.dialling import in_thread
from lockfast.drivers.reply import Promised, Reply
from lockfast.drivers.wire import ProtocolError, Reader, check_greeting, greet, not_connected
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lockfast.drivers.sentinel import Scout
    from lockfast.endpoints import Endpoint

MOST_READ = 65536  # bytes at once
LOOK_S = 0.25  # how often to look for requests whose time is up, while any is unanswered
LINGER_S = 60.0  # how long a retired link waits for the replies that it is owed


class Expects(Protocol):
    """Whoever wants a reply: see reply.py."""

    @property
    def by(self) -> float: ...

    @property
    def is_done(self) -> bool: ...

    def settle(self, value: Any) -> None: ...

    def fail(self, error: BaseException) -> bool: ...


Owed = Reply | Promised | Expects | None  # None: a reply that nobody reads


class Link(asyncio.Protocol):
    """A connection. `usable` until it is lost or retired."""

    def __init__(
        self, endpoint: Endpoint, on_push: Callable[[Any], None] | None, on_end: Callable[[Link], None]
    ) -> None:
        self.endpoint = endpoint
        self.where = endpoint.where
        self.address: tuple[str, int] | None = None  # where a sentinel said that the master is
        self.plain = endpoint.plain
        self.lost_by: Exception | None = None  # what ended it, if anything did
        self.usable = True
        self.ended = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._on_push = on_push
        self._on_end = on_end
        reader = Reader()
        self._feed, self._next = reader.feed, reader.gets
        self._owed: deque[Owed] = deque()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are no asyncio.Transport
        # asyncio would make room for 256 KB before every read, and give it back to the system: three calls of that,
        # for a reply of some ten bytes. Not a documented setting; where it is none, nothing happens.
        if hasattr(transport, "max_size"):
            transport.max_size = MOST_READ
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family.name in ("AF_INET", "AF_INET6"):
            keep_alive(sock)

    @coroutine
    def ask(self, data: bytes, by: float, unread: int = 0) -> Generator[Reply, None, Any]:
        """Send now or with this turn's batch, and wait for the reply; `unread` replies before it go to nobody."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise self._not_sent()
        if self.plain:
            data = plainly(data)
        owed = self._owed
        idle = not owed
        if unread:
            owed.extend([None] * unread)
        reply = Reply(self._loop, by)
        owed.append(reply)
        if self._out and self._alarm is not None:  # what _send would do, without the call
            self._out.append(data)
        else:
            self._send(data, by, idle)
        yield reply
        return reply.value

    @property
    def owes(self) -> int:
        """How many replies are to come."""
        return len(self._owed)

    @property
    def awaited(self) -> Sequence[Owed]:
        """Who expects them, in order."""
        return self._owed

    def post(self, data: bytes, expected: Expects | None, by: float, is_alone: bool = False) -> None:
        """Send now or with this turn's batch; the reply is told to who expects it. Raises Unreachable(sent=False).

        is_alone: nobody else is about to send anything, so nothing is won by a batch.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise self._not_sent()
        if self.plain:
            data = plainly(data)
        idle = not self._owed
        self._owed.append(expected)
        if is_alone and not self._out and self._alarm is not None:  # what _send would do, without the call
            transport.write(data)
        else:
            self._send(data, by, idle)

    def request(self, data: bytes, by: float) -> asyncio.Future[Any]:
        """Send now or with this turn's batch. The future gets the reply, whoever waits for it."""
        return self.request_each(data, 1, by)[0]

    async def bring(self, data: bytes, by: float) -> Any:
        """The reply to an EVAL, for a server that did not know the script: in the form that this server takes."""
        spoken, self.plain = self.plain, False
        try:
            sent = self.request(data, by)
        finally:
            self.plain = spoken  # for whatever other tasks send meanwhile
        try:
            answer = await sent
        finally:
            del sent  # it may have an error whose traceback leads here: see Threads.acquire
        self.plain = self.endpoint.plain = knows_no_flags(answer)
        return await self.request(data, by) if self.plain else answer

    def _not_sent(self) -> Unreachable:
        if self.usable:  # its end was seen, and will be told in a later turn: whoever tries again needs another
            self.usable = False
            self._on_end(self)
        return Unreachable(f"connection to {self.where} lost", sent=False)

    def _send(self, data: bytes, by: float, idle: bool) -> None:
        if self._alarm is None:
            self._alarm = self._loop.call_later(max(min(by - now(), LOOK_S), 0.0), self._look)
        if idle:
            assert self._transport is not None
            self._transport.write(data)
        else:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(data)

    def say(self, data: bytes) -> None:
        """Send now what has no reply of its own: on a push link, what comes back is told as pushes are."""
        if self._transport is None or self._transport.is_closing():
            raise self._not_sent()
        self._transport.write(data)

    def request_many(self, data: bytes, count: int, by: float) -> asyncio.Future[list[Any]]:
        """Send several requests at once; the future gets all their replies."""
        return asyncio.gather(*self.request_each(data, count, by))

    def request_each(self, data: bytes, count: int, by: float) -> list[asyncio.Future[Any]]:
        """Send several requests at once; each future gets the reply to one of them."""
        futures: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in range(count)]
        if self._transport is None or self._transport.is_closing():
            for future in futures:
                future.set_exception(self._not_sent())
            return futures
        if self.plain:
            data = plainly(data)
        idle = not self._owed
        self._owed.extend([Promised(future, by) for future in futures])
        self._send(data, by, idle)
        return futures

    def _flush(self) -> None:
        data, self._out = b"".join(self._out), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        owed, next_reply = self._owed, self._next
        try:
            self._feed(data)
            reply = next_reply()
            while reply is not False:
                if owed:
                    expected = owed.popleft()
                    if expected is not None:
                        expected.settle(reply)
                elif self._on_push is not None:
                    self._on_push(reply)
                reply = next_reply()
        except ProtocolError as error:
            self._fail(Unreachable(f"{self.where} does not speak the Redis protocol: {error}"))
        if not owed and not self.usable:
            self.close()

    def eof_received(self) -> bool:
        return False  # close our side as well

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None  # it is gone: to abort it now would end it twice
        self.lost_by = self.lost_by or error
        self._fail(Unreachable(f"connection to {self.where} lost" + (f": {error}" if error else "")))
        if not self.ended.done():
            self.ended.set_result(None)

    def _look(self) -> None:
        """Give up on requests whose time has come. One is enough to stop using the link."""
        self._alarm = None
        moment = now()
        next_by = 0.0
        for expected in list(self._owed):  # who is failed may send something in return
            if expected is None or expected.is_done:
                continue
            if expected.by <= moment:
                expected.fail(Unreachable(f"{self.where} does not answer"))
                self.retire()
            elif not next_by or expected.by < next_by:
                next_by = expected.by
        if next_by:
            self._alarm = self._loop.call_later(min(next_by - moment, LOOK_S), self._look)

    def retire(self) -> None:
        """Use it for nothing new, except to undo what was sent here. It stays open so that what was written runs."""
        if self.usable:
            self.usable = False
            self._on_end(self)
            self._loop.call_later(LINGER_S, self.close)

    def close(self) -> None:
        """Close, after what was written has been sent."""
        self.usable = False
        if self._out:
            self._flush()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now, whatever was not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        return not self.ended.done()

    def cut(self) -> None:
        """End it at once, from whatever thread: it goes to a server that is no longer the master."""
        reason = Unreachable(f"the connection to {self.where} was cut: there is another master now")
        try:
            self._loop.call_soon_threadsafe(self._fail, reason)
        except RuntimeError:
            pass  # the loop is closed, and all that it had with it

    def _fail(self, reason: Unreachable) -> None:
        self.lost_by = self.lost_by or reason
        was_usable, self.usable = self.usable, False
        owed, self._owed = self._owed, deque()
        for expected in owed:
            if expected is not None:
                expected.fail(Unreachable(str(reason)))
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if was_usable:
            self._on_end(self)
        if self._transport is not None:
            self._transport.abort()


async def connect(
    endpoint: Endpoint,
    socket_path: str,
    by: float,
    on_end: Callable[[Link], None],
    on_push: Callable[[Any], None] | None = None,
) -> Link:
    """A link that is let in. Raises Unreachable(sent=False), or Refused when the account is turned down."""
    where = endpoint.where
    link: Link | None = None
    scout: Scout | None = None
    address: tuple[str, int] | None = None
    if endpoint.sentinels:
        from lockfast.drivers.sentinel import scout_of  # only where it is used

        scout = scout_of(endpoint)
    try:
        async with asyncio.timeout(max(by - now(), LEAST_S)):
            if scout is not None:
                address = await in_thread(partial(scout.master, by))
                where = endpoint.where_at(address)
            link = await reach(endpoint, socket_path, by, on_end, on_push, address)
            link.address, link.where = address, where
            greeting = endpoint.greeting()
            replies = await link.request_many(greet(greeting), len(greeting), by)
        check_greeting(greeting, replies, where)
    except Unreachable as error:
        lost_by = None if link is None else link.lost_by
        if link is not None:
            link.close()
        if lost_by is not None and not socket_path:
            await _explain(endpoint, lost_by)
        raise Unreachable(str(error), sent=False) from error
    except (OSError, TimeoutError) as error:
        if link is not None:
            link.close()
        if endpoint.tls is not None and not isinstance(error, (TimeoutError, ConnectionRefusedError, socket.gaierror)):
            await _explain(endpoint, error)
        raise not_connected(error, where) from error
    except BaseException:
        if link is not None:
            link.close()
        raise
    endpoint.spoken = True
    if scout is not None:
        scout.watch(link)
    return link


async def _explain(endpoint: Endpoint, error: Exception) -> None:
    """Raise what is wrong for good with a server that breaks off; see diagnosis.py."""
    from lockfast.drivers import diagnosis

    told = await in_thread(partial(diagnosis.explain, endpoint, error))
    if told is not None:
        raise told from error


async def reach(
    endpoint: Endpoint,
    socket_path: str,
    by: float,
    on_end: Callable[[Link], None],
    on_push: Callable[[Any], None] | None = None,
    address: tuple[str, int] | None = None,
) -> Link:
    """A link on which nothing has been said yet. Raises OSError. address: where it is, if not where it says."""
    loop = asyncio.get_running_loop()

    def make() -> Link:
        return Link(endpoint, on_push, on_end)

    if socket_path:
        return (await loop.create_unix_connection(make, socket_path))[1]
    host, port = address or (endpoint.host, endpoint.port)
    context = endpoint.tls_context()
    sock = await dialling.reach(host, port, by)
    connecting = loop.create_connection(make, sock=sock, ssl=context, server_hostname=host if context else None)
    if context is None or endpoint.spoken:
        return (await connecting)[1]
    making = loop.create_task(connecting, name="lockfast-reach")
    try:
        await _suspect(making, endpoint, by)
        return (await making)[1]
    except BaseException:
        making.cancel()
        making.add_done_callback(_drop)
        raise


async def _suspect(making: asyncio.Task[Any], endpoint: Endpoint, by: float) -> None:
    """Ask a server that is slow to shake hands, beside it, whether it speaks TLS at all. Raises Refused if not."""
    from lockfast.drivers.diagnosis import explain_silence, suspect_s

    await asyncio.wait([making], timeout=suspect_s(by))
    told = None if making.done() else await in_thread(partial(explain_silence, endpoint, by))
    if told is not None:
        raise told


def _drop(making: asyncio.Task[Any]) -> None:
    """Nobody wants this connection any more, should it have come about."""
    if not making.cancelled() and making.exception() is None:
        making.result()[0].abort()
