"""A forked child owns nothing of its parent's; the parent keeps everything."""

from __future__ import annotations

import asyncio
import os
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import holder, waiting
from lockfast import Misused, NotHeld
from lockfast.drivers import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import Server
    from kit.sides import AsyncioSide, Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


def in_child(check: Callable[[], object]) -> None:
    """Runs the check in a forked child; what goes wrong there fails the test here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        report = "the child did not get to its end"
        try:
            os.close(reading)
            check()
            report = ""
        except BaseException:
            report = traceback.format_exc()
        finally:
            os.write(writing, report.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        report = pipe.read()
    os.waitpid(pid, 0)
    assert not report, report


def test_threads_of_a_child_are_not_those_of_its_parent() -> None:
    mine = identity.agent_of_thread()
    assert identity.agent_of_thread() == mine
    reading, writing = os.pipe()
    in_child(lambda: os.write(writing, identity.agent_of_thread().encode()))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read()
    assert theirs.partition("_")[0] != mine.partition("_")[0]


def raises(error: type[BaseException], act: Callable[[], object]) -> None:
    with pytest.raises(error):
        act()


def native(side: Side, value: Any) -> Any:
    return getattr(value, "twin_of", value)


def run(side: Side, result: Any) -> Any:
    """What a call gives in the child, where the loop of the asyncio side does not run."""

    async def wait() -> Any:
        return await result

    return asyncio.run(wait()) if side.name == "asyncio" else result


def test_child_owns_nothing_and_the_parent_keeps_its_hold(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name).acquire()
    mine = native(side, grant)

    def check() -> None:
        assert (mine.held, mine.lost, mine.remaining) == (False, False, 0.0)
        raises(NotHeld, mine.check)
        raises(NotHeld, lambda: run(side, mine.release()))
        raises(NotHeld, lambda: run(side, mine.extend()))

    in_child(check)
    assert grant.held
    assert holder(other, name) == grant.ticket
    grant.extend()
    grant.release()


@pytest.mark.slow
def test_keeper_of_the_parent_goes_on_renewing(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    grant = lf.lock(name, lease=0.6).acquire()
    in_child(lambda: None)
    assert not grant.wait_lost(1.5)
    assert holder(other, name) == grant.ticket
    grant.release()


def test_end_of_the_child_closes_nothing_of_the_parents(
    side: Side, server: Server, lf: Lockfast, other: Lockfast, name: str
) -> None:
    first = lf.lock(name).acquire()
    spawned = waiting(side, lf, other.lock(name), name)
    connected = server.connections()
    in_child(lambda: None)
    assert server.connections() == connected
    first.release()
    spawned.result().release()


def test_client_of_threads_can_be_used_anew_in_the_child(server: Server, name: str) -> None:
    from lockfast import Lockfast as SyncLockfast

    with SyncLockfast(server.url) as lf:
        grant = lf.lock(name).acquire()
        lock = lf.lock(name, "child")
        lock.acquire().release()

        def check() -> None:
            assert lf.lock(name).try_acquire() is None, "the parent's hold stands"
            with lock as own:
                assert own.held
                (held,) = lf.inspect(name, "child").holders
                assert held.owner.pid == os.getpid()
            lf.close()

        in_child(check)
        assert grant.held
        grant.extend()
        lock.acquire().release()


def test_client_of_asyncio_says_that_it_belongs_to_the_parent(aside: AsyncioSide, server: Server, name: str) -> None:
    lf = aside.client(server.url)
    with lf.lock(name):
        mine = native(aside, lf)

        def check() -> None:
            raises(Misused, lambda: run(aside, mine.lock(name).acquire()))
            raises(Misused, lambda: run(aside, mine.inspect(name)))

            async def anew() -> None:
                async with type(mine)(server.url) as fresh, fresh.lock(name, "child") as own:
                    assert own.held

            asyncio.run(anew())

        in_child(check)


def test_closing_the_client_in_the_child_takes_nothing_from_the_parent(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    grant = lf.lock(name).acquire()
    mine = native(side, lf)

    def check() -> None:
        try:
            run(side, mine.close() if side.name == "threads" else mine.aclose())
        except Misused:
            assert side.name == "asyncio"

    in_child(check)
    assert holder(other, name) == grant.ticket
    grant.extend()
    grant.release()


def test_child_of_a_child_can_lock_too(server: Server, name: str) -> None:
    from lockfast import Lockfast as SyncLockfast

    with SyncLockfast(server.url) as lf, lf.lock(name):

        def grandchild() -> None:
            with lf.lock(name, "grandchild"):
                pass

        def child() -> None:
            with lf.lock(name, "child") as own:
                in_child(grandchild)
                assert own.held

        in_child(child)
