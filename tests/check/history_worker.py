"""One process of a recorded history: threads that take two names in turn, each telling a recorder what it does."""

from __future__ import annotations

import random
import sys
import threading

from lockfast.check.record import Recorder
from lockfast.sync import Lockfast

WAIT_S = 20.0


def section(lf: Lockfast, recorder: Recorder, name: str, lease_s: float) -> None:
    """One time under the lock. What is recorded is never more than what was: see record.py."""
    ticket = recorder.asked(name, lease=lease_s)
    try:
        grant = lf.lock(name, lease=lease_s, wait=WAIT_S).acquire()
    except BaseException as failure:
        recorder.failed(ticket, repr(failure))
        raise
    recorder.granted(ticket, grant)
    recorder.wrote(ticket, grant.fence)
    recorder.leaving(ticket)
    grant.release()
    recorder.left(ticket)


def work_in_threads(
    url: str, recorder: Recorder, names: list[str], sections: int, threads: int, lease_s: float
) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for _ in range(sections):
                section(lf, recorder, rng.choice(names), lease_s)
        except BaseException as failure:
            failures.append(failure)

    with Lockfast(url) as lf:
        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]


def hold_until_killed(url: str, recorder: Recorder, name: str, lease_s: float) -> None:
    with Lockfast(url) as lf:
        ticket = recorder.asked(name, lease=lease_s)
        recorder.granted(ticket, lf.lock(name, lease=lease_s, renew=False).acquire())
        print("holding", flush=True)
        sys.stdin.read()


def main() -> None:
    what, url, path, client, lease, *rest = sys.argv[1:]
    with Recorder(path, client) as recorder:
        if what == "hold":
            hold_until_killed(url, recorder, rest[0], float(lease))
        else:
            sections, threads, *names = rest
            work_in_threads(url, recorder, names, int(sections), int(threads), float(lease))


if __name__ == "__main__":
    main()
