"""The bound of benchmarks/quorum.py: Lockfast's own requests, packed beforehand, on bare sockets.

What a client of five servers could reach at best that does nothing but write and read: no new ticket, no deadline, no
fence, no renewal, nothing undone. It waits until a majority has answered, as Lockfast does, and reads the rest later.
"""

from __future__ import annotations

import random
import select
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from lockfast.flows.scripts import Bound

TICKET = "0123456789abcdef.01234567.0123456789ab"  # as long as ours are
VOTED, LEFT = 3, 1


class Floor:
    """Five sockets, and what is owed on each."""

    def __init__(self, urls: list[str], name: str, lease_s: float) -> None:
        import hiredis

        from lockfast import names
        from lockfast.drivers.wire import eval_text, evalsha
        from lockfast.flows import asks
        from lockfast.flows.effects import Env

        env = Env(time.monotonic, random.random, lease_s)
        env.introduce("lockfast:floor", "floor")
        ask = asks.lock(names.make("lockfast", (name,)), lease_s)
        steps: list[tuple[Bound, tuple[str | int, ...]]] = [(ask.vote(env), (0, TICKET)), (ask.leave, (TICKET,))]
        self._vote, self._leave = [evalsha(bound, args) for bound, args in steps]
        self._majority = len(urls) // 2 + 1
        self._poll = select.epoll()
        self._links: dict[int, tuple[socket.socket, Any]] = {}
        self._owed: dict[int, int] = {}
        for url in urls:
            where = urlsplit(url)
            link = socket.create_connection((where.hostname or "", where.port or 6379))
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for bound, args in steps:  # so that the server knows the scripts
                link.sendall(eval_text(bound, args))
                link.recv(65536)
            link.setblocking(False)
            number = link.fileno()
            self._poll.register(number, select.EPOLLIN)
            self._links[number], self._owed[number] = (link, hiredis.Reader()), 0

    def acquire(self) -> None:
        self._ask(self._vote)

    def release(self, _: None) -> None:
        self._ask(self._leave)

    def _ask(self, request: bytes) -> None:
        links, owed = self._links, self._owed
        for number, (link, _) in links.items():
            link.send(request)
            owed[number] += 1
        missing = self._majority
        while missing > 0:
            for number, _ in self._poll.poll():
                link, replies = links[number]
                replies.feed(link.recv(65536))
                while (reply := replies.gets()) is not False:
                    owed[number] -= 1
                    if reply != LEFT and reply[0] != VOTED:
                        raise RuntimeError(f"the floor was answered {reply!r}")
                    if not owed[number]:  # else it answers an earlier request
                        missing -= 1

    def close(self) -> None:
        self._poll.close()
        for link, _ in self._links.values():
            link.close()
