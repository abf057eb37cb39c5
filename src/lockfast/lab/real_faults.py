"""What goes wrong on real servers, when, and to whom: the stories of scenarios.py, done with signals, real servers
that die, a proxy in between, and a server whose clock is set.

`A` comes first and takes it; the others come when it has. A fault strikes when A has come to a certain point, and A
goes on when what the fault made possible has happened, or cannot happen any more within A's lease: so verdicts do not
hang on milliseconds. Where the simulator has a machine without power, here is a process that is killed; where it has a
client's clock that is wrong, here is one that is read with an offset.
"""

from __future__ import annotations

import asyncio
from string import ascii_uppercase
from typing import TYPE_CHECKING

from lockfast.lab.real_servers import faketime_library
from lockfast.lab.scenarios import LONG, SHORT
from lockfast.lab.stage import NAME
from lockfast.lab.updates import Update

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lockfast.lab.real_proxy import Proxy
    from lockfast.lab.real_stage import RealStage

    Tale = Callable[[RealStage], Awaitable[None]]

# A's section where a fault strikes in its middle: it is struck at its third look, and its last write is well inside
# its lease. A renewal comes at a third of the lease; the strike is after the first and before the second.
STRUCK = (0.0, 0.2, 0.2)
STRUCK_AT = ("work 2", "update")
LAST_WRITE_S = 0.85
WAY_S = 0.01  # as in the simulator: a request takes up to this long


async def cast(
    stage: RealStage,
    first: Sequence[float] = SHORT,
    then: Sequence[float] = SHORT,
    *,
    rounds: int = 1,
    tail_s: float = 0.0,
    skews_s: Sequence[float] = (0.0,),
    contenders: int | None = None,
    stops: Sequence[str] = (),
    gives_up: bool = False,
    proxies: Sequence[Proxy] = (),
) -> list[str]:
    """The usual players, and A begins: see scenarios.cast. Returns the names of the others, who wait."""
    if contenders is None:
        contenders = 1 if stage.row.kind == "semaphore" else 2
    others = list(ascii_uppercase[1 : 1 + contenders])
    await stage.add("A", first, tail_s=tail_s, stops=stops, gives_up=gives_up, proxies=proxies)
    for number, name in enumerate(others):
        await stage.add(name, then, rounds=rounds, wall_skew_s=skews_s[number % len(skews_s)])
    stage.begin()
    stage.go("A")
    return others


async def follow(stage: RealStage, others: Sequence[str]) -> None:
    """The others come, a moment after A has it."""
    if isinstance(stage.row, Update):
        await asyncio.sleep(0.1)  # it takes nothing; by now it computes
    elif not await stage.until(lambda: stage.has("A", "takes"), 5.0):
        raise RuntimeError("A was alone, and did not get it")
    await come(stage, others)


async def come(stage: RealStage, others: Sequence[str]) -> None:
    for name in others:
        await asyncio.sleep(0.05)
        stage.go(name)


async def holder_dies(stage: RealStage) -> None:
    await follow(stage, await cast(stage))
    await stage.kill("A")


async def dies_in_between(stage: RealStage) -> None:
    """The reply to A's first command that changes anything is held back, and A is killed."""
    others = await cast_and_lose_a_reply(stage)
    await stage.kill("A")
    await come(stage, others)


async def reply_lost(stage: RealStage) -> None:
    others = await cast_and_lose_a_reply(stage)
    await stage.tell("A", "fault", "does not hear the answer to its first request")
    await come(stage, others)


async def cast_and_lose_a_reply(stage: RealStage) -> list[str]:
    """A's first request that changes anything is carried out, and A does not hear of it. Then A gives up."""
    proxies = await stage.open_proxies()
    proxies[0].lose_reply(b"EXEC" if isinstance(stage.row, Update) else b"")
    others = await cast(stage, proxies=proxies, gives_up=True)
    async with asyncio.timeout(10.0):
        await proxies[0].lost.wait()
    return others


async def slow_holder(stage: RealStage) -> None:
    await follow(stage, await cast(stage, first=LONG))


async def late_release(stage: RealStage) -> None:
    """A gives back when its lease has ended and the next one has begun; or, where that does not come, at 1.4 s."""
    others = await cast(stage, first=(0.0, 0.1), then=(0.0, 0.4, 0.4), stops=("release", "update"))
    await follow(stage, others)
    await stage.reaches("A", "release", "update")
    await stage.until(lambda: stage.another_wrote("A", 0.0), 1.3)
    stage.go("A")


