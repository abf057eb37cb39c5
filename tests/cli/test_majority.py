"""`lockfast` on a majority of independent servers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from cli.conftest import Runs
from kit.proxy import Proxy
from kit.quorum import Masters

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[Masters]:
    with Masters(3, appendonly=True) as masters:
        yield masters


@pytest.fixture
def trio(shared: Masters) -> Iterator[Masters]:
    yield shared
    shared.heal()


@pytest.fixture
def on_trio(trio: Masters) -> Iterator[Runs]:
    runs = Runs(LOCKFAST_URL=" ".join(trio.urls))
    yield runs
    runs.close()


def test_command_runs_under_a_majority_and_others_see_it(on_trio: Runs, trio: Masters, name: str) -> None:
    holder = on_trio.holding(name)
    assert name in on_trio.end("ls")[1]
    code, out, err = on_trio.end("run", name, "-n", "--", "echo", "ran")
    assert (code, out) == (75, "")
    assert f"pid {holder.pid}" in err
    assert holder.end()[0] == 0
    url = ",".join(trio.urls)
    assert on_trio.end("run", name, "--url", url, "--", "sh", "-c", "echo $LOCKFAST_URL")[1] == f"{url}\n"


def test_ls_asks_each_server_for_each_name_once(on_trio: Runs, trio: Masters, name: str) -> None:
    names = [f"{name}|{number}" for number in range(5)]
    for each in names:
        on_trio.holding(each)
    proxies = [Proxy(server) for server in trio]
    code, out, _ = on_trio.end("ls", "--json", "--url", ",".join(proxy.url for proxy in proxies))
    assert code == 0
    assert [entry["name"] for entry in json.loads(out)] == names
    for proxy in proxies:
        assert len(proxy.seen("EVALSHA", containing=name)) <= len(names)
        proxy.close()


def test_minority_that_freezes_is_not_noticed(on_trio: Runs, trio: Masters, name: str) -> None:
    run = on_trio.holding(name, "--lease", "1s")
    trio[0].pause()
    time.sleep(1.5)  # longer than the lease: it was renewed by the others
    code, _, err = run.end()
    assert (code, err) == (0, "")


def test_majority_that_freezes_ends_the_command_within_the_lease(on_trio: Runs, trio: Masters, name: str) -> None:
    run = on_trio.start("run", name, "--lease", "1500ms", "--", "sh", "-c", "echo held; sleep 1000")
    assert run.line() == "held"
    trio[0].pause()
    trio[1].pause()
    since = time.monotonic()
    code, _, err = run.end()
    assert code == 76
    assert f"lost {name} (fence " in err
    assert time.monotonic() - since < 5
    trio.heal()


def test_waiting_for_servers_that_do_not_count_yet_is_told(name: str) -> None:
    with Masters(3) as masters:
        for server in masters:
            server.command("SET", "lockfast:quorum", 4000)
        runs = Runs(LOCKFAST_URL=" ".join(masters.urls))
        code, out, err = runs.end("run", name, "-v", "--lease", "4s", "--wait", "20s", "--", "echo", "ran")
        runs.close()
    assert (code, out) == (0, "ran\n")
    told = [line for line in err.splitlines() if "too few servers count yet, in " in line]
    assert len(told) == 1, err
    assert "held by" not in err


def test_log_lines_are_said_as_everything_else_and_not_with_quiet(on_trio: Runs, trio: Masters, name: str) -> None:
    loud = on_trio.holding(name, "--lease", "3s")
    quiet = on_trio.holding(f"{name}|quiet", "-q", "--lease", "3s")
    trio[0].pause()
    trio[1].pause()
    assert loud.error_line().startswith(f"lockfast: renewal of {name!r} failed, ")
    trio.heal()
    assert loud.error_line() == f"lockfast: renewal of {name!r} works again"
    assert loud.end()[::2] == (0, "")
    assert quiet.end()[::2] == (0, "")


def test_even_number_of_servers_is_told_in_a_line(name: str) -> None:
    with Masters(4, appendonly=True) as masters:
        runs = Runs(LOCKFAST_URL=" ".join(masters.urls))
        line = "lockfast: 4 servers bear no more failures than 3: name an odd number\n"
        assert runs.end("run", name, "--", "true") == (0, "", line)
        assert runs.end("ls", "--json") == (0, "[]\n", line)
        assert runs.end("run", name, "-q", "--", "true") == (0, "", "")
        runs.close()


def test_lease_that_the_servers_do_not_allow_is_wrong_usage(on_trio: Runs, name: str) -> None:
    code, _, err = on_trio.end("run", name, "--lease", "5m", "--", "true")
    assert code == 64
    assert "max_lease of this quorum is 60" in err


def test_what_a_majority_cannot_do_is_said_without_a_traceback(on_trio: Runs, name: str) -> None:
    on_trio.holding(name)
    for words in (["break", name, "--yes", "--reason", "why"], ["revoke", name], ["deadlocks"]):
        code, _, err = on_trio.end(*words)
        assert code == 64, words
        assert "majority of servers" in err
        assert "Traceback" not in err
