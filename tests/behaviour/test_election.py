"""Leader election: one leads at a time, others see who it is and what it says, and learn of changes without polling."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, holder, wait_over, wait_queued
from kit.servers import wait_until
from lockfast import Leader, LeaseLost, Misused, NotAcquired, NotHeld, Refused
from lockfast.aio import Lockfast as AsyncioLockfast

if TYPE_CHECKING:
    from kit.servers import Kind, Server
    from kit.sides import AsyncioSide, Side, Spawned
    from lockfast.sync import Lockfast, Observation

AT_ONCE_S = 1.0  # less than the shortest heartbeat: whoever knows by then was told


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough: the scripts are compared with their model on both (tests/lua)."""
    return "valkey"


class Following:
    """An observer beside the test, and what it has seen."""

    def __init__(self, side: Side, observation: Observation) -> None:
        self.observation = observation
        self.seen: list[Leader | None] = []
        self.at: list[float] = []
        self.ended: Spawned[None] = side.spawn(self._follow)

    def _follow(self) -> None:
        for leader in self.observation:
            self.at.append(time.monotonic())
            self.seen.append(leader)

    def wait(self, values: list[str | None], timeout_s: float = PATIENCE_S) -> None:
        wait_until(lambda: self.values == values, what=f"{values} to be seen, not {self.values}", timeout_s=timeout_s)

    @property
    def values(self) -> list[str | None]:
        return [leader.value if leader else None for leader in list(self.seen)]


def test_leader_leads_alone_and_everybody_sees_what_it_says(lf: Lockfast, other: Lockfast, name: str) -> None:
    election, theirs = lf.election(name, value="a:1"), other.election(name)
    assert (election.name, theirs.leader()) == (name, None)
    with election.campaign(wait=5) as leadership:
        seen = theirs.leader()
        assert seen is not None
        assert (seen.value, seen.fence) == ("a:1", leadership.fence)
        owner = other.inspect(name).holders[0].owner
        assert (seen.host, seen.pid, seen.label) == tuple(owner)
        assert abs(seen.since - other.inspect(name).at) < PATIENCE_S
        assert theirs.try_campaign() is None
        with pytest.raises(NotAcquired):
            theirs.campaign(wait=0.02).acquire()
        leadership.proclaim("b:2")
        assert theirs.leader() == seen._replace(value="b:2")
        leadership.check()
    assert theirs.leader() is None
    assert not leadership.held