async def expiry_rush(stage: RealStage) -> None:
    """Whoever holds it dies, and when the lease ends a crowd is waiting."""
    limit = stage.shape.limit
    names = [letter + (str(lap) if lap else "") for lap in range(5) for letter in ascii_uppercase]
    holders, crowd = names[:limit], names[limit : 6 * limit]
    # The races of semaphores are on the way to the server, which on one machine is too short to be overtaken.
    proxies = await stage.open_proxies(WAY_S) if limit > 1 else ()
    for name in holders:
        await stage.add(name, SHORT, proxies=proxies)
    for name in crowd:
        await stage.add(name, (0.0, 0.15, 0.15), proxies=proxies)
    stage.begin()
    for name in holders:
        stage.go(name)
    await stage.until(lambda: all(stage.has(name, "takes") for name in holders), 0.3)
    for name in holders:
        await stage.kill(name)
    for name in crowd:
        await asyncio.sleep(0.2 / len(crowd))
        stage.go(name)


def clocks_apart(apart_s: float) -> Tale:
    async def tale(stage: RealStage) -> None:
        """The lease is three seconds and A needs two of them. One contender: ahead in one try, behind in the next."""
        section = (0.0, 0.5, 0.5, 0.5, 0.5)
        skews_s = (-apart_s, apart_s) if stage.number % 2 else (apart_s, -apart_s)
        others = await cast(stage, section, section, skews_s=skews_s)
        for name, skew_s in zip(others, skews_s, strict=False):
            await tell_skew(stage, name, skew_s)
        await follow(stage, others)

    return tale


async def slow_clock(stage: RealStage) -> None:
    others = await cast(stage, skews_s=(-0.5,), contenders=1)
    await tell_skew(stage, "B", -0.5)
    await follow(stage, others)


async def tell_skew(stage: RealStage, name: str, skew_s: float) -> None:
    where = "ahead" if skew_s > 0 else "behind"
    await stage.tell(name, "fault", f"reads its clock {abs(skew_s):g} s {where}")


async def stretched(stage: RealStage) -> None:
    """B's GETSET is held up on its way until C has come and gone."""
    proxies = await stage.open_proxies()
    proxy = proxies[0]
    proxy.hold_up(b"GETSET")
    for name in "ABCD":
        await stage.add(name, SHORT if name == "A" else (0.0, 0.1), proxies=proxies if name == "B" else ())
    stage.begin()
    stage.go("A")
    await follow(stage, ())
    await stage.kill("A")
    stage.go("B")
    async with asyncio.timeout(10.0):
        await proxy.held_up.wait()
    await stage.tell("B", "fault", "sees that A's time is up, and its GETSET is held up")
    stage.go("C")
    await stage.until(lambda: stage.has("C", "gives"), 0.9)
    proxy.let_go()
    await stage.tell("B", "note", "its GETSET gets through")
    stage.go("D")


def struck(strike: Tale, *, before: Tale | None = None, rounds: int = 2, newcomer: bool = False) -> Tale:
    """A story in which something happens to the servers in the middle of A's section.

    before: what has happened to them when A comes. newcomer: somebody asks right after the strike; for a semaphore,
    that is contender enough.
    """

    async def tale(stage: RealStage) -> None:
        if before is not None:
            await before(stage)
        if newcomer:
            await stage.add("D", SHORT)
        contenders = None if not newcomer else 0 if stage.row.kind == "semaphore" else 1
        others = await cast(stage, first=STRUCK, rounds=rounds, contenders=contenders, stops=STRUCK_AT)
        await follow(stage, others)
        await stage.reaches("A", *STRUCK_AT)
        if isinstance(stage.row, Update):
            await asyncio.sleep(0.1)  # the others compute by now, too, and none is about to write
        struck_at = stage.now()
        await strike(stage)
        if newcomer:
            stage.go("D")
        begun_at = next((write.at for write in stage.writes if write.who == "A"), struck_at)
        left_s = max(begun_at + LAST_WRITE_S - stage.now(), 0.0)
        await stage.until(lambda: stage.another_wrote("A", struck_at), left_s)
        stage.go("A")

    return tale


async def restart_empty(stage: RealStage) -> None:
    await tell_servers(stage, "is killed, and started again with nothing")
    stage.memory_losses += 1
    await asyncio.gather(*(server.restart() for server in stage.servers))


async def prepare_standby(stage: RealStage) -> None:
    await asyncio.gather(*(server.prepare_standby() for server in stage.servers))


