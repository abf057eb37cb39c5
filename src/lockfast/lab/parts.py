"""A lock for each field of a hash against WATCH on the whole hash, under the same load.

Every client changes a field of its own. With a lock for each field they never meet. A WATCH sees the whole hash, so
whoever writes makes the others start again, although they have nothing to do with each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockfast.classic import FineGrainedLock, OptimisticLock
from lockfast.lab.contender import plain_env
from lockfast.lab.stage import LATENCY_S
from lockfast.sim.driving import Run, Work
from lockfast.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Generator

    from lockfast.sim.client import Client

CLIENTS = 8
UPDATES = 20
THINK_S = 0.02
END_S = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one way of doing it cost. took_s: virtual seconds until all were done."""

    way: str
    clients: int
    updates: int
    attempts: int
    conflicts: int
    took_s: float


def compare(seed: int = 1) -> tuple[Load, Load]:
    """The fine-grained lock, and WATCH on the whole hash."""
    return (
        _load("a lock for each field", FineGrainedLock, seed),
        _load("WATCH on the whole hash", OptimisticLock, seed),
    )


def _load(way: str, kind: type[FineGrainedLock | OptimisticLock], seed: int) -> Load:
    world = World(seed, quiet=True)
    world.latency_s = world.spread_s = LATENCY_S
    server = world.add_server("server")
    done: list[tuple[int, int, float]] = []

    def body(client: Client) -> Generator[Any, Any, None]:
        recipe = kind("cart", client.name, acquire_timeout=END_S)
        for _ in range(UPDATES):
            updated = yield Run(recipe.update(lambda value: int(value or 0) + 1, plain_env(client)))
            done.append((updated.attempts, updated.conflicts, world.now))
            yield Work(THINK_S * client.rng.random())

    for number in range(CLIENTS):
        world.add_client(f"item{number}", [server]).start(body)
    world.run(END_S)
    attempts = sum(one[0] for one in done)
    return Load(way, CLIENTS, len(done), attempts, sum(one[1] for one in done), max(one[2] for one in done))


def table(loads: tuple[Load, Load]) -> str:
    """Both in words and numbers."""
    lines = [f"{CLIENTS} clients change a field of their own in one hash, {UPDATES} times each:"]
    lines += [
        f"  {load.way}:\n    {load.updates} updates in {load.attempts} attempts, "
        f"{load.conflicts} in vain, {load.took_s:.1f} s"
        for load in loads
    ]
    return "\n".join(lines) + "\n"
