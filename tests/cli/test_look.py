"""`ls`, `show`, `break` and `server`: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from cli.processes import LOCKFAST
from kit.servers import wait_until
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Runs
    from kit.proxy import Proxy
    from kit.servers import FreshServer, Server

pytestmark = pytest.mark.slow


@pytest.fixture
def alone(fresh_server: FreshServer, runs_on: Callable[[Server], Runs]) -> Runs:
    """The command on a server where nothing else is held."""
    return runs_on(fresh_server())


def test_revoke_asks_the_holder_and_leaves_the_hold_alone(alone: Runs) -> None:
    assert alone.end("revoke", "nightly") == (0, "", "lockfast: nightly is not held; there is nobody to ask\n")
    alone.holding("nightly")
    code, out, err = alone.end("revoke", "nightly")
    assert (code, out) == (0, "")
    assert "asked 1 holder of nightly to let go" in err
    assert len(alone.shown("nightly")["holders"]) == 1


def test_ls_of_nothing_prints_no_data(alone: Runs) -> None:
    assert alone.end("ls") == (0, "", "lockfast: nothing is held, and nobody waits\n")
    assert alone.end("ls", "--json") == (0, "[]\n", "")


def test_ls_is_a_table_of_what_is_held(alone: Runs) -> None:
    first = alone.holding("nightly", "--label", "the report")
    second = alone.holding("cart|item:7")
    alone.start("run", "nightly", "--", "true")
    wait_until(lambda: alone.shown("nightly")["waiters"], what="queued")
    code, out, err = alone.end("ls")
    assert (code, err) == (0, "")
    head, cart, nightly = [re.split(r" {2,}", line) for line in out.splitlines()]
    assert head == ["NAME", "HOST", "PID", "FOR", "LEASE LEFT", "WAITING", "LABEL"]
    host = socket.gethostname()
    assert cart[:3] == ["cart|item:7", host, str(second.pid)]
    assert cart[5:] == ["0", "sh -c echo held; cat"]
    assert nightly[:3] == ["nightly", host, str(first.pid)]
    assert nightly[5:] == ["1", "the report"]
    names = [entry["name"] for entry in json.loads(alone.end("ls", "--json")[1])]
    assert names == ["cart|item:7", "nightly"]


def test_ls_asks_for_each_name_once_and_for_all_of_them_together(
    server: Server, proxy: Proxy, runs_on: Callable[[Server], Runs]
) -> None:
    names = [f"ls-{number}" for number in range(20)]
    with Lockfast(server.url) as lf:
        grants = [lf.lock(name).acquire() for name in names]
        assert lf.names() == sorted((name,) for name in names)  # and the server knows the script from here on
        held_back = proxy.when("EVALSHA").delay_reply()
        listing = runs_on(server).start("ls", "--json", "--url", proxy.url)
        proxy.wait_for("EVALSHA", count=len(names))
        held_back.wait_hit()
        held_back.let_go()
        code, out, err = listing.end()
        assert (code, err) == (0, "")
        assert [entry["name"] for entry in json.loads(out)] == sorted(names)
        assert [entry["holders"][0]["ticket"] for entry in json.loads(out)] == [
            grant.ticket for _, grant in sorted(zip(names, grants, strict=True))
        ]
    assert len(proxy.seen("EVALSHA")) == len(names)


def test_show_has_holder_and_waiters_in_order(runs: Runs, name: str) -> None:
    holder = runs.holding(name)
    waiters = []
    for number in range(1, 4):
        waiters.append(runs.start("run", name, "--label", f"number {number}", "--", "true"))
        wait_until(lambda number=number: len(runs.shown(name)["waiters"]) == number, what="queued")  # type: ignore[misc]
    code, out, err = runs.end("show", name)
    assert (code, err) == (0, "")
    lines = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    assert lines[0] == [f"{name}: held, 3 waiting"]
    assert lines[1:3] == [["holders"], ["HOST", "PID", "SINCE", "FOR", "LEASE LEFT", "FENCE", "LABEL"]]
    snapshot = runs.shown(name)
    host = socket.gethostname()
    assert lines[3][:2] == [host, str(holder.pid)]
    assert lines[3][5] == str(snapshot["fence"])
    assert lines[4:6] == [["waiters"], ["#", "HOST", "PID", "SINCE", "FOR", "LABEL"]]
    assert [(line[0], line[2], line[5]) for line in lines[6:]] == [
        (str(number), str(run.pid), f"number {number}") for number, run in enumerate(waiters, 1)
    ]
    assert [waiter["owner"]["pid"] for waiter in snapshot["waiters"]] == [run.pid for run in waiters]


def test_show_of_a_free_name(runs: Runs, name: str) -> None:
    assert runs.end("show", name) == (0, f"{name}: free, 0 waiting\n", "")
    assert runs.shown(name)["holders"] == []


def test_labels_of_others_cannot_control_the_terminal(runs: Runs, name: str) -> None:
    runs.holding(name, "--label", "\x1b[2Jboo\u202e")
    for words in (["show", name], ["ls"]):
        _, out, _ = runs.end(*words)
        assert "boo" in out
        assert "\x1b" not in out
        assert "\u202e" not in out


def test_reader_who_has_seen_enough_is_no_error(runs: Runs, name: str) -> None:
    runs.holding(name)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as broken:
        assert runs.end("ls", stdout=broken) == (141, "", "")


def test_break_needs_a_yes(runs: Runs, name: str) -> None:
    runs.holding(name)
    code, out, err = runs.end("break", name)
    assert (code, out) == (64, "")
    assert "hint: say --yes" in err
    assert runs.shown(name)["holders"]


def test_break_hands_over_to_the_next_and_show_tells_why(runs: Runs, name: str) -> None:
    holder = runs.holding(name)
    second = runs.start("run", name, "--", "sh", "-c", "echo second; cat")
    wait_until(lambda: runs.shown(name)["waiters"], what="queued")
    code, out, err = runs.end("break", name, "--yes", "--reason", "it hung, says Ada")
    assert (code, out) == (0, "")
    assert re.fullmatch(rf"lockfast: took {name} away from \S+ pid {holder.pid} \(fence \d+\)\n", err)
    assert second.line() == "second"
    _, out, _ = runs.end("show", name)
    assert re.search(r"^last broken \d\d:\d\d:\d\d \(.* before\) by .*: it hung, says Ada$", out, re.MULTILINE)


def test_break_of_a_free_name_does_nothing(runs: Runs, name: str) -> None:
    assert runs.end("break", name, "--yes") == (0, "", f"lockfast: {name} is not held; there is nothing to break\n")


def test_server_starts_tells_and_stops(embedded_runs: Runs) -> None:
    code, out, err = embedded_runs.end("server", "status")
    assert (code, out) == (3, "")
    assert "does not run" in err
    code, started, _ = embedded_runs.end("server", "start")
    assert code == 0
    assert [line.split()[0] for line in started.splitlines()][:3] == ["pid", "version", "up"]
    code, out, _ = embedded_runs.end("server", "status")
    assert (code, out.splitlines()[0]) == (0, started.splitlines()[0])
    (url,) = re.findall(r"^url +(unix:///\S+)$", out, re.MULTILINE)
    assert embedded_runs.end("ls", "--url", url)[0] == 0
    assert embedded_runs.end("server", "stop") == (0, "", "lockfast: the embedded server is stopped\n")
    assert embedded_runs.end("server", "stop") == (0, "", "lockfast: the embedded server did not run\n")
    assert embedded_runs.end("server", "status")[0] == 3


def test_module_and_command_are_the_same(runs: Runs) -> None:
    assert LOCKFAST[1:] == ["-m", "lockfast"]
    command = "import sys; from lockfast.cli.main import main; sys.exit(main())"
    as_command = subprocess.run(
        [LOCKFAST[0], "-c", command, "--version"], env=runs.env, capture_output=True, check=True
    )
    assert as_command.stdout.decode() == runs.end("--version")[1]
