"""The server stands still: nobody waits longer than they said, and what it does when it wakes leaves no orphan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost, LockfastError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.conftest import EyesOn
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.slow
NOISE_S = 0.5


def timed(function: Any, **options: Any) -> tuple[object, float]:
    """What came of a call, and how long it took."""
    began = now()
    try:
        outcome: object = function(**options)
    except LockfastError as error:
        outcome = error
    return outcome, now() - began


def warm(*clients: Lockfast) -> None:
    """Connected, and the server knows the scripts."""
    for lf in clients:
        with lf.lock("warm-up"):
            pass


def freeze(server: Server, how: str) -> None:
    """SIGSTOP until `thaw`, or CLIENT PAUSE, which ends by itself and lets nobody end it earlier."""
    if how == "stop":
        server.pause()
    else:
        server.command("CLIENT", "PAUSE", 3300, "ALL")


def thaw(server: Server, how: str) -> None:
    if how == "stop":
        server.resume()
    assert server.command("PING", timeout_s=10) == "PONG"


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_acquires_on_a_frozen_server_end_in_time_and_leave_nothing(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn, how: str
) -> None:
    """F7, F8, F9: acquire(wait=2) raises within 3 s, try_acquire within 2.5 s; after the thaw the names are free."""
    server = fresh_server(server_kind)
    with side.client(server.url) as lf, side.client(server.url) as cold, side.client(server.url) as other:
        warm(lf, other)
        held = other.lock("held", lease=30).acquire()
        queued = side.spawn(timed, lf.lock("held", lease=30).acquire, wait=1.5)
        eyes_on(server).wait_waiting("held")
        freeze(server, how)
        calls = {
            "patient": side.spawn(timed, lf.lock("patient", lease=30).acquire, wait=2),
            "once": side.spawn(timed, lf.lock("once", lease=30).try_acquire),
            "endless": side.spawn(timed, cold.lock("endless", lease=30).acquire),
            "cold": side.spawn(timed, cold.lock("cold", lease=30).acquire, wait=2),
        }
        limits_s = {"patient": 3.0, "once": 2.5, "endless": 3.0, "cold": 3.0}
        wrong = []  # everything is looked at, so that one mistake does not hide another
        for name, call in calls.items():
            outcome, took_s = call.result()
            if not isinstance(outcome, Unreachable) or took_s > limits_s[name] + NOISE_S:
                wrong.append(f"{name}: {outcome!r} after {took_s:.1f} s")
        outcome, took_s = queued.result()
        if not isinstance(outcome, LockfastError) or took_s > 3.0 + NOISE_S:
            wrong.append(f"queued: {outcome!r} after {took_s:.1f} s")
        thaw(server, how)
        wrong += [
            f"{name}: left behind {eyes_on(server).look(name).holders}"
            for name in calls
            if not soon(partial(eyes_on(server).is_free, name))
        ]
        if not soon(lambda: eyes_on(server).waiting("held") == 0):
            wrong.append(f"held: left behind {eyes_on(server).look('held').waiters}")
        assert not wrong, "\n".join(wrong)
        held.release()
        again = {name: lf.lock(name, lease=30).try_acquire() for name in [*calls, "held"]}
        assert None not in again.values(), again


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within a second, which is long before any lease here ends."""
    try:
        wait_until(condition, timeout_s=1.0)
    except TimeoutError:
        return False
    return True


def test_late_grant_is_undone_although_the_server_had_never_seen_a_release(
    fresh_server: FreshServer, side: Side, eyes_on: EyesOn
) -> None:
    """F7: the undoing `leave` must not be lost to NOSCRIPT when it is the first one this server hears."""
    server = fresh_server()
    with side.client(server.url) as lf:
        other = lf.lock("other", lease=30).acquire()
        server.pause()
        outcome, _ = timed(lf.lock("name", lease=30).try_acquire)
        assert isinstance(outcome, Unreachable)
        server.resume()
        assert server.command("PING") == "PONG"
        eyes_on(server).wait_free("name", 1.0)
        other.release()


def test_late_grant_is_undone_although_the_client_has_closed(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn
) -> None:
    """F7: the caller gave up and its client was closed before the server woke."""
    server = fresh_server(server_kind)
    with side.client(server.url, timeout=0.6) as lf:
        warm(lf)
        server.pause()
        outcome, _ = timed(lf.lock("name", lease=30).try_acquire)
        assert isinstance(outcome, Unreachable)
    server.resume()
    assert server.command("PING") == "PONG"
    eyes_on(server).wait_free("name", 1.0)


def test_hold_survives_a_freeze_shorter_than_its_lease(
    fresh_server: FreshServer, server_kind: Kind, side: Side
) -> None:
    """F8: renewals that were not answered are sent again."""
    server = fresh_server(server_kind)
    with side.client(server.url, timeout=0.4) as lf, lf.lock("name", lease=2.0) as grant:
        before = grant.deadline
        server.pause()
        wait_until(lambda: grant.remaining < 0.9, what="most of the lease has passed")
        server.resume()
        wait_until(lambda: grant.deadline > before + 1, what="renewed after the thaw")
        grant.check()


def test_release_on_a_frozen_server_ends_in_time_and_works_again_after(
    fresh_server: FreshServer, server_kind: Kind, side: Side, eyes_on: EyesOn
) -> None:
    """F6, F8"""
    server = fresh_server(server_kind)
    with side.client(server.url, timeout=0.6) as lf:
        grant = lf.lock("name", lease=30).acquire()
        server.pause()
        outcome, took_s = timed(grant.release)
        assert isinstance(outcome, Unreachable)
        assert took_s < 0.6 + 1
        server.resume()
        grant.release()
        assert not grant.lost
        assert eyes_on(server).is_free("name")


def test_who_has_lost_a_hold_is_not_kept_by_its_release(fresh_server: FreshServer, side: Side) -> None:
    server = fresh_server()
    with side.client(server.url, timeout=5) as lf:
        grant = lf.lock("slow", lease=0.3).acquire()
        server.pause()
        assert grant.wait_lost(10)
        outcome, took_s = timed(grant.release)
        assert isinstance(outcome, LeaseLost)
        assert took_s < 0.25 + NOISE_S
        server.resume()
