"""Elections, latches and barriers when messages are lost, push connections are cut, and processes are killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast.errors import BrokenBarrier, LeaseLost, NotAcquired, Unreachable

if TYPE_CHECKING:
    from faults.conftest import Eyes
    from kit.proxy import Proxy
    from kit.rules import Rule, When
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side
    from lockfast.sync import Lockfast

pytestmark = pytest.mark.slow
TIMEOUT_S = 0.8  # a lost message is noticed after half of it
HEARTBEAT_S = 2.0
NOISE_S = 1.0
LOST = ["drop_reply", "drop_reply_and_cut", "swallow_request", "cut_request"]
LOST_EITHER_WAY = ["drop_reply_and_cut", "cut_request"]


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: what is lost here is lost on the way, whatever the server."""
    return "valkey"


@pytest.fixture
def far(server: Server, proxy: Proxy, side: Side) -> Lockfast:
    """A client behind the proxy that is connected, to a server that knows the scripts."""
    with side.client(server.url, timeout=10) as near:
        near.latch("warm-up latch", count=1).count_down()
        near.barrier("warm-up barrier", parties=1).wait()
        with near.election("warm-up election").campaign():
            near.election("warm-up election").leader()
    lf = side.client(proxy.url, timeout=TIMEOUT_S)
    lf.latch("warm-up latch", count=1).wait(wait=10)
    return lf


def strike(when: When, fault: str) -> Rule:
    rule: Rule = getattr(when, fault)()
    return rule


@pytest.mark.parametrize("fault", LOST)
def test_count_down_is_counted_once_whatever_is_lost(proxy: Proxy, far: Lockfast, name: str, fault: str) -> None:
    lost = strike(proxy.when("EVALSHA", containing=name), fault)
    assert far.latch(name, count=3).count_down() == 2
    assert lost.hits == 1
    assert far.latch(name, count=3).count() == 2


def test_count_down_that_is_never_answered_may_be_called_again_with_its_word(
    proxy: Proxy, far: Lockfast, name: str
) -> None:
    latch = far.latch(name, count=3)
    proxy.when("EVALSHA", containing=name, times=None).drop_reply_and_cut()
    proxy.when("EVAL", containing=name, times=None).drop_reply_and_cut()
    with pytest.raises(Unreachable) as caught:
        latch.count_down(once="mine")
    assert caught.value.sent
    proxy.heal()
    assert latch.count_down(once="mine") == 2


@pytest.mark.parametrize("fault", LOST)
def test_party_arrives_once_whatever_is_lost(
    server: Server, side: Side, proxy: Proxy, far: Lockfast, name: str, fault: str
) -> None:
    near = side.client(server.url)
    lost = strike(proxy.when("EVALSHA", containing=name), fault)
    first = side.spawn(far.barrier(name, parties=3).wait, wait=20)
    lost.wait_hit()
    wait_until(lambda: near.barrier(name, parties=3).n_waiting() == 1, what="the first to arrive")
    second = side.spawn(near.barrier(name, parties=3).wait, wait=20)
    wait_until(lambda: near.barrier(name, parties=3).n_waiting() == 2, what="the second to arrive")
    assert near.barrier(name, parties=3).wait(wait=20) == 2
    assert [first.result(10), second.result(10)] == [0, 1]


@pytest.mark.parametrize("fault", ["drop_reply", "drop_reply_and_cut"])
def test_last_party_whose_reply_is_lost_passes_with_the_others(
    server: Server, side: Side, proxy: Proxy, far: Lockfast, name: str, fault: str
) -> None:
    """Its request tripped the barrier: the second try must not arrive in the next generation."""
    near = side.client(server.url)
    first = side.spawn(near.barrier(name, parties=2).wait, wait=20)
    wait_until(lambda: near.barrier(name, parties=2).n_waiting() == 1, what="the first to arrive")
    lost = strike(proxy.when("EVALSHA", containing=name), fault)
    assert far.barrier(name, parties=2).wait(wait=20) == 1
    assert first.result(10) == 0
    assert lost.hits == 1
    assert near.barrier(name, parties=2).n_waiting() == 0


@pytest.mark.parametrize(
    ("what", "loss"),
    [
        ("election", "push"),
        ("election", "push connection"),
        ("latch", "push connection"),
        ("latch", "everything"),
        ("barrier", "push connection"),
        ("barrier", "everything"),
    ],
)
def test_lost_push_is_made_good_within_seconds(
    server: Server, side: Side, proxy: Proxy, far: Lockfast, name: str, what: str, loss: str
) -> None:
    near = side.client(server.url)
    observation = far.election(name).observe() if what == "election" else None
    if observation is not None:
        assert next(observation) is None
        waiting: Any = side.spawn(lambda: next(observation))
    elif what == "latch":
        waiting = side.spawn(far.latch(name, count=1).wait)
    else:
        waiting = side.spawn(far.barrier(name, parties=2).wait)
    mark = proxy.wait_for("SUBSCRIBE").number
    proxy.wait_until(lambda: any(asked.answered for asked in proxy.seen("EVALSHA", since=mark)))
    if loss == "push":
        proxy.when_push(times=None).drop()
    elif loss == "push connection":
        assert server.command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
    else:
        proxy.refuse()
    began = time.monotonic()
    if what == "latch":
        near.latch(name, count=1).count_down()
    elif what == "barrier":
        near.barrier(name, parties=2).wait(wait=5)
    else:
        leadership = near.election(name, value="new").campaign().acquire()
    if loss == "everything":
        proxy.accept()
    result = waiting.result(10)
    assert time.monotonic() - began < HEARTBEAT_S + NOISE_S
    if what == "election":
        assert result.value == "new"
        leadership.release()