async def fail_over(stage: RealStage) -> None:
    await tell_servers(stage, "is killed, and another that never heard of A takes over its address")
    stage.memory_losses += 1
    await asyncio.gather(*(server.fail_over() for server in stage.servers))


async def jump_clock(stage: RealStage) -> None:
    await tell_servers(stage, "has its clock set ten seconds ahead")
    await asyncio.gather(*(server.jump(10.0) for server in stage.servers))


async def lose_two_nodes(stage: RealStage) -> None:
    for server in stage.servers[3:]:
        await server.kill()
        await stage.tell(server.name, "down", "is down")


async def forget_one_vote(stage: RealStage) -> None:
    """Nodes 4 and 5 come back, and node 1 loses its memory."""
    first, *_, fourth, fifth = stage.servers
    await stage.tell(first.name, "fault", "is killed, and started again with nothing")
    await asyncio.gather(fourth.start(), fifth.start(), first.restart())


async def tell_servers(stage: RealStage, words: str) -> None:
    for server in stage.servers:
        await stage.tell(server.name, "fault", words)


def nodes_down(count: int) -> Tale:
    async def tale(stage: RealStage) -> None:
        await follow(stage, await cast(stage, rounds=2))
        for server in stage.servers[-count:]:
            await server.kill()
            await stage.tell(server.name, "down", "is killed, and stays down")

    return tale


async def cut_off(stage: RealStage) -> None:
    """A is cut off from the servers, not from the resource, for three seconds and until another begins a section."""
    first = (0.0, *[0.3] * 8) if stage.row.renews else (0.0, 0.2, 0.2, 0.2)
    proxies = await stage.open_proxies()
    others = await cast(stage, first=first, rounds=7, proxies=proxies)
    await follow(stage, others)
    await asyncio.sleep(0.15)
    for proxy in proxies:
        proxy.cut()
    await stage.tell("A", "fault", "is cut off from the server")
    await asyncio.sleep(3.0)
    cut_until = stage.now()
    await stage.until(lambda: stage.another_wrote("A", cut_until), 1.0)
    for proxy in proxies:
        proxy.heal()
    await stage.tell("A", "note", "is connected again")


async def paused(stage: RealStage) -> None:
    """A looks, finds that all is well, and is stopped before it can write; until another has begun, or for 2.5 s."""
    others = await cast(stage, first=(0.0, 0.3), rounds=2, stops=("write 1", "update"))
    await follow(stage, others)
    await stage.reaches("A", "write 1", "update")
    paused_at = stage.now()
    await stage.pause("A")
    stage.go("A")  # it hears that when it is awake, and then it writes: it has looked before
    await stage.until(lambda: stage.another_wrote("A", paused_at), 2.5)
    await stage.resume("A")


async def crossed(stage: RealStage) -> None:
    """A takes one part and then the other; B takes them the other way round. Both have one before they go on."""
    parts = (NAME, f"{NAME}-2")
    await stage.add("A", SHORT, names=parts, stops=("took",))
    await stage.add("B", SHORT, names=parts[::-1], stops=("took",))
    stage.begin()
    for name in "AB":
        stage.go(name)
    for name in "AB":
        await stage.reaches(name, "took")
    for name in "AB":
        stage.go(name)


TALES: dict[str, Tale] = {
    "holder-dies": holder_dies,
    "dies-in-between": dies_in_between,
    "slow-holder": slow_holder,
    "blind-release": late_release,
    "expiry-rush": expiry_rush,
    "clocks-0.3s": clocks_apart(0.3),
    "clocks-2s": clocks_apart(2.0),
    "getset-stretch": stretched,
    "slow-clock": slow_clock,
    "reply-lost": reply_lost,
    "restart-empty": struck(restart_empty),
    "failover": struck(fail_over, before=prepare_standby),
    "node-restart": struck(forget_one_vote, before=lose_two_nodes, rounds=1),
    "redlock-paused": paused,
    "minority-down": nodes_down(2),
    "majority-down": nodes_down(3),
    "connection-cut": cut_off,
    "paused-holder": paused,
    "clock-jump": struck(jump_clock, newcomer=True),
    "crossed-order": crossed,
}
CLOCK_FAULTS = ("clock-jump",)  # played on servers whose clock can be set


def impossible(fault: str) -> str | None:
    """Why this fault cannot be provoked on this machine; None when it can."""
    if fault not in TALES:
        return "nobody has found a way to provoke it on real servers"
    if fault in CLOCK_FAULTS and faketime_library() is None:
        return "libfaketime is not installed"
    return None
