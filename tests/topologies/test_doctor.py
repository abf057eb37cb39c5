"""What the doctor finds on real servers that are set up badly: memory, disk, connections, neighbours."""

from __future__ import annotations

import dataclasses
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockfast
from kit.servers import Server, wait_until
from lockfast import Lockfast
from lockfast.doctor import findings
from lockfast.doctor.catalogue import CATALOGUE
from topologies.doctoring import bad, facts_of, keys, look, pasted, the

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import FreshServer


# A good one


def test_server_that_keeps_what_it_answers_is_fit(fresh_server: FreshServer) -> None:
    report = look(fresh_server(appendonly=True).url)
    assert bad(report) == set()
    assert report.level == "note"  # that 127.0.0.1 means this host
    assert report.verdict == "fit for locks: 1 note"
    assert {finding.topic for finding in report.findings} >= {
        *("version", "role", "rights", "persistence", "memory", "clock", "latency", "neighbours", "scope")
    }


# Memory


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lru"])
def test_any_eviction_takes_locks(sick: Server, configure: Callable[..., None], policy: str) -> None:
    configure(maxmemory="100mb", maxmemory_policy=policy)
    finding = the(look(sick.url), "eviction-on")
    assert finding.level == "problem"
    assert policy in finding.seen
    assert "noeviction" in finding.mend
    configure(maxmemory="0")
    assert the(look(sick.url), "eviction-waiting").level == "warning"


def test_mending_by_the_command_that_is_told_mends(sick: Server, configure: Callable[..., None]) -> None:
    configure(maxmemory="100mb", maxmemory_policy="allkeys-lfu")
    sick.command(*pasted(the(look(sick.url), "eviction-on").mend))
    assert "eviction-none" in keys(look(sick.url))


def test_full_server_and_one_nearly_so(sick: Server, configure: Callable[..., None]) -> None:
    look(sick.url)  # commands that run for the first time make the server keep statistics of them
    sick.command("SET", "lockfast:ballast", "x" * 8_000_000)  # beside which the buffers of a connection are small
    used = int(sick.info("memory")["used_memory"])
    configure(maxmemory=str(used // 2))
    assert the(look(sick.url), "memory-full").level == "problem"
    configure(maxmemory=str(int(used * 1.05)))
    assert the(look(sick.url), "memory-near").level == "warning"
    sick.command("DEL", "lockfast:ballast")


# Persistence


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"appendonly": "no", "save": ""}, "persistence-none"),
        ({"appendonly": "no", "save": "3600 1"}, "persistence-snapshots"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "persistence-everysec"),
        ({"appendonly": "yes", "appendfsync": "no"}, "persistence-no-fsync"),
        ({"appendonly": "yes", "appendfsync": "always"}, "persistence-always"),
    ],
)
def test_persistence(sick: Server, configure: Callable[..., None], settings: dict[str, str], key: str) -> None:
    configure(**settings)
    found = {finding.key for finding in look(sick.url).findings if finding.key.startswith("persistence-")}
    assert found == {key}


@pytest.mark.slow
def test_disk_that_cannot_be_written(fresh_server: FreshServer) -> None:
    server = fresh_server(extra=("--save", "3600 1"))
    (server.data / "dump.rdb").mkdir()
    server.command("SET", "x", "1")
    server.command("BGSAVE")
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
    assert the(look(server.url), "disk-refuses").level == "problem"
    server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
    assert the(look(server.url), "disk-failing").level == "warning"


# Connections, neighbours, scope


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"timeout": "60"}, "idle-timeout"),
        ({"tcp_keepalive": "0"}, "keepalive-off"),
        ({"client_output_buffer_limit": "pubsub 65536 0 0"}, "push-buffer-small"),
        ({"lua_time_limit": "0"}, "script-limit-off"),
    ],
)
def test_settings_of_connections(
    sick: Server, configure: Callable[..., None], settings: dict[str, str], key: str
) -> None:
    assert key not in keys(look(sick.url))
    configure(**settings)
    report = look(sick.url)
    finding = the(report, key)
    assert re.search(r"\d", finding.seen)


@pytest.mark.slow
def test_connections_that_run_out(sick: Server, configure: Callable[..., None]) -> None:
    wait_until(lambda: sick.connections() == 0)
    configure(maxclients="8")
    with ExitStack() as stack:
        idle = [stack.enter_context(sick.wire()) for _ in range(6)]
        assert the(look(sick.url), "clients-near-limit").seen == "7 of 8 connections in use"
        wait_until(lambda: idle[0].call("INFO", "clients").count(b"connected_clients:6") == 1)
        for _ in range(2):
            stack.enter_context(sick.wire()).call("PING")
        report = look(sick.url)
        assert "maxclients" in the(report, "clients-at-limit").mend
        assert report.level == "unreachable"


def test_keys_of_others_and_names_in_use(sick: Server, configure: Callable[..., None]) -> None:
    sick.command("MSET", "lockfast:{theirs}", "hello", "session:1", "x", "session:2", "y", "lockfast:quorum", "30000")
    sick.command("HSET", "lockfast:{hash}", "f", "v")
    sick.command("SET", "lockfast:{ended}", "1 lock 1 5 0 0 0 a.b.c 1000 900 host 1")  # its lease is long over
    sick.command("SET", "lockfast:{later}", "9 lock 1 5 0 0 0 - 0 0 ")
    with Lockfast(sick.url) as lf, lf.lock("held", lease=5), lf.semaphore("gpu", limit=2):
        with lf.lock("free", lease=5):
            pass
        report = look(sick.url)
    assert the(report, "names-in-use").seen == "2 in use, 4 remembered"
    assert the(report, "shared-database").seen.startswith("2 keys")
    strange = the(report, "keys-not-ours").seen
    assert strange.startswith("3: ")
    assert all(key in strange for key in ("{theirs}", "{hash}", "{later}"))


def test_scopes(valkey_server: Server) -> None:
    assert the(look(valkey_server.unix_url), "scope-host").seen == "a unix socket"
    told = facts_of(look(valkey_server.url))
    elsewhere = {finding.key for finding in findings.judge(dataclasses.replace(told, host="cache.example"))}
    assert "scope-open" in elsewhere
    assert "scope-host" not in elsewhere


def test_accepted_findings_count_as_notes(valkey_server: Server) -> None:
    valkey_server.command("FLUSHALL")
    report = look(valkey_server.url)
    assert bad(report) == {"persistence-none"}
    accepted = report.accepting({"persistence-none"})
    assert accepted.level == "note"
    assert the(accepted, "persistence-none").accepted


def test_every_finding_is_in_the_catalogue_and_every_entry_is_found_somewhere() -> None:
    source = "".join(path.read_text() for path in (Path(lockfast.__file__).parent / "doctor").glob("*.py"))
    for key, entry in CATALOGUE.items():
        assert f'"{key}"' in source, key
        assert entry.why.endswith("."), key
        assert entry.mend or entry.level == "ok" or key == "quorum-lease-missing", key
