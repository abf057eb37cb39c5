"""One run of one plan: the safety phase with its faults, the quiet in which everybody must be served, the verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockfast import check, names
from lockfast.check.progress import GAP_S
from lockfast.errors import Unreachable
from lockfast.flows import asks
from lockfast.flows.asks import Ask
from lockfast.sim import quorum_runs
from lockfast.sim.client import PREFIX
from lockfast.sim.clocks import Clock
from lockfast.sim.driving import Work
from lockfast.sim.faults import Counted, schedule
from lockfast.sim.holding import hold
from lockfast.sim.resource import Resource
from lockfast.sim.swarm import SERVER, ClientPlan, Plan, Visit
from lockfast.sim.swarm import plan as plan_of
from lockfast.sim.tasks import Cancelled
from lockfast.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from lockfast.check import Event, Verdict
    from lockfast.sim.client import Client
    from lockfast.sim.holding import Section
    from lockfast.sim.tasks import Task

QUIET_S = 90.0  # everybody must have been served this long after the last fault, however bad it was before
SWIFT_S = 0.02  # a network is only quiet if replies come well within the clients' time-outs
LAST = Visit("n1", 0.0, 0.3, None, 0.01, 1, True, None, None)  # what every caller that is alive does in the quiet


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run. trace: empty unless it was asked for."""

    plan: Plan
    verdicts: dict[str, Verdict]
    trace: tuple[str, ...]
    history: tuple[Event, ...]
    steps: int
    script_runs: int

    @property
    def seed(self) -> int:
        return self.plan.seed

    @property
    def failed(self) -> tuple[str, ...]:
        """The checkers that found something to mend."""
        return tuple(name for name, verdict in self.verdicts.items() if verdict.bad)

    def trace_to_failure(self) -> tuple[str, ...]:
        """The trace up to the last event that a failing verdict names; all of it when nothing failed."""
        named = [event.at for name in self.failed for event in self.verdicts[name].events]
        if not named:
            return self.trace
        return tuple(line for line in self.trace if float(line[:9]) <= max(named) + 0.001)


def run_seed(seed: int, choices: Mapping[str, Any] | None = None, trace: bool = False) -> Result:
    """Run the world of a seed, and judge it. choices: see swarm.plan."""
    return play(plan_of(seed, choices), trace)


def play(plan: Plan, trace: bool = False) -> Result:
    """Run a plan, and judge it."""
    run = _Run(plan, trace)
    run.play()
    world = run.world
    verdicts = check.all(world.history, gap_s=run.gap_s(), slack_s=run.slack_s())
    if plan.servers:
        verdicts["fences_grow"] = quorum_runs.fences_grow(world.history)
        verdicts["no_orphan"] = quorum_runs.no_orphan(world, plan, run.slack_s())
    return Result(plan, verdicts, tuple(world.trace), tuple(world.history), world.steps, world.script_runs)


class _Run:
    """The world of a plan, and the callers in it."""

    def __init__(self, plan: Plan, trace: bool) -> None:
        self.plan = plan
        self.world = World(plan.seed, quiet=not trace)
        self.world.latency_s = plan.options.latency_s
        self.world.spread_s = plan.options.spread_s
        if plan.servers:
            self.nodes = [quorum_runs.add_server(self.world, server) for server in plan.servers]
        else:
            self.nodes = [self.world.add_server(SERVER, Clock(plan.server_skew_s, plan.server_rate))]
        self.node = self.nodes[0]
        self.resource = Resource(self.world)
        self.callers: list[Task] = []
        self.away = 0  # clients that died and will be back
        self.is_quiet = False

    def play(self) -> None:
        world, options = self.world, self.plan.options
        for client_plan in self.plan.clients:
            self._arrive(client_plan, client_plan.name)
        schedule(world, [fault for fault in self.plan.faults if fault.at < options.safety_s])
        world.run(options.safety_s)
        self._calm()
        ends_at = world.now + QUIET_S
        while world.now < ends_at and (self.away or not all(caller.done for caller in self.callers)):
            world.run(min(world.now + 1.0, ends_at))
        world.run(world.now + max(*options.leases_s, LAST.lease_s) + 1.0)
        world.record("end")

    def _calm(self) -> None:
        """No more faults from here on."""
        self.is_quiet = True
        world = self.world
        for client in world.clients.values():
            client.faults = None
            client.heal()
        world.spread_s = min(world.spread_s, SWIFT_S)
        for node in self.nodes:
            node.thaw()
            if not node.up:
                node.restart()
        world.say("", "from here on nothing fails")
        world.record("quiet")

    def _arrive(self, client_plan: ClientPlan, name: str) -> None:
        clock = Clock(client_plan.skew_s, client_plan.rate)
        client = self.world.add_client(
            name, self.nodes, clock, style=client_plan.style, timeout_s=self.plan.options.timeout_s
        )
        client.in_any_order = True
        if self.plan.servers:
            client.join_quorum(self.plan.options.node_timeout_s, self.plan.options.max_lease_s)
        client.on_crash = lambda: self._lose(client_plan, client)
        if not self.is_quiet:
            client.faults = Counted(fault for fault in self.plan.faults if fault.who == name)
        for visits in client_plan.visits:
            caller = _Caller(self, client, visits)
            caller.task = client.start(caller.visit_all, "caller")
            self.callers.append(caller.task)

    def _lose(self, client_plan: ClientPlan, client: Client) -> None:
        """A client has died. Its machine comes back after a while, as somebody else."""
        self.callers = [caller for caller in self.callers if caller not in client.tasks]
        if client.name == client_plan.name:  # once is enough
            self.away += 1
            self.world.after(client.rng.uniform(0.0, self.plan.options.longest_s), self._return, client_plan)

    def _return(self, client_plan: ClientPlan) -> None:
        self.away -= 1
        self._arrive(client_plan, f"{client_plan.name}2")

    def gap_s(self) -> float:
        """How long a name may lie idle in the quiet: a clock that was set back makes every lease that much longer."""
        return GAP_S + sum(fault.length_s for fault in self.plan.faults if fault.kind == "clock back")

    def slack_s(self) -> float:
        """How much later than its sender's death a message of this run may be carried out."""
        lengths = sorted(
            (fault.length_s for fault in self.plan.faults if not fault.nth or "slow" in fault.kind),
            reverse=True,
        )
        return 1.0 + sum(lengths[:4])


