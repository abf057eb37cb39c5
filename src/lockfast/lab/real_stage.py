"""One run of one algorithm under one fault on real servers: the stage of stage.py with real processes on it.

The guarded resource is here, at one end of a socket: it stamps every write with its own clock and, shown a fence,
refuses one that is older than the newest. The stage has what judging.py looks at, so the verdict is by the same
function. Stories (real_faults.py) do not count seconds where they can wait for something to happen: real time is late
at times.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockfast.lab.judging import judge
from lockfast.lab.real_player import Part
from lockfast.lab.real_proxy import Proxy
from lockfast.lab.real_servers import Server
from lockfast.lab.stage import NAME, Happening, Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from lockfast.lab.contender import Contender, Shape
    from lockfast.lab.real_servers import Crew

READY_S = 30.0
TICK_S = 0.02


class Actor:
    """A player, as the stage sees it."""

    pid: int

    def __init__(self, rounds: int) -> None:
        self.left = rounds
        self.dead = False
        self.ready = False
        self.waits_at = ""  # the point of its part where it waits for a word
        self.section = 0
        self.writer: asyncio.StreamWriter | None = None

    def answer(self) -> None:
        assert self.writer is not None, "it has not come on stage yet"
        self.writer.write(b"[]\n")


class RealStage:
    """The servers, players and the resource of one run."""

    def __init__(self, crew: Crew, directory: Path, row: Contender, shape: Shape, number: int) -> None:
        self.row = row
        self.shape = shape
        self.number = number  # which try this is, from 0
        self.actors: dict[str, Actor] = {}
        self.servers: list[Server] = []
        self.writes: list[Write] = []
        self.happenings: list[Happening] = []
        self.lost_updates = 0
        self.memory_losses = 0
        self.late_s = 0.0  # the most by which this machine was late for anybody
        self._crew = crew
        self._directory = directory
        self._group = directory.name
        self._started = time.monotonic()
        self._newest_fence = 0
        self._sections = 0
        self._commits: set[tuple[int, int]] = set()
        self._broken = ""
        self._changed = asyncio.Condition()
        self._listener: asyncio.Server | None = None
        self._proxies: list[Proxy] = []
        self._hearing: set[asyncio.Task[None]] = set()

    async def open(self, fakes_time: bool = False) -> None:
        """Start the servers and open the resource."""
        self._directory.mkdir()
        count = self.row.servers
        names = ["server"] if count == 1 else [f"node {number}" for number in range(1, count + 1)]
        self.servers = [Server(self._crew, self._directory, name, fakes_time) for name in names]
        self._listener = await asyncio.start_unix_server(self._hear, self._directory / "stage")
        await asyncio.gather(*(server.start() for server in self.servers))

    async def close(self) -> None:
        """End every process of this run."""
        await self._crew.order("end", self._group, directory=str(self._directory))
        for proxy in self._proxies:
            await proxy.close()
        if self._listener is not None:
            self._listener.close()
        await asyncio.gather(*self._hearing, return_exceptions=True)

    # What stories say.

    async def open_proxies(self, delay_s: float = 0.0) -> list[Proxy]:
        """One in front of every server, for whoever is given them. delay_s: see Proxy."""
        made = []
        for server in self.servers:
            made.append(Proxy(self._directory / f"proxy{len(self._proxies)}", server.path, delay_s))
            self._proxies.append(made[-1])
            await made[-1].open()
        return made

    async def add(
        self,
        name: str,
        gaps_s: Sequence[float],
        *,
        rounds: int = 1,
        tail_s: float = 0.0,
        wall_skew_s: float = 0.0,
        names: Sequence[str] = (NAME,),
        stops: Sequence[str] = (),
        gives_up: bool = False,
        proxies: Sequence[Proxy] = (),
    ) -> Actor:
        """Put a player on the stage, who waits for `go`. stops: points of real_player.Player where it waits again.

        proxies: what it reaches the servers through.
        """
        addresses = [proxy.path for proxy in proxies] or [server.path for server in self.servers]
        part = Part(
            name=name,
            row=self.row.key,
            stage=str(self._directory / "stage"),
            urls=[f"unix://{address}" for address in addresses],
            gaps_s=list(gaps_s),
            names=list(names),
            stops=list(stops),
            rounds=rounds,
            tail_s=tail_s,
            wall_skew_s=wall_skew_s,
            gives_up=gives_up,
            **asdict(self.shape),
        )
        actor = self.actors[name] = Actor(rounds)
        actor.pid = (await self._crew.order("player", self._group, part=asdict(part)))["pid"]
        if not await self.until(lambda: actor.ready, READY_S):
            raise RuntimeError(f"player {name} does not come on stage")
        return actor

    def go(self, name: str) -> None:
        """Let a player begin, or go on from the point where it waits."""
        actor = self.actors[name]
        actor.waits_at = ""
        if not actor.dead:
            actor.answer()

    async def reaches(self, name: str, *points: str, at_most_s: float = 10.0) -> bool:
        """Wait until a player stands at one of these points."""
        return await self.until(lambda: self.actors[name].waits_at in points, at_most_s)

    async def until(self, condition: Callable[[], bool], at_most_s: float) -> bool:
        """Wait until something is true of this stage. False when the time is over."""
        try:
            async with asyncio.timeout(at_most_s), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            return False
        return True

    async def tell(self, who: str, kind: str, words: str) -> None:
        self.happenings.append(Happening(self.now(), who, kind, words))
        async with self._changed:
            self._changed.notify_all()

    def now(self) -> float:
        """Seconds since the play began."""
        return time.monotonic() - self._started

    def begin(self) -> None:
        """Everybody is there: count the time from here."""
        self._started = time.monotonic()

    def has(self, who: str, kind: str) -> bool:
        return any(one.who == who and one.kind == kind for one in self.happenings)

    def another_wrote(self, than: str, since: float) -> bool:
        """Whether somebody else began a section after that moment."""
        before = {write.section for write in self.writes if write.at <= since}
        return any(write.who != than and write.section not in before for write in self.writes)

    async def kill(self, name: str) -> None:
        """kill -9 for a player's process."""
        await self._signal(name, "SIGKILL")
        self.actors[name].dead = True
        await self.tell(name, "dies", "is killed")

    async def pause(self, name: str) -> None:
        await self._signal(name, "SIGSTOP")
        await self.tell(name, "pauses", "is stopped in mid-step")

    async def resume(self, name: str) -> None:
        await self._signal(name, "SIGCONT")
        await self.tell(name, "note", "goes on, and has not noticed")

    async def _signal(self, name: str, signal: str) -> None:
        await self._crew.order("signal", self._group, pid=self.actors[name].pid, signal=signal)

    @property
    def unserved(self) -> list[str]:
        """Players who live and still want something."""
        return [name for name, actor in self.actors.items() if actor.left and not actor.dead]

    async def play(self, story: Callable[[RealStage], Awaitable[None]], end_s: float) -> None:
        """Play until everybody is served, one too many is in, nothing happens any more, or the curtain falls."""
        told = asyncio.ensure_future(story(self))
        watched = asyncio.create_task(self._watch_lateness())
        # Nothing happens any more: longer than anybody's patience together with any lease that could still end.
        quiet_s = self.shape.patience_s + 2 * self.shape.lease_s
        try:
            while self.now() < end_s:
                await self._something_happens()
                if self._broken:
                    raise RuntimeError(self._broken)
                if judge(self).verdict == "violated":
                    return
                if told.done():
                    told.result()
                    last_at = max((one.at for one in self.happenings), default=0.0)
                    if not self.unserved or self.now() - last_at > quiet_s:
                        return
        finally:
            for task in (told, watched):
                task.cancel()
            await asyncio.gather(told, watched, return_exceptions=True)

    async def _something_happens(self) -> None:
        seen = len(self.happenings)
        await self.until(lambda: len(self.happenings) > seen, 0.25)

    async def _watch_lateness(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_s = max(self.late_s, time.monotonic() - due)

    # What players say.

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._hearing.add(task)
        task.add_done_callback(self._hearing.discard)
        name = ""
        try:
            while line := await reader.readline():
                words = json.loads(line)
                if words[0] == "ready":
                    name = words[1]
                    self.actors[name].writer = writer
                    self.actors[name].ready = True
                    async with self._changed:
                        self._changed.notify_all()
                else:
                    await self._heard(name, self.actors[name], words)
        except (ConnectionError, asyncio.CancelledError):
            pass  # it was killed
        finally:
            writer.close()

    async def _heard(self, name: str, actor: Actor, words: list[Any]) -> None:
        what = words[0]
        if what == "write":
            await self._write(name, actor, *words[1:])
        elif what == "updated":
            await self._updated(name, actor, *words[1:])
        elif what == "at":
            actor.waits_at = words[1]
            await self.tell(name, "stands", f"has come to: {words[1]}")
        elif what == "done":
            actor.left = words[1]
            await self.tell(name, "done", "is done" if not actor.left else "is done, and will be back")
        elif what == "broke":
            self._broken = f"player {name} broke:\n{words[1]}"
            await self.tell(name, "lost", "broke")
        else:
            said = {"waits": "wants it", "takes": "has it", "stops": "sees that it is no longer sure, and stops"}
            said |= {"fails": "hears no answer", "unsure": "does not know whether its write was made"}
            await self.tell(name, what, said.get(what) or words[1])

    async def _write(self, name: str, actor: Actor, number: int, fence: int, late_s: float) -> None:
        """The resource: takes a write, or refuses it."""
        accepted = fence == 0 or fence >= self._newest_fence
        if accepted:
            self._newest_fence = max(fence, self._newest_fence)
        if number == 0:
            self._sections += 1
            actor.section = self._sections
        self.late_s = max(self.late_s, late_s)
        self.writes.append(Write(self.now(), name, actor.section, accepted))
        actor.answer()
        if accepted:
            await self.tell(name, "write", "writes")
        else:
            await self.tell(name, "refused", "writes, and is refused: its fence is older than one already seen")

    async def _updated(self, name: str, actor: Actor, value: int, conflicts: int, late_s: float) -> None:
        """An update that was made. The same value twice in one life of the server: one of the two was lost."""
        commit = (self.memory_losses, value)
        self.lost_updates += commit in self._commits
        self._commits.add(commit)
        self._sections += 1
        self.late_s = max(self.late_s, late_s)
        self.writes.append(Write(self.now(), name, self._sections, True))
        actor.answer()
        await self.tell(name, "write", "writes" if not conflicts else f"writes, after {conflicts} tries in vain")
