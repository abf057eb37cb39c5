"""The body or the caller is torn out: exceptions, Ctrl-C, threads that end. Nothing stays taken, nothing is masked."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from faults.actors import Script
from kit.servers import wait_until
from kit.sides import Side
from lockfast import Grant, Lockfast
from lockfast.clock import now
from lockfast.errors import LeaseLost, NotAcquired
from lockfast.flows import swapping

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from faults.conftest import Eyes
    from kit.proxy import Proxy
    from kit.servers import Server


class Own(Exception):
    """What a body raises on its own account."""


@pytest.mark.parametrize("error", [Own("own"), KeyboardInterrupt("own"), SystemExit("own")], ids=repr)
def test_exception_of_the_body_comes_out_and_the_lock_is_free(
    server: Server, side: Side, eyes: Eyes, name: str, error: BaseException
) -> None:
    """F31"""
    with side.client(server.url) as lf:
        with pytest.raises(type(error), match="own"), lf.lock(name, lease=30):
            raise error
        assert eyes.is_free(name)


@pytest.mark.slow
def test_exception_of_the_body_wins_over_the_loss(server: Server, side: Side, name: str) -> None:
    """F32: the body's own error comes out; that the lock was lost as well is noted in it."""
    with side.client(server.url) as lf:
        with pytest.raises(Own) as caught, lf.lock(name, lease=0.1, renew=False, cancel_on_loss=False) as grant:
            assert grant.wait_lost(10)
            raise Own
        assert any("lost" in note for note in caught.value.__notes__)
        assert not isinstance(caught.value.__context__, Own)


@pytest.mark.slow
def test_body_that_ends_after_the_loss_raises_it(server: Server, side: Side, name: str) -> None:
    """F32: without an error of its own, the block says that the lock was lost."""
    with side.client(server.url) as lf:
        with pytest.raises(LeaseLost), lf.lock(name, lease=0.1, renew=False) as grant:
            assert grant.wait_lost(10)
        assert grant.lost


@pytest.mark.slow
def test_block_is_never_entered_without_the_lock(server: Server, side: Side, name: str) -> None:
    """F33"""
    with side.client(server.url) as lf, lf.lock(name, lease=30):
        for wait in (0, 0.2):
            with pytest.raises(NotAcquired), lf.lock(name, wait=wait):
                pytest.fail("never entered")
        entered: list[int] = []
        with pytest.raises(NotAcquired):
            lf.lock(name, wait=0)(entered.append)(1)
        assert not entered


THREADS = """
import sys
from lockfast.sync import Lockfast
lf = Lockfast(sys.argv[1])
with lf.lock("warm-up"):
    pass
print("warm", flush=True)
try:
    {deed}
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
"""

ASYNCIO = """
import asyncio, sys
from lockfast.aio import Lockfast
async def main():
    lf = Lockfast(sys.argv[1])
    async with lf.lock("warm-up"):
        pass
    print("warm", flush=True)
    {deed}
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
"""

ACQUIRES = {
    "acquire": "lf.lock(sys.argv[2], lease=30).acquire()",
    "with": "lf.lock(sys.argv[2], lease=30).__enter__()",
    "try_acquire": "lf.lock(sys.argv[2], lease=30).try_acquire()",
}


def program(side_name: str, deed: str) -> str:
    if side_name == "threads":
        return THREADS.format(deed=deed)
    return ASYNCIO.format(deed=f"await {deed}".replace("__enter__", "__aenter__"))


@pytest.mark.slow
@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
@pytest.mark.parametrize("deed", ACQUIRES.values(), ids=ACQUIRES.keys())
def test_ctrl_c_with_the_reply_under_way_leaves_nothing(
    proxy: Proxy, eyes: Eyes, name: str, side_name: str, deed: str
) -> None:
    """F34: the server has granted, the answer is on its way, and SIGINT strikes: the hold is given back."""
    late = proxy.when("EVALSHA", containing=name).delay_reply()
    with Script(program(side_name, deed), proxy.url, name) as script:
        assert script.line() == "warm"
        late.wait_hit()
        assert eyes.holder(name)
        script.send_signal(signal.SIGINT)
        assert script.line(5) == "interrupted"
        eyes.wait_free(name)
        late.let_go()
        eyes.wait_free(name)
        script.say("")
        code, _, errors = script.end()
        assert (code, errors) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
