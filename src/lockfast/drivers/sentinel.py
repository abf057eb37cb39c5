"""Which server is the master: asks the sentinels, and cuts connections to a master that has been replaced.

What this file keeps true:
- The sentinel that answered last is asked first, and each has a short time only, so that one that hangs costs little.
- An answer that is older than one that was heard (each has the number of its configuration) is not believed: a sentinel
  on the wrong side of a partition still names the old master. Only if all sentinels were heard and none has a newer
  one, they were set up anew, and their word counts.
- While any connection is open, the sentinels are asked again every RECHECK_S, one after the other. Connections to a
  server that is no longer the master are then cut, also those with a request under way: an old master that is cut off
  from its sentinels does not know that it is one, and would go on answering.

Whether the server that was named acts as a master is looked at when a connection is made (wire.check_master). The
methods block; asyncio calls them in a thread. Nothing is kept open to a sentinel, so a forked child inherits nothing.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lockfast.clock import now
from lockfast.drivers.connection import connect
from lockfast.drivers.diagnosis import in_scheme
from lockfast.drivers.wire import ReplyError, failure, pack
from lockfast.errors import LockfastError, Refused, Unreachable

if TYPE_CHECKING:
    from lockfast.endpoints import Endpoint

ASK_S = 0.25  # how long one sentinel may take to answer
RECHECK_S = 1.0  # how often one of them is asked again while connections are open

Address = tuple[str, int]


class Watched(Protocol):
    """A connection to what was the master when it was made."""

    address: Address | None

    @property
    def is_open(self) -> bool: ...

    def cut(self) -> None:
        """End it, also under a request; from whatever thread."""
        ...


class Answer(NamedTuple):
    """What a sentinel says. epoch: the number of its configuration, 0 if it may not be read."""

    address: Address
    epoch: int


class Scout:
    """What is known of the master of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._all = endpoint.sentinels
        self._sentinels = list(endpoint.sentinels)  # the one that answered last is the first
        self._service = endpoint.service
        self._db = endpoint.db
        self._where = endpoint.where
        self._last: Answer | None = None
        self._run_ids: dict[Address, bytes] = {}  # which process is there, as sentinels tell; empty if they do not
        self._mutex = threading.Lock()  # guards all that changes; never held during I/O
        self._watched: list[weakref.ref[Watched]] = []
        self._lookout: threading.Thread | None = None
        self._woken = threading.Event()

    def master(self, by: float) -> Address:
        """Where the master is. Raises Unreachable(sent=False), or Refused when every sentinel says no."""
        failures: list[LockfastError] = []
        try:
            return self._find(by, failures)
        finally:
            failures.clear()  # their tracebacks lead here: see Threads.acquire

    def _find(self, by: float, failures: list[LockfastError]) -> Address:
        heard: list[Answer] = []
        for sentinel in list(self._sentinels):
            try:
                answer = self._ask(sentinel, min(by, now() + ASK_S))
            except (Unreachable, Refused) as reason:
                failures.append(reason)
                continue
            if self._learn(answer, sentinel):
                return answer.address
            heard.append(answer)
        if heard and not failures:  # all of them know less than was known: they were set up anew
            newest = max(heard, key=lambda answer: answer.epoch)
            with self._mutex:
                self._last = newest
            return newest.address
        if not heard:  # where one of them speaks in the other way the URL is wrong, whatever the rest do
            failures[:] = [reason for reason in failures if getattr(reason, "code", "") == "TLS"] or failures
        words = "; ".join(str(reason) for reason in failures)
        if failures and not heard and all(isinstance(reason, Refused) for reason in failures):
            code = failures[0].code if isinstance(failures[0], Refused) else ""
            raise Refused(f"no sentinel of {self._where} tells the master: {words}", code=code)
        old = " (one answered, and knew only an older master)" if heard else ""
        raise Unreachable(f"no sentinel of {self._where} tells the master{old}: {words}", sent=False)

    def _ask(self, sentinel: Endpoint, by: float) -> Answer:
        try:
            connection = connect(sentinel, "", by)
        except Refused as refusal:
            raise in_scheme("sentinel", refusal) from refusal
        where = connection.where
        try:
            asked = [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service), ("SENTINEL", "MASTER", self._service)]
            connection.send(b"".join(map(pack, asked)), len(asked))
            address, details = connection.read_each(by)
        except Unreachable as error:
            raise Unreachable(str(error), sent=False) from error
        finally:
            connection.close()
        if isinstance(address, ReplyError):
            if "unknown command" in str(address):
                plain = f"{where.rpartition('/')[0]}/{self._db}"
                raise Refused(
                    f"{where} is no sentinel but a server: name the sentinels (most often at port 26379), or write "
                    f"{plain} for this server alone",
                    code="SENTINEL",
                )
            raise failure(address, where)
        if address is None:
            raise Refused(f"{where} knows no master named {self._service!r}: check the URL", code="SERVICE")
        host, port = (word.decode() for word in address)
        # Two requests, since only the first tells of a failover as soon as it is decided, and only the second is dated.
        told = dict(zip(details[::2], details[1::2], strict=False)) if isinstance(details, list) else {}
        is_same = address == [told.get(b"ip"), told.get(b"port")]
        self._run_ids[host, int(port)] = told.get(b"runid", b"") if is_same else b""
        return Answer((host, int(port)), int(told.get(b"config-epoch", 0)))

    def _learn(self, answer: Answer, sentinel: Endpoint) -> bool:
        """Believe an answer, unless a newer one was heard."""
        with self._mutex:
            if self._last is not None and answer.epoch < self._last.epoch:
                return False
            self._last = answer
            if self._sentinels[0] is not sentinel:
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
            return True

    def watch(self, connection: Watched) -> None:
        """Cut this connection when it is to a master that has been replaced."""
        with self._mutex:
            self._watched.append(weakref.ref(connection))
            if self._lookout is None or not self._lookout.is_alive():
                self._lookout = threading.Thread(target=self._look_forever, name="lockfast-sentinel", daemon=True)
                self._lookout.start()

    def look(self) -> None:
        """Look now. Called when connections were closed: with the last of them the lookout ends."""
        self._woken.set()

    def _look_forever(self) -> None:
        turn = 0
        while True:
            self._woken.wait(RECHECK_S)
            self._woken.clear()
            with self._mutex:
                self._watched = [each for each in self._watched if _is_open(each())]
                if not self._watched:
                    self._lookout = None
                    return
            turn += 1
            try:
                answer = self._ask(self._all[turn % len(self._all)], now() + ASK_S)
            except LockfastError:
                continue
            with self._mutex:
                if self._last is None or answer.epoch >= self._last.epoch:
                    self._last = answer
                master, watched = self._last.address, [each() for each in self._watched]
            for connection in watched:
                if connection is not None and not self._is_at(connection.address, master):
                    connection.cut()

    def _is_at(self, address: Address | None, master: Address) -> bool:
        """Whether an address is the master's. Sentinels may spell it differently: by a name, or by another one."""
        run_id = self._run_ids.get(master)
        return address == master or (bool(run_id) and address is not None and self._run_ids.get(address) == run_id)


def _is_open(connection: Watched | None) -> bool:
    return connection is not None and connection.is_open


def scout_of(endpoint: Endpoint) -> Scout:
    """The one scout of an endpoint, made on first need."""
    if endpoint.scout is None:
        endpoint.scout = Scout(endpoint)
    scout: Scout = endpoint.scout
    return scout
