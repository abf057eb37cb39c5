"""The rows of the matrix: each algorithm, and how a careful program uses it.

A contender runs one section: take, run the body, give back. What differs is what a holder is told to look at before
every write (`Held.sure`): Lockfast knows its deadline, Redlock's text says to mind the validity, a refreshing semaphore
asks the server. The texts of the others do not speak of it, so their holders believe. Only Lockfast shows a fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockfast import classic
from lockfast.errors import LockfastError
from lockfast.flows import asks, plain
from lockfast.lab.model import Topic
from lockfast.names import make
from lockfast.sim import holding, several
from lockfast.sim.driving import Run, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.classic.recipes import Takes
    from lockfast.classic.taken import Taken
    from lockfast.flows.asks import Ask
    from lockfast.names import Name
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node
    from lockfast.sync import Lock, Lockfast, Locks

    Steps = Generator[Any, Any, Any]

# How a section ends: DONE: to its end. STOPPED: its holder found out in time. BUSY: not taken.
# FAILED: not taken, and the caller heard an error.
DONE, STOPPED, BUSY, FAILED = "done", "stopped", "busy", "failed"
PREFIX = "lab"
FIRST, ALSO = "part 1", "part 2"  # who takes several takes the other one beside a name


class Held:
    """What the body of a section knows about its hold."""

    __slots__ = ("fence", "keep", "sure")

    def __init__(self, sure: Callable[[], bool], fence: int = 0, keep: Callable[[], Steps] | None = None) -> None:
        self.sure = sure
        self.fence = fence
        self.keep = keep  # asks the server whether it is still ours; returns a bool


class Watcher:
    """Who wants to know of the turns of a section; the stage is one."""

    def about_to(self, client: Client, effect: Any) -> None: ...

    def took(self, client: Client, fence: int, name: str) -> None: ...

    def gave(self, client: Client, words: str, name: str) -> None: ...

    def ended(self, client: Client, words: str) -> None: ...


@dataclass(frozen=True)
class Contender:
    """One algorithm. kind: "lock", "semaphore" or "update"."""

    topic: Topic
    kind: str = "lock"
    servers: int = 1
    renews: bool = False
    ends: bool = True  # whether a dead holder's hold ends by itself

    @property
    def key(self) -> str:
        return self.topic.key

    def section(
        self, client: Client, name: str, shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        """Take `name`, run the body, give it back. Returns how it ended."""
        raise TypeError(f"{self.key} takes nothing")

    def standing(self, node: Node, name: str, shape: Shape) -> dict[str, float]:
        """Who holds `name` as this server sees it, and until when in true time."""
        return {}


@dataclass(frozen=True)
class Shape:
    """The numbers of a scenario: how long a hold lasts, how long to try for it, how many may hold at once."""

    lease_s: float = 1.0
    patience_s: float = 3.0
    limit: int = 1


@dataclass(frozen=True)
class Recipe(Contender):
    """A textbook algorithm."""

    make: Callable[[str, Shape], Any] = classic.SimpleLock  # type: ignore[assignment]  # every row names its own

    def section(
        self, client: Client, name: str, shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        recipe: Takes = self.make(name, shape)
        env = plain_env(client)
        try:
            taken: Taken | None = yield Run(_watched(recipe.acquire(env), client, watcher))
        except LockfastError as failure:
            watcher.ended(client, f"hears no answer: {failure}")
            return FAILED
        if taken is None:
            return BUSY
        watcher.took(client, 0, name)
        outcome: str = yield from body(self._held(recipe, taken, client, env))
        watcher.gave(client, "gives it back", name)
        try:
            if not (yield Run(recipe.release(taken, env))):
                watcher.ended(client, "hears that it was not its own any more")
        except LockfastError as failure:
            watcher.ended(client, f"hears no answer: {failure}")
        return outcome

    def _held(self, recipe: Any, taken: Taken, client: Client, env: plain.Env) -> Held:
        if isinstance(recipe, classic.RefreshingSemaphore):

            def keep() -> Steps:
                try:
                    return (yield Run(recipe.refresh(taken, env)))
                except LockfastError:
                    return False  # not sure any more: stop

            return Held(lambda: True, keep=keep)
        if isinstance(recipe, classic.Redlock):
            ends_at = client.now() + taken.valid_s
            return Held(lambda: client.now() < ends_at)
        return Held(lambda: True)

    def standing(self, node: Node, name: str, shape: Shape) -> dict[str, float]:
        recipe = self.make(name, shape)
        data, expires = node.server.store.data, node.server.store.expires
        if isinstance(recipe, (classic.CountingSemaphore, classic.FairSemaphore)):
            key = recipe.key if isinstance(recipe, classic.CountingSemaphore) else recipe.owners_key
            members: Any = data.get(key.encode())
            first = members.order[: shape.limit] if members is not None else []
            return {_owner(member): float("inf") for _, member in first}
        if isinstance(recipe, classic.KeyedSemaphore):
            keys = [f"semaphore:{name}:{slot}" for slot in range(shape.limit)]
        else:
            keys = [recipe.key]
        standing = {}
        for key in keys:
            value: Any = data.get(key.encode())
            if value is not None:
                ends_ms = expires.get(key.encode())
                standing[_owner(value)] = node.clock.true_of_wall_ms(ends_ms) if ends_ms is not None else float("inf")
        return standing


@dataclass(frozen=True)
class Update(Contender):
    """Compare and set. There is nothing to take: the stage counts the commits instead (scenarios.py)."""

    def recipe(self, name: str, shape: Shape) -> classic.OptimisticLock:
        return classic.OptimisticLock(name, acquire_timeout=shape.patience_s * 4)


@dataclass(frozen=True)
class Own(Contender):
    """One of Lockfast's own: the shipped flows, scripts, holds and keeper."""

    ask_for: Callable[[Name, Shape], Ask] = lambda name, shape: asks.lock(name, shape.lease_s)
    open: Callable[[Lockfast, str, Shape], Lock | Locks] = lambda lf, name, shape: lf.lock(name, **_patience(shape))

    def section(
        self, client: Client, name: str, shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        ask = self.ask_for(make(PREFIX, (name,)), shape)
        outcome = BUSY

        def within(section: holding.Section) -> Steps:
            nonlocal outcome
            outcome = yield from self._within(client, [section], body, watcher, name)

        yield from holding.hold(client, ask, shape.patience_s, within)
        return outcome

    def _within(
        self,
        client: Client,
        sections: list[holding.Section],
        body: Callable[[Held], Steps],
        watcher: Watcher,
        name: str,
    ) -> Steps:
        hold = sections[0].hold
        # Of several who hold at the same time the fence only says who is who: it guards nothing.
        fence = hold.fence if hold.ask.weight == hold.ask.limit else 0
        watcher.took(client, fence, name)
        for section in sections:
            section.hold.when_lost(lambda: watcher.ended(client, "is told that its hold is no longer sure"))
        outcome = yield from body(Held(lambda: all(section.hold.held() for section in sections), fence))
        watcher.gave(client, "gives it back" if hold.held() else "lets go of what it no longer has", name)
        return outcome

    def standing(self, node: Node, name: str, shape: Shape) -> dict[str, float]:
        keys = [key.encode() for key in make(PREFIX, (name,)).keys]
        data, true_of = node.server.store.data, node.clock.true_of_wall_ms
        raw: Any = data.get(keys[0])
        if raw is None:
            return {}
        words = raw.decode().split(" ")
        shared: Any = data.get(keys[3])
        standing = {_owner(ticket): true_of(int(end)) for end, ticket in shared.order} if shared is not None else {}
        if words[7] != "-":
            standing[_owner(words[7].encode())] = true_of(int(words[8]))
        return standing


@dataclass(frozen=True)
class OwnSeveral(Own):
    """Several of Lockfast's locks at once. Where a scenario wants one name, a second is taken with it."""

    def section(
        self, client: Client, name: str, shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        return (yield from self.section_of_all(client, (name, ALSO), shape, body, watcher))

    def section_of_all(
        self, client: Client, names: tuple[str, ...], shape: Shape, body: Callable[[Held], Steps], watcher: Watcher
    ) -> Generator[Any, Any, str]:
        """Take all names at once, run the body, give all of them back."""
        wanted = [self.ask_for(make(PREFIX, (name,)), shape) for name in names]
        outcome = BUSY

        def within(sections: list[holding.Section]) -> Steps:
            nonlocal outcome
            outcome = yield from self._within(client, sections, body, watcher, names[0])

        yield from several.hold_all(client, wanted, shape.patience_s, within)
        return outcome


def _patience(shape: Shape) -> dict[str, Any]:
    return {"lease": shape.lease_s, "wait": shape.patience_s}


def _watched(flow: plain.Flow[Any], client: Client, watcher: Watcher) -> Steps:
    """The same flow; the watcher is told of every effect before it is carried out."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        watcher.about_to(client, effect)
        answer = error = None
        try:
            answer = yield effect
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as struck:  # noqa: BLE001 - whatever it is, the flow decides, and raises it again
            error = struck


def plain_env(client: Client) -> plain.Env:
    """What a classic may read, on a simulated client."""
    return plain.Env(
        client.now, client.wall, client.new_id, client.rng.random, len(client.servers), client.env.timeout_s
    )


def pause(client: Client, most_s: float) -> Work:
    """A random pause before the next try."""
    return Work(most_s * (0.2 + 0.8 * client.rng.random()))


def _owner(token: bytes) -> str:
    """The client that made this token (Client.new_id); "" when it does not say."""
    return token.decode().partition(".")[0] if b"." in token and not token[:1].isdigit() else ""


def _simple(name: str, shape: Shape) -> Any:
    return classic.SimpleLock(name, acquire_timeout=shape.patience_s)


def _timed(**variant: Any) -> Callable[[str, Shape], Any]:
    return lambda name, shape: classic.TimeoutLock(
        name, acquire_timeout=shape.patience_s, lock_timeout=shape.lease_s, **variant
    )


def _getset(name: str, shape: Shape) -> Any:
    return classic.GetSetLock(name, acquire_timeout=shape.patience_s, lock_timeout=shape.lease_s)


def _leased(kind: Callable[..., Any]) -> Callable[[str, Shape], Any]:
    return lambda name, shape: kind(name, lease=shape.lease_s, acquire_timeout=shape.patience_s, retry_delay=0.1)


def _part(name: str, shape: Shape) -> Any:
    return classic.FineGrainedLock("cart", name, lease=shape.lease_s, acquire_timeout=shape.patience_s, retry_delay=0.1)


def _semaphore(kind: Callable[..., Any], **more: Any) -> Callable[[str, Shape], Any]:
    return lambda name, shape: kind(name, shape.limit, timeout=shape.lease_s, **more)


def _redlock(name: str, shape: Shape) -> Any:
    return classic.Redlock(
        name, lease=shape.lease_s, acquire_timeout=shape.patience_s, retry_delay=0.1, node_timeout=0.05
    )


ROWS: tuple[Contender, ...] = (
    Update(
        Topic("optimistic", "Optimistic lock", "WATCH, read, MULTI, write, EXEC; changed meanwhile: again."), "update"
    ),
    Recipe(Topic("setnx", "Simple lock", "SETNX; a checked DEL gives it back."), ends=False, make=_simple),
    Recipe(
        Topic("setnx-expire", "Time-out lock", "SETNX, then EXPIRE; contenders mend a lock without a TTL."),
        make=_timed(),
    ),
    Recipe(
        Topic("setnx-expire-del", "Time-out lock, plain DEL", "The same, given back by a DEL that does not look."),
        make=_timed(release_by="del"),
    ),
    Recipe(
        Topic(
            "setnx-expire-falsy",
            "Time-out lock, if not ttl",
            "The same with the test as printed: −1 is true, so no mending.",
        ),
        make=_timed(repair="falsy"),
    ),
    Recipe(
        Topic(
            "setnx-expire-inverted",
            "Time-out lock, if ttl",
            "The same with the test inverted: every contender prolongs it.",
        ),
        make=_timed(repair="inverted"),
    ),
    Recipe(Topic("getset", "GETSET lock", "The value is when it ends, by the clients' clocks."), make=_getset),
    Recipe(
        Topic("set-nx-px", "SET NX PX", "One command to take it, a script that looks to give it back."),
        make=_leased(classic.SetNxPxLock),
    ),
    Recipe(
        Topic("set-nx-px-blind-del", "SET NX PX, blind DEL", "The same, given back by a DEL that does not look."),
        make=_leased(classic.BlindDelLock),
    ),
    Recipe(Topic("fine-grained", "Fine-grained lock", "SET NX PX on a key for one part of a thing."), make=_part),
    Recipe(
        Topic("counting-semaphore", "Counting semaphore", "A sorted set by the clients' time; the first n are in."),
        "semaphore",
        make=_semaphore(classic.CountingSemaphore),
    ),
    Recipe(
        Topic("keyed-semaphore", "Semaphore of keys", "The other form: n locks with time-outs."),
        "semaphore",
        make=_semaphore(classic.KeyedSemaphore),
    ),
    Recipe(
        Topic("fair-semaphore", "Fair semaphore", "A counter decides who came first, clocks who is dropped."),
        "semaphore",
        make=_semaphore(classic.FairSemaphore),
    ),
    Recipe(
        Topic("refreshing-semaphore", "Refreshing semaphore", "The fair one, kept by a refresh before every write."),
        "semaphore",
        renews=True,
        make=_semaphore(classic.RefreshingSemaphore),
    ),
    Recipe(
        Topic("race-free-semaphore", "Race-free semaphore", "The fair one inside a short lock."),
        "semaphore",
        make=_semaphore(classic.RaceFreeSemaphore, lock_wait=0.5, lock_timeout=1.0),
    ),
    Recipe(
        Topic("redlock", "Redlock", "SET NX PX on a majority of five servers, with a validity."),
        servers=5,
        make=_redlock,
    ),
    Own(Topic("lockfast", "Lockfast", "One fair protocol: queue, lease, renewal, fence."), renews=True),
    Own(
        Topic("lockfast-semaphore", "Lockfast semaphore", "The same with a limit and permits; it waits in the queue."),
        "semaphore",
        renews=True,
        ask_for=lambda name, shape: asks.Permits(shape.limit, 1)(name, shape.lease_s),
        open=lambda lf, name, shape: lf.semaphore(name, limit=shape.limit, **_patience(shape)),
    ),
    Own(
        Topic("lockfast-rwlock", "Lockfast read/write lock", "The same; here everybody wants to write."),
        renews=True,
        ask_for=lambda name, shape: asks.write(name, shape.lease_s),
        open=lambda lf, name, shape: lf.rwlock(name, **_patience(shape)).write(),
    ),
    OwnSeveral(
        Topic("lockfast-several", "Lockfast, several at once", "Two locks or none, in one order for everybody."),
        renews=True,
        open=lambda lf, name, shape: lf.locks(name, FIRST if name == ALSO else ALSO, **_patience(shape)),
    ),
)
BY_KEY = {row.key: row for row in ROWS}
