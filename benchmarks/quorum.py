"""A lock over five independent servers: its cost, and what it costs when some of them hang or are far away.

    python -m benchmarks.quorum [--quick] [--others DIR] [--json FILE]

All in one run, against the same five servers on the loopback: acquire and release of a free name with all of them
healthy, with one and with two of them frozen (SIGSTOP), and with 2 ms added to each by a proxy; then 32 processes
that all want one name. Every contestant has a process and connections of its own, with a lease of 5 s and everything
else at its default.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from benchmarks.delays import delayed
from benchmarks.quorum_contestants import CONTESTANTS, FLOOR, LEASE_S, OURS, Capped, Failed, Missing, Worker
from benchmarks.rounds import Goal, Report, Samples, chosen, interleave, jain, median_ratio, parser, print_table, ratios
from benchmarks.servers import Server, pin, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NODES = 5
NODE_TIMEOUT_MS = 50  # Lockfast's default on the loopback
DELAY_S = 0.002
CONTENDERS = 32
CAP_S = 2.0  # after which a contestant is not waited for, and left out of the scenario
HEALTHY, ONE_FROZEN, TWO_FROZEN, UNPINNED = "healthy", "1 frozen", "2 frozen", "healthy, any CPU"
FAR, FAR_SINGLE = f"{DELAY_S * 1000:g} ms away", f"{DELAY_S * 1000:g} ms away, single server"
FROZEN = {HEALTHY: 0, ONE_FROZEN: 1, TWO_FROZEN: 2}
OTHERS = [name for name in CONTESTANTS if name not in OURS and name != FLOOR]


@dataclass
class Found:
    """What a contestant came to in one scenario."""

    median_us: dict[int, float] = field(default_factory=dict)  # by round: the median of its pairs
    worst_us: dict[int, float] = field(default_factory=dict)
    busy_us: dict[int, float] = field(default_factory=dict)  # of a pair's time, what its own process was busy
    pairs: int = 0
    trouble: str = ""  # why it was left out from then on

    def add(self, number: int, took_us: list[float], busy_us: float) -> None:
        self.median_us[number] = statistics.median(took_us)
        self.busy_us[number] = busy_us
        self.worst_us[number] = max(took_us)
        self.pairs += len(took_us)


Scenarios = dict[str, dict[str, Found]]


@dataclass(frozen=True)
class Crowd:
    """What 32 contenders of one kind did in one round."""

    grants_per_s: float
    jain: float
    rounds_per_grant: float | None  # how often votes were asked for; known of Lockfast only
    reads_per_grant: float  # how often a server read from a socket, all five together
    overlaps: int


class Field:
    """The servers, the contestants' processes, and the CPUs that they may use."""

    def __init__(self, servers: list[Server], workers: dict[str, Worker]) -> None:
        self.servers = servers
        self.workers = workers
        self._allowed = os.sched_getaffinity(0)
        self._frozen: list[Server] = []

    def pin(self, cpus: set[int] | None) -> None:
        for pid in [*(server.process.pid for server in self.servers), *(one.pid for one in self.workers.values())]:
            pin(pid, cpus or self._allowed)

    @property
    def one_cpu(self) -> set[int]:
        return {max(self._allowed)}

    def freeze(self, number: int, count: int) -> None:
        """Stop so many servers, others in every round."""
        self._frozen = [self.servers[(number + step) % NODES] for step in range(count)]
        for server in self._frozen:
            server.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for server in self._frozen:
            server.process.send_signal(signal.SIGCONT)
        self._frozen = []

    def settle(self) -> None:
        """Let Lockfast find out that all servers are there again, which it looks for twice a second."""
        ours = [self.workers[name] for name in OURS if name in self.workers]
        for worker in ours:
            worker.tell("settle", "near", 3.0)
        for worker in ours:
            if worker.answer() != NODES:
                print("Lockfast has not found all servers again", file=sys.stderr)


