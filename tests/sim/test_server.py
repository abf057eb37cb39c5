"""Sessions of the simulated server: transactions and expiry, push, scripts that are known or not, loss of memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast.sim.keyspace import ReplyError
from lockfast.sim.server import Server as SimServer
from sim.differ import Step, compare, plain

if TYPE_CHECKING:
    from kit.servers import Server

START_US = 1_700_000_000_000_000


class Clocked:
    """A simulated server with a clock that the test moves, and some sessions."""

    def __init__(self, sessions: int = 1) -> None:
        self.now_us = START_US
        self.server = SimServer(lambda: self.now_us)
        self.pushed: list[list[Any]] = []
        self.sessions = [self.server.open(self.pushed.append) for _ in range(sessions)]

    def __call__(self, *words: Any, by: int = 0) -> Any:
        return plain(self.server.execute(self.sessions[by], words))

    def pass_ms(self, ms: float) -> None:
        self.now_us += round(ms * 1000)


# Expiry


def test_key_lives_through_the_millisecond_of_its_expiry_and_is_gone_after_it() -> None:
    ask = Clocked()
    ask("SET", "k", "v", "PX", 10)
    ask.pass_ms(10.999)
    assert (ask("GET", "k"), ask("PTTL", "k")) == (b"v", 0)
    ask.pass_ms(0.001)
    assert (ask("GET", "k"), ask("PTTL", "k"), ask("EXISTS", "k"), ask("DBSIZE")) == (None, -2, 0, 0)


def test_seconds_left_are_rounded_to_the_nearest() -> None:
    ask = Clocked()
    ask("SET", "k", "v", "PX", 1500)
    assert ask("TTL", "k") == 2
    ask.pass_ms(1)
    assert ask("TTL", "k") == 1


def test_expiry_that_is_set_to_now_or_before_deletes_at_once() -> None:
    for at_ms in (START_US // 1000, 1, -1):
        ask = Clocked()
        ask("SET", "k", "v")
        assert (ask("PEXPIREAT", "k", at_ms), ask("GET", "k")) == (1, None)


@pytest.mark.parametrize(
    "look",
    ["GET k", "TYPE k", "DEL k", "INCR k", "HGETALL k", "ZCARD k", "SCAN 0", "SETNX k v", "PERSIST k", "ZADD k XX 1 a"],
)
def test_every_command_sees_an_expired_key_as_missing(look: str) -> None:
    asked, fresh = Clocked(), Clocked()
    asked("SET", "k", "5", "EX", 1)
    asked.pass_ms(1001)
    assert asked(*look.split()) == fresh(*look.split())
    assert asked("TTL", "k") == fresh("TTL", "k")


def test_clock_that_goes_back_gives_keys_more_time() -> None:
    ask = Clocked()
    ask("SET", "k", "v", "PX", 1000)
    ask.pass_ms(-60_000)
    assert ask("PTTL", "k") == 61_000


def test_time_stands_still_inside_a_transaction_and_a_script() -> None:
    ticks = iter(range(START_US, START_US + 10**6))
    server = SimServer(lambda: next(ticks))
    session = server.open(print)
    server.execute(session, ("MULTI",))
    server.execute(session, ("TIME",))
    server.execute(session, ("TIME",))
    first, second = server.execute(session, ("EXEC",))
    assert first == second
    first, second = server.execute(session, ("EVAL", "return {redis.call('TIME'), redis.call('TIME')}", 0))
    assert first == second


EXPIRIES_WATCHED = {
    "expired between WATCH and EXEC": ["SET k v PX 40", "WATCH k", "pass", "MULTI", "PING", "EXEC"],
    "expired before WATCH, deleted after it": ["SET k v PX 40", "pass", "WATCH k", "other GET k", "MULTI", "EXEC"],
    "expired before WATCH, written after it": ["SET k v PX 40", "pass", "WATCH k", "other SET k w", "MULTI", "EXEC"],
    "expired before WATCH, flushed after it": ["SET k v PX 40", "pass", "WATCH k", "other FLUSHALL", "MULTI", "EXEC"],
    "expired before WATCH, left alone": ["SET k v PX 40", "pass", "WATCH k", "MULTI", "EXEC"],
    "flushed while there": ["SET k v", "WATCH k", "other FLUSHALL", "MULTI", "EXEC"],
    "flushed while missing": ["WATCH k", "other FLUSHALL", "MULTI", "EXEC"],
    "deleted and written again alike": ["SET k v", "WATCH k", "other DEL k", "other SET k v", "MULTI", "EXEC"],
    "written by itself": ["WATCH k", "SET k v", "MULTI", "EXEC"],
    "written after UNWATCH": ["WATCH k", "UNWATCH", "other SET k v", "MULTI", "EXEC"],
    "only its expiry changed": ["SET k v", "WATCH k", "other EXPIRE k 1000", "MULTI", "EXEC"],
    "raised by nothing": ["ZADD k 1 m", "WATCH k", "other ZINCRBY k 0 m", "other ZADD k 1 m", "MULTI", "EXEC"],
    "written by a script": ["WATCH k", "other EVAL return(redis.call('SET','k','v')) 0", "MULTI", "EXEC"],
    "read by a script": ["SET k v", "WATCH k", "other EVAL return(redis.call('GET','k')) 0", "MULTI", "EXEC"],
    "watched in a second transaction": ["WATCH k", "MULTI", "EXEC", "other SET k v", "MULTI", "EXEC"],
}


@pytest.mark.parametrize("case", EXPIRIES_WATCHED)
def test_watch_notices_what_it_does_on_a_real_server(server: Server, case: str) -> None:
    ask = Clocked(2)
    with server.wire() as watcher, server.wire() as other:
        for line in EXPIRIES_WATCHED[case]:
            if line == "pass":
                passed_s = server.time_s() + 0.045
                wait_until(lambda end_s=passed_s: server.time_s() > end_s)  # type: ignore[misc]
                ask.pass_ms(45)
                continue
            wire, by = (other, 1) if line.startswith("other ") else (watcher, 0)
            words = line.removeprefix("other ").split()
            wire.send(*words)
            assert ask(*words, by=by) == plain(wire.read()), line


# Transactions and errors


def test_refused_commands_are_refused_in_the_words_of_a_real_server(server: Server) -> None:
    lines = """
    NOPE a b
    nOpe
    GET
    get a b
    EXEC
    DISCARD
    WATCH
    MULTI x
    SCRIPT
    SCRIPT NOPE
    SCRIPT LOAD
    SCRIPT EXISTS
    SCRIPT FLUSH x
    SCRIPT FLUSH SYNC x
    SCRIPT EXISTS abc def
    script load return(5)
    SCRIPT EXISTS 4ca238f611c9d0ae4e9a75a5dbac22aedc1e4428
    EVALSHA abc 0
    EVAL return(1) 5
    EVAL return(1) -1
    EVAL return(1) x
    EVAL return(1)
    EXPIRE a 1 x
    EXPIRE a 9999999999999999
    SET a b EX 0
    SET a b EX 1 PX 1
    SET a b EX x ZZ
    SCAN x
    SCAN 0 COUNT 0
    SCAN 0 MATCH
    WAIT 0 0
    WAIT 0 x
    FLUSHALL x
    MULTI
    GET
    SET a b
    EXEC
    MULTI
    SCRIPT NOPE
    EXEC
    MULTI
    INCR a
    HGET a b
    EVALSHA abc 0
    EVAL return(redis.call('INCR','a')) 0
    EXEC
    MULTI
    INCR a
    DISCARD
    GET a
    """
    compare(server, [Step(0, tuple(line.split())) for line in lines.strip().splitlines()])


def test_watch_and_multi_are_refused_inside_a_transaction() -> None:
    for words in (("WATCH", "k"), ("MULTI",)):
        ask = Clocked()
        ask("MULTI")
        assert ask(*words) == ("error", f"ERR Command '{words[0].lower()}' not allowed inside a transaction")
        assert ask("EXEC")[1].startswith("EXECABORT")


def test_closed_session_leaves_nothing_behind() -> None:
    ask = Clocked(2)
    ask("WATCH", "k")
    ask("SUBSCRIBE", "c")
    ask.server.close(ask.sessions[0])
    assert ask("PUBLISH", "c", "m", by=1) == 0
    assert ask("SET", "k", "v", by=1) == b"OK"
    assert not ask.server.store.watched
    assert not ask.server.store.listeners
    assert ask.pushed == []


# Push


def test_subscribed_session_is_answered_as_by_a_real_server(server: Server) -> None:
    lines = ["SUBSCRIBE a", "SUBSCRIBE b", "GET a", "PING", "PING x", "NOPE", "MULTI", "SUBSCRIBE a", "UNSUBSCRIBE z"]
    lines += ["UNSUBSCRIBE a", "UNSUBSCRIBE", "UNSUBSCRIBE", "PING", "UNSUBSCRIBE x", "GET a"]
    compare(server, [Step(0, tuple(line.split())) for line in lines])


def test_messages_go_to_all_who_listen_in_order() -> None:
    ask = Clocked(2)
    heard: list[list[Any]] = []
    other = ask.server.open(heard.append)
    assert ask("SUBSCRIBE", "a", "b") == [b"subscribe", b"b", 2]
    assert ask.pushed == [[b"subscribe", b"a", 1]]
    ask.pushed.clear()
    ask.server.execute(other, ("SUBSCRIBE", "a"))
    assert ask("PUBLISH", "a", "1", by=1) == 2
    assert ask("EVAL", "return redis.call('PUBLISH', 'b', '2')", 0, by=1) == 1
    assert ask("PUBLISH", "c", "3", by=1) == 0
    assert ask.pushed == [[b"message", b"a", b"1"], [b"message", b"b", b"2"]]
    assert heard == [[b"message", b"a", b"1"]]
    assert ask("UNSUBSCRIBE") == [b"unsubscribe", b"b", 0]
    assert ask("PUBLISH", "a", "4", by=1) == 1


# Scripts and memory


def test_script_must_be_known_to_be_run_by_its_sha() -> None:
    ask = Clocked()
    text = "return ARGV[1]"
    sha = "098e0f0d1448c0a81dafe820f66d460eb09263da"
    assert ask("EVALSHA", sha, 0, "x")[1].startswith("NOSCRIPT")
    assert ask("EVAL", text, 0, "x") == b"x"
    known = ask("SCRIPT", "LOAD", text)
    assert ask("EVALSHA", known.upper(), 0, "y") == b"y"
    ask("SCRIPT", "FLUSH")
    assert ask("SCRIPT", "EXISTS", known) == [0]
    assert ask("EVALSHA", known, 0, "x")[1].startswith("NOSCRIPT")


def test_script_known_to_one_server_is_unknown_to_another() -> None:
    first, second = Clocked(), Clocked()
    sha = first("SCRIPT", "LOAD", "return 1")
    assert first("EVALSHA", sha, 0) == 1
    assert second("EVALSHA", sha, 0)[1].startswith("NOSCRIPT")


def test_emptied_server_has_forgotten_data_and_scripts() -> None:
    ask = Clocked()
    sha = ask("SCRIPT", "LOAD", "return 1")
    ask("SET", "k", "v", "EX", 100)
    ask.server.empty()
    assert (ask("GET", "k"), ask("TTL", "k"), ask("DBSIZE"), ask("SCRIPT", "EXISTS", sha)) == (None, -2, 0, [0])


def test_copied_data_is_the_same_elsewhere_and_stays_as_it_was() -> None:
    ask, replica = Clocked(), Clocked()
    ask("SET", "s", "v", "PX", 500)
    ask("HSET", "h", "f", "1")
    ask("ZADD", "z", 1, "a", 2, "b")
    copy = ask.server.copy_data()
    ask("HSET", "h", "f", "2")
    ask("ZREM", "z", "a")
    ask("DEL", "s")
    for _ in range(2):  # given again it is still what it was, whatever the first taker did with it
        replica.server.restore(copy)
        assert (replica("GET", "s"), replica("PTTL", "s"), replica("HGET", "h", "f")) == (b"v", 500, b"1")
        assert replica("ZRANGE", "z", 0, -1, "WITHSCORES") == [b"a", b"1", b"b", b"2"]
        replica("HSET", "h", "f", "3")
        replica("ZADD", "z", 0, "c")
    replica.pass_ms(501)
    assert replica("GET", "s") is None


def test_store_can_be_read_from_outside() -> None:
    ask = Clocked()
    ask("SET", "k", "v")
    assert ask.server.store.get(b"k") == b"v"
    assert ask.server.store.get(b"missing") is None


def test_replies_are_what_hiredis_gives() -> None:
    server = SimServer(lambda: START_US)
    session = server.open(print)
    for words, kind in (("SET k v", bytes), ("GET k", bytes), ("TYPE k", bytes), ("DEL k", int), ("TIME", list)):
        assert type(server.execute(session, tuple(words.split()))) is kind
    error = server.execute(session, ("NOPE",))
    assert isinstance(error, ReplyError)
    server.execute(session, ("MULTI",))
    server.execute(session, ("SET", "k", "v"))
    assert [type(item) for item in server.execute(session, ("EXEC",))] == [bytes]


def test_numbers_and_text_are_sent_as_clients_send_them() -> None:
    ask = Clocked()
    ask("HSET", "h", "i", 5, "f", 1.5, "t", "é", "b", b"\xff")
    assert ask("HGETALL", "h") == [b"i", b"5", b"f", b"1.5", b"t", "é".encode(), b"b", b"\xff"]


def test_two_threads_have_servers_of_their_own() -> None:
    results: list[Any] = []

    def work(n: int) -> None:
        ask = Clocked()
        results.extend([ask("EVAL", "return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, "k", n) for _ in range(300)])

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([*range(1, 301), *range(1000, 300_001, 1000)])
