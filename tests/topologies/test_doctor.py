"""What the doctor finds on real servers that are set up badly, and that it leaves nothing behind."""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockfast
from kit.resp import ServerError
from kit.servers import Server, wait_until
from lockfast import Lockfast
from lockfast.doctor import Report, access, examine, facts, findings, rights
from lockfast.doctor.catalogue import CATALOGUE, Finding
from lockfast.doctor.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit.proxy import Proxy, ProxyFor
    from kit.servers import FreshServer, Kind

_users = itertools.count(1)


@pytest.fixture(scope="module")
def sick() -> Iterator[Server]:
    """A Valkey that tests reconfigure; `configure` mends it after each."""
    with Server("valkey") as server:
        yield server


@pytest.fixture
def configure(sick: Server) -> Iterator[Callable[..., None]]:
    """CONFIG SET for one test."""
    before: dict[str, bytes] = {}

    def change(**settings: str) -> None:
        for name, value in settings.items():
            name = name.replace("_", "-")
            before.setdefault(name, sick.command("CONFIG", "GET", name)[1])
            sick.command("CONFIG", "SET", name, value)

    sick.command("FLUSHALL")
    yield change
    for name, value in before.items():
        sick.command("CONFIG", "SET", name, value)


def look(url: str, timeout_s: float = 2.0) -> Report:
    report = examine(url, timeout_s=timeout_s)
    for finding in report.findings:
        assert finding.seen
        assert "{" not in finding.mend
        assert finding.mend or finding.level == "ok" or finding.key == "quorum-lease-missing"
    return report


def the(report: Report, key: str) -> Finding:
    found = [finding for finding in report.findings if finding.key == key]
    assert len(found) == 1, [finding.key for finding in report.findings]
    return found[0]


def keys(report: Report) -> set[str]:
    return {finding.key for finding in report.findings}


def facts_of(report: Report) -> Facts:
    server = report.servers[0]
    assert isinstance(server, Facts)
    return server


def bad(report: Report) -> set[str]:
    """What is worse than a note."""
    return {finding.key for finding in report.findings if finding.level in ("warning", "problem")}


# A good one


def test_server_that_keeps_what_it_answers_is_fit(fresh_server: FreshServer) -> None:
    report = look(fresh_server(appendonly=True).url)
    assert bad(report) == set()
    assert report.level == "note"  # that 127.0.0.1 means this host
    assert report.verdict == "fit for locks: 1 note"
    assert {finding.topic for finding in report.findings} >= {
        *("version", "role", "rights", "persistence", "memory", "clock", "latency", "neighbours", "scope")
    }


@pytest.mark.parametrize("rules", [[], ["-acl|dryrun"]], ids=["asked", "tried"])
def test_nothing_is_changed_on_the_server(server: Server, account: Callable[..., str], rules: list[str]) -> None:
    url = account(*rules)

    def state() -> tuple[object, ...]:
        info = server.info("everything")
        return (
            server.command("DBSIZE"),
            server.command("PUBSUB", "CHANNELS"),
            server.command("CONFIG", "GET", "*"),
            info["number_of_cached_scripts"],
            info["rdb_changes_since_last_save"],
            info["expired_keys"],
        )

    before = state()
    look(url)
    assert state() == before
    wait_until(lambda: server.connections() == 0 or b"lockfast" not in server.command("CLIENT", "LIST"))


def test_only_reading_runs_where_rights_can_be_asked_for(server: Server) -> None:
    server.command("ACL", "LOG", "RESET")
    server.reset_stats()
    look(server.url)
    asked = {
        "info",
        "config|get",
        "acl|whoami",
        "acl|dryrun",
        "time",
        "scan",
        "get",
        "client|setname",
        "config|resetstat",
    }
    assert set(server.stats()) - asked == {"eval", "set"}  # one that does not compile, one of a key that is not there
    assert server.command("ACL", "LOG") == []


def test_only_statistics_of_commands_stay_in_the_memory_of_the_server(
    fresh_server: FreshServer, server_kind: Kind
) -> None:
    server = fresh_server(server_kind, extra=("--latency-tracking", "no"))

    def used() -> int:
        return int(server.info("memory")["used_memory"])

    server.command("ACL", "SETUSER", "clerk", "on", "nopass", "~*", "&*", "+@all", "-acl|dryrun")
    before = [used() for _ in range(5)][-1]
    for userinfo in ("", "clerk:x@"):  # asked for, and tried
        look(f"redis://{userinfo}127.0.0.1:{server.port}/0")
    wait_until(lambda: server.connections() == 0)
    assert used() - before < 20_000


