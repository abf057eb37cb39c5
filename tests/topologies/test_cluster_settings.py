"""A cluster with passwords and TLS, few channels, forks, the command line, and the drop-ins."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faults.actors import Script
from kit.cluster import Cluster
from kit.servers import wait_until
from lockfast import errors
from lockfast.clock import now
from lockfast.drivers import shards_aio, shards_threads
from topologies.test_cluster import listens, waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.sides import Side

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guarded_cluster() -> Iterator[Cluster]:
    with Cluster("redis", replicas=False, requirepass="hush", tls=True) as cluster:
        yield cluster


@pytest.mark.needs_redis
@pytest.mark.parametrize("encrypted", [False, True])
def test_passwords_and_tls_are_used_for_every_node(
    guarded_cluster: Cluster, side: Side, name: str, encrypted: bool
) -> None:
    cluster = guarded_cluster
    url = cluster.tls_url if encrypted else cluster.url
    lf, other = side.client(url), side.client(url)
    assert "hush" not in repr(lf)
    for node in cluster.masters:
        tags = [f"{cluster.name_on(node, name)}", f"{cluster.name_on(node, name + '-b')}"]
        held = [lf.lock(tag, lease=30).acquire() for tag in tags]
        waiting = []
        for tag in tags:  # the second is subscribed while the first is being waited for, on the same connection
            waiting.append(side.spawn(other.lock(tag, lease=30, wait=20).acquire))
            listens(node, tag)
        node.reset_stats()
        for grant in held:
            grant.release()
        for each in waiting:
            each.result().release()
        assert node.stats()["spublish"] == 2


@pytest.mark.needs_redis
def test_wrong_password_is_told_at_once(guarded_cluster: Cluster, side: Side, name: str) -> None:
    lf = side.client(guarded_cluster.url.replace("hush", "wrong"))
    with pytest.raises(errors.Refused, match="password"):
        lf.lock(name, wait=5).acquire()


def test_channels_that_nobody_waits_for_are_given_up(
    valkey_cluster: Cluster, side: Side, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_threads, "MAX_CHANNELS", 2)
    monkeypatch.setattr(shards_aio, "MAX_CHANNELS", 2)
    node = valkey_cluster.masters[0]
    lf, other = side.client(valkey_cluster.url), side.client(valkey_cluster.url)
    kept = valkey_cluster.name_on(node, f"{name}-kept")
    holding = lf.lock(kept, lease=30).acquire()
    keeping = side.spawn(other.lock(kept, lease=30, wait=30).acquire)
    listens(node, kept)
    for number in range(6):
        tag = valkey_cluster.name_on(node, f"{name}-{number}")
        with lf.lock(tag, lease=30):
            waiting = side.spawn(other.lock(tag, lease=30, wait=20).acquire)
            waits(lf, tag)
            listens(node, tag)
        waiting.result().release()
    wait_until(lambda: len(node.command("PUBSUB", "SHARDCHANNELS", f"*{name}*")) <= 4, what="the rest is given up")
    assert node.command("PUBSUB", "SHARDCHANNELS", f"*{kept}*"), "one that is waited for stays"
    holding.release()
    keeping.result().release()


@pytest.mark.parametrize("lacking", ["-ssubscribe", "-spublish", "resetchannels"])
def test_account_without_pushes_takes_turns_by_polling_and_says_so_once(
    cluster: Cluster, side: Side, name: str, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    for node in cluster.masters:
        node.command("ACL", "SETUSER", "deaf", "reset", "on", ">x", "~*", "&*", "+@all", lacking)
    url = cluster.url.replace("//", "//deaf:x@")
    lf, other = side.client(url), side.client(url)
    with caplog.at_level(logging.WARNING, "lockfast"):
        for node in cluster.masters:
            tag = cluster.name_on(node, name)
            held = lf.lock(tag, lease=30).acquire()
            waiting = side.spawn(other.lock(tag, lease=30, wait=20).acquire)
            waits(lf, tag)
            released = now()
            held.release()
            waiting.result().release()
            assert now() - released < 0.8
    told = [record.getMessage() for record in caplog.records if "no pushes" in record.getMessage()]
    assert len(told) == 1, "once for the client that had to wait, whatever the node"
    assert "acl.md" in told[0]


def test_forked_child_begins_anew(valkey_cluster: Cluster, name: str) -> None:
    code = """
import os, sys
from lockfast import Lockfast
url, name = sys.argv[1:]
lf = Lockfast(url)
grants = [lf.lock(f"{name}-{n}", lease=30).acquire() for n in range(4)]
pid = os.fork()
if pid == 0:
    assert lf.lock(f"{name}-0").try_acquire() is None
    with lf.locks(*[f"{name}-child-{n}" for n in range(4)], wait=5):
        pass
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
for grant in grants:
    grant.release()
lf.close()
"""
    with Script(code, valkey_cluster.url, name) as script:
        status, _, problems = script.end()
    assert status == 0, problems


def test_command_line_takes_the_url_of_a_cluster(valkey_cluster: Cluster, side: Side, name: str) -> None:
    def lockfast(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lockfast", *words, "--url", valkey_cluster.url]
            if words[0] != "run"
            else [sys.executable, "-m", "lockfast", "run", "--url", valkey_cluster.url, *words[1:]],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    lf = side.client(valkey_cluster.url)
    tags = [valkey_cluster.name_on(node, name) for node in valkey_cluster.masters]
    with lf.locks(*tags):
        listed = json.loads(lockfast("ls", "--json"))
        assert {tag for tag in tags if tag in json.dumps(listed)} == set(tags)
    assert lockfast("run", tags[0], "--", sys.executable, "-c", "print('inside')").strip() == "inside"


def test_drop_in_lock_of_a_cluster_client_works(valkey_cluster: Cluster, name: str) -> None:
    from redis.cluster import RedisCluster

    from lockfast.compat import clients
    from lockfast.compat.lock import Lock

    theirs = RedisCluster(host="127.0.0.1", port=valkey_cluster.masters[0].port)
    with Lock(theirs, name, timeout=10):
        assert not Lock(theirs, name, timeout=10).acquire(blocking=False)
    clients.close(theirs)
    theirs.close()


def test_examples_of_the_page_run(valkey_cluster: Cluster, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "topologies" / "cluster.md").read_text()
    program = tmp_path / "example.py"
    program.write_text("\n".join(re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)))
    env = {**os.environ, "LOCKFAST_CLUSTER_URL": valkey_cluster.url}
    done = subprocess.run(
        [sys.executable, "-W", "error", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
