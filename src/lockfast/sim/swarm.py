"""Which world a seed stands for: how many clients, what they want, what goes wrong, and when.

Everything is drawn before the run, as plain values. Each kind of fault is switched on or off by the seed, because bugs
hide from runs in which everything fails all the time (swarm testing: Groce et al., ISSTA 2012). Lengths are drawn
around the leases in use, for that is where the narrow places are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

from lockfast.sim.faults import AFTER_REQUESTS, COUNTED, KINDS, OF_CLIENTS, OF_PUSHES, OF_SERVERS, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SERVER = "s1"
# How much of its lease somebody works, by the chance drawn.
_SHARES: dict[str, Callable[[float], float]] = {
    "short": lambda chance: 0.2 * chance,
    "lease": lambda chance: 0.7 + 0.6 * chance,
    "long": lambda chance: 4 * chance,
    "hogs": lambda chance: 0.2 * chance,
}
DRIFT = 0.0049  # so that two clocks are apart by just under the 1 % that the margin covers


@dataclass(frozen=True, slots=True)
class Options:
    """What a seed chose. Printed first, and enough to understand a run."""

    clients: int
    threads_of: int  # how many callers each client has
    asyncio_share: float  # of the clients
    names: int
    limit: int  # 1 for a lock; above, callers ask for weights up to it
    leases_s: tuple[float, ...]
    waits_s: tuple[float | None, ...]
    visits: int  # of each caller, before the quiet
    work: str  # "short", "lease" or "long", against the lease; "hogs": some keep it for longer than a place lives
    renew_share: float
    cancel_share: float
    extend_share: float  # of the visits that extend by hand, with a lease of their own
    drift: float
    skew_s: float
    latency_s: float
    spread_s: float
    timeout_s: float
    safety_s: float
    faults: int
    longest_s: float  # that anything stops, waits or is away
    kinds: tuple[str, ...]
    # Where a majority of several servers decides (sim/quorum_swarm.py draws these):
    servers: int = 1
    max_lease_s: float = 0.0
    node_timeout_s: float = 0.0
    keep_share: float = 0.0  # of the servers that keep their memory through a restart, and can show it

    def lines(self) -> list[str]:
        """One line for each."""
        shown = [field.name for field in fields(self) if self.servers > 1 or field.name not in _OF_QUORUMS]
        return [f"{name} = {_shown(getattr(self, name))}" for name in shown]


_OF_QUORUMS = ("servers", "max_lease_s", "node_timeout_s", "keep_share")


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server of a quorum. up_s: for how long it has been up when the run begins."""

    name: str
    keeps: bool
    skew_s: float
    rate: float
    up_s: float

    def __str__(self) -> str:
        memory = "keeps its memory" if self.keeps else "may forget"
        return f"{self.name}: {memory}, up for {self.up_s:g} s, clock {self.skew_s:g} s ahead, rate {self.rate:g}"


@dataclass(frozen=True, slots=True)
class Visit:
    """One time that a caller wants the lock."""

    name: str
    think_s: float
    lease_s: float
    wait_s: float | None
    work_s: float
    weight: int
    renew: bool
    cancel_after_s: float | None
    extend_to_s: float | None

    def __str__(self) -> str:
        words = [f"{self.name}, lease {self.lease_s:g} s, waits {_shown(self.wait_s)}, works {self.work_s:.3f} s"]
        words += [f"weight {self.weight}"] if self.weight > 1 else []
        words += ["does not renew"] if not self.renew else []
        words += [f"extends to {self.extend_to_s:g} s"] if self.extend_to_s is not None else []
        words += [f"is cancelled after {self.cancel_after_s:.3f} s"] if self.cancel_after_s is not None else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client process. visits: for each of its callers."""

    name: str
    style: str
    skew_s: float
    rate: float
    visits: tuple[tuple[Visit, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run, before it starts. Runs of the same plan are the same run."""

    seed: int
    options: Options
    server_rate: float
    server_skew_s: float
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    servers: tuple[ServerPlan, ...] = ()  # of a quorum

    def lines(self) -> list[str]:
        """Who does what, and what goes wrong."""
        out = [f"server {server}" for server in self.servers]
        if not out:
            out.append(f"server clock: {_shown(self.server_skew_s)} s ahead, rate {self.server_rate:g}")
        for client in self.clients:
            out.append(f"client {client.name}: {client.style}, clock rate {client.rate:g}")
            out += [f"  {visit}" for visits in client.visits for visit in visits]
        return out + [f"fault: {fault}" for fault in self.faults]


def plan(seed: int, choices: Mapping[str, Any] | None = None) -> Plan:
    """The run that a seed stands for. choices: options that are given instead of drawn."""
    if choices and choices.get("servers", 1) > 1:
        from lockfast.sim import quorum_swarm  # only where there are several

        return quorum_swarm.plan(seed, choices)
    rng = Random(f"swarm {seed}")
    options = _options(rng)
    if choices:
        options = replace(options, **choices)
    server_rate = 1.0 + options.drift * rng.choice((-1, 1)) if options.drift else 1.0
    clients = tuple(client(rng, options, chr(ord("a") + number)) for number in range(options.clients))
    faults = (
        tuple(fault(rng, options, rng.choice(options.kinds)) for _ in range(options.faults)) if options.kinds else ()
    )
    return Plan(seed, options, server_rate, around(rng, options.skew_s), clients, faults)