def test_trials_cover_what_scripts_call_and_formats_are_those_that_they_write() -> None:
    in_clusters = {"SPUBLISH"}
    assert set(rights.IN_SCRIPTS) == rights.called_by_scripts() - in_clusters
    state = (Path(lockfast.__file__).parent / "lua" / "state.lua").read_text()
    assert f"local FORMAT = '{facts.FORMAT}'" in state


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
    command = the(look(sick.url), "eviction-on").mend.partition(",")[0]
    assert command.startswith("redis-cli CONFIG SET ")
    sick.command(*command.split()[1:])
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


# Role and replicas


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica, in touch."""
    with Server("valkey", extra=("--repl-diskless-sync-delay", "0")) as primary, Server("valkey") as replica:
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
        wait_until(lambda: "state=online" in primary.info("replication").get("slave0", ""), what="replica online")
        yield primary, replica


@pytest.mark.slow
def test_replica_is_refused_and_names_its_primary(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    finding = the(look(replica.url), "role-replica")
    assert finding.level == "problem"
    assert f"redis://127.0.0.1:{primary.port}" in finding.mend


def test_primary_with_replicas_may_forget_in_a_failover(pair: tuple[Server, Server]) -> None:
    primary, _ = pair
    report = look(primary.url)
    assert the(report, "replicas-unguarded").level == "warning"
    assert "replicas=1" in the(report, "replicas-async").mend
    assert the(report, "replicas-emptied").level == "warning"
    primary.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert "replicas-unguarded" not in keys(look(primary.url))
    primary.command("CONFIG", "SET", "min-replicas-to-write", "2")
    finding = the(look(primary.url), "replicas-missing")
    assert finding.level == "problem"
    assert "min-replicas-to-write 1" in finding.mend
    primary.command("CONFIG", "SET", "min-replicas-to-write", "0")


def test_replica_that_is_behind(pair: tuple[Server, Server]) -> None:
    told = facts_of(look(pair[0].url))
    late = dict(told.info) | {"slave0": re.sub(r"lag=\d+", "lag=60", told.info["slave0"])}
    judged = findings.judge(dataclasses.replace(told, info=late))
    assert "60 s behind" in next(finding for finding in judged if finding.key == "replicas-lag").seen


@pytest.mark.slow
def test_server_that_loads_its_data(fresh_server: FreshServer) -> None:
    server = fresh_server(appendonly=True)
    server.command("MSET", *[word for number in range(2000) for word in (f"k{number}", "v")])
    server.command("BGREWRITEAOF")
    wait_until(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0")
    server.kill9()
    server.start("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024", wait_loaded=False)
    report = look(server.url)
    assert "role-loading" in keys(report)
    assert report.level in ("problem", "unreachable")


@pytest.mark.parametrize(("words", "key"), [("LOADING from disk", "role-loading"), ("BUSY with a script", "role-busy")])
def test_server_that_is_not_ready_to_greet(valkey_server: Server, proxy_for: ProxyFor, words: str, key: str) -> None:
    """Which commands a server answers while it loads or is busy differs between versions."""
    proxy = proxy_for(valkey_server)
    proxy.when("CLIENT").inject_reply(f"-{words}\r\n".encode())
    report = look(proxy.url)
    assert keys(report) == {key}
    assert report.level == "unreachable"


def test_node_that_sends_a_trial_elsewhere_is_tried_with_another_name(
    valkey_server: Server, proxy_for: ProxyFor
) -> None:
    proxy = proxy_for(valkey_server)
    proxy.when("SET").inject_reply(b"-MOVED 5 10.0.0.1:6379\r\n")
    tried = facts_of(look(proxy.url)).rights
    assert tried is not None
    assert tried.states == {}


@pytest.mark.slow
def test_script_that_keeps_the_server_busy(fresh_server: FreshServer, server_kind: Kind) -> None:
    server = fresh_server(server_kind, extra=("--lua-time-limit", "10"))

    def spin() -> None:
        with pytest.raises((ServerError, OSError)):
            server.command("EVAL", "while true do end", "0", timeout_s=10)

    thread = threading.Thread(target=spin)
    thread.start()

    def is_busy() -> bool:
        try:
            server.command("PING")
        except ServerError as refusal:
            return str(refusal).startswith("BUSY")
        return False

    wait_until(is_busy)
    report = look(server.url)
    server.command("SCRIPT", "KILL")
    thread.join()
    assert "SCRIPT KILL" in the(report, "role-busy").mend


# Rights: the words of refusals differ between servers


@pytest.fixture
def account(server: Server) -> Iterator[Callable[..., str]]:
    """The URL of a new account with these rules besides everything."""
    made: list[str] = []

    def make(*rules: str) -> str:
        made.append(f"clerk{next(_users)}")
        server.command("ACL", "SETUSER", made[-1], "on", ">hunter2", "~*", "&*", "+@all", *rules)
        return server.url.replace("://", f"://{made[-1]}:hunter2@")

    yield make
    for user in made:
        server.command("ACL", "DELUSER", user)


@pytest.mark.parametrize("how", ["asked", "tried"])
@pytest.mark.parametrize(
    ("rules", "key", "level", "words"),
    [
        (["-publish"], "rights-pushes", "warning", "PUBLISH"),
        (["-subscribe"], "rights-pushes", "warning", "SUBSCRIBE"),
        (["-evalsha"], "rights-commands", "problem", "EVALSHA"),
        (["-eval"], "rights-commands", "problem", "EVAL"),
        (["-@scripting"], "rights-commands", "problem", "EVAL, EVALSHA"),
        (["-zremrangebyscore", "-hset"], "rights-commands", "problem", "HSET, ZREMRANGEBYSCORE"),
        (["resetkeys", "~other:*"], "rights-keys", "problem", "EVALSHA"),
        (["resetkeys", "%R~*"], "rights-keys", "problem", "SET"),
        (["resetchannels"], "rights-channels", "warning", "PUBLISH, SUBSCRIBE"),
        (["-watch", "-multi", "-exec"], "rights-transactions", "note", "EXEC, MULTI, WATCH"),
        (["-scan"], "rights-tools", "note", "SCAN"),
        (["-wait"], "rights-replicas", "note", "WAIT"),
        (["-discard", "-exec"], "rights-transactions", "note", "DISCARD, EXEC"),
    ],
)
def test_right_that_is_missing_is_told_with_the_rule_that_gives_it(
    server: Server, account: Callable[..., str], rules: list[str], key: str, level: str, words: str, how: str
) -> None:
    url = account(*rules, *(["-acl|dryrun"] if how == "tried" else []))
    server.reset_stats()
    server.command("ACL", "LOG", "RESET")
    report = look(url)
    finding = the(report, key)
    if how == "asked" and key == "rights-commands":
        assert server.command("ACL", "LOG") == []  # what is known to be refused is not run
    assert ("zrank" in server.stats()) is (how == "tried")
    assert finding.level == level
    assert words in finding.seen
    assert ("rights-ok" in keys(report)) is (level == "note")
    assert "hunter2" not in str(report.as_dict())
    # As a shell would split it; the patterns are quoted for that.
    _, *command = finding.mend.replace("'", "").split()
    server.command(*command)
    assert key not in keys(look(url))


def test_account_that_may_only_lock_is_enough_and_what_it_may_not_tell_is_not_judged(
    server: Server, account: Callable[..., str]
) -> None:
    needed = access.all_rules("lockfast").replace("'", "").split()
    url = account("resetkeys", "resetchannels", "-@all", *needed)
    with Lockfast(url) as lf, lf.lock("x", lease=5, wait=1):
        report = look(url)
    assert {"rights-ok", "clock-ok", "latency-ok"} <= keys(report)
    untold = [finding for finding in report.findings if finding.key == "not-told"]
    assert [finding.seen.partition(":")[0] for finding in untold] == ["INFO", "CONFIG GET", "ACL WHOAMI"]
    assert "+info" in untold[0].mend
    assert bad(report) == set()
    assert not keys(report) & {"eviction-none", "persistence-none"}


def test_without_info_version_and_role_are_asked_for_by_hello(server: Server, account: Callable[..., str]) -> None:
    report = look(account("-info"))
    assert {"version-ok", "role-primary", "eviction-none"} <= keys(report)


def test_commands_that_were_renamed(fresh_server: FreshServer) -> None:
    server = fresh_server(extra=("--rename-command", "EVALSHA", "", "--rename-command", "CONFIG", "x"))
    report = look(server.url)
    assert "EVALSHA" in the(report, "commands-renamed").seen
    assert "unknown command" in the(report, "not-told").seen
    assert report.level == "problem"


# Reaching it


def test_wrong_password_and_none(fresh_server: FreshServer) -> None:
    server = fresh_server(requirepass="open sesame")
    for userinfo in (":hunter2@", "nobody:hunter2@", ""):
        report = look(f"redis://{userinfo}127.0.0.1:{server.port}/0")
        assert the(report, "not-let-in").level == "problem"
        assert report.level == "refused"
        assert "hunter2" not in str(report.as_dict())


@pytest.mark.needs_redis
def test_certificate_of_an_unknown_authority(fresh_server: FreshServer) -> None:
    server = fresh_server("redis", tls="valid")
    report = look(server.tls_url)
    assert "ssl_ca_certs" in the(report, "certificate").mend
    assert report.level == "refused"
    assert "version-ok" in keys(look(f"{server.tls_url}?ssl_ca_certs={server.ca_file}"))
    lost = look(f"{server.tls_url}?ssl_ca_certs=/nowhere/ca.pem")
    assert "ssl_ca_certs" in the(lost, "tls-settings").mend


def test_protected_mode(valkey_server: Server, proxy_for: ProxyFor) -> None:
    """Only a connection from another host would be refused, so the words are put into the server's mouth."""
    proxy = proxy_for(valkey_server)
    proxy.when("CLIENT").inject_reply(
        b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n"
    )
    report = look(proxy.url)
    assert "requirepass" in the(report, "protected").mend
    assert report.level == "refused"


