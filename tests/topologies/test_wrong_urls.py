"""URLs of the wrong form, and accounts that may not ask: what is said names the right URL, and the right account."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kit.servers import Server, free_port, wait_until
from kit.small_shapes import SERVICE, OneSentinel
from lockfast.cli.main import main
from lockfast.errors import Refused, Unreachable
from topologies.doctoring import look, pasted, the

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.quorum import Masters
    from kit.servers import FreshServer
    from kit.sides import Side


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def watcher(primary: Server) -> Iterator[OneSentinel]:
    with OneSentinel(primary) as sentinel:
        yield sentinel


# What clients say.


@pytest.mark.parametrize("form", ["redis://127.0.0.1:{}", "redis://127.0.0.1:{}/3", "cluster://127.0.0.1:{}"])
def test_a_sentinel_that_is_named_as_a_server(side: Side, watcher: OneSentinel, name: str, form: str) -> None:
    with side.client(form.format(watcher.port)) as lf:
        with pytest.raises(Refused, match=rf"if this is a Sentinel, write sentinel://127.0.0.1:{watcher.port}/SERVICE"):
            lf.lock(name).acquire(wait=5)
        with pytest.raises(Refused, match=rf"write sentinel://127.0.0.1:{watcher.port}/SERVICE"):
            lf.names()


@pytest.mark.slow
def test_a_sentinel_in_a_quorum(side: Side, trio: Masters, watcher: OneSentinel, name: str) -> None:
    url = f"redis://127.0.0.1:{watcher.port}"
    lf = side.client([url, "redis://127.0.0.1:1", trio.urls[0]], timeout=0.5)
    with pytest.raises(Unreachable, match=rf":{watcher.port}/0: it is a sentinel, and keeps no keys"):
        lf.lock(name).acquire(wait=0.5)
    trio.wait_free(name)


def test_a_server_that_is_named_as_a_sentinel(side: Side, primary: Server, name: str) -> None:
    lf = side.client(f"sentinel://127.0.0.1:{primary.port}/{SERVICE}/2")
    with pytest.raises(Refused, match="is no sentinel but a server: name the sentinels") as caught:
        lf.lock(name).acquire(wait=5)
    assert f"or write redis://127.0.0.1:{primary.port}/2 for this server alone" in str(caught.value)
    assert caught.value.code == "SENTINEL"


# The sentinel is well, and what it names is not.


@pytest.fixture
def named(fresh_server: FreshServer) -> Iterator[tuple[Server, str]]:
    """A server that the test may break, and the URL of a sentinel that goes on naming it."""
    server = fresh_server(requirepass="topsecret")
    with OneSentinel(server) as sentinel:
        yield server, f"sentinel://:topsecret@127.0.0.1:{sentinel.port}/{SERVICE}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blow", "words"), [("kill9", r"cannot connect to {}: .Errno 111"), ("pause", r"(cannot connect to )?{}.* answer")]
)
def test_a_master_that_is_down_is_named_and_not_its_sentinels(
    side: Side, named: tuple[Server, str], name: str, blow: str, words: str
) -> None:
    server, url = named
    getattr(server, blow)()
    with pytest.raises(Unreachable, match=words.format(told(server, url))) as caught:
        side.client(url, timeout=0.5).lock(name).acquire(wait=0)
    assert "topsecret" not in str(caught.value)


@pytest.mark.slow
def test_a_master_that_dies_later_is_named_and_not_its_sentinels(
    side: Side, named: tuple[Server, str], name: str
) -> None:
    server, url = named
    lf = side.client(url, timeout=0.5)
    with lf.lock(name):
        pass
    server.pause()
    with pytest.raises(Unreachable, match=told(server, url)):
        lf.lock(name).acquire(wait=0)


@pytest.mark.slow
def test_command_line_tells_that_a_failover_may_be_under_way(
    named: tuple[Server, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = named
    server.kill9()
    assert main(["ls", "--url", url]) == 69
    said, hint = capsys.readouterr().err.splitlines()
    assert re.search(told(server, url), said)
    assert "topsecret" not in said
    assert hint == "hint: a failover may be under way: try again in a moment, or name a longer --wait"


def told(server: Server, url: str) -> str:
    """How a master is called in messages, as a pattern."""
    return re.escape(f"the master 127.0.0.1:{server.port} that {url.replace(':topsecret@', '')}/0 names")


# What the doctor says.


def test_the_doctor_of_a_server_that_is_named_as_a_sentinel(primary: Server) -> None:
    report = look(f"sentinel://127.0.0.1:{primary.port}/{SERVICE}", timeout_s=1)
    finding = the(report, "sentinel-not-one")
    assert report.findings == [finding]
    assert f"write redis://127.0.0.1:{primary.port}/0 for this server alone" in finding.mend
    assert report.level == "problem"


def test_the_doctor_of_a_sentinel_that_may_not_be_asked(watcher: OneSentinel) -> None:
    watcher.command("ACL", "SETUSER", "clerk", "on", ">secret", "~*", "+@all", "-sentinel|master")
    url = f"sentinel://127.0.0.1:{watcher.port}/{SERVICE}?sentinel_username=clerk&sentinel_password=secret"
    finding = the(look(url, timeout_s=1), "sentinel-untold")
    assert pasted(finding.mend)[-3:] == ["SETUSER", "clerk", "+sentinel|master"]


@pytest.mark.slow
def test_the_doctor_of_a_cluster_that_may_not_be_asked() -> None:
    with Server(extra=("--cluster-enabled", "yes", "--cluster-port", str(free_port()))) as server:
        server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        wait_until(lambda: "cluster_state:ok" in server.command("CLUSTER", "INFO").decode(), what="cluster ok")
        server.command("ACL", "SETUSER", "clerk", "on", ">x", "~*", "&*", "+@all", "-cluster|info", "-acl|whoami")
        report = look(f"cluster://clerk:x@127.0.0.1:{server.port}", timeout_s=1)
    finding = the(report, "cluster-untold")
    assert "NOPERM" in finding.seen
    assert pasted(finding.mend)[-4:] == ["SETUSER", "clerk", "+cluster|info", "+cluster|nodes"]
    assert "cluster-none" not in {one.key for one in report.findings}
    assert the(report, "rights-ok").seen.startswith("clerk may"), "the server itself is judged"


def test_the_doctor_of_no_cluster_that_may_not_be_asked_for_one(primary: Server) -> None:
    primary.command("ACL", "SETUSER", "clerk", "on", ">x", "~*", "&*", "+@all", "-cluster|info")
    report = look(f"cluster://clerk:x@127.0.0.1:{primary.port}", timeout_s=1)
    assert {one.key for one in report.findings} == {"cluster-none"}


@pytest.mark.parametrize("account", ["clerk:x@", ""])
def test_the_doctor_names_the_account_that_is_connected_where_it_may_not_ask_who_it_is(
    server: Server, account: str
) -> None:
    user = "clerk" if account else "default"
    server.command("ACL", "SETUSER", "clerk", "on", ">x", "~*", "&*", "+@all", "-acl", "-evalsha", "-info")
    if not account:
        server.command("ACL", "SETUSER", "default", "-acl|whoami", "-acl|dryrun", "-evalsha", "-info")
    try:
        report = look(server.url.replace("//", f"//{account}"), timeout_s=1)
    finally:
        server.command("ACL", "SETUSER", "default", "+@all")
        server.command("ACL", "DELUSER", "clerk")
    assert pasted(the(report, "rights-commands").mend) == ["ACL", "SETUSER", user, "+evalsha"]
    for finding in report.findings:
        assert "SETUSER USER" not in finding.mend
        assert "SETUSER …" not in finding.mend