@contextlib.contextmanager
def five_servers(kind: str) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as opened:
        servers = [opened.enter_context(running(kind)) for _ in range(NODES)]
        # A server that keeps nothing on disk is not counted by Lockfast until it has been up for the longest lease.
        while min(int(server.info("server")["uptime_in_seconds"]) for server in servers) < LEASE_S:
            time.sleep(0.1)
        yield servers


def measure(ground: Field, key: str, name: str, number: int, seconds: float, found: Found) -> None:
    """Run one contestant for a slice, unless it was left out before."""
    if found.trouble:
        return
    worker = ground.workers[name]
    try:
        found.add(number, *worker.ask("run", key, seconds, cap_s=CAP_S))
    except Capped:
        found.trouble = f"over {CAP_S:g} s"
        ground.thaw()
        with contextlib.suppress(Failed):
            worker.answer()
    except Failed as failed:
        found.trouble = str(failed).strip().splitlines()[-1]


def frozen_rounds(ground: Field, rounds: int, slice_s: float, seed: int) -> Scenarios:
    """Healthy, then frozen, in every round: all on one CPU, so that the time is the cost of both sides."""
    found: Scenarios = {scenario: {name: Found() for name in ground.workers} for scenario in FROZEN}
    ground.pin(ground.one_cpu)
    for number in range(rounds):
        for scenario, count in FROZEN.items():
            for _, name in interleave(list(ground.workers), 1, seed + number, f"{scenario}, round {number + 1}"):
                ground.freeze(number, count)  # each time: who was capped has thawed them
                measure(ground, "near", name, number, slice_s, found[scenario][name])
        ground.thaw()
        ground.settle()
    ground.pin(None)
    return found


def far_rounds(ground: Field, pairs: list[tuple[str, str]], rounds: int, slice_s: float, seed: int) -> Scenarios:
    found: Scenarios = {scenario: {} for scenario in (UNPINNED, FAR, FAR_SINGLE)}
    matches = [(UNPINNED, "near", name) for name in ground.workers]
    matches += [(FAR if key == "far" else FAR_SINGLE, key, name) for name, key in pairs]
    for scenario, _, name in matches:
        found[scenario][name] = Found()
    for number, (scenario, key, name) in interleave(matches, rounds, seed, "any CPU"):
        measure(ground, key, name, number, slice_s, found[scenario][name])
    return found


def crowd_of(servers: list[Server], name: str, others: str, number: int, seconds: float) -> Crowd:
    """32 processes that want one name, for so long."""
    worker = Worker(name, others)
    try:
        for server in servers:
            server.reset_counters()
        urls = [server.url for server in servers]
        answers = worker.ask("crowd", urls, f"bench:crowd:{name}:{number}", CONTENDERS, seconds, cap_s=60 + seconds)
    finally:
        worker.close()
    everything = sorted(section for sections, _ in answers for section in sections)
    start_at = everything[0][0]
    inside = [section for section in everything if section[0] <= start_at + seconds]
    reads = sum(int(server.info("stats")["total_reads_processed"]) for server in servers)
    grants = sum(counts[1] for _, counts in answers)
    return Crowd(
        grants_per_s=len(inside) / seconds,
        jain=jain([len(sections) for sections, _ in answers]),
        rounds_per_grant=sum(counts[0] for _, counts in answers) / grants if grants else None,
        reads_per_grant=reads / len(everything),
        overlaps=sum(after[0] < before[1] for before, after in itertools.pairwise(everything)),
    )


def medians(found: dict[str, Found]) -> Samples:
    return {name: one.median_us for name, one in found.items()}


