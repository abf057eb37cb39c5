"""A guard whose request or reply is lost: it runs once, or not at all, and the caller is told which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost, Unreachable

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.rules import Rule, When
    from kit.servers import Kind, Server
    from kit.sides import AsyncioSide, Side
    from lockfast.sync import Grant, Lockfast

pytestmark = pytest.mark.slow
TIMEOUT_S = 0.5  # a lost message is noticed after half of it
LOST = ["drop_reply", "drop_reply_and_cut", "closed", "swallow_request", "cut_request"]
INCR = ("INCR", "n")


def strike(when: When, fault: str) -> Rule:
    if fault == "closed":
        return when.drop_reply_and_cut(reset=False)
    rule: Rule = getattr(when, fault)()
    return rule


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: what is lost here is lost on the way, whatever the server."""
    return "valkey"


def warmed(side: Side, url: str, **options: Any) -> Lockfast:
    """A client that is connected and knows the commands, to a server that knows the scripts."""
    lf = side.client(url, **({"timeout": TIMEOUT_S} | options))
    with lf.lock("warm-up") as grant:
        grant.guard(("GET", "n"))
    return lf


def count(server: Server) -> int:
    return int(server.command("GET", "n") or 0)


def guards(proxy: Proxy, grant: Grant) -> When:
    """Guards of this hold; renewals have no such word in them."""
    return proxy.when("EVALSHA", containing=f"{{{grant.name}}}:ran:")


@pytest.mark.parametrize("fault", LOST)
def test_lost_message_is_no_second_write_and_no_lost_reply(
    server: Server, proxy: Proxy, side: Side, name: str, fault: str
) -> None:
    with warmed(side, proxy.url) as lf, lf.lock(name, lease=30) as grant:
        lost = strike(guards(proxy, grant), fault)
        assert grant.guard(INCR, ("GET", "n"), ("GET", "no")) == [1, b"1", None]
        assert lost.hits == 1
        assert count(server) == 1
        assert grant.guard(INCR) == [2], "another guard is another write"


def test_answer_that_was_too_large_to_keep_is_told_as_run(server: Server, proxy: Proxy, side: Side, name: str) -> None:
    server.command("SET", "big", "x" * 5000)
    with warmed(side, proxy.url) as lf, lf.lock(name, lease=30) as grant:
        guards(proxy, grant).drop_reply_and_cut()
        with pytest.raises(Unreachable, match="has run, but its replies were lost") as caught:
            grant.guard(INCR, ("GET", "big"))
        assert caught.value.sent
        assert count(server) == 1


def test_guard_that_is_never_answered_says_that_it_may_have_run(
    server: Server, proxy: Proxy, side: Side, name: str
) -> None:
    with warmed(side, proxy.url) as lf, lf.lock(name, lease=30) as grant:
        lost = proxy.when("EVALSHA", containing=":ran:", times=None).drop_reply_and_cut()
        began = now()
        with pytest.raises(Unreachable, match="may have run") as caught:
            grant.guard(INCR)
        assert caught.value.sent
        assert now() - began < TIMEOUT_S + 1
        assert lost.hits >= 2
        lost.cancel()
        assert count(server) == 1
        grant.check()


def test_guard_that_never_reached_the_server_says_so(server: Server, proxy: Proxy, side: Side, name: str) -> None:
    with warmed(side, proxy.url) as lf, lf.lock(name, lease=30) as grant:
        gone = proxy.when("EVALSHA", containing=":ran:", times=None).inject_reply(b"-LOADING the dataset\r\n")
        with pytest.raises(Unreachable) as caught:
            grant.guard(INCR)
        assert not caught.value.sent
        gone.cancel()
        assert count(server) == 0


@pytest.mark.parametrize("answer", [b"-LOADING the dataset\r\n", b"-OOM command not allowed\r\n"])
def test_guard_that_ran_unanswered_is_not_said_to_be_refused(
    server: Server, proxy: Proxy, side: Side, name: str, answer: bytes
) -> None:
    """Only the second copy was refused; the first may have run, and has."""
    with warmed(side, proxy.url) as lf, lf.lock(name, lease=30) as grant:
        guards(proxy, grant).drop_reply_and_cut()
        refusing = proxy.when("EVALSHA", containing=":ran:", times=None).inject_reply(answer)
        with pytest.raises(Unreachable, match="may have run") as caught:
            grant.guard(INCR)
        assert caught.value.sent
        assert count(server) == 1
        refusing.cancel()