def test_nobody_there() -> None:
    report = look("redis://127.0.0.1:1/0")
    assert keys(report) == {"unreachable"}
    assert the(report, "unreachable").mend.endswith("redis-cli -u redis://127.0.0.1:1/0 PING")
    assert report.level == "unreachable"
    assert report.verdict == "cannot be judged: no answer"


@pytest.mark.slow
def test_hung_server_costs_one_timeout(fresh_server: FreshServer) -> None:
    server = fresh_server()
    server.pause()
    began = time.monotonic()
    report = look(server.url, timeout_s=0.3)
    assert time.monotonic() - began < 2
    assert report.level == "unreachable"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["INFO", "CONFIG", "TIME", "SET", "SCAN"])
def test_question_that_stays_unanswered_is_named_and_the_others_are_asked(
    valkey_server: Server, proxy_for: ProxyFor, command: str
) -> None:
    proxy = proxy_for(valkey_server)
    proxy.when(command).drop_reply()
    report = look(proxy.url, timeout_s=0.3)
    assert command in the(report, "no-answer").seen
    assert report.level == "problem"
    assert "role-primary" in keys(report)
    assert ("rights-ok" in keys(report)) is (command != "SET")


@pytest.mark.slow
def test_server_that_hangs_in_the_middle_is_asked_no_more_after_two_silences(
    valkey_server: Server, proxy_for: ProxyFor
) -> None:
    proxy = proxy_for(valkey_server)
    proxy.when(lambda request: request.command not in ("CLIENT", "INFO"), times=None).swallow_request()
    began = time.monotonic()
    report = look(proxy.url, timeout_s=0.3)
    assert time.monotonic() - began < 1.8
    assert the(report, "no-answer").seen.count(",") == 1


