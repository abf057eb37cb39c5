"""How long a whole `lockfast run x -- true` takes, against `python -c pass` and `flock(1)`, all in one run.

    python benchmarks/cli_start.py [--url URL] [--rounds N]

Runs are interleaved, so that whatever else the machine does falls on all of them alike, and the median is told. The
server is warm. It also checks what the path imports: redis-py alone would cost more than everything else together.
Ends with 1 when the limit of 100 ms or a rule on imports is broken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
LIMIT_MS = 100.0
FORBIDDEN = ("asyncio", "dataclasses", "inspect", "logging", "redis", "ssl", "subprocess", "valkey")
# The same as the command `lockfast`, with a look at what was imported by the time it ends.
LOOK = """
import sys
from lockfast.cli.main import main
code = main(["run", "bench", "--", "true"])
print(" ".join(sorted(name for name in sys.modules)))
sys.exit(code)
"""


def elapsed_ms(argv: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=env, check=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="a server; default: an embedded one of its own")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as home:
        env = dict(os.environ) | {"PYTHONPATH": str(SOURCE), "LOCKFAST_HOME": home, "LOCKFAST_GRACE_S": "30"}
        # As for an installed package: compiled once, not at every start.
        env["PYTHONPYCACHEPREFIX"] = os.path.join(home, "compiled")
        for name in ("LOCKFAST_URL", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        if options.url:
            env["LOCKFAST_URL"] = options.url
        try:
            return measure(env, home, options.rounds)
        finally:
            if not options.url:
                subprocess.run([sys.executable, "-m", "lockfast", "server", "stop"], env=env, check=True)


def measure(env: dict[str, str], home: str, rounds: int) -> int:
    lockfast = [sys.executable, "-c", "from lockfast.cli.main import main; raise SystemExit(main())", "run", "bench"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "flock FILE true": ["flock", os.path.join(home, "file"), "true"],
        "lockfast run x -- true": [*lockfast, "--", "true"],
        "lockfast run x --on-lost ignore -- true": [*lockfast, "--on-lost", "ignore", "--", "true"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for argv in commands.values():
        elapsed_ms(argv, env)  # Warms the file cache and the .pyc files, and starts the server.
    seen = subprocess.run([sys.executable, "-c", LOOK], env=env, check=True, capture_output=True, text=True)
    for _ in range(rounds):
        for name, argv in commands.items():
            taken[name].append(elapsed_ms(argv, env))
    print(f"{'median ms':>10}{'min':>8}{'max':>8}   of {rounds} interleaved runs")
    for name, values in taken.items():
        print(f"{statistics.median(values):>10.1f}{min(values):>8.1f}{max(values):>8.1f}   {name}")
    imported = set(seen.stdout.split())
    wrong = sorted(imported.intersection(FORBIDDEN))
    print(f"{len(imported)} modules imported; of those it must not import: {', '.join(wrong) or 'none'}")
    slow = statistics.median(taken["lockfast run x -- true"]) > LIMIT_MS
    if slow:
        print(f"over the limit of {LIMIT_MS:.0f} ms")
    return 1 if slow or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
