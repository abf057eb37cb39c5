"""What the doctor finds of a server that is the wrong one, an old one, not ready, or hard to reach."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from kit.resp import ServerError
from kit.servers import Server, wait_until
from lockfast import Lockfast
from lockfast.doctor import findings
from topologies.doctoring import facts_of, keys, look, the

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.proxy import Proxy, ProxyFor
    from kit.servers import FreshServer, Kind


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
    assert the(report, "replicas-unguarded").seen == "1 replica, min-replicas-to-write 0"
    assert "replicas=1" in the(report, "replicas-async").mend
    assert the(report, "replicas-emptied").level == "warning"
    assert the(report, "replicas-emptied").seen == "1 replica, nothing on disk"
    primary.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert "replicas-unguarded" not in keys(look(primary.url))
    primary.command("CONFIG", "SET", "min-replicas-to-write", "2")
    finding = the(look(primary.url), "replicas-missing")
    assert finding.level == "problem"
    assert "min-replicas-to-write 1" in finding.mend
    primary.command("CONFIG", "SET", "min-replicas-to-write", "0")


def test_copies_that_no_client_of_a_quorum_can_ask_for_are_not_advised(pair: tuple[Server, Server]) -> None:
    primary, _ = pair
    primary.command("ACL", "SETUSER", "clerk", "on", "nopass", "~*", "&*", "+@all", "-wait")
    urls = [f"redis://clerk:x@127.0.0.1:{primary.port}", "redis://127.0.0.1:1", "redis://127.0.0.1:2"]
    with pytest.raises(ValueError, match="replicas="):
        Lockfast(urls, replicas=1)
    report = look(" ".join(urls))
    assert the(report, "replicas-unwaited").mend == "check fences"
    assert not keys(report) & {"replicas-async", "rights-replicas"}


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
    trusted = look(f"{server.tls_url}?ssl_ca_certs={server.ca_file}")
    assert f"redis-cli -h 127.0.0.1 -p {server.tls_port} --tls CONFIG SET" in the(trusted, "persistence-none").mend
    lost = look(f"{server.tls_url}?ssl_ca_certs=/nowhere/ca.pem")
    assert "ssl_ca_certs" in the(lost, "tls-settings").mend


@pytest.mark.parametrize("url", ["rediss://h:1", "clusters://h:1,h:2", "sentinels://h:1,h:2/orders"])
def test_tls_settings_that_cannot_be_used_are_told_alike_in_every_shape(url: str) -> None:
    report = look(f"{url}?ssl_ca_certs=/nowhere/ca.pem")
    told = [finding for finding in report.findings if finding.key == "tls-settings"]
    assert {"rediss://h:1/0", f"rediss://h:{1 + url.count(',')}/0"} == {finding.where for finding in told}
    assert all("/nowhere/ca.pem" in finding.seen for finding in told)
    assert report.level == "refused"


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
    assert the(report, "unreachable").mend.endswith("redis-cli -h 127.0.0.1 -p 1 PING")
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
