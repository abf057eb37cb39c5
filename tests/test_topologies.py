"""Which servers are meant: one, a majority, a sentinel's service, a cluster; and what does not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lockfast
import lockfast.aio
from lockfast import topologies
from lockfast.endpoints import Endpoint
from lockfast.topologies import Cluster, Quorum

if TYPE_CHECKING:
    from collections.abc import Callable

THREE = ["redis://a", "redis://b:7000/2", "unix:///tmp/c"]


@pytest.mark.parametrize("between", [",", " ", ", ", "\n"])
def test_one_text_may_name_several_servers(between: str) -> None:
    found = topologies.find(between.join(THREE))
    assert isinstance(found, Quorum)
    assert [node.where for node in found.nodes] == ["redis://a:6379/0", "redis://b:7000/2", "unix:///tmp/c?db=0"]


def test_commas_inside_one_url_are_its_own() -> None:
    sentinel = topologies.find("sentinel://a,b,c/service")
    assert isinstance(sentinel, Endpoint)
    assert len(sentinel.sentinels) == 3
    assert isinstance(topologies.find("cluster://a:7000,b:7001"), Cluster)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("redis://a,b,c", "^commas in the server's URL: each of several servers needs a whole URL"),
        ("redis://:topsecret@a:1,b:2,c:3/0", "^commas in the server's URL: each of several"),
        ("redis://a,redis://:topsecret@b,", "^server 2 of 2: a comma ends the server's URL"),
        ("redis://a,", "^a comma ends the server's URL"),
        ("redis://a/0,", "^a comma ends the server's URL"),
        ("redis://a,redis://b,c", "^server 2 of 2: commas in the server's URL"),
        ("redis://a redis://:topsecret@b:port redis://c", "^server 2 of 3: the server's URL cannot be read"),
    ],
)
def test_several_servers_that_are_written_wrongly_are_told_apart(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        topologies.find(text)
    assert "topsecret" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("url", ["unix:///tmp/a,b", "redis://:a,b@cache", "redis://cache?password=a,b,"])
def test_commas_in_paths_and_passwords_stay(url: str) -> None:
    assert isinstance(topologies.find(url), Endpoint)


def test_several_servers_in_the_environment_are_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_URL", " ".join(THREE))
    assert isinstance(topologies.find(None), Quorum)


@pytest.mark.parametrize(
    "one", ["sentinel://a,b,c/service", "cluster://a:7000", ["redis://x", "redis://y", "redis://z"]]
)
def test_majority_is_of_single_servers(one: object) -> None:
    with pytest.raises(ValueError, match=r"single servers"):
        topologies.find(["redis://a", "redis://b", one])


@pytest.mark.parametrize("lockfast_of", [lockfast.Lockfast, lockfast.aio.Lockfast])
@pytest.mark.parametrize("server", [["redis://a", "redis://b", "redis://c"], "cluster://a:7000"])
def test_replicas_are_for_one_server_or_a_sentinel(lockfast_of: type, server: object) -> None:
    with pytest.raises(ValueError, match="replicas= is for one server or a sentinel"):
        lockfast_of(server, replicas=1)


@pytest.mark.parametrize("lockfast_of", [lockfast.Lockfast, lockfast.aio.Lockfast])
@pytest.mark.parametrize("option", ["max_lease", "node_timeout"])
def test_settings_of_a_majority_are_refused_for_one_server(lockfast_of: type, option: str) -> None:
    with pytest.raises(ValueError, match="name more than one"):
        lockfast_of("redis://a", **{option: 5})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_lease": 0.5}, "^max_lease must be at least 1 second"),
        ({"max_lease": 0}, "^max_lease must be at least 1 second, got 0"),
        ({"max_lease": 1e6}, "^max_lease must be at most 604800 seconds"),
        ({"max_lease": "2"}, "^max_lease must be a number of seconds"),
        ({"node_timeout": 0}, "between 0.005 and the timeout of 2"),
        ({"node_timeout": 3}, "between 0.005 and the timeout of 2"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_sent(options: dict[str, object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        lockfast.Lockfast(THREE, **options)  # type: ignore[arg-type]


def test_what_a_majority_cannot_carry_is_refused_with_a_page_that_says_why() -> None:
    lf = lockfast.Lockfast(THREE)
    refused: list[Callable[[], object]] = [
        lambda: lf.semaphore("x", limit=2),
        lambda: lf.election("x"),
        lambda: lf.latch("x", count=1),
        lambda: lf.barrier("x", parties=2),
        lambda: lf.transaction(str, "key"),
        lambda: lf.break_lock("x", reason="why"),
        lambda: lf.revoke("x"),
        lambda: lf.deadlocks(),
        lambda: lf.adopt("text"),
        lambda: lf.lock("x", detect=True),
    ]
    for call in refused:
        with pytest.raises(ValueError, match="what-a-majority-cannot-carry"):
            call()
