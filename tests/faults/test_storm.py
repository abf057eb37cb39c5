"""A storm: many processes, three names, and a network that loses replies, requests, pushes and whole connections."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest

from faults import storm_worker
from faults.actors import Script
from faults.storm_worker import LEASE_S

if TYPE_CHECKING:
    from pathlib import Path

    from faults.conftest import Eyes
    from kit.proxy import Proxy, ProxyFor
    from kit.servers import Server

SECTIONS = 500
SIDES = ["threads", "asyncio", "threads", "asyncio"]
RUN = "from faults.storm_worker import main; main()"


class Section(NamedTuple):
    """One time under the lock: from right after the acquire to right before the release, on CLOCK_MONOTONIC."""

    fence: int
    start: float
    end: float
    held: bool


@pytest.mark.slow
def test_storm_of_lost_messages_and_killed_connections(
    server: Server, proxy_for: ProxyFor, eyes: Eyes, tmp_path: Path, name: str
) -> None:
    """F3-F6, F46: 2,000 acquires of 4 processes: every section runs, alone, in order of its fence, without a gap."""
    names = [f"{name}-{number}" for number in range(3)]
    files = [tmp_path / f"sections-{number}" for number in range(len(SIDES))]
    with ExitStack() as running:
        proxies = [proxy_for(server) for _ in SIDES]
        scripts = [
            running.enter_context(Script(RUN, side, proxy.url, str(path), str(SECTIONS), "4", *names))
            for side, proxy, path in zip(SIDES, proxies, files, strict=True)
        ]
        strikes = disturb(proxies, scripts, random.Random(name))
        for script in scripts:
            code, _, errors = script.end()
            assert code == 0, errors
    sections = read(files, names)
    assert sum(map(len, sections.values())) == SECTIONS * len(SIDES), "every section runs"
    assert strikes >= 100, "it was a storm"
    for each in names:
        check(sections[each])
        assert eyes.is_free(each)


def disturb(proxies: list[Proxy], scripts: list[Script], rng: random.Random) -> int:
    """Strikes the line of each process at every 30th request or so, until all have ended; returns how often."""
    strikes = 0
    faults = ["drop_reply", "drop_reply_and_cut", "cut_request", "swallow_request"]
    next_at = [rng.randrange(15, 45) for _ in proxies]
    while any(script.poll() is None for script in scripts):
        for number, proxy in enumerate(proxies):
            if len(proxy.requests) < next_at[number]:
                continue
            choice = rng.random()
            if choice < 0.35:
                proxy.cut_all(reset=rng.random() < 0.5)
            elif choice < 0.37:
                proxy.when_push().drop()
            else:
                getattr(proxy.when("EVALSHA"), rng.choice(faults))()
            strikes += 1
            next_at[number] = len(proxy.requests) + rng.randrange(15, 45)
        time.sleep(0.002)
    return strikes


def read(files: list[Path], names: list[str]) -> dict[str, list[Section]]:
    sections: dict[str, list[Section]] = {each: [] for each in names}
    for path in files:
        for line in path.read_text().splitlines():
            each, fence, start, end, held = line.split()
            sections[each].append(Section(int(fence), float(start), float(end), held == "True"))
    return {each: sorted(found, key=lambda section: section.start) for each, found in sections.items()}


def check(sections: list[Section]) -> None:
    """No overlap, fences that grow in the order of the sections, no loss, and no gap that only a lease has ended."""
    for before, after in pairwise(sections):
        assert before.end <= after.start, "two were inside at once"
        assert before.fence < after.fence
    assert all(section.held for section in sections)
    longest = max((after.start - before.end for before, after in pairwise(sections)), default=0.0)
    assert longest < LEASE_S * 0.6, f"the name lay idle for {longest:.1f} s"


def test_the_checker_of_the_storm_sees_what_it_is_for() -> None:
    """A checker that never fails has not been tested."""
    good = [Section(1, 0.0, 1.0, True), Section(2, 1.5, 2.0, True), Section(5, 2.1, 2.2, True)]
    check(good)
    for bad in (
        Section(6, 2.15, 3.0, True),  # overlaps
        Section(4, 3.0, 3.1, True),  # an older fence
        Section(6, 3.0, 3.1, False),  # lost
        Section(6, 2.2 + LEASE_S * 0.7, 20.0, True),  # a gap
    ):
        with pytest.raises(AssertionError):
            check([*good, bad])
    assert storm_worker.WAIT_S > LEASE_S
