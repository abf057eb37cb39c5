"""Hand-over: how long a contended lock lies unused between one process and the next.

    python -m benchmarks.handover [--quick] [--json FILE]

2, 8 and 32 processes want one name all the time and keep it for 1 ms each (asleep; `--busy` makes them
spin). Each notes when `acquire()` returned and when it called `release()`, on CLOCK_MONOTONIC, which all
processes of a machine share. Put in order, they give the hand-over (release called to next acquire returned),
the fairness, and the proof that no two sections overlapped. The baton (BLPOP and RPUSH of one token) is the
bound: it keeps nothing safe.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import statistics
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import (
    Goal,
    Report,
    Samples,
    chosen,
    interleave,
    jain,
    median_ratio,
    parser,
    percentile,
    print_table,
    ratios,
)
from benchmarks.servers import RawSocket, Server, die_with_parent, pack, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

PROCESSES = (2, 8, 32)
SECTION_S = 0.001
LEASE_S = 30
WAIT_S = 15  # Longer than a whole slice: nobody gives up, and nobody hangs either.
ANSWER_WITHIN_S = 60.0

# What one process does: take the lock, and give back what was taken.
Steps = tuple["Callable[[], object]", "Callable[[], object]"]


@contextlib.contextmanager
def baton(port: int, name: str) -> Iterator[Steps]:
    """One token in a list, on a raw socket with packed requests; `main` puts the first token there."""
    with RawSocket(port) as raw:
        take, give = pack("BLPOP", name, WAIT_S), pack("RPUSH", name, "token")

        def acquire() -> None:
            raw.send(take)
            if not raw.receive(256).startswith(b"*2"):
                raise RuntimeError("the baton did not come")

        def release() -> None:
            raw.send(give)
            if not raw.receive(64).startswith(b":"):
                raise RuntimeError("the baton was not taken back")

        yield acquire, release


@contextlib.contextmanager
def lockfast(port: int, name: str) -> Iterator[Steps]:
    from lockfast.sync import Grant, Lockfast

    with Lockfast(f"redis://127.0.0.1:{port}/0") as lf:
        lock = lf.lock(name, lease=LEASE_S, wait=WAIT_S)
        grants: list[Grant] = []
        yield lambda: grants.append(lock.acquire()), lambda: grants.pop().release()


def redis_py(sleep_s: float) -> Callable[[int, str], contextlib.AbstractContextManager[Steps]]:
    @contextlib.contextmanager
    def contestant(port: int, name: str) -> Iterator[Steps]:
        import redis

        with redis.Redis(port=port) as client:
            lock = client.lock(name, timeout=LEASE_S, sleep=sleep_s, blocking_timeout=WAIT_S)
            yield lambda: _granted(lock.acquire()), lock.release

    return contestant


@contextlib.contextmanager
def python_redis_lock(port: int, name: str) -> Iterator[Steps]:
    import redis
    import redis_lock

    with redis.Redis(port=port, socket_timeout=2 * WAIT_S) as client:
        lock = redis_lock.Lock(client, name, expire=LEASE_S)
        yield lambda: _granted(lock.acquire(timeout=WAIT_S)), lock.release


def _granted(answer: object) -> None:
    if not answer:
        raise RuntimeError("waited in vain")


CONTESTANTS: dict[str, Callable[[int, str], contextlib.AbstractContextManager[Steps]]] = {
    "baton": baton,
    "lockfast": lockfast,
    "redis-py, sleep 0.1 s": redis_py(0.1),
    "redis-py, sleep 1 ms": redis_py(0.001),
    "python-redis-lock": python_redis_lock,
}


@dataclass(frozen=True)
class Order:
    """One slice for one worker."""

    contestant: str
    port: int
    name: str
    seconds: float
    busy: bool


@dataclass(frozen=True)
class Slice:
    """What one contestant did in one round."""

    sections_per_s: float
    p50_us: float
    p99_us: float
    jain: float
    changed: float  # Share of the hand-overs that went to another process: the rest was taken back at once.
    changed_p50_us: float | None  # Of those alone; None when there were none.
    changed_p99_us: float | None
    overlaps: int
    commands: float  # Per section, at the server, with those that scripts call.
    reads: float  # Per section, of the server from its clients' sockets.


class SliceFailed(Exception):
    """A contestant raised an error in one of its processes."""


class Workers:
    """The processes, forked once: what they import and how they start is not measured."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            context.Process(target=_work, args=(theirs,), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)

    def run(self, server: Server, order: Order, processes: int) -> Slice:
        if order.contestant == "baton":
            with RawSocket(server.port) as raw:
                raw.ask(pack("RPUSH", order.name, "token"))
        pipes = self._pipes[:processes]
        for pipe in pipes:
            pipe.send(order)
        ready = {pipe: _answer(pipe) for pipe in pipes}
        _raise_first(list(ready.values()), still_waiting=[pipe for pipe in pipes if ready[pipe] == "ready"])
        server.reset_counters()
        start_at = time.monotonic() + 0.02
        for pipe in pipes:
            pipe.send(start_at)
        answers = [_answer(pipe) for pipe in pipes]
        _raise_first(answers)
        return _slice(answers, server, start_at, start_at + order.seconds)


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(ANSWER_WITHIN_S):
        raise SystemExit("a worker did not answer; the benchmark is given up")
    return pipe.recv()