def print_pairs(found: Scenarios) -> None:
    """One row for each contestant: what a pair costs in every scenario."""
    columns = [HEALTHY, ONE_FROZEN, TWO_FROZEN, UNPINNED, FAR, FAR_SINGLE]
    rows = []
    for name in found[HEALTHY]:
        ours = OURS[1] if CONTESTANTS[name].is_async else OURS[0]
        cells = [name]
        for scenario in columns:
            one = found[scenario].get(name)
            if one is None:
                cells.append("")
            elif not one.median_us:
                cells.append(one.trouble or "-")
            else:
                cells.append(f"{statistics.median(one.median_us.values()):,.0f}" + (" …" if one.trouble else ""))
        values = ratios(medians(found[HEALTHY]), name, ours)
        rows.append([*cells, f"{statistics.median(values):.2f}" if values else "-"])
    print_table(["µs per pair, median", *columns, "healthy × ours"], rows)
    rows = []
    for name, one in found[UNPINNED].items():
        if one.busy_us:
            ours = OURS[1] if CONTESTANTS[name].is_async else OURS[0]
            busy = {other: of_other.busy_us for other, of_other in found[UNPINNED].items()}
            cells = [median_ratio(samples, name, against) for samples, against in (
                (medians(found[UNPINNED]), ours), (medians(found[UNPINNED]), FLOOR), (busy, ours),
            )]  # fmt: skip
            rows.append([name, f"{statistics.median(one.busy_us.values()):,.0f}", cells[2], cells[0], cells[1]])
    print_table(["healthy, any CPU", "µs busy", "busy × ours", "time × ours", "time × floor"], rows)
    rows = []
    for name in (name for name in OURS if name in found[HEALTHY]):
        for scenario in FROZEN:
            one = found[scenario][name]
            if one.worst_us:
                worst = list(one.worst_us.values())
                rows.append([
                    f"{name}, {scenario}",
                    f"{one.pairs:,}",
                    f"{max(worst) / 1000:.1f}",
                    f"{statistics.median(worst) / 1000:.1f}",
                ])  # fmt: skip
    print_table(["Lockfast's slowest pairs", "pairs", "slowest of all, ms", "of a round, median, ms"], rows)


def print_crowds(crowds: dict[str, dict[int, Crowd]]) -> None:
    rows = []
    for name, by_round in crowds.items():
        runs = list(by_round.values())
        if not runs:
            continue
        asked = [run.rounds_per_grant for run in runs if run.rounds_per_grant is not None]
        rows.append([
            name,
            f"{statistics.median(run.grants_per_s for run in runs):,.0f}",
            f"{statistics.median(asked):.2f}" if asked else "-",
            f"{statistics.median(run.reads_per_grant for run in runs):.1f}",
            f"{statistics.median(run.jain for run in runs):.3f}",
            str(sum(run.overlaps for run in runs)),
        ])  # fmt: skip
    heads = [f"{CONTENDERS} contenders, sections of 1 ms", "grants/s", "rounds per grant", "reads per grant", "Jain"]
    print_table([*heads, "overlaps"], rows)


def best_of(samples: Samples, names: list[str]) -> dict[int, float]:
    """Of each round, the fastest of these."""
    numbers = {number for name in names for number in samples.get(name, {})}
    return {
        number: min(samples[name][number] for name in names if number in samples.get(name, {})) for number in numbers
    }


def goals(found: Scenarios) -> list[Goal]:
    wanted = []
    healthy = medians(found[HEALTHY])
    for ours in OURS:
        is_async = CONTESTANTS[ours].is_async
        rivals = [name for name in OTHERS if CONTESTANTS[name].is_async == is_async]
        for scenario in (HEALTHY, UNPINNED):
            samples = medians(found[scenario])
            faster = ratios({**samples, "best": best_of(samples, rivals)}, "best", ours)
            wanted.append(Goal(f"{ours}, {scenario}: best of the others / ours", faster, ">=", 2.5))
        for scenario in (ONE_FROZEN, TWO_FROZEN):
            both = {"frozen": medians(found[scenario]).get(ours, {}), "healthy": healthy.get(ours, {})}
            wanted.append(Goal(f"{ours}, {scenario} / healthy", ratios(both, "frozen", "healthy"), "<=", 1.5))
            # The slowest of each round, of which the slowest counts: no call at all pays a node's time-out.
            worst = list(found[scenario].get(ours, Found()).worst_us.values())
            slowest = [max(worst) / 1000] if worst else []
            wanted.append(Goal(f"{ours}, {scenario}: slowest pair, ms", slowest, "<=", NODE_TIMEOUT_MS))
        both = {key: medians(found[key]).get(ours, {}) for key in (FAR, FAR_SINGLE)}
        wanted.append(Goal(f"{ours}, {FAR}: 5 servers / 1", ratios(both, FAR, FAR_SINGLE), "<=", 1.3))
    return wanted


