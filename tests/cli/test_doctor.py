"""`lockfast doctor`: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
from typing import TYPE_CHECKING

import pytest

from kit.servers import wait_until
from lockfast.doctor.catalogue import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Runs
    from kit.servers import FreshServer, Server

pytestmark = pytest.mark.slow


def test_fit_server_ends_with_zero(fresh_server: FreshServer, runs_on: Callable[[Server], Runs]) -> None:
    code, out, err = runs_on(fresh_server(appendonly=True)).end("doctor")
    assert (code, err) == (0, "")
    assert out.endswith("\nverdict: fit for locks: 1 note\n")
    assert "ok       persistence: append-only file, appendfsync always [persistence-always]\n" in out


def test_warning_ends_with_one_and_is_accepted_by_its_key(runs: Runs, valkey_server: Server) -> None:
    valkey_server.command("FLUSHALL")
    code, out, err = runs.end("doctor")
    assert (code, err) == (1, "")
    assert "\nWARNING  persistence: appendonly no, no snapshots [persistence-none]\n" in out
    assert f"mend: redis-cli -s {valkey_server.unix_path} CONFIG SET appendonly yes" in " ".join(out.split())
    code, out, _ = runs.end("doctor", "--accept", "persistence-none")
    assert code == 0
    assert "[persistence-none, accepted]" in out
    code, _, err = runs.end("doctor", "--accept", "persistence-non")
    assert code == 64
    assert "persistence-non" in err


def test_problem_ends_with_two_and_stands_first(fresh_server: FreshServer, runs_on: Callable[[Server], Runs]) -> None:
    server = fresh_server(extra=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
    code, out, _ = runs_on(server).end("doctor")
    assert code == 2
    marks = [line.split()[0] for line in out.splitlines()[2:] if line and not line.startswith(" ")]
    order = ["PROBLEM", "WARNING", "note", "ok", "verdict:"]
    assert marks == sorted(marks, key=order.index)
    assert marks[0] == "PROBLEM"
    assert "verdict: not fit for locks: 1 problem, 1 warning, 1 note" in out


def test_json_is_one_object_with_everything(runs: Runs, valkey_server: Server) -> None:
    code, out, err = runs.end("doctor", "--json", "--url", valkey_server.url)
    told = json.loads(out)
    assert (code, err) == (1, "")
    assert told["version"] == 1
    assert (told["shape"], told["level"], told["exit_code"]) == ("one", "warning", 1)
    (server,) = told["servers"]
    assert server["server"] == valkey_server.url
    assert (server["product"], server["role"], server["reached"]) == ("valkey", "primary", True)
    assert server["trip_ms_median"] <= server["trip_ms_worst"]
    for finding in told["findings"]:
        assert set(finding) == {"key", "level", "topic", "server", "seen", "why", "mend", "accepted"}
        assert CATALOGUE[finding["key"]].why == finding["why"]


def test_nobody_there_is_69_and_not_let_in_is_77_without_the_secret(fresh_server: FreshServer, runs: Runs) -> None:
    code, out, _ = runs.end("doctor", "--url", "redis://127.0.0.1:1/0")
    assert code == 69
    assert out.endswith("verdict: cannot be judged: no answer\n")
    code, out, _ = runs.end("doctor", "--url", "redis://127.0.0.1:1/0", "--json")
    assert (code, json.loads(out)["level"]) == (69, "unreachable")
    server = fresh_server(requirepass="sesame")
    for more in ([], ["--json"]):
        code, out, err = runs.end("doctor", "--url", f"redis://:hunter2@127.0.0.1:{server.port}/0", *more)
        assert code == 77
        assert "not-let-in" in out
        assert "hunter2" not in out + err


@pytest.mark.parametrize("url", ["", "gopher://x", "sentinel://h:1", "redis://a cluster://b", "redis://:hunter2@a:x"])
def test_url_that_cannot_be_read_is_wrong_usage(runs: Runs, url: str) -> None:
    code, out, err = runs.end("doctor", "--url", url)
    assert (code, out) == (64, "")
    assert "hint: " in err
    assert "hunter2" not in err


def test_embedded_server_is_judged_by_its_scope(embedded_runs: Runs) -> None:
    code, out, err = embedded_runs.end("doctor")
    assert (code, err) == (0, "")
    assert "embedded: this user on this host only" in " ".join(out.split())
    assert "LOCKFAST_URL=redis://host:6379/0" in out
    assert embedded_runs.env["LOCKFAST_HOME"] in " ".join(out.split())


def test_quorum_is_told_by_node(fresh_server: FreshServer, runs: Runs) -> None:
    urls = [fresh_server().url for _ in range(2)]
    code, out, _ = runs.end("doctor", "--timeout", "500ms", "--url", " ".join([*urls, "redis://127.0.0.1:1/0"]))
    assert code == 1
    flat = " ".join(out.split())
    assert (
        "quorum: 2 of 3 nodes answer, 2 are needed; 0 more may fail; cannot connect to redis://127.0.0.1:1/0: " in flat
    )
    assert all(f"127.0.0.1 is this host ({url}) [scope-host]" in flat for url in urls)
    assert "ok role: primary (2 servers) [role-primary]" in flat
    assert flat.count(CATALOGUE["scope-host"].why) == 1  # of findings that are alike, why is told once


def test_interrupt_ends_it_at_once_while_the_server_hangs(fresh_server: FreshServer, runs: Runs) -> None:
    server = fresh_server()
    server.pause()
    doctor = runs.start("doctor", "--url", server.url, "--timeout", "60s")
    wait_until(lambda: _is_connected(server.port), what="connected")
    doctor.send_signal(signal.SIGINT)
    code, out, err = doctor.end()
    assert (code, out, err) == (130, "", "")


def _is_connected(port: int) -> bool:
    """Whether anybody has a connection to this port of 127.0.0.1; the paused server itself cannot tell."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        return any(line.split()[2] == f"0100007F:{port:04X}" and line.split()[3] == "01" for line in file)


def test_terminal_gets_colours_and_its_width(runs: Runs) -> None:
    controller, terminal = pty.openpty()
    runs.env |= {"COLUMNS": "60", "TERM": "xterm"}
    runs.env.pop("NO_COLOR", None)
    doctor = runs.start("doctor", stdout=terminal)
    os.close(terminal)
    out = b""
    while True:
        try:
            out += os.read(controller, 65536)
        except OSError:  # the other side is closed
            break
    os.close(controller)
    assert doctor.wait(20) == 1
    assert b"\x1b[1;33mWARNING\x1b[0m" in out
    plain = out.replace(b"\x1b[1;33m", b"").replace(b"\x1b[0m", b"").replace(b"\x1b[36m", b"").replace(b"\x1b[32m", b"")
    long = [line for line in plain.decode().splitlines() if len(line) > 60]
    assert all(len(line.split()) <= 2 for line in long), long  # only what has no place to break


def test_help_teaches_levels_and_exit_codes(runs: Runs) -> None:
    code, out, _ = runs.end("doctor", "--help")
    assert code == 0
    for words in ("exit codes:", "levels:", "--accept", "--json", "--url", "sentinel://", "cluster://", "69", "77"):
        assert words in out
