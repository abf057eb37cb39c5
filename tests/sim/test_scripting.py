"""Scripts on the simulated server: small ones for every rule of the sandbox, and the shipped ones with random tickets.

All are held to a real server. The shipped scripts run twice: with the time given as an argument, so that hours pass and
every reply must be the same to the last digit, and as they are, with the simulated clock set by the real one.
"""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from lockfast.flows import scripts as shipped
from lockfast.sim.server import Server as SimServer
from lua.scripts import Scripts
from sim.differ import Step, clock_of, compare, plain

if TYPE_CHECKING:
    from kit.resp import Argument
    from kit.servers import Server
    from lua.scripts import Named

CONVERSIONS = """
return nil
return true
return false
return
return 3.99
return -3.99
return 1/0
return 0/0
return 2^63
return -2^70
return 'text'
return '\\0\\255\\r\\n'
return {}
return {a=1}
return {1,2,nil,3}
return {1,2.9,-2.9,'x',true,false,{1,{}},{ok='x'},{err='y'},nil,5}
return {1,{2,{3,{4,{'five'}}}}}
return {ok='fine'}
return {err='MY problem'}
return {err='x', ok='y'}
return {err=1}
return {ok=1, 5}
return function() end
return {function() end, 1}
return redis.status_reply('fine')
return redis.status_reply('a\\nb')
return redis.error_reply('one')
return redis.error_reply('-one')
return redis.error_reply('TWO words')
return redis.error_reply('two\\r\\nlines')
return redis.error_reply()
return redis.error_reply(1)
return redis.status_reply('a', 'b')
return redis.sha1hex('')
return redis.sha1hex(5)
return redis.sha1hex()
local t = {} for i = 1, 3000 do t[i] = i end return t
local t = {} for i = 1, 3000 do t[i] = {i, tostring(i)} end return t
""".strip().splitlines()

COMMANDS = """
return redis.call('GET', 'missing')
return redis.call('SET', 'a', 'b')
return redis.call('set', 'a', 'b').ok
return redis.call('PING')
return redis.call('ECHO', 'x')
return redis.call('SET', 'a', 1.5) and redis.call('GET', 'a')
return redis.call('SET', 'a', 1e15) and redis.call('GET', 'a')
return redis.call('SET', 'a', 1e20) and redis.call('GET', 'a')
return redis.call('SET', 'a', 1, 'PX', 1e8)
return redis.call('SET', 5, 6) and redis.call('GET', '5')
return redis.call('GET')
return redis.call('NOPE')
return redis.call('nope', 'a')
return redis.call()
return redis.call({})
return redis.call('SET', 'a', {})
return redis.call('SET', 'a', true)
return redis.call('SET', true, 'a')
return redis.call('SET', 'a', 'b', 'ZZ')
redis.call('SET', 's', 'v') return redis.call('HGET', 's', 'f')
redis.call('SET', 's', 'v') return redis.pcall('HGET', 's', 'f')
redis.call('SET', 's', 'v') return redis.pcall('HGET', 's', 'f').err
redis.call('SET', 's', 'v') redis.call('INCR', 's') return 'not reached'
redis.call('SET', 's', 'v') redis.pcall('INCR', 's') return redis.call('GET', 's')
redis.call('ZADD', 'z', 1, 'a', 2, 'b') return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')
redis.call('ZADD', 'z', 1, 'a', 2, 'b') return #redis.call('ZRANGE', 'z', 5, 9)
redis.call('SET', 'k', 1) return #redis.call('SCAN', 0)[2]
redis.call('FLUSHALL') redis.call('SET', 'k', 1) return redis.call('SCAN', 0)
redis.call('HSET', 'h', 'f', 1.25) return redis.call('HGETALL', 'h')
return redis.call('EVAL', 'return 1', 0)
return redis.call('WATCH', 'a')
return redis.call('MULTI')
return redis.call('exec')
return redis.call('SUBSCRIBE', 'a')
return redis.call('SCRIPT', 'LOAD', '')
return redis.pcall('SET', 'a', 'b', 'ZZ').err
return redis.call('TIME')[1] == redis.call('TIME')[1]
return type(redis.call('TIME')[2])
return {pcall(redis.call, 'SET', 'a', 'b', 'ZZ')}
return {pcall(redis.call, 'GET', 'a')}
return {pcall(error, 'x')}
return {pcall(error, {err = 'X y'})}
return {pcall(function() error('x') end)}
local ok, e = xpcall(function() return redis.call('NOPE') end, function(e) return e end) return type(e)
""".strip().splitlines()