def test_ctrl_c_with_the_request_under_way_leaves_nothing(proxy: Proxy, eyes: Eyes, name: str, side_name: str) -> None:
    """F34: the request arrives after the caller is gone; the `leave` behind it undoes it."""
    late = proxy.when("EVALSHA", containing=name).delay_request()
    with Script(program(side_name, ACQUIRES["acquire"]), proxy.url, name) as script:
        assert script.line() == "warm"
        late.wait_hit()
        script.send_signal(signal.SIGINT)
        assert script.line(5) == "interrupted"
        script.say("")
        assert script.end()[0] == 0
        assert eyes.is_free(name)
        late.let_go()
        proxy.wait_until(lambda: proxy.seen("EVALSHA", containing=name)[0].answered)
        eyes.wait_free(name)


@pytest.mark.slow
@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
def test_ctrl_c_while_queued_gives_up_the_place(server: Server, eyes: Eyes, name: str, side_name: str) -> None:
    """F34, F37: and the next one behind it is not held up."""
    side = Side()
    with side.client(server.url) as lf, Script(program(side_name, ACQUIRES["acquire"]), server.url, name) as script:
        grant = lf.lock(name, lease=30).acquire()
        eyes.wait_waiting(name)
        behind = side.spawn(lf.lock(name, lease=30).acquire, wait=20)
        eyes.wait_waiting(name, 2)
        assert script.line() == "warm"
        script.send_signal(signal.SIGINT)
        assert script.line(5) == "interrupted"
        eyes.wait_waiting(name, 1)
        grant.release()
        behind.result(2).release()
    side.close()


@pytest.mark.slow
@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
def test_ctrl_c_with_a_release_under_way_gives_it_back(proxy: Proxy, eyes: Eyes, name: str, side_name: str) -> None:
    """F34: the request of the release is cut off; it is finished behind the interrupt's back, or by the request."""
    release = {
        "threads": "grant = lf.lock(sys.argv[2], lease=30).acquire(); print('held', flush=True); grant.release()",
        "asyncio": "(await lf.lock(sys.argv[2], lease=30).acquire()).release()",
    }
    late = proxy.when("EVALSHA", containing=name, nth=2).delay_reply()
    with Script(program(side_name, release[side_name]), proxy.url, name) as script:
        assert script.line() == "warm"
        late.wait_hit()
        script.send_signal(signal.SIGINT)
        assert "interrupted" in (script.line(5), script.line(5) if side_name == "threads" else "")
        eyes.wait_free(name)
        late.let_go()
        script.say("")
        assert script.end()[0] == 0


@pytest.mark.slow
def test_grant_that_nobody_can_release_any_more_is_given_back(
    server: Server, side: Side, eyes: Eyes, name: str
) -> None:
    """F40: the owner thread has ended and the grant is gone with it: it is not renewed for ever, nor for a lease."""
    with side.client(server.url) as lf:

        def forgetful() -> str:
            return str(lf.lock(name, lease=30).acquire().ticket)

        ticket = side.spawn(forgetful).result()
        gc.collect()
        assert eyes.holder(name) in (ticket, "")
        began = now()
        eyes.wait_free(name)
        assert now() - began < 5


@pytest.mark.slow
def test_thread_that_dies_in_its_block_gives_the_lock_back(server: Server, eyes: Eyes, name: str) -> None:
    """F40: SystemExit in a worker thread unwinds its block as any error does."""
    side = Side()
    with side.client(server.url) as lf:

        def work() -> None:
            with lf.lock(name, lease=30):
                raise SystemExit

        assert isinstance(side.spawn(work).error(), SystemExit)
        assert eyes.is_free(name)
    side.close()