# Version


def forged(proxy: Proxy, version: str) -> None:
    """What a Redis before 7.0 answers."""
    info = f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\nrole:master\r\n"
    proxy.when("INFO").inject_reply(f"${len(info)}\r\n{info}\r\n".encode())
    words = "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n"
    proxy.when("EVAL").inject_reply(words.encode())


@pytest.mark.parametrize(
    ("version", "key", "level"),
    [("6.2.14", "script-flags-unknown", "note"), ("5.0.7", "version-too-old", "problem")],
)
def test_old_versions(valkey_server: Server, proxy_for: ProxyFor, version: str, key: str, level: str) -> None:
    proxy = proxy_for(valkey_server)
    forged(proxy, version)
    report = look(proxy.url)
    assert the(report, key).level == level
    assert version in the(report, key).seen


# Clock and way


@pytest.mark.slow
@pytest.mark.needs_faketime
def test_clock_away_from_this_host(faketime_server: Server) -> None:
    faketime_server.clock_shift(30)
    finding = the(look(faketime_server.url), "clock-off")
    assert finding.level == "note"
    assert re.match(r"(29\.9|30\.0)\d\d s ahead of this host", finding.seen)
    with Lockfast(faketime_server.url) as lf, lf.lock("x", lease=5):
        pass
    faketime_server.clock_shift(-600)
    report = look(faketime_server.url)
    assert the(report, "clock-far").level == "warning"
    assert "behind this host" in the(report, "clock-far").seen
    assert "newest fence" in the(report, "clock-went-back").seen


@pytest.mark.slow
def test_time_of_the_trip_is_not_taken_for_an_offset(valkey_server: Server, proxy_for: ProxyFor) -> None:
    proxy = proxy_for(valkey_server)
    proxy.when("TIME", times=None).delay_reply(0.3)
    report = look(proxy.url)
    assert the(report, "latency-too-high").level == "warning"
    assert "clock-ok" in keys(report)
    assert "±15" in the(report, "clock-ok").seen


@pytest.mark.slow
def test_way_that_is_long_and_one_that_is_uneven(valkey_server: Server, proxy_for: ProxyFor) -> None:
    proxy = proxy_for(valkey_server)
    proxy.when("TIME", times=None).delay_reply(0.03)
    assert the(look(proxy.url), "latency-high").level == "note"
    proxy.heal()
    proxy.when("TIME", nth=5).delay_reply(0.3)
    assert the(look(proxy.url), "latency-uneven").level == "note"


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