SANDBOX = """
return x
x = 1
_G.x = 1
rawset(_G, 'x', 1)
string.x = 1
redis.x = 1
rawset(redis, 'call', 1)
return redis.nope
return string.nope
return ('x'):upper() .. ('%d'):format(5)
local t = {} t.x = 1 return t.x
local t = setmetatable({}, {__index = function(_, k) return k end}) return t.five
return rawget({5}, 1) + #KEYS
KEYS[1] = 'x' return KEYS[1]
return dofile
return print
return require
return io
return debug
return loadfile
return nil + 1
local a = nil; return a.b
error('boom')
error({err = 'BOOM x'})
error()
error('two\\nlines')
syntax here
return tostring(1e15) .. ' ' .. tostring(2^53) .. ' ' .. tostring(0.1)
return {unpack({1, 2, 3}, 2)}
return {select('#', 1, nil, nil), tonumber('0x10'), tonumber('z', 36), type(next)}
return {math.floor(-1.5), math.max(1, 2), math.huge > 1 and 1 or 0, table.concat({1, 2}, ',')}
""".strip().splitlines()

SHEBANGS = [
    "#!lua\nreturn x",
    "#!lua",
    "#!js\nreturn 1",
    "#!lua flags=zzz\nreturn 1",
    "#!lua zzz\nreturn 1",
    "#!lua name=x\nreturn 1",
    "#!lua flags=allow-oom,no-writes\nreturn redis.call('GET', 'a')",
    "#!lua flags=no-writes\nreturn redis.call('SET', 'a', 'b')",
    "#!lua flags=no-writes\nreturn redis.pcall('PUBLISH', 'a', 'b')",
    "#!lua flags=allow-oom\nreturn redis.call('SET', 'a', 'b')",
    "\n\nlocal x = 1\nx = x + {}",
]


@pytest.mark.parametrize(
    "texts", [CONVERSIONS, COMMANDS, SANDBOX, SHEBANGS], ids=["conversions", "commands", "sandbox", "shebangs"]
)
def test_small_scripts_are_answered_as_by_a_real_server(server: Server, texts: list[str]) -> None:
    compare(server, [Step(0, ("EVAL", text, 0)) for text in texts])


def test_uncaught_error_names_the_line_it_came_from() -> None:
    server = SimServer(lambda: 0)
    reply = server.execute(server.open(print), ("EVAL", "local a = 1\nlocal b = redis.call('NOPE')\nreturn b", 0))
    assert str(reply) == "ERR Unknown command called from script script: on @user_script:2."


def test_long_lists_come_through_whole() -> None:
    server = SimServer(lambda: 0)
    session = server.open(print)
    words = [word for i in range(5000) for word in (i, f"member {i}")]
    assert server.execute(session, ("ZADD", "z", *words)) == 5000
    text = "local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') return {#all, all, all[9999]}"
    count, members, last = server.execute(session, ("EVAL", text, 1, "z"))
    assert (count, len(members), last) == (10_000, 10_000, b"member 4999")
    assert server.execute(session, ("EVAL", "return {#ARGV, ARGV[#ARGV]}", 0, *range(6000))) == [6000, b"5999"]


