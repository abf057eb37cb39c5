"""Several locks at once: all or none, in one trip when they are free, and no deadlock whatever the order."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.queueing import PATIENCE_S, wait_queued
from kit.servers import wait_until
from kit.sides import AsyncioSide
from lockfast import LeaseLost, NotAcquired, NotHeld, Refused
from lockfast.flows import group, several
from lockfast.flows.asks import lock as lock_ask
from lockfast.flows.effects import Call, CallMany, Env
from lockfast.flows.group import Asks
from lockfast.grants import Era, Hold
from lockfast.names import make
from lockfast.sync import Lockfast as ThreadsLockfast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit.proxy import Proxy
    from kit.servers import Server
    from kit.sides import Side
    from lockfast.flows.admission import Held
    from lockfast.flows.asks import Ask
    from lockfast.sync import Lockfast


def bare(thing: Any) -> Any:
    """What the test's wrapper stands for, to be handed to the library."""
    return getattr(thing, "twin_of", thing)


def is_free(lf: Lockfast, *names: str) -> bool:
    return all(not lf.inspect(name).holders and not lf.inspect(name).waiters for name in names)


def reads(server: Server) -> int:
    """How often the server has read from a socket."""
    told = server.command("INFO", "stats").decode()
    return int(told.partition("total_reads_processed:")[2].split()[0])


def names_of(name: str, count: int = 3) -> list[str]:
    return [f"{name}-{letter}" for letter in "cab"[:count]]


def test_all_are_held_and_all_are_given_back(lf: Lockfast, other: Lockfast, name: str) -> None:
    names = names_of(name)
    with lf.locks(*names) as grants:
        assert grants.held
        for each in names:
            assert other.lock(each).try_acquire() is None
    assert is_free(lf, *names)


def test_free_names_take_one_trip_and_so_does_giving_them_back(server: Server, lf: Lockfast, name: str) -> None:
    for _ in range(2):  # connected, names known, scripts loaded
        lf.locks(*names_of(name)).acquire().release()
    looks = -reads(server) + reads(server)
    before = reads(server)
    lf.locks(*names_of(name)).acquire().release()
    assert reads(server) == before + looks + 2


def test_fences_of_all_are_there_in_the_order_of_the_names(server: Server, name: str) -> None:
    with ThreadsLockfast(server.url) as lf:
        names = names_of(name)
        with lf.locks(*names) as grants:
            assert [grant.name for grant in grants] == names
            assert [grant.fence for grant in grants] == [lf.inspect(each).fence for each in names]
            assert len(grants) == 3
            assert grants[1].name == names[1]


def test_one_that_is_taken_leaves_none_held(lf: Lockfast, other: Lockfast, name: str) -> None:
    names = names_of(name)
    for taken in names:
        with other.lock(taken):
            assert lf.locks(*names).try_acquire() is None
            with pytest.raises(NotAcquired):
                lf.locks(*names, wait=0.1).acquire()
            rest = [each for each in names if each != taken]
            wait_until(lambda rest=rest: is_free(lf, *rest), what="the others are free")  # type: ignore[misc]
        wait_until(lambda: is_free(lf, *names), what="all are free")


