"""What the doctor tells to paste into a shell: it does what it says there, and no more."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from kit.servers import Server, free_port
from kit.small_shapes import SERVICE, OneSentinel
from lockfast.doctor import access
from lockfast.doctor.catalogue import CATALOGUE, found
from lockfast.doctor.cluster import Cluster, judge_cluster
from lockfast.doctor.facts import Unreached
from lockfast.doctor.findings import judge_unreached
from topologies.doctoring import address, bare, keys, look, pasted, the

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import FreshServer


# Words that a shell would not take as they are


@pytest.mark.parametrize("key", [key for key, entry in CATALOGUE.items() if entry.mend])
def test_every_command_of_the_catalogue_survives_a_shell(key: str) -> None:
    words = set(re.findall(r"{(\w+)}", CATALOGUE[key].mend)) - {"cli"}
    values: dict[str, Any] = {word: ["+acl|whoami", "~x:*"] for word in words}
    assert bare(found(key, "redis://h:1/0", "seen", **values).mend) == []


@pytest.mark.parametrize("shape", ["", "quorum", "sentinel", "cluster"])
def test_whole_rule_survives_a_shell(shape: str) -> None:
    rules = access.all_rules("lockfast", shape)
    finding = found("scope-open", "redis://h:1/0", "seen", rules=rules)
    assert "+client|setname" in rules
    assert pasted(finding.mend)[-len(rules) :] == rules


@pytest.mark.parametrize(
    ("lacking", "untold", "whole"),
    [
        ("-acl|whoami", "ACL WHOAMI", ("ACL", "SETUSER", "x")),
        ("-config|get", "CONFIG GET", ("CONFIG", "SET", "x", "y")),
    ],
)
def test_right_to_ask_pasted_into_a_shell_does_not_make_an_administrator(
    server: Server, account: Callable[..., str], lacking: str, untold: str, whole: tuple[str, ...]
) -> None:
    container = lacking[1:].partition("|")[0]
    url = account(f"-{container}")
    user = url.partition("://")[2].partition(":")[0]
    (finding,) = [one for one in look(url).findings if one.key == "not-told" and one.seen.startswith(untold)]
    server.command(*pasted(finding.mend))
    assert (
        server.command("ACL", "DRYRUN", user, *lacking[1:].upper().split("|"), *["x"] * (container == "config")) == "OK"
    )
    assert server.command("ACL", "DRYRUN", user, *whole) != "OK"
    assert not [one for one in look(url).findings if one.key == "not-told" and one.seen.startswith(untold)]


def test_name_of_an_account_is_no_command_of_a_shell(server: Server) -> None:
    user = "clerk;$(id)|x&*"
    server.command("ACL", "SETUSER", user, "on", ">hunter2", "~*", "&*", "+@all", "-zrank")
    url = server.url.replace("://", f"://{quote(user, safe='')}:hunter2@")
    try:
        mend = the(look(url), "rights-commands").mend
        assert shlex.split(mend)[-3:] == ["SETUSER", user, "+zrank"]
        server.command(*pasted(mend))
        assert "rights-ok" in keys(look(url))
    finally:
        server.command("ACL", "DELUSER", user)


# Where it goes


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("redis://cache:6380/3", ["-h", "cache", "-p", "6380"]),
        ("redis://[::1]:6379/0", ["-h", "::1", "-p", "6379"]),
        ("rediss://cache:6379/0", ["-h", "cache", "-p", "6379", "--tls"]),
        ("unix:///run/my server/s?db=0", ["-s", "/run/my server/s"]),
    ],
)
def test_command_goes_to_the_server_that_it_is_about(where: str, options: list[str]) -> None:
    for key in ("idle-timeout", "role-busy", "memory-full"):
        assert address(found(key, where, "seen").mend) == options
    assert found("idle-timeout", "the embedded server", "seen").mend.startswith("redis-cli -s SOCKET CONFIG SET")


def test_command_for_a_server_goes_there_and_takes_no_secret_along(fresh_server: FreshServer) -> None:
    server = fresh_server(requirepass="sesame", extra=("--timeout", "60"))
    mend = the(look(server.url), "idle-timeout").mend
    assert address(mend) == ["-h", "127.0.0.1", "-p", str(server.port)]
    assert pasted(mend) == ["CONFIG", "SET", "timeout", "0"]
    assert address(the(look(server.unix_url), "idle-timeout").mend) == ["-s", server.unix_path]
    assert "sesame" not in str(look(server.url).as_dict())


def test_command_for_a_server_that_lets_nobody_in_from_elsewhere_goes_to_its_own_host() -> None:
    for scheme, options in (("redis", []), ("rediss", ["--tls"])):
        denied = Unreached(f"{scheme}://cache:6380/0", "-DENIED protected", "DENIED")
        assert address(judge_unreached(denied).mend) == ["-h", "127.0.0.1", "-p", "6380", *options]


@pytest.mark.slow
def test_commands_for_a_sentinel_go_to_its_port() -> None:
    with Server() as primary, OneSentinel(primary) as watcher:
        for service, known in ((SERVICE, True), ("other", False)):
            report = look(f"sentinel://127.0.0.1:{watcher.port}/{service}")
            told = [one for one in report.findings if "SENTINEL" in one.mend]
            assert {one.key for one in told} == {"sentinel-slow" if known else "sentinel-service-unknown"}
            assert {tuple(address(one.mend)) for one in told} == {("-h", "127.0.0.1", "-p", str(watcher.port))}
    nobody = the(look("sentinel://127.0.0.1:1/orders"), "sentinel-none")
    assert address(nobody.mend) == ["-h", "127.0.0.1", "-p", "1"]


@pytest.mark.slow
def test_commands_for_a_cluster_of_one_node_go_there() -> None:
    with Server(extra=("--cluster-enabled", "yes", "--cluster-port", str(free_port()))) as server:
        report = look(f"cluster://127.0.0.1:{server.port}")
    assert the(report, "cluster-down").mend.startswith(f"redis-cli --cluster check 127.0.0.1:{server.port}, ")
    (down,) = [one for one in judge_cluster(Cluster("rediss://cache:6379/0"), []) if one.key == "cluster-down"]
    assert down.mend.startswith("redis-cli --cluster check cache:6379 --tls, ")
