"""Looking, and taking a lock away, while messages are lost: what passes within the time-out is no failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from behaviour.agents import Agent
from behaviour.queueing import waiting
from faults.test_lost_messages import REPLY_LOST, REQUEST_LOST, strike, warmed
from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LeaseLost, NotHeld, Unreachable
from lockfast.flows import admission, deadlocks
from lockfast.flows.scripts import LEAVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.conftest import Eyes
    from kit.proxy import Proxy
    from kit.servers import Kind, Server
    from kit.sides import Side

pytestmark = pytest.mark.slow

LOOKS: dict[str, Callable[[Any, str], Any]] = {
    "inspect": lambda lf, name: lf.inspect(name).holders[0].fence,
    "names": lambda lf, name: lf.names(),
    "deadlocks": lambda lf, name: lf.deadlocks(),
    "break": lambda lf, name: lf.break_lock(name, reason="test").fence,
}


@pytest.fixture
def server_kind() -> Kind:
    """One kind is enough, as in test_lost_messages.py."""
    return "valkey"


@pytest.mark.parametrize("look", LOOKS)
def test_look_goes_on_asking_until_the_server_answers(
    proxy: Proxy, server: Server, side: Side, name: str, look: str
) -> None:
    lf = side.client(proxy.url, timeout=20)
    grant = side.client(server.url).lock(name, lease=30).acquire()
    cut = proxy.when(times=None).cut_request()
    looking = side.spawn(LOOKS[look], lf, name)
    wait_until(lambda: cut.hits > 3, what="asked several times, in vain")
    assert not looking.done
    proxy.heal()
    expected: dict[str, object] = {"names": [(name,)], "deadlocks": ()}
    assert looking.result() == expected.get(look, grant.fence)


@pytest.mark.parametrize("look", LOOKS)
def test_look_at_a_server_that_stays_away_ends_with_the_timeout(proxy: Proxy, side: Side, name: str, look: str) -> None:
    lf = warmed(side, proxy.url)
    proxy.refuse()
    began = now()
    with pytest.raises(Unreachable):
        LOOKS[look](lf, name)
    assert 0.45 < now() - began < 1.0, "as long as every request may take"


@pytest.mark.parametrize("fault", [*REPLY_LOST, *REQUEST_LOST])
def test_lost_message_of_a_break_is_made_good(
    proxy: Proxy, server: Server, side: Side, eyes: Eyes, name: str, fault: str
) -> None:
    """The second `leave` finds nothing where only the reply was lost: the caller hears that it is broken, as it is."""
    holders, lf = side.client(server.url), warmed(side, proxy.url)
    stuck = holders.lock(name, lease=30).acquire()
    following = waiting(side, holders, holders.lock(name, lease=30), name)
    lost = strike(proxy.when("EVALSHA", containing=LEAVE.sha), fault)
    assert [held.ticket for held in lf.break_lock(name, reason="stuck").holders] == [stuck.ticket]
    assert lost.hits == 1
    assert eyes.holder(name) == following.result().ticket
    broken = eyes.look(name).broken
    assert broken is not None
    assert broken.reason == "stuck"
    following.result().release()
    with pytest.raises(NotHeld):
        lf.break_lock(name, reason="again")


def test_break_that_was_not_answered_says_that_it_may_have_run(
    proxy: Proxy, server: Server, side: Side, name: str
) -> None:
    lf = warmed(side, proxy.url)
    grant = side.client(server.url).lock(name, lease=30).acquire()
    proxy.when("EVALSHA", containing=LEAVE.sha).drop_reply_and_cut()
    proxy.when("EVALSHA", containing=LEAVE.sha, times=None).inject_reply(b"-LOADING it has just restarted\r\n")
    with pytest.raises(Unreachable) as caught:
        lf.break_lock(name, reason="test")
    assert caught.value.sent
    with pytest.raises(LeaseLost):
        grant.release()


def test_second_look_of_a_search_for_deadlocks_is_made_again(
    proxy: Proxy, server: Server, side: Side, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(deadlocks, "PAUSE_S", 0.5)
    agent, holders = Agent(side), side.client(server.url)
    held = agent.take(holders.lock(name))
    wait = agent.begin(holders.lock(name, wait=20))  # for itself
    lf = warmed(side, proxy.url)
    wait_until(lambda: holders.inspect(name).waiters, what="it waits")
    cut = proxy.when("EVALSHA", containing=name, nth=2).cut_request()
    assert [step.waits_for for (step,) in lf.deadlocks()] == [name]
    assert cut.hits == 1
    held.release()
    wait.result(20).release()
    agent.end()