def _raise_first(answers: list[Any], still_waiting: Sequence[Connection] = ()) -> None:
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if errors:
        for pipe in still_waiting:
            pipe.send(None)
        raise errors[0]


def _slice(by_worker: list[list[tuple[float, float]]], server: Server, start_at: float, end_at: float) -> Slice:
    everything = sorted((*section, worker) for worker, own in enumerate(by_worker) for section in own)
    # After the end the queue drains with fewer and fewer waiters: that is no longer what is measured.
    inside = [section for section in everything if start_at <= section[0] <= end_at]
    pairs = list(itertools.pairwise(inside))
    gaps_us = [(after[0] - before[1]) * 1e6 for before, after in pairs]
    changed_us = [(after[0] - before[1]) * 1e6 for before, after in pairs if before[2] != after[2]]
    commands = server.info("commandstats")
    calls = sum(int(line.split("calls=")[1].split(",")[0]) for line in commands.values())
    counters = server.info("stats")
    return Slice(
        sections_per_s=len(inside) / (end_at - start_at),
        p50_us=statistics.median(gaps_us),
        p99_us=percentile(gaps_us, 99),
        jain=jain([sum(start_at <= acquired_at <= end_at for acquired_at, _ in own) for own in by_worker]),
        changed=len(changed_us) / len(pairs),
        changed_p50_us=statistics.median(changed_us) if changed_us else None,
        changed_p99_us=percentile(changed_us, 99) if changed_us else None,
        overlaps=sum(after[0] < before[1] for before, after in itertools.pairwise(everything)),
        commands=calls / len(everything),
        reads=int(counters["total_reads_processed"]) / len(everything),
    )


def _work(orders: Connection) -> None:
    die_with_parent()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            order: Order = orders.recv()
            try:
                _serve(order, orders)
            except ModuleNotFoundError as missing:
                orders.send(missing)
            except Exception:
                orders.send(SliceFailed(traceback.format_exc(limit=-3)))


def _serve(order: Order, orders: Connection) -> None:
    sections: list[tuple[float, float]] = []
    with CONTESTANTS[order.contestant](order.port, order.name) as (acquire, release):
        # Once unmeasured: connecting and loading scripts are no part of a hand-over.
        acquire()
        release()
        orders.send("ready")
        start_at: float | None = orders.recv()
        if start_at is None:
            return
        now = time.monotonic
        end_at = start_at + order.seconds
        time.sleep(max(0.0, start_at - now()))
        while now() < end_at:
            acquire()
            acquired_at = now()
            if order.busy:
                while now() < acquired_at + SECTION_S:
                    pass
            else:
                time.sleep(SECTION_S)
            release_at = now()
            release()
            sections.append((acquired_at, release_at))
    orders.send(sections)


def field_of(slices: dict[str, dict[int, Slice]], field: str) -> Samples:
    """One figure of every slice, but of none whose sections overlapped: that was no lock, however fast."""
    return {
        name: {number: getattr(done, field) for number, done in by_round.items() if not done.overlaps}
        for name, by_round in slices.items()
    }