def main(arguments: Sequence[str] | None = None) -> int:
    command = parser("A lock over five independent servers.", rounds=9)
    command.add_argument("--slice", type=float, default=0.15, help="seconds per contestant, scenario and round")
    command.add_argument("--others", metavar="DIR", default=".others", help="where the other libraries are installed")
    command.add_argument("--crowds", type=int, default=2, help="rounds of 32 contenders, default: %(default)s")
    command.add_argument("--crowd-slice", type=float, default=1.5, help="seconds of each, default: %(default)s")
    options = command.parse_args(arguments)
    rounds, slice_s = (3, 0.05) if options.quick else (options.rounds, options.slice)
    crowds, crowd_s = (1, 1.0) if options.quick else (options.crowds, options.crowd_slice)
    with contextlib.ExitStack() as opened:
        servers = opened.enter_context(five_servers(options.server))
        far_ports = opened.enter_context(delayed([server.port for server in servers], DELAY_S))
        report = Report("quorum", servers[0].version)
        print(f"{report.title}, {NODES} servers, {rounds} rounds\n")
        workers: dict[str, Worker] = {}
        pairs: list[tuple[str, str]] = []
        near = [server.url for server in servers]
        far = [f"redis://127.0.0.1:{port}/0" for port in far_ports]
        for name in chosen(list(CONTESTANTS), options):
            worker = Worker(name, options.others)
            opened.callback(worker.close)
            try:
                worker.ask("open", "near", near, f"bench:near:{name}")
                worker.ask("open", "far", far, f"bench:far:{name}")
                pairs.append((name, "far"))
                if name in OURS:
                    worker.ask("open", "single", far[:1], f"bench:single:{name}")
                    pairs.append((name, "single"))
            except (Missing, Failed) as why:
                report.left_out[name] = str(why).strip().splitlines()[-1]
            else:
                workers[name] = worker
        pairs = [(name, key) for name, key in pairs if name in workers]
        ground = Field(servers, workers)
        opened.callback(ground.thaw)
        found = frozen_rounds(ground, rounds, slice_s, options.seed)
        found |= far_rounds(ground, pairs, rounds, slice_s, options.seed)
        print_pairs(found)
        by_crowd: dict[str, dict[int, Crowd]] = {name: {} for name in workers if name != FLOOR}
        for number, name in interleave(list(by_crowd), crowds, options.seed, f"{CONTENDERS} contenders"):
            try:
                done = by_crowd[name][number] = crowd_of(servers, name, options.others, number, crowd_s)
            except (Failed, Capped) as why:
                report.failures.append(
                    f"{name}, {CONTENDERS} contenders: {str(why).strip().splitlines()[-1:] or 'hung'}"
                )
            else:
                if done.overlaps and name in OURS:
                    report.failures.append(f"{name}: {done.overlaps} sections overlapped")
        print_crowds(by_crowd)
        report.samples = {
            **{scenario: {name: asdict(one) for name, one in by_name.items()} for scenario, by_name in found.items()},
            "crowd": {name: {number: asdict(one) for number, one in runs.items()} for name, runs in by_crowd.items()},
        }
        report.goals = goals(found)
        report.print_goals()
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