@pytest.mark.parametrize("fault", ["drop_reply", "cut_request"])
def test_lost_look_at_the_table_of_commands_is_asked_again(
    server: Server, proxy: Proxy, side: Side, name: str, fault: str
) -> None:
    with side.client(proxy.url, timeout=TIMEOUT_S) as lf, lf.lock(name, lease=30) as grant:
        lost = strike(proxy.when("COMMAND"), fault)
        assert grant.guard(INCR) == [1]
        assert lost.hits == 1


def test_table_of_commands_that_never_comes_means_that_nothing_was_written(proxy: Proxy, side: Side, name: str) -> None:
    with side.client(proxy.url, timeout=TIMEOUT_S) as lf, lf.lock(name, lease=30) as grant:
        lost = proxy.when("COMMAND", times=None).drop_reply_and_cut()
        with pytest.raises(Unreachable) as caught:
            grant.guard(INCR)
        assert not caught.value.sent
        lost.cancel()


def test_first_copy_that_comes_after_the_second_does_not_write_again(
    server: Server, proxy: Proxy, side: Side, name: str
) -> None:
    with warmed(side, proxy.url) as lf, lf.lock(name, lease=30) as grant:
        late = guards(proxy, grant).delay_request()
        assert grant.guard(INCR) == [1]
        assert grant.guard(INCR) == [2]
        arrived = len(proxy.seen("EVALSHA", containing=":ran:"))
        late.let_go()
        wait_until(
            lambda: all(one.answered for one in proxy.seen("EVALSHA", containing=":ran:")[:arrived]), what="it ran"
        )
        assert count(server) == 2


def test_guard_under_way_when_the_hold_ends_writes_nothing_later(
    server: Server, proxy: Proxy, side: Side, name: str
) -> None:
    """The request is held up, the hold is broken and taken by another: what arrives then is refused by the server."""
    with warmed(side, proxy.url, timeout=5) as lf, side.client(server.url) as other:
        grant = lf.lock(name, lease=30).acquire()
        late = guards(proxy, grant).delay_request()
        spawned = side.spawn(grant.guard, INCR)
        proxy.wait_for("EVALSHA", containing=f"{{{name}}}:ran:")
        other.break_lock(name, reason="test")
        with other.lock(name) as after:
            after.guard(("SET", "n", 100))
            late.let_go()
            assert isinstance(spawned.error(), LeaseLost)
            assert grant.lost
            assert count(server) == 100


def test_reply_lost_and_hold_broken_meanwhile_is_still_known_to_have_run(
    server: Server, proxy: Proxy, side: Side, name: str
) -> None:
    with warmed(side, proxy.url) as lf, side.client(server.url) as other:
        grant = lf.lock(name, lease=30).acquire()
        lost = guards(proxy, grant).drop_reply()
        spawned = side.spawn(grant.guard, INCR)
        lost.wait_hit()
        other.break_lock(name, reason="test")
        assert spawned.result() == [1], "it ran while the hold stood"
        with pytest.raises(LeaseLost):
            grant.guard(INCR)
        assert count(server) == 1


def test_hold_whose_time_is_over_does_not_try_again(server: Server, proxy: Proxy, side: Side, name: str) -> None:
    """Loss is final: what has not run by then is not sent once more."""
    with warmed(side, proxy.url, timeout=2) as lf:
        grant = lf.lock(name, lease=0.3, renew=False).acquire()
        lost = proxy.when("EVALSHA", containing=":ran:", times=None).swallow_request()
        with pytest.raises(Unreachable) as caught:
            grant.guard(INCR)
        assert caught.value.sent
        assert lost.hits == 1
        assert grant.lost
        assert count(server) == 0


def test_cancelled_guard_leaves_the_client_fit(server: Server, proxy: Proxy, aside: AsyncioSide, name: str) -> None:
    import asyncio

    from lockfast.aio import Lockfast

    async def work() -> None:
        async with Lockfast(proxy.url) as lf, lf.lock(name, lease=30) as grant:
            await grant.guard(("SET", "n", 0))
            late = guards(proxy, grant).delay_reply()  # type: ignore[arg-type]  # its name is all that is read
            task = asyncio.create_task(grant.guard(INCR))
            await asyncio.to_thread(proxy.wait_for, "EVALSHA", containing=b"INCR")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            late.let_go()
            assert await grant.guard(INCR) == [2]

    aside.run(work())


@pytest.fixture
def aside() -> Any:
    from kit.sides import AsyncioSide

    side = AsyncioSide()
    yield side
    side.close()
