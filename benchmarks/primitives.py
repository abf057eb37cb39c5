"""What the other primitives cost beside the lock, and the semaphore beside the textbook's.

    python -m benchmarks.primitives [--quick] [--json FILE]

Two parts, each in rounds as in `rounds.py`. *Pairs*: one client acquires and releases what nobody else wants: a lock,
one side of a read/write lock, one of ten permits, five locks at once; and the fair and the race-free semaphore of the
text, written with redis-py's pipelines as it prints them (the targets are against these), and as `lockfast.classic`
has them, over the connections of this library, where what is compared is the algorithm alone. Client and server share
one CPU, as in `uncontended.py`; then the same not pinned. Five locks at once are judged by the latter: what one trip
for all of them saves is trips, and on one CPU nothing is seen but instructions, of which five names take more than
one. The pinned figure is printed beside it.

*Crowd*: 50 processes want one of 10 permits all the time and keep it for 10 ms. The text's semaphores fail at once
where they are full; whoever fails tries again after a random pause of 10 ms at most.
Told are sections per second, how much of the permits' time was used, how many held at the same moment at most (the
limit is 10), and fairness.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import statistics
import sys
import time
import traceback
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

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
from benchmarks.servers import Server, die_with_parent, running
from benchmarks.uncontended import in_tasks, lockfast_reused, measure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.uncontended import Pair, Pairs

LEASE_S = 30
LIMIT = 10
AT_ONCE = 5
PROCESSES = 50
SECTION_S = 0.010
PAUSE_S = 0.010
WAIT_S = 15
ANSWER_WITHIN_S = 90.0
Opened = contextlib.AbstractContextManager


def own(make: Callable[[Any], Any]) -> Callable[[Server], Opened[Pairs]]:
    """A contestant that acquires and releases what `make` makes of a client."""

    @contextlib.contextmanager
    def contestant(server: Server) -> Iterator[Pairs]:
        from lockfast.sync import Lockfast

        with Lockfast(server.url) as lf:
            lock = make(lf)

            def run(pairs: int) -> float:
                started = time.perf_counter()
                for _ in range(pairs):
                    lock.acquire().release()
                return time.perf_counter() - started

            yield run

    return contestant


def own_asyncio(make: Callable[[Any], Any]) -> Callable[[Server, int], contextlib.AbstractAsyncContextManager[Pair]]:
    @contextlib.asynccontextmanager
    async def pairs_of(server: Server, tasks: int) -> AsyncIterator[Pair]:
        from lockfast.aio import Lockfast

        async with Lockfast(server.url) as lf:
            lock = make(lf)

            async def pair(_task: int) -> None:
                grant = await lock.acquire()
                await grant.release()

            yield pair

    return pairs_of


def text(name: str) -> Callable[[Server], Opened[Pairs]]:
    """A semaphore of the text."""

    @contextlib.contextmanager
    def contestant(server: Server) -> Iterator[Pairs]:
        from lockfast import classic

        recipe = getattr(classic, name)(f"bench-{name}", LIMIT, timeout=LEASE_S)
        with classic.Client(server.url) as client:

            def run(pairs: int) -> float:
                started = time.perf_counter()
                for _ in range(pairs):
                    taken = client.acquire(recipe)
                    if taken is None:
                        raise RuntimeError("a permit that nobody else wants was refused")
                    client.release(recipe, taken)
                return time.perf_counter() - started

            yield run

    return contestant


@contextlib.contextmanager
def redis_py_fair(server: Server) -> Iterator[Pairs]:
    with _RedisPy(server.port, "bench:text") as semaphore:
        yield lambda pairs: _timed(pairs, semaphore.take, semaphore.give)


@contextlib.contextmanager
def redis_py_race_free(server: Server) -> Iterator[Pairs]:
    with _RedisPy(server.port, "bench:text") as semaphore:
        yield lambda pairs: _timed(pairs, semaphore.take_race_free, semaphore.give)


def _timed(pairs: int, take: Callable[[], str | None], give: Callable[[str], None]) -> float:
    started = time.perf_counter()
    for _ in range(pairs):
        taken = take()
        if taken is None:
            raise RuntimeError("what nobody else wants was refused")
        give(taken)
    return time.perf_counter() - started


class _RedisPy:
    """The fair semaphore of the text, and the short lock that makes it race-free, with redis-py."""

    def __init__(self, port: int, name: str) -> None:
        import redis

        self._redis = redis.Redis(port=port)
        self._times, self._owners, self._counter, self._lock = name, f"{name}:owner", f"{name}:counter", f"{name}:lock"

    def take(self) -> str | None:
        token, at = str(uuid.uuid4()), time.time()
        pipe = self._redis.pipeline(True)
        pipe.zremrangebyscore(self._times, "-inf", at - LEASE_S)
        pipe.zinterstore(self._owners, {self._owners: 1, self._times: 0})
        pipe.incr(self._counter)
        count = pipe.execute()[-1]
        pipe.zadd(self._times, {token: at})
        pipe.zadd(self._owners, {token: count})
        pipe.zrank(self._owners, token)
        if pipe.execute()[-1] >= LIMIT:
            self.give(token)
            return None
        return token

    def give(self, token: str) -> None:
        pipe = self._redis.pipeline(True)
        pipe.zrem(self._times, token)
        pipe.zrem(self._owners, token)
        pipe.execute()

    def take_race_free(self) -> str | None:
        lock = self.lock()
        if lock is None:
            return None
        try:
            return self.take()
        finally:
            self.unlock(lock)

    def lock(self) -> str | None:
        token, gives_up_at = str(uuid.uuid4()), time.monotonic() + 0.01
        while not self._redis.setnx(self._lock, token):
            if time.monotonic() > gives_up_at:
                return None
            time.sleep(0.001)
        self._redis.expire(self._lock, LEASE_S)
        return token

    def unlock(self, token: str) -> None:
        import redis

        with self._redis.pipeline(True) as pipe, contextlib.suppress(redis.WatchError):
            pipe.watch(self._lock)  # type: ignore[no-untyped-call]
            if pipe.get(self._lock) == token.encode():
                pipe.multi()
                pipe.delete(self._lock)
                pipe.execute()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.close()


def five(lf: Any) -> Any:
    return lf.locks(*[f"bench:several:{number}" for number in range(AT_ONCE)], lease=LEASE_S)


SEMAPHORE, FAIR, RACE_FREE = "semaphore, 1 of 10", "text: fair semaphore", "text: race-free semaphore"
FAIR_REDIS_PY, RACE_FREE_REDIS_PY = f"{FAIR}, redis-py", f"{RACE_FREE}, redis-py"
PAIRS: dict[str, Callable[[Server], Opened[Pairs]]] = {
    "lock": lockfast_reused,
    "read": own(lambda lf: lf.rwlock("bench:read", lease=LEASE_S).read()),
    "write": own(lambda lf: lf.rwlock("bench:write", lease=LEASE_S).write()),
    "re-entrant lock": own(lambda lf: lf.rlock("bench:rlock", lease=LEASE_S)),
    SEMAPHORE: own(lambda lf: lf.semaphore("bench:semaphore", limit=LIMIT, lease=LEASE_S)),
    f"{AT_ONCE} locks at once": own(five),
    "asyncio: lock": in_tasks(own_asyncio(lambda lf: lf.lock("bench:aio", lease=LEASE_S)), 1, "stock loop"),
    f"asyncio: {AT_ONCE} locks at once": in_tasks(own_asyncio(five), 1, "stock loop"),
    FAIR: text("FairSemaphore"),
    RACE_FREE: text("RaceFreeSemaphore"),
    FAIR_REDIS_PY: redis_py_fair,
    RACE_FREE_REDIS_PY: redis_py_race_free,
}
# What is compared with what, and how many times its time it may take at most.
COSTS = [
    ("read", "lock", 1.25),
    ("write", "lock", 1.25),
    (SEMAPHORE, "lock", 1.25),
]
TOGETHER = [
    (f"{AT_ONCE} locks at once", "lock", 1.5),
    (f"asyncio: {AT_ONCE} locks at once", "asyncio: lock", 1.5),
]
GAINS = [(SEMAPHORE, FAIR_REDIS_PY, 4.0), (SEMAPHORE, RACE_FREE_REDIS_PY, 3.0)]


def print_pairs(samples: Samples) -> None:
    rows = []
    for name, by_round in samples.items():
        values = list(by_round.values())
        against = "asyncio: lock" if name.startswith("asyncio") else "lock"
        quartiles = f"{percentile(values, 25):.1f} to {percentile(values, 75):.1f}"
        row = [name, f"{statistics.median(values):.1f}", quartiles, median_ratio(samples, name, against)]
        rows.append(row)
    print_table(["contestant", "µs/pair", "quartiles", "× the lock"], rows)


# The crowd.


@contextlib.contextmanager
def crowd_lockfast(port: int, name: str) -> Iterator[Callable[[], Callable[[], object]]]:
    from lockfast.sync import Lockfast

    with Lockfast(f"redis://127.0.0.1:{port}/0") as lf:
        permit = lf.semaphore(name, limit=LIMIT, lease=LEASE_S, wait=WAIT_S)
        yield lambda: permit.acquire().release


def crowd_text(kind: str) -> Callable[[int, str], Opened[Callable[[], Callable[[], object]]]]:
    @contextlib.contextmanager
    def contestant(port: int, name: str) -> Iterator[Callable[[], Callable[[], object]]]:
        from lockfast import classic

        recipe = getattr(classic, kind)(name, LIMIT, timeout=LEASE_S)
        with classic.Client(f"redis://127.0.0.1:{port}/0") as client:

            def take() -> Callable[[], object]:
                while (taken := client.acquire(recipe)) is None:
                    time.sleep(random.random() * PAUSE_S)
                return lambda: client.release(recipe, taken)

            yield take

    return contestant


@contextlib.contextmanager
def crowd_redis_py(port: int, name: str) -> Iterator[Callable[[], Callable[[], object]]]:
    with _RedisPy(port, name) as semaphore:

        def take() -> Callable[[], object]:
            while (taken := semaphore.take_race_free()) is None:
                time.sleep(random.random() * PAUSE_S)
            token = taken
            return lambda: semaphore.give(token)

        yield take


CROWD: dict[str, Callable[[int, str], Opened[Callable[[], Callable[[], object]]]]] = {
    SEMAPHORE: crowd_lockfast,
    FAIR: crowd_text("FairSemaphore"),
    RACE_FREE: crowd_text("RaceFreeSemaphore"),
    RACE_FREE_REDIS_PY: crowd_redis_py,
}


@dataclass(frozen=True)
class Slice:
    """What the crowd did in one round."""

    sections_per_s: float
    busy: float
    peak: int
    jain: float


class Crowd:
    """The processes, forked once."""

    def __init__(self, count: int) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        for _ in range(count):
            ours, theirs = fork.Pipe()
            fork.Process(target=_work, args=(theirs,), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)

    def run(self, contestant: str, port: int, name: str, seconds: float) -> Slice:
        for pipe in self._pipes:
            pipe.send((contestant, port, name, seconds))
        for pipe in self._pipes:
            _answer(pipe)
        start_at = time.monotonic() + 0.05
        for pipe in self._pipes:
            pipe.send(start_at)
        by_worker = [_answer(pipe) for pipe in self._pipes]
        return _slice(by_worker, start_at, start_at + seconds)


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(ANSWER_WITHIN_S):
        raise SystemExit("a worker did not answer; the benchmark is given up")
    answer = pipe.recv()
    if isinstance(answer, str) and answer != "ready":
        raise SystemExit(f"a worker failed:\n{answer}")
    return answer


def _work(orders: Connection) -> None:
    die_with_parent()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            contestant, port, name, seconds = orders.recv()
            try:
                _serve(contestant, port, name, seconds, orders)
            except Exception:
                orders.send(traceback.format_exc(limit=-3))


def _serve(contestant: str, port: int, name: str, seconds: float, orders: Connection) -> None:
    sections: list[tuple[float, float]] = []
    with CROWD[contestant](port, name) as take:
        take()()  # once unmeasured: connecting and loading scripts are no part of it
        orders.send("ready")
        start_at = orders.recv()
        end_at = start_at + seconds
        time.sleep(max(0.0, start_at - time.monotonic()))
        while time.monotonic() < end_at:
            give = take()
            acquired_at = time.monotonic()
            time.sleep(SECTION_S)
            released_at = time.monotonic()
            give()
            sections.append((acquired_at, released_at))
    orders.send(sections)


def _slice(by_worker: list[list[tuple[float, float]]], start_at: float, end_at: float) -> Slice:
    everything = [section for own_sections in by_worker for section in own_sections]
    inside = [section for section in everything if start_at <= section[0] <= end_at]
    used_s = sum(min(end, end_at) - start for start, end in inside)
    changes = sorted([(start, 1) for start, _ in everything] + [(end, -1) for _, end in everything])
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    length_s = end_at - start_at
    return Slice(
        sections_per_s=len(inside) / length_s,
        busy=used_s / (LIMIT * length_s),
        peak=peak,
        jain=jain([sum(start_at <= start <= end_at for start, _ in own_sections) for own_sections in by_worker]),
    )


def print_crowd(slices: dict[str, dict[int, Slice]]) -> None:
    rates = {name: {number: one.sections_per_s for number, one in by.items()} for name, by in slices.items()}
    rows = []
    for name, by_round in slices.items():
        runs = list(by_round.values())
        if runs:
            middle = {field: statistics.median(getattr(one, field) for one in runs) for field in ("busy", "jain")}
            rate = statistics.median(rates[name].values())
            ratio = median_ratio(rates, SEMAPHORE, name)
            peak = str(max(one.peak for one in runs))
            rows.append([name, f"{rate:,.0f}", ratio, f"{middle['busy']:.0%}", peak, f"{middle['jain']:.3f}"])
    print_table(["contestant", "sections/s", "lockfast ×", "permits in use", "most at once", "Jain"], rows)


def goals(pairs: Samples, loose: Samples, slices: dict[str, dict[int, Slice]]) -> list[Goal]:
    found = [Goal(f"{name} / {other}", ratios(pairs, name, other), "<=", bound) for name, other, bound in COSTS]
    for name, other, bound in TOGETHER:
        label = f"{name} / {other}, not pinned (pinned: {median_ratio(pairs, name, other)})"
        found.append(Goal(label, ratios(loose, name, other), "<=", bound))
    found += [Goal(f"{other} / {name}", ratios(pairs, other, name), ">=", bound) for name, other, bound in GAINS]
    own_runs = list(slices.get(SEMAPHORE, {}).values())
    rates = {name: {number: one.sections_per_s for number, one in by.items()} for name, by in slices.items()}
    crowded = f"{SEMAPHORE} / {RACE_FREE_REDIS_PY}, sections/s of {PROCESSES} processes"
    found.append(Goal(crowded, ratios(rates, SEMAPHORE, RACE_FREE_REDIS_PY), ">=", 3.0))
    found.append(Goal("permits in use", [one.busy for one in own_runs], ">=", 0.95))
    found.append(Goal("most at once", [float(one.peak) for one in own_runs], "<=", LIMIT))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    command = parser("The other primitives beside the lock.", rounds=15)
    command.add_argument("--slice", type=float, default=0.15, help="seconds per contestant and round, of pairs")
    command.add_argument("--crowd-slice", type=float, default=1.0, help="the same of the crowd; 0 leaves it out")
    options = command.parse_args(arguments)
    rounds, slice_s, crowd_s = (3, 0.03, 0.4) if options.quick else (options.rounds, options.slice, options.crowd_slice)
    crowd = Crowd(PROCESSES) if crowd_s else None
    with running(options.server) as server, contextlib.ExitStack() as opened:
        report = Report("primitives", server.version)
        print(f"{report.title}, {rounds} rounds\n")
        runs = {name: opened.enter_context(PAIRS[name](server)) for name in chosen(list(PAIRS), options)}
        pairs = measure(runs, server, "pinned", rounds, slice_s, options.seed)
        report.samples["pairs"] = pairs
        print("pairs: client and server on one CPU\n")
        print_pairs(pairs)
        own = {name: run for name, run in runs.items() if not name.startswith("text")}
        loose = measure(own, server, "unpinned", rounds, slice_s, options.seed)
        report.samples["pairs, unpinned"] = loose
        print("pairs: not pinned, where the time is mostly that of the trip\n")
        print_pairs(loose)
        slices: dict[str, dict[int, Slice]] = {name: {} for name in chosen(list(CROWD), options)}
        if crowd is not None:
            for number, name in interleave(list(slices), rounds, options.seed, "crowd"):
                slices[name][number] = crowd.run(name, server.port, f"crowd {number} {name}", crowd_s)
            report.samples["crowd"] = {
                name: {number: asdict(one) for number, one in by.items()} for name, by in slices.items()
            }
            print(f"crowd: {PROCESSES} processes, limit {LIMIT}, sections of {SECTION_S * 1000:.0f} ms\n")
            print_crowd(slices)
        report.goals = goals(pairs, loose, slices)
        report.print_goals()
    return report.finish(options)


if __name__ == "__main__":
    sys.exit(main())
