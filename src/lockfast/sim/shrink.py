"""A failing run made short: fewer faults, clients and visits, plainer clocks and network, as long as it still fails.

Whatever is left out, the run is made again from the shorter plan, and counts only if one of the same checkers still
finds something. Plans are plain values (sim/swarm.py), so this needs to know nothing of what the faults mean.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from lockfast.sim.runs import play

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.sim.runs import Result
    from lockfast.sim.swarm import ClientPlan, Plan, Visit

T = TypeVar("T")
MAX_RUNS = 1000


def shrink(failing: Result, max_runs: int = MAX_RUNS, tell: Callable[[int], None] | None = None) -> Plan:
    """The shortest plan found that still fails as `failing` did. tell: told after each run how many there were."""
    search = _Search(failing, max_runs, tell)
    while search.improve():
        pass  # ends: every round leaves something out or is the last, and the runs are counted
    return search.best


class _Search:
    def __init__(self, failing: Result, max_runs: int, tell: Callable[[int], None] | None) -> None:
        self.best = failing.plan
        self._checkers = set(failing.failed)
        self._left = max_runs
        self._runs = 0
        self._tell = tell

    def improve(self) -> bool:
        """Try every way of leaving something out. True when any of them worked."""
        before = self.best
        self._drop(lambda: self.best.faults, lambda faults: replace(self.best, faults=tuple(faults)))
        self._drop(lambda: self.best.clients, lambda clients: _with_clients(self.best, clients))
        for number in range(len(self.best.clients)):
            self._shorten_client(number)
        for number in range(len(self.best.faults)):
            self._strike_sooner(number)
        for plainer in _PLAINER:
            plan = plainer(self.best)
            if plan != self.best:
                self._try(plan)
        return self.best is not before and self._left > 0

    def _shorten_client(self, number: int) -> None:
        for caller in reversed(range(len(self.best.clients[number].visits))):
            self._drop(
                lambda caller=caller: self.best.clients[number].visits[caller],  # type: ignore[misc]
                lambda visits, caller=caller: _with_visits(self.best, number, caller, visits),  # type: ignore[misc]
            )
            callers = self.best.clients[number].visits
            if not callers[caller] and len(callers) > 1:
                client = replace(self.best.clients[number], visits=callers[:caller] + callers[caller + 1 :])
                self._try(_with_client(self.best, number, client))

    def _strike_sooner(self, number: int) -> None:
        """Let a fault that counts strike earlier, so that what was only there to be counted can go."""
        while True:
            faults = self.best.faults
            fault = faults[number]
            sooner = (replace(fault, nth=nth) for nth in dict.fromkeys((1, fault.nth // 2, fault.nth - 1)) if nth > 0)
            if fault.nth < 2 or not any(
                self._try(replace(self.best, faults=(*faults[:number], one, *faults[number + 1 :]))) for one in sooner
            ):
                return

    def _drop(self, items: Callable[[], tuple[T, ...]], without: Callable[[list[T]], Plan]) -> None:
        """Leave out halves, then quarters, down to single ones (delta debugging: Zeller and Hildebrandt, 2002)."""
        size = max(1, len(items()) // 2)
        while size:
            start = 0
            while start < len(items()):
                kept = list(items())
                del kept[start : start + size]
                if not self._try(without(kept)):
                    start += size
            size //= 2

    def _try(self, plan: Plan) -> bool:
        if self._left <= 0 or not plan.clients:
            return False
        self._left -= 1
        self._runs += 1
        if self._tell is not None:
            self._tell(self._runs)
        try:
            fails = bool(self._checkers & set(play(plan).failed))
        except RuntimeError:
            fails = False  # goes round in circles: another failure than the one that is looked for
        if fails:
            self.best = plan
        return fails


def _with_clients(plan: Plan, clients: list[ClientPlan]) -> Plan:
    names = {client.name for client in clients} | {fault.who for fault in plan.faults if len(fault.who) > 1}
    return replace(plan, clients=tuple(clients), faults=tuple(fault for fault in plan.faults if fault.who in names))


def _with_client(plan: Plan, number: int, client: ClientPlan) -> Plan:
    return replace(plan, clients=(*plan.clients[:number], client, *plan.clients[number + 1 :]))


def _with_visits(plan: Plan, number: int, caller: int, visits: list[Visit]) -> Plan:
    client = plan.clients[number]
    callers = (*client.visits[:caller], tuple(visits), *client.visits[caller + 1 :])
    return _with_client(plan, number, replace(client, visits=callers))


def _each_visit(plan: Plan, change: Callable[[Visit], Visit]) -> Plan:
    clients = [
        replace(client, visits=tuple(tuple(map(change, visits)) for visits in client.visits)) for client in plan.clients
    ]
    return replace(plan, clients=tuple(clients))


# Clocks without drift and skew, a network without chance, callers without whims.
_PLAINER: tuple[Callable[[Plan], Plan], ...] = (
    lambda plan: replace(plan, options=replace(plan.options, spread_s=0.0)),
    lambda plan: replace(plan, options=replace(plan.options, safety_s=max(plan.options.safety_s / 2, 0.5))),
    lambda plan: replace(plan, server_rate=1.0, server_skew_s=0.0),
    lambda plan: replace(plan, servers=tuple(replace(server, rate=1.0, skew_s=0.0) for server in plan.servers)),
    lambda plan: replace(plan, servers=tuple(replace(server, up_s=3600.0) for server in plan.servers)),
    lambda plan: replace(plan, clients=tuple(replace(client, rate=1.0, skew_s=0.0) for client in plan.clients)),
    lambda plan: replace(plan, clients=tuple(replace(client, style="threads") for client in plan.clients)),
    lambda plan: _each_visit(plan, lambda visit: replace(visit, cancel_after_s=None)),
    lambda plan: _each_visit(plan, lambda visit: replace(visit, extend_to_s=None)),
    lambda plan: _each_visit(plan, lambda visit: replace(visit, think_s=0.0)),
    lambda plan: _each_visit(plan, lambda visit: replace(visit, renew=False)),
)
