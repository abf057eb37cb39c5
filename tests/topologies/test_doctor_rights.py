"""What the doctor finds that an account may not do, and that it leaves nothing behind itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockfast
from kit.servers import Server, wait_until
from lockfast import Lockfast
from lockfast.doctor import access, facts, rights
from topologies.doctoring import bad, keys, look, pasted, the

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import FreshServer, Kind


# Nothing is changed


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
    assert in_clusters < set(rights.CLUSTER_PUSHES)
    state = (Path(lockfast.__file__).parent / "lua" / "state.lua").read_text()
    assert f"local FORMAT = '{facts.FORMAT}'" in state


# Rights: the words of refusals differ between servers


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
    server.command(*pasted(finding.mend))
    assert key not in keys(look(url))


def test_account_that_may_only_lock_is_enough_and_what_it_may_not_tell_is_not_judged(
    server: Server, account: Callable[..., str]
) -> None:
    url = account("resetkeys", "resetchannels", "-@all", *access.all_rules("lockfast"))
    with Lockfast(url) as lf, lf.lock("x", lease=5, wait=1):
        report = look(url)
    assert {"rights-ok", "clock-ok", "latency-ok"} <= keys(report)
    untold = [finding for finding in report.findings if finding.key == "not-told"]
    assert [finding.seen.partition(":")[0] for finding in untold] == ["INFO", "CONFIG GET", "ACL WHOAMI"]
    assert "+info" in untold[0].mend
    assert bad(report) == set()
    assert not keys(report) & {"eviction-none", "persistence-none"}


@pytest.mark.parametrize("rules", [["-get"], ["resetkeys", "~other:*"]], ids=["no GET", "no keys"])
def test_names_that_the_account_may_not_read_are_not_taken_for_keys_of_others(
    server: Server, account: Callable[..., str], rules: list[str]
) -> None:
    server.command("FLUSHALL")
    url = account(*rules)
    with Lockfast(server.url) as lf, lf.lock("held", lease=5):
        report = look(url)
    assert "keys-not-ours" not in keys(report)
    assert the(report, "names-in-use").seen == "at least 0 in use, 0 remembered"


def test_without_info_version_and_role_are_asked_for_by_hello(server: Server, account: Callable[..., str]) -> None:
    report = look(account("-info"))
    assert {"version-ok", "role-primary", "eviction-none"} <= keys(report)


def test_commands_that_were_renamed(fresh_server: FreshServer) -> None:
    server = fresh_server(extra=("--rename-command", "EVALSHA", "", "--rename-command", "CONFIG", "x"))
    report = look(server.url)
    assert "EVALSHA" in the(report, "commands-renamed").seen
    assert "unknown command" in the(report, "not-told").seen
    assert report.level == "problem"