class _Caller:
    """One thread or task of a client that wants the lock again and again."""

    def __init__(self, run: _Run, client: Client, visits: tuple[Visit, ...]) -> None:
        self._run = run
        self._client = client
        self._visits = visits
        self._visit = 0
        self._asks: dict[tuple[str, float, int], Ask] = {}
        self.task: Task | None = None

    def visit_all(self, client: Client) -> Generator[Any, Any, None]:
        for number, visit in enumerate(self._visits):
            if self._run.is_quiet:
                break
            self._visit += 1
            try:
                yield Work(visit.think_s)
                if visit.cancel_after_s is not None:
                    by = client.shown() + visit.cancel_after_s
                    client.alarm(by, False, self._cancel, self._visit)
                yield from self.turn(client, visit, number)
            except Cancelled:
                pass  # whoever cancelled it goes on with something else
        self._visit = -1
        while not self._run.is_quiet:
            yield Work(0.5)
        yield from self.last(client)

    def turn(self, client: Client, visit: Visit, number: int) -> Generator[Any, Any, Any]:
        """What it came for: one of its visits, the `number`-th."""
        return hold(client, self._ask(visit), visit.wait_s, self._body(visit), visit.renew)

    def last(self, client: Client) -> Generator[Any, Any, Any]:
        """What it does once more when nothing goes wrong any longer, to see that it still can."""
        visit = replace(LAST, name=self._visits[-1].name) if self._visits else LAST
        return hold(client, self._ask(visit), None, self._body(visit))

    def _ask(self, visit: Visit) -> Ask:
        key = (visit.name, visit.lease_s, visit.weight)
        ask = self._asks.get(key)
        if ask is None:
            options, name = self._run.plan.options, names.make(PREFIX, (visit.name,))
            if options.limit > 1 and options.servers > 1:  # a majority cannot carry a semaphore
                ask = (asks.read if visit.weight < options.limit else asks.write)(name, visit.lease_s)
            else:
                kind = "lock" if options.limit == 1 else "semaphore"
                ask = Ask(name, kind, options.limit, visit.weight, visit.lease_s)
            self._asks[key] = ask
        return ask

    def _cancel(self, visit: int) -> None:
        if visit == self._visit and self.task is not None:
            self.task.cancel()

    def _body(self, visit: Visit) -> Any:
        def body(section: Section) -> Generator[Any, Any, None]:
            asyncio = section.client.style == "asyncio"
            held = section.hold
            for share in (0.3, 0.5, 0.2):
                if held.held():
                    self._run.resource.write(section.client, visit.name, held.ticket, held.fence)
                elif asyncio:
                    return
                yield section.work(visit.work_s * share) if asyncio else Work(visit.work_s * share)
                if share == 0.3 and visit.extend_to_s is not None and held.held():
                    try:
                        yield from section.extend(visit.extend_to_s)
                    except Unreachable:
                        pass  # it is still sure, for as long as it was before

        return body