def _options(rng: Random) -> Options:
    kinds = tuple(kind for kind in KINDS if rng.random() < 0.35 and kind not in ("forget", "clock ahead"))
    if rng.random() < 0.08:  # where no lease can hold; the fence and everything else still must
        kinds += (rng.choice(("forget", "clock ahead")),)
    return Options(
        clients=rng.randint(2, 6),
        threads_of=rng.choice((1, 1, 1, 2)),
        asyncio_share=rng.choice((0.0, 0.5, 0.5, 1.0)),
        names=rng.choice((1, 1, 1, 2)),
        limit=1,
        leases_s=tuple(rng.sample((0.05, 0.1, 0.3, 1.0, 3.0), rng.randint(1, 2))),
        waits_s=rng.choice(((None,), (None, None, 0.0), (None, 0.0, 0.1, 1.0), (0.05, 0.5, 3.0), (8.0,))),
        visits=rng.randint(1, 5),
        work=rng.choice(("short", "lease", "long", "hogs")),
        renew_share=rng.choice((1.0, 1.0, 0.5, 0.0)),
        cancel_share=rng.choice((0.0, 0.0, 0.2, 0.6)),
        extend_share=rng.choice((0.0, 0.0, 0.3)),
        drift=rng.choice((0.0, DRIFT)),
        skew_s=rng.choice((0.0, 0.0, 5.0, 3600.0)),
        latency_s=rng.choice((0.0002, 0.0005, 0.002)),
        spread_s=rng.choice((0.001, 0.01, 0.05, 0.3)),
        timeout_s=rng.choice((0.2, 0.5, 2.0)),
        safety_s=rng.choice((4.0, 8.0, 16.0)),
        faults=rng.choice((0, 2, 5, 10, 20, 30)),
        longest_s=rng.choice((0.5, 2.0, 8.0, 8.0)),  # a place in the queue lives 6 s
        kinds=kinds,
    )


def client(rng: Random, options: Options, name: str) -> ClientPlan:
    """One client, with all that its callers want."""
    rate = 1.0 + options.drift * rng.choice((-1, -1, 0, 1)) if options.drift else 1.0
    style = "asyncio" if rng.random() < options.asyncio_share else "threads"
    visits = tuple(tuple(_visit(rng, options) for _ in range(options.visits)) for _ in range(options.threads_of))
    return ClientPlan(name, style, abs(around(rng, options.skew_s)), rate, visits)


def _visit(rng: Random, options: Options) -> Visit:
    lease_s = rng.choice(options.leases_s)
    hogs = options.work == "hogs" and rng.random() < 0.25
    work_s = 8.0 if hogs else lease_s * _SHARES[options.work](rng.random())
    return Visit(
        name=f"n{rng.randint(1, options.names)}",
        think_s=rng.choice((0.0, lease_s, 2.0, 2 * options.safety_s / options.visits)) * rng.random(),
        lease_s=lease_s,
        wait_s=rng.choice(options.waits_s),
        work_s=work_s,
        weight=rng.randint(1, options.limit),
        renew=rng.random() < options.renew_share or hogs,
        cancel_after_s=length(rng, options) if rng.random() < options.cancel_share else None,
        extend_to_s=lease_s * rng.choice((0.5, 1.0, 2.0)) if rng.random() < options.extend_share else None,
    )


def fault(rng: Random, options: Options, kind: str) -> Fault:
    """One fault of this kind."""
    who = SERVER if kind in OF_SERVERS else chr(ord("a") + rng.randrange(options.clients))
    length_s = length(rng, options)
    if kind in COUNTED or (kind in AFTER_REQUESTS and rng.random() < 0.5):
        nth = rng.randint(1, rng.choice((3, 8, 40)) if kind in OF_PUSHES or rng.random() < 0.5 else 120)
        return Fault(kind, who, nth=nth, length_s=0.0 if kind.endswith(("lost", "reset")) else length_s)
    at = rng.uniform(0.0, options.safety_s)
    if kind in OF_CLIENTS or kind == "freeze":
        length_s = min(length_s, options.safety_s - at)
    if kind == "clock back":
        length_s = min(length_s, 2.0)
    return Fault(kind, who, at=at, length_s=length_s)


def length(rng: Random, options: Options) -> float:
    """How long something lasts: about a lease, or anything from a millisecond to longer than a place lives."""
    lease_s = rng.choice(options.leases_s)
    length_s = lease_s * rng.uniform(0.2, 1.6) if rng.random() < 0.5 else 0.001 * 10 ** (4 * rng.random())
    return min(length_s, options.longest_s)


def around(rng: Random, width: float) -> float:
    """Anything from `width` below 0 to as much above."""
    return rng.uniform(-width, width) if width else 0.0


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "none"
    return "as long as it takes" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
