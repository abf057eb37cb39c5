"""The rows of the matrix: each algorithm, and how a careful program uses it.

A contender runs one section: take, run the body, give back. What differs is what a holder is told to look at before
every write (`Held.sure`): Lockfast knows its deadline, Redlock's text says to mind the validity, a refreshing semaphore
asks the server. The texts of the others do not speak of it, so their holders believe. Only Lockfast shows a fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lockfast import classic
from lockfast.errors import LockfastError
from lockfast.flows import asks, plain
from lockfast.lab.contender import (
    ALSO,
    BUSY,
    FAILED,
    FIRST,
    Contender,
    Held,
    Shape,
    Watcher,
    owner_of,
    plain_env,
    watched,
)
from lockfast.lab.model import Topic
from lockfast.lab.own import Own, OwnElection, OwnGuarded, OwnSeveral, OwnTwice, patience
from lockfast.lab.updates import OwnUpdate, Update
from lockfast.sim.driving import Run, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lockfast.classic.recipes import Takes
    from lockfast.classic.taken import Taken
    from lockfast.sim.client import Client
    from lockfast.sim.node import Node

    Steps = Generator[Any, Any, Any]


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
            taken: Taken | None = yield Run(watched(recipe.acquire(env), partial(watcher.about_to, client)))
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
            return {owner_of(member): float("inf") for _, member in first}
        if isinstance(recipe, classic.KeyedSemaphore):
            keys = [f"semaphore:{name}:{slot}" for slot in range(shape.limit)]
        else:
            keys = [recipe.key]
        standing = {}
        for key in keys:
            value: Any = data.get(key.encode())
            if value is not None:
                ends_ms = expires.get(key.encode())
                standing[owner_of(value)] = node.clock.true_of_wall_ms(ends_ms) if ends_ms is not None else float("inf")
        return standing


def pause(client: Client, most_s: float) -> Work:
    """A random pause before the next try."""
    return Work(most_s * (0.2 + 0.8 * client.rng.random()))


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
        open=lambda lf, name, shape: lf.semaphore(name, limit=shape.limit, **patience(shape)),
    ),
    Own(
        Topic("lockfast-rwlock", "Lockfast read/write lock", "The same; here everybody wants to write."),
        renews=True,
        ask_for=lambda name, shape: asks.write(name, shape.lease_s),
        open=lambda lf, name, shape: lf.rwlock(name, **patience(shape)).write(),
    ),
    OwnSeveral(
        Topic("lockfast-several", "Lockfast, several at once", "Two locks or none, in one order for everybody."),
        renews=True,
        open=lambda lf, name, shape: lf.locks(name, FIRST if name == ALSO else ALSO, **patience(shape)),
    ),
    OwnTwice(
        Topic("lockfast-rlock", "Lockfast re-entrant lock", "Entered once more for every write, and left after it."),
        renews=True,
        open=lambda lf, name, shape: lf.rlock(name, **patience(shape)),
    ),
    OwnElection(
        Topic("lockfast-election", "Lockfast election", "Only the leader writes; it proclaims itself first."),
        renews=True,
        open=lambda lf, name, shape: lf.election(name, **patience(shape)).campaign(),
    ),
    OwnGuarded(
        Topic(
            "lockfast-guard",
            "Lockfast, guarded writes",
            "The lock, and what it guards is on its own server: every write goes through `grant.guard`.",
        ),
        renews=True,
        unreal="its writes go to the lock's own server, and the stage does not see there which it took",
        refusal="The server no longer knew the hold, and refused the write that was made under it",
    ),
    OwnUpdate(
        Topic(
            "lockfast-transaction",
            "Lockfast transaction",
            "WATCH, read, MULTI, write, EXEC; after a conflict it takes a lock, and watches all the same.",
        ),
        "update",
        exec_nth=4,
        no_order="all its keys are named at once, and locked in one order",
    ),
)
BY_KEY = {row.key: row for row in ROWS}
