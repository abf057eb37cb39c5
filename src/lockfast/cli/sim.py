"""`sim`: run the shipped code in simulated worlds, many seeds at a time, or replay one and tell it line by line."""

from __future__ import annotations

import argparse
import json
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lockfast.cli.progress import Progress
from lockfast.cli.talk import BY_SIGNAL, UNREACHABLE, Failure, hint, say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from lockfast.sim.batch import Found
    from lockfast.sim.runs import Result

FAILED = 1
MAX_SEED = 2**63 - 1
MAX_JOBS = 256
MAX_SERVERS = 9
SHOWN = 10  # failing seeds that are listed; the count says how many there were


def add_arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.description = (
        "Run the lock, as shipped, in simulated worlds: clients, a server, clocks and a network that fail in\n"
        "every way that is known. Each seed is one world, always the same. Ends with 1 when a seed breaks a promise.\n"
        "With --servers 3 or more, a majority of independent servers decides."
    )
    parser.add_argument("--seeds", type=_number(1, MAX_SEED), default=1000, metavar="N", help="how many seeds (1000)")
    parser.add_argument(
        "--from", dest="first", type=_number(0, MAX_SEED), default=0, metavar="SEED", help="the first one (0)"
    )
    parser.add_argument("--jobs", type=_number(1, MAX_JOBS), default=1, metavar="N", help="processes at a time (1)")
    parser.add_argument(
        "--seed", type=_number(0, MAX_SEED), metavar="SEED", help="replay this one: its options, and all that happens"
    )
    parser.add_argument(
        "--servers", type=_number(1, MAX_SERVERS), default=1, metavar="N", help="how many servers each world has (1)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, got {text!r}")
        return int(text)

    return number


def main(options: Namespace) -> int:
    """The verb. 0 when every promise was kept, 1 when not, 130 when interrupted before anything was found."""
    if find_spec("lupa") is None:
        raise Failure(UNREACHABLE, "the simulator needs lupa, which is not installed", "pip install 'lockfast[lab]'")
    return _replay(options) if options.seed is not None else _run(options)


def _choices(options: Namespace) -> dict[str, Any] | None:
    return {"servers": options.servers} if options.servers > 1 else None


def _run(options: Namespace) -> int:
    from lockfast.sim.batch import run_many

    seeds = steps = script_runs = 0
    found: list[Found] = []
    interrupted = False
    progress = Progress(options.seeds, "seeds")
    started = time.monotonic()
    chunks = run_many(options.first, options.seeds, options.jobs, _choices(options))
    try:
        for chunk in chunks:
            seeds += chunk.seeds
            steps += chunk.steps
            script_runs += chunk.script_runs
            found += chunk.found
            progress.show(seeds, f"{len(found) or 'none'} failed")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.end()
        chunks.close()  # type: ignore[attr-defined]  # a generator: ends what runs in other processes
    took_s = time.monotonic() - started
    found.sort(key=lambda one: one.seed)
    if options.json:
        known = {"from": options.first, "seeds": seeds, "interrupted": interrupted, "steps": steps}
        known |= {"script_runs": script_runs, "seconds": round(took_s, 3)}
        known["failures"] = [{"seed": one.seed, "checkers": one.checkers, "why": one.why} for one in found]
        print(json.dumps(known, indent=2))
    else:
        for one in found[:SHOWN]:
            print(f"seed {one.seed}: {', '.join(one.checkers)}: {one.why}")
        if len(found) > SHOWN:
            print(f"… and {len(found) - SHOWN} more")
        print(f"{seeds} seeds, {script_runs} script runs, {took_s:.1f} s: {len(found) or 'none'} failed")
    if interrupted:
        say(f"interrupted after {seeds} of {options.seeds} seeds")
    if found:
        several = f" --servers {options.servers}" if options.servers > 1 else ""
        hint(f"replay it with `lockfast sim --seed {found[0].seed}{several}`")
        return FAILED
    return BY_SIGNAL + 2 if interrupted else 0


def _replay(options: Namespace) -> int:
    from lockfast.sim.runs import play, run_seed
    from lockfast.sim.shrink import shrink

    result = run_seed(options.seed, _choices(options), trace=True)
    short: Result | None = None
    if result.failed:
        say(f"seed {options.seed} fails: {', '.join(result.failed)}; looking for a shorter run that does, too")
        short = play(shrink(result), trace=True)
    if options.json:
        print(json.dumps(_told(result) | {"shrunk": _told(short) if short is not None else None}, indent=2))
    else:
        print(f"seed {options.seed}")
        print("\n".join(f"  {line}" for line in result.plan.options.lines()))
        _tell(result, result.trace)
        if short is not None:
            print(f"\nthe same, shorter: {len(short.plan.clients)} clients, {len(short.plan.faults)} faults")
            _tell(short, short.trace_to_failure())
    return FAILED if result.failed else 0


def _tell(result: Result, trace: tuple[str, ...]) -> None:
    print("\n".join(["", *result.plan.lines(), "", *trace, ""]))
    for name, verdict in result.verdicts.items():
        print(f"{name:<25} {verdict}")


def _told(result: Result) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "failed": result.failed,
        "options": result.plan.options.lines(),
        "plan": result.plan.lines(),
        "verdicts": {
            name: {"status": verdict.status, "excused": verdict.excused, "why": verdict.why}
            for name, verdict in result.verdicts.items()
        },
        "trace": result.trace_to_failure(),
    }
