"""How processes end with locks in their hands, and how they run under gevent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from faults.actors import Script
from lockfast.clock import now

if TYPE_CHECKING:
    from faults.conftest import Eyes
    from kit.proxy import ProxyFor
    from kit.servers import Server

pytestmark = pytest.mark.slow

ENDS = {
    "threads, held": """
from lockfast.sync import Lockfast
lf = Lockfast(url)
grant = lf.lock(name, lease=2, on_lost=print).acquire()
""",
    "threads, in a block": """
from lockfast.sync import Lockfast
lf = Lockfast(url)
with lf.lock(name, lease=2):
    sys.exit(0)
""",
    "threads, a waiter in a daemon thread": """
import threading
from lockfast.sync import Lockfast
lf = Lockfast(url)
grant = lf.lock(name, lease=2).acquire()
threading.Thread(target=lf.lock(name).acquire, daemon=True).start()
while not lf.inspect(name).waiters:
    pass
""",
    "threads, sys.exit in a thread": """
import threading
from lockfast.sync import Lockfast
lf = Lockfast(url)
def work():
    with lf.lock(name, lease=2):
        sys.exit(3)
worker = threading.Thread(target=work)
worker.start()
worker.join()
grant = lf.lock(name, lease=2).acquire(wait=1)
""",
    "threads, released at exit": """
import atexit
from lockfast.sync import Lockfast
lf = Lockfast(url)
grant = lf.lock(name, lease=2).acquire()
atexit.register(lf.close)
""",
    "threads, a cycle of garbage": """
from lockfast.sync import Lockfast
lf = Lockfast(url)
class Node: pass
node = Node()
node.me, node.grant, node.lf = node, lf.lock(name, lease=2).acquire(), lf
""",
    "asyncio, held": """
import asyncio
from lockfast.aio import Lockfast
async def main():
    lf = Lockfast(url)
    grant = await lf.lock(name, lease=2).acquire()
asyncio.run(main())
""",
    "asyncio, in a block of another task": """
import asyncio
from lockfast.aio import Lockfast
async def main():
    lf = Lockfast(url)
    async def hold():
        async with lf.lock(name, lease=2):
            held.set()
            await asyncio.sleep(60)
    held = asyncio.Event()
    task = asyncio.create_task(hold())
    await held.wait()
asyncio.run(main())
""",
    "asyncio, waiting": """
import asyncio
from lockfast.aio import Lockfast
async def main():
    lf = Lockfast(url)
    kept.append(await lf.lock(name, lease=2).acquire())
    task = asyncio.create_task(lf.lock(name).acquire())
    while not (await lf.inspect(name)).waiters:
        pass
kept = []
asyncio.run(main())
""",
}


@pytest.mark.parametrize("body", ENDS.values(), ids=ENDS.keys())
def test_interpreter_ends_at_once_with_locks_held(valkey_server: Server, name: str, body: str) -> None:
    """F65: no hang, exit code 0, no traceback; nothing of the library keeps the interpreter alive."""
    text = f"import sys\nurl, name = sys.argv[1:]\n{body}\nprint('end', flush=True)\n"
    with Script(text, valkey_server.url, name) as script:
        if "sys.exit(0)" not in body:
            assert script.line() == "end"
        began = now()
        code, _, errors = script.end(20)
        assert now() - began < 3
        assert (code, errors) == (0, "")


@pytest.mark.parametrize("end", [end for end in ENDS if end.startswith("asyncio")])
def test_event_loop_ends_quietly_over_a_slow_line(
    valkey_server: Server, proxy_for: ProxyFor, name: str, end: str
) -> None:
    """F65, F35: the loop closes before the undoing `leave` is answered; it was sent, and nothing complains."""
    proxy = proxy_for(valkey_server)
    proxy.when(times=None).delay_reply(0.02)
    with Script(f"import sys\nurl, name = sys.argv[1:]\n{ENDS[end]}", proxy.url, name) as script:
        code, _, errors = script.end(20)
        assert (code, errors) == (0, "")


CLEAN_ENDS = ["threads, in a block", "threads, released at exit", "asyncio, in a block of another task"]


@pytest.mark.parametrize("end", CLEAN_ENDS)
def test_orderly_end_gives_the_lock_back(server: Server, eyes: Eyes, name: str, end: str) -> None:
    """F65: blocks that are unwound by the end, and clients that are closed by it, leave nothing to the lease."""
    text = f"import sys\nurl, name = sys.argv[1:]\n{ENDS[end]}".replace("lease=2", "lease=60")
    with Script(text, server.url, name) as script:
        assert script.end()[0] == 0
    eyes.wait_free(name)


def test_interpreter_ends_at_once_in_an_outage(valkey_server: Server, proxy_for: ProxyFor, name: str) -> None:
    """F65: the server is gone and a release is still to be confirmed: the end does not wait for it."""
    text = """
import os, signal, sys
from lockfast.sync import Lockfast
lf = Lockfast(sys.argv[1], timeout=0.3)
with lf.lock(sys.argv[2], lease=60):
    print("held", flush=True)
    sys.stdin.readline()
print("end", flush=True)
"""
    proxy = proxy_for(valkey_server)
    with Script(text, proxy.url, name) as script:
        assert script.line() == "held"
        proxy.refuse()
        script.say("")
        assert script.line() == "end"
        began = now()
        code, _, errors = script.end(20)
        assert now() - began < 3
        assert (code, errors) == (0, "")


GEVENT = """
from gevent import monkey; monkey.patch_all()
import gevent, json, sys, time
from lockfast.sync import Lockfast
url, name = sys.argv[1:]
ticks, order, said = [], [], {}

def tick():
    while True:
        ticks.append(time.monotonic())
        gevent.sleep(0.01)

def section(lf, number):
    with lf.lock(name, lease=5, wait=20) as grant:
        order.append((number, grant.fence))
        gevent.sleep(0.02)

ticker = gevent.spawn(tick)
with Lockfast(url) as lf, Lockfast(url) as other:
    with lf.lock(name, lease=0.6) as grant:
        waiting = gevent.spawn(lambda: other.lock(name, lease=5).acquire(wait=20))
        first = grant.deadline
        gevent.sleep(1.0)
        said["renewed"] = grant.deadline > first
        said["held"] = grant.held
        said["waiting"] = not waiting.ready()
    waiting.get(timeout=10).release()
    lost = lf.lock(name, "lost", lease=0.3, renew=False).acquire()
    said["lost"] = lost.wait_lost(5)
    gevent.joinall([gevent.spawn(section, [lf, other][n % 2], n) for n in range(10)], raise_error=True)
    said["sections"] = len(order)
    said["in order"] = [fence for _, fence in order] == sorted(fence for _, fence in order)
ticker.kill()
said["longest stop"] = max(b - a for a, b in zip(ticks, ticks[1:]))
print(json.dumps(said), flush=True)
"""


def test_greenlets_of_gevent_wait_renew_and_take_turns(server: Server, eyes: Eyes, name: str) -> None:
    """F64: monkey-patched: whoever waits or is renewed does not stop the other greenlets."""
    with Script(GEVENT, server.url, name) as script:
        code, out, errors = script.end()
    assert (code, errors) == (0, "")
    said = json.loads(out)
    assert said.pop("longest stop") < 0.5, "nobody blocked the others"
    assert said == {
        "renewed": True,
        "held": True,
        "waiting": True,
        "lost": True,
        "sections": 10,
        "in order": True,
    }
    assert eyes.is_free(name)