@pytest.mark.parametrize(
    "leak",
    [
        "redis.call = nil",
        "rawset(redis, 'call', nil)",
        "setmetatable(redis, nil)",
        "setmetatable(string, nil)",
        "getmetatable('').__index = nil",
        "getmetatable(redis).__index = nil",
        "table.insert(string, 5)",
        "table.sort(string)",
        "table.remove(string)",
        "leaked = 1",
        "rawset(_G, 'leaked', 1)",
        "KEYS.leaked = 1; ARGV.leaked = 1",
        "local function f() leaked = 1 end; f()",
    ],
)
def test_nothing_passes_from_one_script_to_the_next(leak: str) -> None:
    """All servers of a thread share one Lua state."""
    first, second = SimServer(lambda: 0), SimServer(lambda: 0)
    look = "return {redis.call('PING'), string.upper('a'), ('b'):upper(), #string, KEYS.leaked, ARGV.leaked}"
    first.execute(first.open(print), ("EVAL", leak, 0))
    for server in (first, second):
        session = server.open(print)
        assert server.execute(session, ("EVAL", look, 0)) == [b"PONG", b"A", b"B", 0]
        assert "nonexistent global" in str(server.execute(session, ("EVAL", "return leaked", 0)))


def test_fault_of_a_command_is_not_taken_for_an_error_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the simulator must come to light, even from a script that catches errors."""

    def broken(server: SimServer, key: bytes) -> None:
        raise ZeroDivisionError(key)

    server = SimServer(lambda: 0)
    session = server.open(print)
    monkeypatch.setattr(type(server.store), "string", broken)
    for text in (
        "return redis.call('GET', 'a')",
        "return redis.pcall('GET', 'a')",
        "return pcall(redis.call, 'GET', 'a')",
    ):
        with pytest.raises(ZeroDivisionError):
            server.execute(session, ("EVAL", text, 0))


# The shipped scripts


class Twins:
    """A real server and a simulated one, as one server for `Scripts`: what is called is called on both and compared.

    exact: the replies are the same; otherwise fences and times may differ as far as the clocks do.
    """

    def __init__(self, real: Server, *, exact: bool) -> None:
        self.real = real
        self.version = real.version
        self.exact = exact
        self._wire = real.wire(timeout_s=20)
        self._now = clock_of(real)
        self.sim = SimServer(lambda: self._now())
        self._session = self.sim.open(print)
        self.pushed: list[Any] = []
        self._listener = real.wire(timeout_s=20)
        sim_listener = self.sim.open(self.pushed.append)
        for channel in ("heard-1", "heard-2"):
            self._listener.call("SUBSCRIBE", channel)
            self.sim.execute(sim_listener, ("SUBSCRIBE", channel))
        self._told: list[str] = []
        self._numbers: tuple[dict[str, str], dict[str, str]] = ({}, {})

    def wire(self, *, timeout_s: float) -> Twins:
        return self

    def call(self, *words: Argument) -> Any:
        if not self.exact:
            self._now = clock_of(self.real)
        reply = self.sim.execute(self._session, words)
        ours = plain(reply)
        self._wire.send(*words)
        theirs = plain(self._wire.read())
        self._told.append(" ".join([str(word) for word in words])[:300])
        if words[0] == "HGETALL":  # in any order
            ours, theirs = (sorted(zip(flat[::2], flat[1::2], strict=True)) for flat in (ours, theirs))
        if words[0] == "TIME":
            assert ours[0] == theirs[0] or not self.exact
        elif not self._same(ours, theirs):
            told = "\n  ".join(self._told[-40:])
            raise AssertionError(f"replies differ after\n  {told}\nsimulated: {ours!r}\n{self.real!r}: {theirs!r}")
        return reply

    def _same(self, ours: Any, theirs: Any) -> bool:
        if self.exact:
            return bool(ours == theirs)
        if isinstance(ours, int) and isinstance(theirs, int) and 1000 < min(ours, theirs) < 10**12:
            return abs(ours - theirs) < 5000  # ms left
        if isinstance(ours, list) and isinstance(theirs, list):
            return len(ours) == len(theirs) and all(map(self._same, ours, theirs))
        return self._levelled(ours, 0) == self._levelled(theirs, 1)

    def _levelled(self, value: Any, side: int) -> str:
        """Fences by the order in which they came up; no moments."""
        seen = self._numbers[side]
        text = value.decode() if isinstance(value, bytes) else str(value)
        text = re.sub(r"\b\d{16}\b", lambda found: seen.setdefault(found[0], f"fence {len(seen)}"), text)
        return re.sub(r"\b\d{13}\b", "moment", text)

    def close(self) -> None:
        self._wire.close()
        self._listener.close()

    def check_pushes(self) -> None:
        theirs = [self._listener.read() for _ in self.pushed]
        assert [self._levelled(push, 0) for push in self.pushed] == [self._levelled(push, 1) for push in theirs]
        if self.exact:
            assert self.pushed == theirs


def run_at_random(scripts: Scripts, name: Named, random: Random, steps: int) -> None:
    """Without a given time every lease ends at least 10 s from any other: a tie on one server is one on the other."""
    fences = [0]
    for step in range(steps):
        ticket = f"ticket-{random.randrange(9)}"
        lease_ms = random.choice([500, 30_000, 60_000]) if scripts.clocked else 30_000 + step * 10_000
        match random.choice("aaaaaallllrri" * 3 + "od"):
            case "a":
                reply = scripts.wire.call(
                    *name.admit_request(
                        ticket,
                        weight=random.randint(1, name.limit),
                        lease=lease_ms,
                        place=random.choice([0, 60_000, 90_000]),
                        seen=random.choice([0, 0, 0, 1_900_000_000_000_000]) if scripts.clocked else 0,
                        channel=random.choice(["heard-1", "heard-2", "nobody"]),
                    )
                )
                fences.append(reply[1] if isinstance(reply, list) else reply)
            case "l":
                name.leave(ticket, lease=lease_ms, unsure=random.random() < 0.2, note=random.choice(["", "", "by me"]))
            case "r":
                name.renew(ticket, random.choice(fences[-4:]) if scripts.clocked else 0, lease_ms)
            case "i":
                scripts.call("inspect", name.keys, how=5)
            case "o":  # in use as something else, mostly
                scripts.wire.call(*scripts.name("n", limit=2).admit_request(ticket))
            case "d":  # an eviction
                scripts.wire.call("DEL", random.choice(name.keys))
        if scripts.clocked:
            scripts.call("inspect", name.keys, how=100)
            scripts.pass_ms(random.choice([0, 0, 0, 1, 100, 500, 2_000]) if random.random() < 0.95 else 1e7)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [1, 4])
def test_shipped_scripts_with_a_given_time_answer_exactly_as_on_a_real_server(
    server: Server, limit: int, seed: int
) -> None:
    twins = Twins(server, exact=True)
    with Scripts(cast("Server", twins), clocked=True) as scripts:
        name = scripts.name("n", kind="semaphore", limit=limit)
        run_at_random(scripts, name, Random(seed), 400)
        name.everything()
        twins.check_pushes()
        assert twins.pushed


@pytest.mark.parametrize("limit", [1, 4])
def test_shipped_scripts_answer_as_on_a_real_server(server: Server, limit: int) -> None:
    twins = Twins(server, exact=False)
    with Scripts(cast("Server", twins)) as scripts:
        name = scripts.name("n", kind="semaphore", limit=limit)
        run_at_random(scripts, name, Random(limit), 600)
        for key in name.keys:
            scripts.wire.call("PTTL", key)
        twins.check_pushes()
        assert twins.pushed


def test_shipped_texts_are_the_ones_that_run() -> None:
    server = SimServer(lambda: 1_700_000_000_000_000)
    session = server.open(print)
    for script in (shipped.ADMIT, shipped.LEAVE, shipped.RENEW, shipped.INSPECT):
        assert server.execute(session, ("SCRIPT", "LOAD", script.text)) == script.sha.encode()
