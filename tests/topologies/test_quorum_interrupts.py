"""Ctrl-C in the middle of an acquire or release by majority: nothing stays, and no reply goes to the wrong request."""

from __future__ import annotations

import gc
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from faults.actors import Script
from faults.test_interrupts import ACQUIRES, interrupted, program
from kit.servers import wait_until
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from kit.quorum import Masters
    from topologies.conftest import Proxied

pytestmark = pytest.mark.slow
STEP = 3
LEASE_S = 0.8


def test_ctrl_c_at_any_place_leaves_nothing_for_long_and_mixes_up_no_replies(
    trio: Masters, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sockets that were in nobody's hands complain when they are collected: see faults/test_interrupts.py.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with Lockfast(trio.urls, node_timeout=1) as lf, Lockfast(trio.urls, node_timeout=1) as other:

        def hold(part: int) -> None:
            with lf.lock(name, part, lease=LEASE_S):
                pass

        kept = lf.lock(f"{name}-kept", lease=60).acquire()
        taken = other.lock(f"{name}-taken", lease=60).acquire()
        hold(0)
        part = 1
        while interrupted(partial(hold, part), part):
            # One that is held, and one that is not: a reply to another request would show.
            kept.extend()
            assert lf.lock(f"{name}-taken").try_acquire() is None
            part += STEP
        assert part > 200
        gc.collect()
        kept.check()
        taken.check()
        for place in range(3):
            with Lockfast(trio[place].url) as spy:
                wait_until(
                    lambda spy=spy: not [one for one in spy.names() if one[0] == name],  # type: ignore[misc]
                    timeout_s=4 * LEASE_S + 1,
                )
        kept.release()
        taken.release()
        for one in ("kept", "taken"):
            trio.wait_free(f"{name}-{one}")
    gc.collect()


@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
@pytest.mark.parametrize("what", ["replies", "requests"])
def test_ctrl_c_with_messages_under_way_leaves_nothing(
    proxied_trio: Proxied, name: str, side_name: str, what: str
) -> None:
    """All three have their requests, or will have them: none keeps its vote."""
    masters = proxied_trio.masters
    struck = [proxy.when("EVALSHA", containing=name) for proxy in proxied_trio.proxies]
    late = [when.delay_reply() if what == "replies" else when.delay_request() for when in struck]
    deed = ACQUIRES["acquire"].replace("lease=30", "lease=60")
    with Script(program(side_name, deed), ",".join(proxied_trio.urls), name) as script:
        assert script.line() == "warm"
        for rule in late:
            rule.wait_hit()
        script.send_signal(signal.SIGINT)
        assert script.line(5) == "interrupted"
        for rule in late:
            rule.let_go()
        masters.wait_free(name)
        script.say("")
        code, _, errors = script.end()
        assert (code, errors) == (0, "")
    assert masters.is_free(name)


@pytest.mark.parametrize("side_name", ["threads", "asyncio"])
def test_ctrl_c_while_queued_gives_up_the_place(trio: Masters, name: str, side_name: str) -> None:
    with (
        Lockfast(trio.urls) as lf,
        lf.lock(name),
        Script(program(side_name, ACQUIRES["acquire"]), ",".join(trio.urls), name) as script,
    ):
        trio.wait_waiting(name)
        assert script.line() == "warm"
        script.send_signal(signal.SIGINT)
        assert script.line(5) == "interrupted"
        trio.wait_waiting(name, 0)
    trio.wait_free(name)
