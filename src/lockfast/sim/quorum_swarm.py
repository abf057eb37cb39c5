"""Which world a seed stands for where a majority of servers decides: as sim/swarm.py, with several servers.

What is drawn here and not there: servers that keep their memory through a restart, unless their disk is lost, and
servers that do not, their clocks apart by up to hours, cuts between one client and one server. Left out is what a
quorum does not promise to survive: a fence may fail to grow when a server that voted for it forgot it, and either the
clocks of the servers are apart by about max_lease, or one was set back; so worlds have either such clocks, or servers
that forget.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from lockfast.sim import swarm
from lockfast.sim.faults import COUNTED, OF_CLIENTS, OF_LINKS, OF_SERVERS, OF_SEVERAL, Fault
from lockfast.sim.swarm import DRIFT, Options, Plan, ServerPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = (*COUNTED, *OF_CLIENTS, *OF_SEVERAL, *OF_SERVERS)
FORGETTING = ("forget", "blackout")
SETTING = ("clock back", "clock ahead")
APART_S = 0.3  # how far the clocks of servers are apart where some of them forget


def plan(seed: int, choices: Mapping[str, Any]) -> Plan:
    """The run that a seed stands for. choices: options that are given instead of drawn; `servers` is among them."""
    rng = Random(f"quorum {seed}")
    options = replace(_options(rng, choices["servers"]), **choices)
    servers = tuple(_server(rng, options, f"s{number}") for number in range(1, options.servers + 1))
    clients = tuple(swarm.client(rng, options, chr(ord("a") + number)) for number in range(options.clients))
    clients = tuple(_bounded(client, options.max_lease_s) for client in clients)
    faults = tuple(_fault(rng, options) for _ in range(options.faults)) if options.kinds else ()
    return Plan(seed, options, 1.0, 0.0, clients, faults, servers)


def _options(rng: Random, servers: int) -> Options:
    kinds = tuple(kind for kind in KINDS if rng.random() < 0.35 and kind != "clock ahead")
    skew_s = rng.choice((0.0, APART_S, 3600.0))
    if skew_s > APART_S or "clock back" in kinds:
        if rng.random() < 0.5 or skew_s > APART_S:
            kinds = tuple(kind for kind in kinds if kind not in FORGETTING)
        else:
            kinds = tuple(kind for kind in kinds if kind not in SETTING)
    if rng.random() < 0.04 and not set(FORGETTING) & set(kinds):  # where no lease can hold
        kinds += ("clock ahead",)
    max_lease_s = rng.choice((1.0, 2.0))
    return Options(
        clients=rng.randint(2, 5),
        threads_of=rng.choice((1, 1, 1, 2)),
        asyncio_share=rng.choice((0.0, 0.5, 0.5, 1.0)),
        names=rng.choice((1, 1, 1, 2)),
        limit=rng.choice((1, 1, 2)),
        leases_s=tuple(rng.sample((0.1, 0.3, 1.0, max_lease_s), rng.randint(1, 2))),
        waits_s=rng.choice(((None,), (None, None, 0.0), (None, 0.0, 0.1, 1.0), (0.05, 0.5, 3.0), (8.0,))),
        visits=rng.randint(1, 4),
        work=rng.choice(("short", "lease", "long")),
        renew_share=rng.choice((1.0, 1.0, 0.5, 0.0)),
        cancel_share=rng.choice((0.0, 0.0, 0.2, 0.6)),
        extend_share=rng.choice((0.0, 0.0, 0.3)),
        drift=rng.choice((0.0, DRIFT)),
        skew_s=skew_s,
        latency_s=rng.choice((0.0002, 0.0005, 0.002)),
        spread_s=rng.choice((0.001, 0.01, 0.05, 0.3)),
        timeout_s=rng.choice((0.2, 0.5, 2.0)),
        safety_s=rng.choice((4.0, 8.0)),
        faults=rng.choice((0, 2, 5, 10, 20, 30)),
        longest_s=rng.choice((0.5, 2.0, 4.0)),
        kinds=kinds,
        servers=servers,
        max_lease_s=max_lease_s,
        node_timeout_s=rng.choice((0.05, 0.1, 0.3)),
        keep_share=rng.choice((0.0, 0.5, 1.0)),
    )


def _server(rng: Random, options: Options, name: str) -> ServerPlan:
    rate = 1.0 + options.drift * rng.choice((-1, 1)) if options.drift else 1.0
    return ServerPlan(
        name,
        keeps=rng.random() < options.keep_share,
        skew_s=swarm.around(rng, options.skew_s / 2),
        rate=rate,
        up_s=rng.choice((0.0, 0.5, 3600.0, 3600.0, 3600.0)),
    )


def _fault(rng: Random, options: Options) -> Fault:
    kind = rng.choice(options.kinds)
    if kind not in OF_SERVERS + OF_SEVERAL:
        return swarm.fault(rng, options, kind)
    length_s = swarm.length(rng, options)
    at = rng.uniform(0.0, options.safety_s)
    who = f"s{rng.randint(1, options.servers)}"
    if kind in OF_LINKS:
        who = f"{chr(ord('a') + rng.randrange(options.clients))}-{who}"
    if kind in OF_LINKS or kind == "freeze":
        length_s = min(length_s, options.safety_s - at)
    return Fault(kind, who, at=at, length_s=min(length_s, 2.0) if kind == "clock back" else length_s)


def _bounded(client: swarm.ClientPlan, max_lease_s: float) -> swarm.ClientPlan:
    """No lease is longer than the quorum allows, nor extended to more."""

    def within(visit: swarm.Visit) -> swarm.Visit:
        extend_to_s = None if visit.extend_to_s is None else min(visit.extend_to_s, max_lease_s)
        return replace(visit, lease_s=min(visit.lease_s, max_lease_s), extend_to_s=extend_to_s)

    return replace(client, visits=tuple(tuple(map(within, visits)) for visits in client.visits))