def test_grant_may_be_released_by_another_thread(server: Server, side: Side, eyes: Eyes, name: str) -> None:
    """F40, F44: ownership is the ticket, never the thread."""
    with side.client(server.url) as lf:
        grants: list[Any] = []
        side.spawn(lambda: grants.append(lf.lock(name, lease=30).acquire())).result()
        grants[0].check()
        side.spawn(grants[0].release).result()
        assert eyes.is_free(name)


def interrupted(call: Callable[[], None], nth: int) -> bool:
    """Run a call with a Ctrl-C at the nth place where CPython looks for one; False when it has fewer.

    That is where a function begins, and where one written in C has returned.
    """
    seen = 0

    def strike(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and "lockfast" in frame.f_globals.get("__name__", ""):
            if frame.f_code.co_name == "__del__":
                return
            seen += 1
            if seen == nth:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(strike)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return seen >= nth


@pytest.mark.slow
@pytest.mark.parametrize("what", ["election", "locks"])
def test_ctrl_c_at_any_place_leaves_nothing_that_is_renewed_for_ever(
    valkey_server: Server, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends what an interrupt leaves behind, unless somebody goes on renewing it."""
    # Sockets and grants that were in nobody's hands complain when they are collected. pytest would keep the complaint,
    # and with it the frames that it was made in, and the grants in them.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    lease_s = 0.5
    with Lockfast(valkey_server.url) as lf, Lockfast(valkey_server.url) as spy:

        def hold(part: int) -> None:
            if what == "locks":
                with lf.locks(lf.lock(name, part, lease=lease_s)):
                    pass
            else:
                with lf.election(name, part, value="x", lease=lease_s, max_hold=60).campaign():
                    pass

        hold(0)  # so that the scripts are known, and every round is the same
        part = 1
        while interrupted(partial(hold, part), part):
            part += 1
        assert part > 100
        gc.collect()
        wait_until(lambda: not [one for one in spy.names() if one[0] == name], timeout_s=4 * lease_s + 1)
    gc.collect()  # sockets that were in nobody's hands: said here, and not in the next test


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "swap", "script after a swap"])
def test_ctrl_c_at_any_place_of_a_release_is_heard_and_gives_it_back_long_before_the_lease_ends(
    valkey_server: Server, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # sockets that were in nobody's hands complain
    monkeypatch.setattr(swapping, "AFTER_S", inf if how == "script" else -1.0)
    monkeypatch.setattr(swapping, "YOUNG_S", inf)
    with Lockfast(valkey_server.url) as lf, Lockfast(valkey_server.url) as spy:
        lf.lock(name, "first").acquire().release()
        part, returned = 0, False
        while not returned:
            part += 1
            grant = lf.lock(name, part, lease=60).acquire()
            if how == "script after a swap":
                grant._hold.fence += 1  # as if it were another's: what is swapped for is not there

            def release(grant: Grant = grant) -> None:
                nonlocal returned
                grant.release()
                returned = True

            assert interrupted(release, part) is not returned, f"place {part}: it was not heard"
        assert part > 30
        wait_until(lambda: not [one for one in spy.names() if one[0] == name], timeout_s=10, what="all given back")
    gc.collect()


@pytest.mark.slow
def test_ctrl_c_while_the_keeper_starts_does_not_end_all_renewals(
    valkey_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    struck: list[threading.Thread] = []

    def strike(thread: threading.Thread) -> None:
        if thread.name == "lockfast-timer" and not struck:
            struck.append(thread)
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", strike)
    with Lockfast(valkey_server.url) as lf:
        with pytest.raises(KeyboardInterrupt):
            lf.lock(name, "first").acquire()
        with lf.lock(name, lease=0.3) as grant:
            first = grant.deadline
            wait_until(lambda: now() > first)
            grant.check()