def test_candidates_lead_in_the_order_they_came(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    first = lf.election(name, value="first").campaign().acquire()
    waiting = []
    for number in range(3):
        campaign = other.election(name, value=str(number)).campaign(wait=20)
        waiting.append(side.spawn(campaign.acquire))
        wait_queued(lf, name, number + 1)
    first.resign()
    fences = [first.fence]
    for number, spawned in enumerate(waiting):
        leadership = spawned.result(PATIENCE_S)
        seen = lf.election(name).leader()
        assert seen is not None
        assert (seen.value, seen.fence) == (str(number), leadership.fence)
        fences.append(leadership.fence)
        leadership.resign()
    assert fences == sorted(set(fences))
    assert lf.election(name).leader() is None


def test_any_text_can_be_proclaimed(lf: Lockfast, other: Lockfast, name: str) -> None:
    for value in ("", "10.0.0.1:80", "two words", "tab\tand\nline", "%41|{x}", "ü" * 80, "\x00"):
        with lf.election(name, value=value).campaign() as leadership:
            seen = other.election(name).leader()
            assert seen is not None
            assert seen.value == value
            leadership.proclaim(value + "!")
            leadership.extend()  # what was said is not lost by a renewal
            again = other.election(name).leader()
            assert again is not None
            assert again.value == value + "!"
            assert other.inspect(name).holders[0].owner.label == ""


def test_bad_arguments_are_refused_before_anything_is_sent(lf: Lockfast, server: Server, name: str) -> None:
    for bad, error in ((None, TypeError), (b"x", TypeError), ("x" * 1025, ValueError), ("\ud800", ValueError)):
        with pytest.raises(error):
            lf.election(name, value=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lease"):
        lf.election(name, lease=0.01)
    with pytest.raises(ValueError, match="wait"):
        lf.election(name).campaign(wait=-1)
    with lf.election(name).campaign() as leadership, pytest.raises(ValueError, match="1024"):
        leadership.proclaim("x" * 2000)


def test_who_no_longer_leads_can_say_nothing(lf: Lockfast, other: Lockfast, name: str) -> None:
    leadership = lf.election(name, lease=0.1, renew=False, value="old").campaign().acquire()
    wait_over(leadership)
    assert leadership.lost
    with pytest.raises(LeaseLost):
        leadership.proclaim("late")
    with other.election(name, value="new").campaign(wait=5) as second:
        with pytest.raises(LeaseLost):
            leadership.release()
        with pytest.raises(LeaseLost):
            leadership.proclaim("late")
        seen = lf.election(name).leader()
        assert seen is not None
        assert (seen.value, seen.fence) == ("new", second.fence)
    with pytest.raises(NotHeld):
        second.proclaim("after the end")


def test_other_kinds_are_refused_both_ways(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.election(name).campaign(), pytest.raises(Refused, match="an election"):
        other.lock(name).acquire(wait=0)
    with lf.lock(name):
        theirs = other.election(name)
        for call in (theirs.leader, theirs.try_campaign, lambda: next(theirs.observe())):
            with pytest.raises(Refused, match="a lock"):
                call()
    assert other.election(name).leader() is None, "nobody uses the lock any more"


def test_campaign_is_used_as_a_lock_is(lf: Lockfast, name: str) -> None:
    @lf.election("{who}", value="v").campaign()
    def lead(who: str) -> Any:
        return who

    assert lead(name) == name
    assert holder(lf, name) is None


def test_campaign_cannot_be_one_of_several_locks(lf: Lockfast, name: str) -> None:
    campaign = lf.election(name).campaign()
    with pytest.raises(ValueError, match="one of several"):
        lf.locks("other", getattr(campaign, "twin_of", campaign))


def test_observer_sees_the_present_and_every_later_state(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    election = other.election(name, value="one")
    following = Following(side, lf.election(name).observe())
    following.wait([None])
    leadership = election.campaign().acquire()
    following.wait([None, "one"], AT_ONCE_S)
    leadership.proclaim("two")
    following.wait([None, "one", "two"], AT_ONCE_S)
    leadership.proclaim("two")
    leadership.resign()
    following.wait([None, "one", "two", None], AT_ONCE_S)
    following.observation.close()
    following.ended.result(AT_ONCE_S)
    assert following.values == [None, "one", "two", None]


@pytest.mark.slow
def test_observer_learns_of_a_dead_leader_when_its_lease_ends(
    side: Side, lf: Lockfast, other: Lockfast, name: str
) -> None:
    leadership = other.election(name, lease=0.4, renew=False).campaign().acquire()
    ends_at = time.monotonic() + leadership.remaining
    following = Following(side, lf.election(name).observe())
    following.wait(["", None])
    assert -0.01 < following.at[1] - ends_at < AT_ONCE_S
    following.observation.close()
    with pytest.raises(LeaseLost):
        leadership.release()


@pytest.mark.slow
def test_observers_do_not_poll(side: Side, valkey_server: Server, name: str) -> None:
    server = valkey_server
    lf, other = side.client(server.url), side.client(server.url)
    with other.election(name, lease=60).campaign():
        following = Following(side, lf.election(name).observe())
        following.wait([""])
        wait_until(lambda: server.command("PUBSUB", "CHANNELS"), what="a subscription")
        time.sleep(0.05)
        before = server.command("INFO", "commandstats").decode()
        time.sleep(0.8)
        after = server.command("INFO", "commandstats").decode()
        assert calls(after) - calls(before) <= 1, "a heartbeat at most"
        following.observation.close()
        following.ended.result(AT_ONCE_S)


def calls(stats: str) -> int:
    (line,) = [line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:")]
    return int(line.partition("calls=")[2].partition(",")[0])


def test_many_observers_of_one_client_share_its_push_connection(
    side: Side, lf: Lockfast, other: Lockfast, server: Server, name: str
) -> None:
    observers = [Following(side, lf.election(name).observe()) for _ in range(8)]
    for following in observers:
        following.wait([None])
    with other.election(name, value="x").campaign():
        for following in observers:
            following.wait([None, "x"], 2 * AT_ONCE_S)
    assert len(server.command("PUBSUB", "CHANNELS")) == 1
    for following in observers:
        following.wait([None, "x", None], 2 * AT_ONCE_S)
        following.observation.close()
        following.ended.result(PATIENCE_S)


def test_observation_ends_with_its_client(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url)
    following = Following(side, lf.election(name).observe())
    following.wait([None])
    lf.close()
    following.ended.result(PATIENCE_S)
    assert list(following.observation) == []


def test_election_of_a_closed_client_cannot_be_observed(side: Side, server: Server, name: str) -> None:
    lf = side.client(server.url)
    election = lf.election(name)
    lf.close()
    with pytest.raises(Misused, match="closed"):
        election.leader()
    with pytest.raises(Misused, match="closed"):
        election.observe()


def test_closed_observation_yields_no_more(lf: Lockfast, name: str) -> None:
    with lf.election(name).observe() as observation:
        assert next(observation) is None
    assert list(observation) == []
    observation.close()
    fresh = lf.election(name).observe()
    fresh.close()
    assert list(fresh) == []


def test_slow_observer_skips_what_is_over_and_sees_what_is(lf: Lockfast, other: Lockfast, name: str) -> None:
    with lf.election(name).observe() as observation:
        assert next(observation) is None
        with other.election(name, value="first").campaign():
            pass
        with other.election(name, value="second").campaign() as leadership:
            leadership.proclaim("third")
            seen = next(observation)
            assert seen is not None
            assert seen.value == "third"


def test_nothing_is_left_of_an_observer_that_has_gone(lf: Lockfast, server: Server, name: str) -> None:
    with lf.election(name).observe() as observation:
        next(observation)
        assert server.command("ZCARD", f"lockfast:{{{name}}}:watchers") == 1
        assert server.command("PTTL", f"lockfast:{{{name}}}:watchers") > 0
    assert server.command("EXISTS", f"lockfast:{{{name}}}:watchers") == 0


def test_leader_is_cancelled_when_it_loses(aside: AsyncioSide, valkey_server: Server, name: str) -> None:
    async def lead() -> str:
        async with AsyncioLockfast(valkey_server.url) as lf, AsyncioLockfast(valkey_server.url) as other:
            ended = asyncio.Event()
            with pytest.raises(LeaseLost):
                async with lf.election(name, lease=0.15, renew=False).campaign():
                    try:
                        await asyncio.sleep(30)
                    finally:
                        ended.set()
            async with other.election(name, value="next").campaign(wait=5):
                assert ended.is_set()
                seen = await lf.election(name).leader()
                return seen.value if seen else ""

    assert aside.run(lead()) == "next"


def test_cancelled_campaign_leaves_nothing_behind(aside: AsyncioSide, valkey_server: Server, name: str) -> None:
    async def run() -> None:
        async with AsyncioLockfast(valkey_server.url) as lf, AsyncioLockfast(valkey_server.url) as other:
            async with other.election(name).campaign():
                campaign = asyncio.create_task(lf.election(name).campaign().acquire())
                while not (await lf.inspect(name)).waiters:
                    await asyncio.sleep(0.005)
                campaign.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await campaign
                while (await lf.inspect(name)).waiters:
                    await asyncio.sleep(0.005)
            following = asyncio.create_task(anext(lf.election(name).observe()))
            assert await following is None

    aside.run(run())


def test_on_lost_is_called_with_the_leadership(lf: Lockfast, name: str) -> None:
    told: list[Any] = []
    leadership = lf.election(name, lease=0.1, renew=False, on_lost=told.append).campaign().acquire()
    wait_until(lambda: told, what="on_lost", timeout_s=PATIENCE_S)
    assert told[0].fence == leadership.fence


def test_observers_that_went_without_a_word_are_forgotten_by_those_that_come(
    server: Server, lf: Lockfast, name: str
) -> None:
    """Under a leader that never changes, too: whoever looks once and goes must not leave something for ever."""
    watchers = f"lockfast:{{{name}}}:watchers"
    server.command("ZADD", watchers, 1, "dead.1.1 lockfast:push:dead", 2, "dead.1.2 lockfast:push:dead")
    with lf.election(name).observe() as states:
        assert next(states) is None
        assert server.command("ZCARD", watchers) == 1