def print_slices(processes: int, slices: dict[str, dict[int, Slice]]) -> None:
    p50s, p99s = field_of(slices, "p50_us"), field_of(slices, "p99_us")
    rows = []
    for name, by_round in slices.items():
        runs = list(by_round.values())
        if not runs:
            continue
        rows.append([
            name,
            _middle(runs, "p50_us", ",.0f"),
            median_ratio(p50s, name, "baton"),
            _middle(runs, "p99_us", ",.0f"),
            median_ratio(p99s, name, "python-redis-lock"),
            _middle(runs, "jain", ".3f"),
            _middle(runs, "changed", ".0%"),
            f"{_middle(runs, 'changed_p50_us', ',.0f')} / {_middle(runs, 'changed_p99_us', ',.0f')}",
            _middle(runs, "sections_per_s", ",.0f"),
            _middle(runs, "commands", ".1f"),
            _middle(runs, "reads", ".1f"),
            str(sum(run.overlaps for run in runs)),
        ])  # fmt: skip
    heads = ["contestant", "p50 µs", "× baton", "p99 µs", "× p-r-l", "Jain", "changed", "changed p50 / p99"]
    print(f"{processes} processes\n")
    print_table([*heads, "sections/s", "commands", "reads", "overlaps"], rows)


def _middle(runs: list[Slice], field: str, form: str) -> str:
    values = [value for run in runs if (value := getattr(run, field)) is not None]
    return format(statistics.median(values), form) if values else "-"


def goals(all_slices: dict[int, dict[str, dict[int, Slice]]]) -> list[Goal]:
    found = []
    for processes, slices in all_slices.items():
        p50 = ratios(field_of(slices, "p50_us"), "lockfast", "baton")
        found.append(Goal(f"p50 / baton, {processes} processes", p50, "<=", 1.6))
        if processes == 8:
            p99 = ratios(field_of(slices, "p99_us"), "lockfast", "python-redis-lock")
            found.append(Goal("p99 / python-redis-lock, 8 processes", p99, "<=", 1 / 3))
        fairness = list(field_of(slices, "jain").get("lockfast", {}).values())
        found.append(Goal(f"Jain index, {processes} processes", fairness, ">=", 0.99))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    command = parser("Hand-over of a contended lock between processes.", rounds=15)
    command.add_argument("--slice", type=float, default=0.8, help="seconds per contestant and round")
    command.add_argument("--busy", action="store_true", help="the sections spin instead of sleeping")
    options = command.parse_args(arguments)
    rounds, slice_s = (3, 0.3) if options.quick else (options.rounds, options.slice)
    workers = Workers(max(PROCESSES))
    with running(options.server) as server:
        report = Report("handover", server.version)
        section = "busy" if options.busy else "asleep"
        print(f"{report.title}, {rounds} rounds, sections of 1 ms ({section})\n")
        names = chosen(list(CONTESTANTS), options)
        slices: dict[int, dict[str, dict[int, Slice]]] = {n: {name: {} for name in names} for n in PROCESSES}
        matches = [(processes, name) for processes in PROCESSES for name in names]
        for number, (processes, name) in interleave(matches, rounds, options.seed, "hand-over"):
            if name in report.left_out:
                continue
            order = Order(name, server.port, f"bench:{number}:{processes}:{name}", slice_s, options.busy)
            where = f"{name}, {processes} processes, round {number + 1}"
            try:
                done = slices[processes][name][number] = workers.run(server, order, processes)
            except ModuleNotFoundError as missing:
                report.left_out[name] = str(missing)
            except SliceFailed as failed:
                report.failures.append(f"{where}: {failed}")
            else:
                if done.overlaps:
                    report.failures.append(f"{where}: {done.overlaps} sections overlapped")
        for processes in PROCESSES:
            print_slices(processes, slices[processes])
            report.samples[str(processes)] = {
                name: {number: asdict(done) for number, done in by_round.items()}
                for name, by_round in slices[processes].items()
            }
        report.goals = goals(slices)
        report.print_goals()
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