@pytest.mark.parametrize("fault", LOST_EITHER_WAY)
def test_proclamation_is_heard_whatever_is_lost(
    server: Server, side: Side, proxy: Proxy, far: Lockfast, name: str, fault: str
) -> None:
    near = side.client(server.url)
    with far.election(name, value="one", lease=10).campaign() as leadership:
        lost = strike(proxy.when("EVALSHA", containing="two"), fault)
        leadership.proclaim("two")
        assert lost.hits == 1
        seen = near.election(name).leader()
        assert seen is not None
        assert seen.value == "two"


def test_proclamation_that_comes_late_changes_nothing(
    server: Server, side: Side, proxy: Proxy, far: Lockfast, name: str
) -> None:
    """Neither what the same leader has said since, nor what the next one has."""
    near = side.client(server.url)
    leadership = far.election(name, value="one", lease=10).campaign().acquire()
    late = proxy.when("EVALSHA", containing="two").delay_request()
    leadership.proclaim("two")
    leadership.proclaim("three")
    late.let_go()
    proxy.wait_until(lambda: all(asked.answered for asked in proxy.seen("EVALSHA", containing="two")))
    seen = near.election(name).leader()
    assert seen is not None
    assert seen.value == "three"
    later = proxy.when("EVALSHA", containing="four").delay_request()
    leadership.proclaim("four")
    leadership.resign()
    with near.election(name, value="next").campaign(wait=5):
        later.let_go()
        proxy.wait_until(lambda: all(asked.answered for asked in proxy.seen("EVALSHA", containing="four")))
        seen = near.election(name).leader()
        assert seen is not None
        assert seen.value == "next"


@pytest.mark.parametrize("fault", LOST_EITHER_WAY)
def test_campaign_whose_first_word_is_lost_leads_all_the_same(
    side: Side, proxy: Proxy, far: Lockfast, eyes: Eyes, name: str, fault: str
) -> None:
    lost = strike(proxy.when("EVALSHA", containing="hello"), fault)
    with far.election(name, value="hello", lease=10).campaign(wait=5) as leadership:
        assert lost.hits == 1
        assert eyes.holder(name) == leadership.ticket
    assert eyes.is_free(name)


def test_campaign_that_cannot_say_its_first_word_gives_the_leadership_back(
    side: Side, proxy: Proxy, far: Lockfast, eyes: Eyes, name: str
) -> None:
    proxy.when("EVALSHA", containing="hello", times=None).drop_reply_and_cut()
    with pytest.raises(Unreachable):
        far.election(name, value="hello", lease=30).campaign(wait=5).acquire()
    eyes.wait_free(name)


def test_leader_that_is_cut_off_has_stopped_before_another_leads(
    server: Server, side: Side, proxy: Proxy, far: Lockfast, name: str
) -> None:
    near = side.client(server.url)
    leadership = far.election(name, value="old", lease=1.0).campaign().acquire()
    following = near.election(name, value="new").observe()
    first = next(following)
    assert first is not None
    assert first.value == "old"
    proxy.refuse()
    with near.election(name, value="new").campaign(wait=10) as second:
        assert leadership.lost
        assert second.fence > leadership.fence
        seen = next(following)
        assert seen is not None
        assert seen.value == "new"
    following.close()
    proxy.accept()
    with pytest.raises(LeaseLost):
        leadership.release()


def test_party_that_is_cut_off_breaks_the_barrier_and_is_told(
    server: Server, side: Side, proxy: Proxy, far: Lockfast, name: str
) -> None:
    near = side.client(server.url)
    cut_off = side.spawn(far.barrier(name, parties=3, lease=1).wait, wait=2)
    wait_until(lambda: near.barrier(name, parties=3).n_waiting() == 1, what="the first to arrive")
    second = side.spawn(near.barrier(name, parties=3, lease=1).wait, wait=20)
    proxy.refuse()
    assert isinstance(second.error(1 + HEARTBEAT_S + NOISE_S), BrokenBarrier)
    proxy.accept()
    assert isinstance(cut_off.error(10), (BrokenBarrier, NotAcquired, Unreachable))


def test_restart_of_the_server_loses_nobody(side: Side, fresh_server: FreshServer, name: str) -> None:
    """With its memory: those who wait and those who observe ask again by themselves."""
    server = fresh_server("valkey", appendonly=True)
    lf, other = side.client(server.url), side.client(server.url)
    observation = lf.election(name, "e").observe()
    assert next(observation) is None
    waiting: list[Any] = [
        side.spawn(lambda: next(observation)),
        side.spawn(lf.latch(name, "l", count=2).wait),
        side.spawn(lf.barrier(name, "b", parties=2, lease=10).wait),
    ]
    other.latch(name, "l", count=2).count_down()
    wait_until(lambda: other.barrier(name, "b", parties=2).n_waiting() == 1, what="a party")
    wait_until(lambda: len(server.command("PUBSUB", "CHANNELS")) == 1, what="a subscription")
    server.restart()
    other.latch(name, "l", count=2).count_down()
    assert other.barrier(name, "b", parties=2, lease=10).wait(wait=10) == 1
    with other.election(name, "e", value="x").campaign():
        assert waiting[0].result(10).value == "x"
    waiting[1].result(10)
    assert waiting[2].result(10) == 0
    observation.close()
