"""One run of one algorithm under one fault: a small world, its players, the guarded resource, and a record of it all.

Players are programs that take, write, work, write again and give back. The resource sees every write and, shown a
fence, refuses one that is older than the newest. What is recorded here is all that verdicts and stories are made of.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast.errors import LockfastError
from lockfast.flows import plain
from lockfast.lab.contender import ALSO, BUSY, DONE, FAILED, FIRST, STOPPED, Held, Watcher
from lockfast.lab.contenders import pause
from lockfast.lab.own import OwnSeveral
from lockfast.lab.updates import Update
from lockfast.sim.driving import Run, Work
from lockfast.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lockfast.flows.effects import Call
    from lockfast.lab.contender import Contender, Shape
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node

    Steps = Generator[Any, Any, Any]

LATENCY_S = 0.005
TIMEOUT_S = 1.0
NAME, OTHER = FIRST, ALSO
RETRY_S = 0.06  # how soon a player tries again where the algorithm itself does not wait


class Happening(NamedTuple):
    """Something worth telling. kind: as in model.Mark, or one of waits, takes, gives, stops, dies, pauses, down, up."""

    at: float
    who: str
    kind: str
    words: str
    length_s: float = 0.0
    about: str = ""  # the client that a server's happening is about


class Write(NamedTuple):
    """One write that reached the resource. section: which section it belongs to, counted over all players."""

    at: float
    who: str
    section: int
    accepted: bool


class Standing(NamedTuple):
    """Who held the name, as a server saw it."""

    server: str
    who: str
    start: float
    end: float


class Player:
    """A client and its to-do: so many sections, each a series of writes with pauses before them."""

    def __init__(self, client: Client, gaps_s: Sequence[float], rounds: int, tail_s: float) -> None:
        self.client = client
        self.gaps_s = gaps_s
        self.tail_s = tail_s  # how long it goes on after its last write before it gives back
        self.left = rounds
        self.gives_up = False  # whether an error ends its part, rather than making it try again
        self.before_write: Callable[[int], None] = lambda _number: None  # where a fault can strike in mid-step


class Stage(Watcher):
    """The world of one run."""

    def __init__(self, row: Contender, seed: int, shape: Shape) -> None:
        self.row = row
        self.shape = shape
        self.world = World(seed, quiet=True)
        self.world.latency_s = self.world.spread_s = LATENCY_S
        self.rng = self.world.rng
        names = ["server"] if row.servers == 1 else [f"node {number}" for number in range(1, row.servers + 1)]
        self.nodes: list[Node] = [self.world.add_server(name) for name in names]
        self.players: dict[str, Player] = {}
        self.happenings: list[Happening] = []
        self.writes: list[Write] = []
        self.standings: list[Standing] = []
        self.several = False
        self.memory_losses = 0
        self.ended_at = 0.0
        self.served_by_update: set[tuple[int, int]] = set()  # commits, by memory loss and value
        self.lost_updates = 0
        self.before_sending: dict[str, Callable[[str], None]] = {}  # by player: told the command that is next
        self._newest_fence = 0
        self._heard: set[str] = set()  # writes that came through a lock's own server
        self._sections = 0
        self._section_of: dict[str, int] = {}
        self._standing: dict[tuple[str, str], tuple[float, float]] = {}
        for node in self.nodes:
            node.on_executed = partial(self.look, node)
            node.on_script = self.hear

    # What scenarios say.

    def play(
        self,
        name: str,
        gaps_s: Sequence[float],
        *,
        at: float = 0.0,
        rounds: int = 1,
        tail_s: float = 0.0,
        wall_skew_s: float = 0.0,
        names: Sequence[str] = (NAME,),
    ) -> Player:
        """Put a player on the stage, who starts at a moment. names: what it takes for a section, in this order."""
        self.several = self.several or len(names) > 1
        client = self.world.add_client(name, self.nodes, wall_skew_s=wall_skew_s, timeout_s=TIMEOUT_S)
        player = self.players[name] = Player(client, gaps_s, rounds, tail_s)
        client.start(partial(self._part_of, player, at, tuple(names)))
        return player

    def tell(self, who: str, kind: str, words: str, length_s: float = 0.0) -> None:
        self.happenings.append(Happening(self.world.now, who, kind, words, length_s))

    def kill(self, name: str) -> None:
        """The machine of a player loses power."""
        if not self.players[name].client.dead:
            self.tell(name, "dies", "dies")
            self.players[name].client.crash()

    def stall(self, name: str, length_s: float, words: str = "is paused") -> None:
        """A player stops between two of its instructions."""
        self.tell(name, "pauses", f"{words} for {length_s:g} s", length_s)
        self.players[name].client.stall(length_s)
        self.tell(name, "note", "goes on, and has not noticed")

    def forget(self, words: str, act: Callable[[Node], None]) -> None:
        """All servers lose what they knew."""
        for node in self.nodes:
            self.tell(node.name, "fault", words)
            self.end_standings(node)
            act(node)
        self.memory_losses += 1

    def take_down(self, node: Node, length_s: float) -> None:
        """A server goes down; for good if `length_s` is infinite."""
        self.tell(node.name, "down", "goes down", length_s)
        self.end_standings(node)
        node.crash()
        if length_s < inf:
            self.world.after(length_s, self.bring_up, node)

    def bring_up(self, node: Node) -> None:
        """It is back, with its memory."""
        self.tell(node.name, "note", "is up again")
        node.restart(memory=True)

    def end_standings(self, node: Node) -> None:
        """From now on this server does not know who holds the name."""
        for (server, who), (start, end) in list(self._standing.items()):
            if server == node.name:
                self.standings.append(Standing(server, who, start, min(end, self.world.now)))
                del self._standing[server, who]

    # What players do.

    def _part_of(self, player: Player, at: float, names: tuple[str, ...], client: Client) -> Steps:
        yield Work(at)
        while player.left:
            self.tell(client.name, "waits", "wants it")
            while True:
                if isinstance(self.row, Update):
                    outcome = yield from self._update(player, client)
                else:
                    outcome = yield from self._section(player, client, names)
                if outcome in (DONE, STOPPED) or (outcome is FAILED and player.gives_up):
                    break
                yield pause(client, RETRY_S if len(names) == 1 else 0.5)
            player.left -= 1
            yield pause(client, 0.05)

    def _section(self, player: Player, client: Client, names: tuple[str, ...]) -> Steps:
        """Take all names, one inside the other, then write."""

        def within(held: list[Held], rest: tuple[str, ...]) -> Callable[[Held], Steps]:
            def body(taken: Held) -> Steps:
                if not rest:
                    return (yield from self._write_all(player, client, [*held, taken]))
                inner = within([*held, taken], rest[1:])
                outcome = yield from self.row.section(client, rest[0], self.shape, inner, self)
                if outcome in (BUSY, FAILED):
                    self.ended(client, f"does not get {rest[0]}")
                return outcome

            return body

        if isinstance(self.row, OwnSeveral) and len(names) > 1:
            return (yield from self.row.section_of_all(client, names, self.shape, within([], ()), self))
        return (yield from self.row.section(client, names[0], self.shape, within([], names[1:]), self))

    def _write_all(self, player: Player, client: Client, held: list[Held]) -> Steps:
        self._sections += 1
        section = self._section_of[client.name] = self._sections
        for number, gap_s in enumerate(player.gaps_s):
            if gap_s:
                yield Work(gap_s)
            for one in held:
                if (one.keep is not None and not (yield from one.keep())) or not one.sure():
                    self.tell(client.name, "stops", "sees that it is no longer sure, and stops")
                    return STOPPED
            write = held[-1].write
            if write is None:
                player.before_write(number)
                self._write(client, section, held[-1].fence)
            elif words := (yield from write(section, partial(self._before_write, player, number))):
                self.tell(client.name, "stops", words)
                return STOPPED
        if player.tail_s:
            yield Work(player.tail_s)
        return DONE

    @staticmethod
    def _before_write(player: Player, number: int) -> None:
        player.before_write(number)

    def _write(self, client: Client, section: int, fence: int) -> None:
        accepted = fence == 0 or fence >= self._newest_fence
        if accepted:
            self._newest_fence = max(fence, self._newest_fence)
        self.writes.append(Write(self.world.now, client.name, section, accepted))
        if accepted:
            self.tell(client.name, "write", "writes")
        else:
            self.tell(client.name, "refused", "writes, and is refused: its fence is older than one already seen")

    def _update(self, player: Player, client: Client) -> Steps:
        """Read, compute for a while, write if nobody else has: what the others do with a lock."""

        tries = 0

        def change(value: bytes | None) -> int:
            nonlocal tries
            tries += 1
            if tries > 1:
                self.tell(client.name, "note", "its EXEC is refused, since another has written; it starts again")
            self._sections += 1
            player.before_write(0)
            client.stall(sum(player.gaps_s) + player.tail_s)
            return int(value or 0) + 1

        assert isinstance(self.row, Update), "this is what it is played for"
        try:
            updated = yield Run(self.row.update(client, NAME, self.shape, change))
        except LockfastError as failure:
            self.tell(client.name, "lost", f"does not know whether its write was made: {failure}")
            return DONE
        if updated is None:
            return BUSY
        commit = (self.memory_losses, updated)
        self.lost_updates += commit in self.served_by_update
        self.served_by_update.add(commit)
        self.writes.append(Write(self.world.now, client.name, self._sections, True))
        self.tell(client.name, "write", "writes")
        return DONE

    # What contenders and servers report.

    def about_to(self, client: Client, effect: Any) -> None:
        hook = self.before_sending.get(client.name)
        if hook is not None and isinstance(effect, plain.Pipeline):
            hook(str(effect.commands[0][0]))

    def took(self, client: Client, fence: int, name: str) -> None:
        self.tell(client.name, "takes", f"has {self._called(name)}" + (", with a new fence" if fence else ""))

    def _called(self, name: str) -> str:
        """How a story calls a lock: "it", unless there are several."""
        return "it" if not self.several else name

    def gave(self, client: Client, words: str, name: str) -> None:
        self.tell(client.name, "gives", words.replace(" it", f" {self._called(name)}", 1))

    def ended(self, client: Client, words: str) -> None:
        self.tell(client.name, "stops", words)

    def hear(self, call: Call, reply: Any) -> None:
        """Note a write that a server was asked for by a script. Of several copies the first counts."""
        wrote = self.row.wrote(call, reply)
        if wrote is None or wrote.operation in self._heard:
            return
        self._heard.add(wrote.operation)
        self.writes.append(Write(self.world.now, wrote.who, wrote.section, wrote.accepted))
        if wrote.accepted:
            self.tell(wrote.who, "write", "writes")
        else:
            self.tell(wrote.who, "refused", "its write comes to the server, which refuses it: the hold is gone")

    def look(self, node: Node, by: Client) -> None:
        """Note what a command of `by` changed about who holds the name on this server."""
        now = self.world.now
        seen = self.row.standing(node, NAME, self.shape)
        for (server, who), (start, end) in list(self._standing.items()):
            if server == node.name and seen.get(who, -inf) < now:
                self.standings.append(Standing(server, who, start, min(end, now)))
                del self._standing[server, who]
                if len(self.nodes) > 1:
                    continue  # five nodes would tell everything five times
                if end <= now:
                    self.happenings.append(Happening(end, server, "note", f"{who}'s time is up", about=who))
                elif by.name != who:
                    words = f"{who} no longer has it, because of what {by.name} sent"
                    self.happenings.append(Happening(now, server, "note", words, about=who))
        for who, end in seen.items():
            if who and end >= now:
                start = self._standing.get((node.name, who), (now, end))[0]
                self._standing[node.name, who] = (start, end)

    def run(self, until: float) -> None:
        """Let it play until everybody is served, or the curtain falls."""
        while self.world.now < until and (self.unserved or self.world.now == 0):
            self.world.run(min(self.world.now + 0.25, until))
        self.ended_at = self.world.now
        self.happenings.sort(key=lambda one: one.at)  # the end of a lease is noticed by the next who looks
        for (server, who), (start, end) in self._standing.items():
            self.standings.append(Standing(server, who, start, min(end, self.ended_at)))

    @property
    def unserved(self) -> list[str]:
        """Players who live and still want something."""
        return [name for name, player in self.players.items() if player.left and not player.client.dead]
