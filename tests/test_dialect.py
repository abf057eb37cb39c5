"""Servers that do not know the first line of scripts: Redis 6.2, here played by the proxy in front of a newer one.

LOCKFAST_TEST_SERVERS runs everything on a real one; see CONTRIBUTING.md.
"""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING

import pytest

from lockfast.drivers import wire
from lockfast.drivers.dialect import knows_no_flags, plain_text, plainly
from lockfast.flows import scripts
from lockfast.flows.scripts import ADMIT, ADMIT_ALL, INSPECT, LEAVE, LEAVE_ALL, Bound
from lockfast.names import make

if TYPE_CHECKING:
    from kit.proxy import Proxy
    from kit.rules import Request
    from kit.servers import Server
    from kit.sides import Side

TOO_OLD = b"-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n"
NAME = make("lockfast", ("x",))
LEAVING = Bound(LEAVE, NAME, (1000, 0, ""))
ALL = [script for script in vars(scripts).values() if isinstance(script, scripts.Script)]


def has_flags(request: Request) -> bool:
    return request.command == "EVAL" and request.arguments[0].startswith(b"#!lua")


@pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)
def test_every_script_has_a_first_line_that_can_be_left_out(script: scripts.Script) -> None:
    plain = plain_text(script.text)
    assert "#!" not in plain
    assert plain.splitlines()[1:] == script.text.splitlines()[1:]


def test_first_line_does_what_the_flags_did() -> None:
    lines = {
        script: plain_text(script.text).splitlines()[0] for script in (ADMIT, LEAVE, LEAVE_ALL, INSPECT, ADMIT_ALL)
    }
    assert "ZADD" in lines[ADMIT], "refused at maxmemory before anything is done"
    assert "ZREM" in lines[LEAVE] == lines[LEAVE_ALL], "not refused at maxmemory"
    assert lines[INSPECT] == lines[ADMIT_ALL] == "--"


def test_only_the_scripts_are_said_differently() -> None:
    plain = plain_text(LEAVE.text)
    sha = sha1(plain.encode()).hexdigest()
    words = ("EVAL", plain, 5, *NAME.keys, 1000, 0, "", "ticket")
    assert plainly(wire.eval_text(LEAVING, ("ticket",))) == wire.pack(words)
    words = ("EVALSHA", sha, 5, *NAME.keys, 1000, 0, "", "ticket")
    named = wire.evalsha(LEAVING, ("ticket",))
    assert plainly(named) == wire.pack(words)
    assert plainly(wire.PING + named + wire.PING + named) == (wire.PING + wire.pack(words)) * 2
    # Whatever callers send along stays as it is, even if it looks like one of these.
    foreign = [
        ("SET", "EVALSHA", LEAVE.sha),
        ("SET", "k", wire.evalsha(LEAVING, ("ticket",))),
        ("EVAL", "#!lua\nreturn 1", 0),
        ("EVALSHA", sha, 5, LEAVE.sha, LEAVE.text),
        ("GET", ""),
    ]
    for command in foreign:
        assert plainly(wire.pack(command)) == wire.pack(command)
    assert plainly(b"") == b""


def test_other_mistakes_in_a_script_are_not_taken_for_this_one() -> None:
    assert knows_no_flags(wire.ReplyError(TOO_OLD[1:-2].decode()))
    for other in ("ERR Error compiling script (new function): user_script:1: '=' expected near 'x'", "NOSCRIPT no"):
        assert not knows_no_flags(wire.ReplyError(other))
    assert not knows_no_flags(1)


def test_server_that_is_too_old_for_flags_is_spoken_to_plainly(
    side: Side, server: Server, proxy: Proxy, name: str
) -> None:
    server.command("SCRIPT", "FLUSH")
    refused = proxy.when(has_flags, times=None).inject_reply(TOO_OLD)
    with side.client(proxy.url) as lf, side.client(proxy.url) as other:
        with lf.lock(name, lease=30) as grant:
            waiting = side.spawn(other.lock(name, lease=30).acquire, wait=20)
            proxy.wait_for("SUBSCRIBE")
            grant.extend()
        waiting.result().release()
        with lf.locks(f"{name}a", f"{name}b"), lf.lock(f"{name}c") as held:
            held.guard(("SET", f"{name}d", "#!lua"))
        assert server.command("GET", f"{name}d") == b"#!lua"
        assert refused.hits
        seen = len(proxy.seen("EVAL"))
        with lf.lock(name):
            pass
        assert len(proxy.seen("EVAL")) == seen, "once found out, it costs nothing more"


def test_server_that_was_upgraded_gets_the_flags_again(side: Side, server: Server, proxy: Proxy, name: str) -> None:
    if server.version < (7,):
        pytest.skip("this one was not")
    server.command("SCRIPT", "FLUSH")
    refused = proxy.when(has_flags, times=None).inject_reply(TOO_OLD)
    with side.client(proxy.url) as lf:
        with lf.lock(name):
            pass
        assert server.command("SCRIPT", "EXISTS", LEAVE.sha) == [0]
        refused.cancel()
        server.command("SCRIPT", "FLUSH")
        with lf.lock(name):
            pass
        assert server.command("SCRIPT", "EXISTS", ADMIT.sha, LEAVE.sha) == [1, 1]
