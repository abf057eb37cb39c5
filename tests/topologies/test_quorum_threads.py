"""A majority of servers where the system gives no more threads: what was not begun is begun later."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kit.quorum import fleet_of
from kit.servers import wait_until
from lockfast.errors import Unreachable
from lockfast.sync import Lockfast

if TYPE_CHECKING:
    from kit.quorum import Masters
    from topologies.conftest import StartMasters

pytestmark = pytest.mark.slow


class NoThreads:
    """While it stands, no thread that connects can be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self.stands = False
        start = threading.Thread.start

        def start_or_fail(thread: threading.Thread) -> None:
            if self.stands and thread.name == "lockfast-connect":
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_fail)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> NoThreads:
    return NoThreads(monkeypatch)


def test_a_server_that_could_not_be_looked_at_for_want_of_a_thread_is_used_again(
    start_masters: StartMasters, name: str, no_threads: NoThreads
) -> None:
    masters = start_masters(3, appendonly=True)
    with Lockfast(masters.urls) as lf:
        hold_everywhere(lf, name)
        masters[2].kill9()
        wait_until(lambda: holds_at(lf, name) == 2 and fleet_of(lf).nodes[2].why_down)
        no_threads.stands = True
        wait_until(lambda: holds_at(lf, name) == 2 and no_threads.refused)
        no_threads.stands = False
        masters[2].start()
        hold_everywhere(lf, name)


def test_who_could_not_connect_for_want_of_a_thread_hears_so_and_connects_later(
    trio: Masters, name: str, no_threads: NoThreads
) -> None:
    with Lockfast(trio.urls, timeout=0.5) as lf:
        no_threads.stands = True
        with pytest.raises(Unreachable, match="can't start new thread"):
            lf.lock(name).acquire(wait=0)
        no_threads.stands = False
        hold_everywhere(lf, name)
    trio.wait_free(name)


def hold_everywhere(lf: Lockfast, name: str) -> None:
    wait_until(lambda: holds_at(lf, name) == 3, what="all servers vote")


def holds_at(lf: Lockfast, name: str) -> int:
    """How many servers a hold stands at."""
    with lf.lock(name, wait=5) as grant:
        grant.extend()
        return len(grant.nodes)