def test_who_waits_holds_only_what_comes_before(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    first, second, third = sorted(names_of(name))
    blocker = other.lock(second).acquire()
    waiting = side.spawn(lf.locks(third, first, second).acquire)
    wait_queued(other, second)
    wait_until(lambda: is_free(other, third), what="what comes after is left")
    assert other.lock(first).try_acquire() is None
    blocker.release()
    grants = waiting.result()
    assert grants.held
    grants.release()
    assert is_free(lf, first, second, third)


@pytest.mark.slow
def test_whatever_the_order_nobody_deadlocks(side: Side, server: Server, name: str) -> None:
    names = names_of(name)
    clients = [side.client(server.url) for _ in range(3)]
    done: list[int] = []
    mutex = threading.Lock()

    def work(client: Lockfast, order: tuple[str, ...]) -> None:
        for _ in range(10):
            with client.locks(*order, wait=PATIENCE_S):
                assert mutex.acquire(blocking=False), "two at once"
                mutex.release()
        done.append(1)

    orders = list(itertools.permutations(names))
    for worker in [side.spawn(work, client, order) for client, order in zip(clients * 2, orders, strict=True)]:
        worker.result()
    assert len(done) == 6
    assert is_free(clients[0], *names)


def test_kinds_may_be_mixed(side: Side, lf: Lockfast, other: Lockfast, name: str) -> None:
    lock, permits, reader = lf.lock(f"{name}-l"), lf.semaphore(f"{name}-s", limit=2), lf.rwlock(f"{name}-r").read()
    with lf.locks(bare(lock), bare(permits), bare(reader)):
        assert other.lock(f"{name}-l").try_acquire() is None
        write: Any = other.rwlock(f"{name}-r").write()
        assert (side.wrap(write) if isinstance(side, AsyncioSide) else write).try_acquire() is None
        one = other.semaphore(f"{name}-s", limit=2).try_acquire()
        assert one is not None
        assert other.semaphore(f"{name}-s", limit=2).try_acquire() is None
        one.release()
    assert is_free(lf, f"{name}-l", f"{name}-s", f"{name}-r")


def test_refusal_of_one_leaves_none_held(lf: Lockfast, other: Lockfast, name: str) -> None:
    a, b, c = sorted(names_of(name))
    with other.semaphore(b, limit=2), pytest.raises(Refused):
        lf.locks(a, b, c).acquire()
    wait_until(lambda: is_free(lf, a, c), what="the others are free")


@pytest.mark.slow
def test_loss_of_one_is_loss_of_all(lf: Lockfast, other: Lockfast, name: str) -> None:
    names = names_of(name)
    grants = lf.locks(*names, lease=0.5).acquire()
    other.break_lock(names[0], reason="a test")
    wait_until(lambda: grants.lost, what="the keeper has noticed")
    with pytest.raises(LeaseLost):
        grants.check()
    with pytest.raises(LeaseLost):
        grants.release()
    assert is_free(lf, *names)


@pytest.mark.slow
def test_all_are_renewed_together(lf: Lockfast, other: Lockfast, name: str) -> None:
    names = names_of(name)
    with lf.locks(*names, lease=0.3) as grants:
        before = lf.inspect(names[0]).at
        wait_until(lambda: lf.inspect(names[0]).at > before + 0.8, what="longer than two leases")
        grants.check()
        assert all(other.lock(each).try_acquire() is None for each in names)


@pytest.mark.slow
def test_lost_reply_leaves_nothing(proxy: Proxy, side: Side, lf: Lockfast, name: str) -> None:
    names = names_of(name)
    client = side.client(proxy.url, timeout=0.5)
    client.locks(f"{name}-warm").acquire().release()
    proxy.when("EVALSHA", containing=f"{name}-b").drop_reply()
    try:
        client.locks(*names).acquire(wait=0.2).release()
    except (NotAcquired, OSError):
        pass
    wait_until(lambda: is_free(lf, *names), what="nothing is left behind")


def test_given_back_one_by_one_or_twice_has_one_clear_outcome(server: Server, name: str) -> None:
    with ThreadsLockfast(server.url) as lf:
        grants = lf.locks(*names_of(name)).acquire()
        grants[0].release()
        grants.release()
        with pytest.raises(NotHeld):
            grants.check()
        grants.release()  # nothing is left to give back
        assert is_free(lf, *names_of(name))


def test_what_cannot_work_is_refused_before_anything_is_sent(server: Server, lf: Lockfast, other: Lockfast) -> None:
    with pytest.raises(ValueError, match="at least one"):
        lf.locks()
    with pytest.raises(ValueError, match="named twice"):
        lf.locks("a", "b", "a")
    with pytest.raises(ValueError, match="another client"):
        lf.locks(bare(other.lock("a")))
    with pytest.raises(ValueError, match="cannot be one of several"):
        lf.locks(bare(lf.rlock("a")))
    with pytest.raises(TypeError, match=r"hand over \.read\(\) or \.write\(\)"):
        lf.locks("a", bare(lf.rwlock("b")))
    with pytest.raises(TypeError):
        lf.locks("a", wait="soon")  # type: ignore[arg-type]
    assert server.command("DBSIZE") == 0


def test_grants_are_the_same_however_often_they_are_looked_at(server: Server, name: str) -> None:
    with ThreadsLockfast(server.url) as lf:
        grants = used(lf, name).acquire()
        assert [*grants] == [*grants] == [grants[place] for place in range(3)]
        assert [grant.name for grant in grants] == names_of(name)
        assert len({grant.ticket for grant in grants}) == 3
        grants.release()


@pytest.mark.slow
@pytest.mark.parametrize("looked_at", [False, True])
def test_group_that_is_dropped_is_given_back(server: Server, name: str, looked_at: bool) -> None:
    with ThreadsLockfast(server.url) as lf:
        grants = used(lf, name).acquire()
        kept = grants[1] if looked_at else None
        del grants
        rest = [each for each in names_of(name) if kept is None or each != kept.name]
        wait_until(lambda: is_free(lf, *rest), what="those that nobody has any more are given back")
        if kept is not None:
            kept.check()
            kept.release()


def used(lf: Lockfast, name: str) -> Any:
    """Locks whose names are known, so that one script takes them all."""
    locks = lf.locks(*names_of(name))
    locks.acquire().release()
    return locks


def test_free_names_take_the_server_few_commands(server: Server, name: str) -> None:
    if server.version < (7,):
        pytest.skip("one more command each: it stands for the flags that this server does not know")
    with ThreadsLockfast(server.url) as lf:
        locks = used(lf, name)
        locks.acquire().release()
        server.reset_stats()
        locks.acquire().release()
        told = server.stats()
        assert {what: told[what] for what in ("evalsha", "time", "mget", "set")} == {
            "evalsha": 2, "time": 1, "mget": 2, "set": 6,
        }  # fmt: skip


@pytest.mark.parametrize("took_s", [0.0, 0.3, 0.48, 0.5, 1.5])
@pytest.mark.parametrize("reply", [7, 0])
def test_taken_at_once_is_what_the_flow_returns(reply: int, took_s: float) -> None:
    """The short way of drivers beside the flow that it stands for, given the same reply."""
    clock = [100.0]
    asks = Asks([lock_ask(make("lockfast", (each,)), 1.0) for each in ("b", "a")])
    flow_env, quick_env = (Env(lambda: clock[0], lambda: 0.0, 2.0) for _ in range(2))
    for env in (flow_env, quick_env):
        env.seen.learn_all(asks.shown, 3)
    holder = Notes()
    flow = several.acquire(asks, 0.0, flow_env, holder, "stem")
    first = flow.send(None)
    quick = asks.take("stem", quick_env, 101.0)
    assert quick is not None
    assert isinstance(first, Call)
    assert (first.bound, first.args, first.by) == (quick.bound, (3, "stem"), quick.by)
    clock[0] += took_s
    ended = False
    try:
        flow.send(reply)
    except StopIteration:
        ended = True
    finally:
        flow.close()
    held = group.at_once(asks, reply, 100.0, quick_env)
    assert (held is not None) == ended
    if held is not None:
        assert holder.kept == [held, held]
        assert dict(flow_env.seen) == dict(quick_env.seen) == {"a": 7, "b": 7}


class Notes:
    """Notes what is held; its own keeper, with nothing to do."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.keeper = self

    def unwatch(self, hold: Hold) -> None: ...

    def unwatch_all(self, holds: Sequence[Hold]) -> None: ...

    def finish(self, hold: Hold) -> None: ...

    def new_ticket(self) -> str:
        raise AssertionError("nobody waits here")

    def keep(self, ask: Ask, ticket: str, held: Held) -> Hold:
        self.kept.append(held)
        return Hold(ask, ticket, held, Era(lambda: 0.0), renews=False)


def test_order_is_the_same_for_everybody() -> None:
    asks = [lock_ask(make("lockfast", (each,)), 30) for each in ("b", "a", "c")]
    assert Asks(asks).order == [1, 0, 2]
    assert [ask.name.shown for ask in Asks(asks).in_order] == ["a", "b", "c"]


def test_one_that_is_given_back_elsewhere_in_this_moment_does_not_keep_the_others(lf: Lockfast, name: str) -> None:
    grants = bare(lf.locks(*names_of(name)).acquire())
    holds = [grant._hold for grant in grants]
    lf.break_lock(holds[1].ask.name.shown, reason="the server knows it no longer")
    holds[1].state, holds[1].told = "released", True  # as another thread leaves it, between two looks of this one
    flow = several.release(holds, bare(lf)._driver.keeper, bare(lf)._driver.env)
    asked = flow.send(None)
    assert isinstance(asked, CallMany)
    assert [call.args[0] for call in asked.calls] == [holds[0].ticket, holds[2].ticket]
    with pytest.raises(NotHeld):
        flow.send([1, 1])
    assert [hold.state for hold in holds] == ["released"] * 3
