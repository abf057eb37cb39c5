"""Many clients of both sides through a failover that nobody prepared: their history is judged by `lockfast.check`."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kit.sentinels import Sentinels
from kit.sides import make_side
from lockfast import LeaseLost, NotAcquired, Refused, Unreachable, check
from lockfast.check import io
from lockfast.check.record import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.sides import Side

pytestmark = pytest.mark.slow
SIDES = ["threads", "asyncio"]
CLIENTS, LEASE_S = 3, 2.0  # of each side


class Client:
    """Takes two names in turn until it is stopped, and records what it does."""

    def __init__(self, side: Side, url: str, path: Path, names: list[str], replicas: int) -> None:
        self._lf = side.client(url, replicas=replicas, timeout=1.0)
        self._recorder = Recorder(path, path.name)
        self._names = names
        self.sections = 0
        self.failures: list[BaseException] = []
        self.stops = threading.Event()
        self._thread = threading.Thread(target=self._work, name=path.name)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self.stops.is_set():
            number += 1
            self._section(self._names[number % len(self._names)])

    def _section(self, name: str) -> None:
        recorder = self._recorder
        ticket = recorder.asked(name, lease=LEASE_S)
        try:
            grant = self._lf.lock(name, lease=LEASE_S, wait=10).acquire()
        except (NotAcquired, Unreachable, Refused) as failure:
            recorder.failed(ticket, repr(failure))
            self.failures.append(failure)
            return
        recorder.granted(ticket, grant)
        try:
            time.sleep(0.002)
            grant.check()
            recorder.leaving(ticket)
            grant.release()
            recorder.left(ticket)
            self.sections += 1
        except LeaseLost as failure:
            recorder.lost(ticket, repr(failure))
            self.failures.append(failure)
        except Unreachable as failure:
            self.failures.append(failure)

    def close(self) -> None:
        self.stops.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._recorder.close()
        self._lf.close()


class Told(NamedTuple):
    """What came of a storm. served_after_s: how long after the failover the clients were at work again.

    alone: grants at a time when the new master surely had no replica.
    """

    verdicts: dict[str, check.Verdict]
    clients: list[Client]
    served_after_s: float
    alone: list[check.Event]


def storm(group: Sentinels, replicas: int, names: list[str], path: Path) -> Told:
    """Kills the master in the middle of it."""
    with ExitStack() as ending:
        files = [path / f"{side}-{number}" for side in SIDES for number in range(CLIENTS)]
        sides = {name: make_side(name) for name in SIDES}
        for side in sides.values():
            ending.callback(side.close)
        clients = [Client(sides[each.name.partition("-")[0]], group.url, each, names, replicas) for each in files]
        try:
            with Recorder(path / "world", "world") as world:
                time.sleep(0.5)
                old = group.master
                before = sum(client.sections for client in clients)
                old.kill9()
                dead_since = time.monotonic()
                world.server_lost_memory(note="a failover: what was written last may not have come to the new master")
                group.wait_moved(old)
                back_at = dead_since
                if replicas:
                    # Until what was held before has ended: who asks then, asks a master that has no replica.
                    time.sleep(LEASE_S)
                    back_at = time.monotonic()
                    old.start()  # the sentinels make it follow the new master: until then there is no replica
                world.quiet()
                moved = time.monotonic()
                while sum(client.sections for client in clients) < before + 50 and time.monotonic() < moved + 10:
                    time.sleep(0.01)
                served_after = time.monotonic() - moved
                world.end()
        finally:
            for client in clients:
                client.stops.set()
            for client in clients:
                client.close()
    history = io.load(*files, path / "world")
    # What was answered just before it died may be recorded a moment later.
    alone = [event for event in history if event.what == "granted" and dead_since + 0.5 < event.at < back_at]
    return Told(check.all(history), clients, served_after, alone)


def test_storm_through_a_failover_without_replicas(sentinels: Sentinels, tmp_path: Path, name: str) -> None:
    """A hold that the new master does not know is the one thing that is excused."""
    verdicts, clients, served_after_s, _ = storm(sentinels, 0, [f"{name}-1", f"{name}-2"], tmp_path)
    assert served_after_s < 5
    for question in ("exclusion", "permits", "fences_grow", "no_resumption"):
        assert not verdicts[question].bad, str(verdicts[question])
    assert verdicts["exclusion"].ok or verdicts["exclusion"].excused
    assert all(client.sections > 10 for client in clients)
    assert not [failure for client in clients for failure in client.failures if isinstance(failure, Refused)]


def test_storm_through_a_failover_that_the_replica_was_waited_for(
    sentinels: Sentinels, tmp_path: Path, name: str
) -> None:
    """With as many as there are, whoever is promoted knows every grant: not even the failover excuses an overlap."""
    verdicts, clients, served_after_s, alone = storm(sentinels, 1, [f"{name}-1", f"{name}-2"], tmp_path)
    assert served_after_s < 9
    for question in ("exclusion", "permits"):
        assert verdicts[question].ok, str(verdicts[question])
    assert not verdicts["fences_grow"].bad
    refused = [failure for client in clients for failure in client.failures if isinstance(failure, Refused)]
    assert not alone, "nothing is granted while the new master has no replica"
    assert {failure.code for failure in refused} <= {"REPLICAS"}


@pytest.fixture
def three() -> Iterator[Sentinels]:
    with Sentinels(replicas=2) as group:
        yield group


def test_grant_that_one_of_two_replicas_has_is_lost_when_the_other_is_promoted(
    three: Sentinels, threads: Side, name: str
) -> None:
    """What WAIT cannot promise, as documented: the holder is told at the next contact, and the fence grows."""
    master = three.master
    acknowledges, lags = (server for server in three.servers if server is not master)
    three.stop_following(lags)
    lf, other = threads.client(three.url, replicas=1), threads.client(three.url)
    grant = lf.lock(name, lease=30).acquire()
    assert acknowledges.command("EXISTS", f"lockfast:{{{name}}}") == 1
    master.kill9()
    acknowledges.kill9()
    assert three.wait_moved(master) is lags
    second = other.lock(name, wait=5).acquire()
    assert second.fence > grant.fence
    with pytest.raises(LeaseLost):
        grant.extend()
