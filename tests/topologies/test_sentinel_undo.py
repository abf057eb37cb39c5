"""What is undone behind a master that was demoted meanwhile, and what a forked child has of the lookout."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from behaviour.test_fork import in_child
from kit.servers import wait_until
from kit.small_shapes import SERVICE, OneSentinel
from lockfast.drivers import sentinel as scouting
from lockfast.errors import LockfastError

if TYPE_CHECKING:
    from kit.proxy import ProxyFor
    from kit.sentinels import Sentinels
    from kit.servers import Server
    from kit.sides import Side

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")]

DEMOTED = b"-READONLY You can't write against a read only replica.\r\n"


def test_an_undo_that_a_demoted_master_answers_with_an_error_is_brought_to_its_successor(
    side: Side, valkey_server: Server, proxy_for: ProxyFor, name: str
) -> None:
    """The request was run and replicated, its answer is late; then the master is demoted, and keeps its connections."""
    proxy = proxy_for(valkey_server)
    with OneSentinel(valkey_server, proxy.port) as sentinel:
        lf: Any = side.client(f"sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", timeout=0.6)
        with lf.lock(f"{name}-warm"):
            pass
        old: list[int] = []

        def on_an_old_connection(request: Any) -> bool:
            if request.command != "EVAL":
                return False
            old.append(request.connection)
            return bool(request.connection <= demoted_at[0])

        demoted_at = [10**9]
        late = proxy.when("EVALSHA", containing=name, times=None).delay_reply()
        refused = proxy.when(on_an_old_connection, times=None).inject_reply(DEMOTED)
        acquiring = side.spawn(lf.lock(name, lease=60).acquire, wait=0)
        late.wait_hit()
        wait_until(lambda: bool(old), what="it is undone")
        demoted_at[0] = proxy.accepted
        late.let_go()
        assert isinstance(acquiring.error(10), LockfastError)
        assert refused.hits >= 1
        with side.client(valkey_server.url) as eyes:
            wait_until(lambda: not eyes.inspect(name).holders, what="undone, by another connection")
        assert max(old) > demoted_at[0]


def test_a_child_has_a_lookout_of_its_own_and_leaves_a_replaced_master(
    sentinels: Sentinels, threads: Side, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scouting, "RECHECK_S", 0.1)
    lf: Any = threads.client(sentinels.url)
    old = sentinels.master

    def lookouts() -> int:
        return len([one for one in threading.enumerate() if one.name == "lockfast-sentinel"])

    def connections() -> int:
        listed: bytes = old.command("CLIENT", "LIST")
        return listed.count(b"name=lockfast ")

    def in_the_child() -> None:
        assert lookouts() == 0, "threads do not live through a fork"
        before = connections()
        lf.lock(name, "child", lease=30, wait=5).acquire()
        assert lookouts() == 1
        assert connections() > before
        sentinels.cut_off(old)
        sentinels.wait_moved(old)
        wait_until(lambda: connections() <= before, what="the child has left it")
        assert old.command("ROLE")[0] == b"master", "it does not know"

    with lf.lock(name, "parent", lease=30):
        assert lookouts() == 1
    with lf._driver.endpoint.scout._mutex:  # as if the lookout had been at work in the moment of the fork
        in_child(in_the_child)
    wait_until(lambda: connections() == 0, what="so has the parent")
