"""The commands of the simulated server, held to real servers by random runs: alone, in scripts, in transactions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lockfast.sim.commands import number_text
from lockfast.sim.keyspace import Keyspace
from sim.differ import Step, compare

if TYPE_CHECKING:
    from kit.servers import Server
    from sim.differ import Words

# One command a line; a capital between < and > stands for a choice below.
GRAMMAR = [
    line.split()
    for line in """
GET <K>
SET <K> <V>
SET <K> <N>
SET <K> <V> NX
SET <K> <V> XX
set <K> <V> xx get
SET <K> <V> GET
SET <K> <V> NX GET
SET <K> <V> EX <L>
SET <K> <V> PX <L>000 NX
SET <K> <V> PXAT <P>
SET <K> <V> PXAT <A>
SET <K> <V> KEEPTTL
SET <K> <V> KEEPTTL EX <N>
SET <K> <V> EX <N>
SETNX <K> <V>
GETSET <K> <V>
MGET <K> <K> <K>
DEL <K>
DEL <K> <K> <K>
EXISTS <K> <K>
TYPE <K>
EXPIRE <K> <L>
EXPIRE <K> -<L>
PEXPIRE <K> <L>000
PEXPIREAT <K> <P>
PEXPIREAT <K> <A>
TTL <K>
PTTL <K>
PERSIST <K>
INCR <K>
INCRBY <K> <N>
HGET <K> <M>
HSET <K> <M> <V>
HSET <K> <M> <V> <M> <N>
HSET <K> <M> <V>
HDEL <K> <M> <M>
HEXISTS <K> <M>
HINCRBY <K> <M> <N>
HGETALL <K>
HLEN <K>
ZADD <K> <S> <M>
ZADD <K> <S> <M> <S> <M>
ZADD <K> <S> <M> <S> <M> <S> <M>
ZADD <K> NX <S> <M>
ZADD <K> XX <S> <M> <S> <M>
ZADD <K> XX CH <S> <M>
ZADD <K> NX XX <S> <M>
ZINCRBY <K> <S> <M>
ZREM <K> <M> <M>
ZRANGE <K> <N> <N>
ZRANGE <K> 0 -1 WITHSCORES
ZRANGE <K> <N> <N> REV WITHSCORES
ZRANGEBYSCORE <K> <B> <B>
ZRANGEBYSCORE <K> <B> <B> WITHSCORES LIMIT <N> <N>
ZRANGEBYSCORE <K> -inf +inf LIMIT 0 <N>
ZREMRANGEBYSCORE <K> <B> <B>
ZREMRANGEBYRANK <K> <N> <N>
ZRANK <K> <M>
ZSCORE <K> <M>
ZCARD <K>
ZCOUNT <K> <B> <B>
ZINTERSTORE <K> 2 <K> <K>
ZINTERSTORE <K> 2 <K> <K> WEIGHTS <W> <W>
ZINTERSTORE <K> 2 <K> <K> WEIGHTS 1 0 AGGREGATE MAX
ZUNIONSTORE <K> 2 <K> <K>
ZUNIONSTORE <K> 3 <K> <K> <K> WEIGHTS <W> <W> <W> AGGREGATE MIN
ZPOPMIN <K>
ZPOPMIN <K> <N>
PUBLISH <M> <V>
PING
ECHO <V>
FLUSHALL
""".strip().splitlines()
]
CHOICES: dict[str, list[str]] = {
    "K": ["k1", "k2", "k3", "k4"],
    "V": ["", "v", "17", "-3", "1.5", "9223372036854775807", "ÿ\0\r\n"],
    "N": ["0", "1", "2", "-1", "-2", "5", "1", "0", "-9223372036854775808", "9223372036854775807"],
    "M": ["a", "b", "c", "aa", "B", ""],
    "S": ["0", "1", "2", "-1", "1.5", "0.1", "1e20", "inf", "-inf", "1700000000.25", "1e-7", "3.0"],
    "B": ["-inf", "+inf", "0", "1", "(1", "(0", "1.5", "2", "-1", "(-inf", "(+inf"],
    "W": ["0", "1", "2", "-1", "0.5", "inf"],
    "L": ["100000", "200000"],
    "P": ["1", "1000"],
    "A": ["99999999999999"],
}
GARBAGE = ["x", "", "1.5", "-7", "99999999999999999999", "01", "+1"]


def command(random: Random) -> Words:
    """One line of the grammar with choices made; now and then a word is missing, or is nonsense."""
    words = [_fill(word, random) for word in random.choice(GRAMMAR)]
    if words[0] == "FLUSHALL" and random.random() < 0.8:
        words = ["DEL", "k1"]
    if len(words) > 1 and random.random() < 0.05:
        at = random.randrange(1, len(words))
        words[at : at + 1] = random.choice([[], [random.choice(GARBAGE)]])
    return tuple(words)


def watched_command(random: Random) -> Words:
    """Redis 7.0 writes what has expired already, and Valkey does not: only watchers can tell."""
    while {"PXAT", *CHOICES["P"]} & {*(words := command(random))} > {"PXAT"}:
        pass
    return words


def _fill(word: str, random: Random) -> str:
    start, mark, rest = word.partition("<")
    return f"{start}{random.choice(CHOICES[rest[0]])}{rest[2:]}" if mark else word


# Puts out all replies, also the empty ones, and goes on after errors.
ALL_OF_THEM = """
local out, at = {}, 1
while ARGV[at] do
  local count = tonumber(ARGV[at])
  out[#out + 1] = redis.pcall(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
return out
"""


def in_a_script(commands: list[Words]) -> Step:
    words: list[Any] = ["EVAL", ALL_OF_THEM, 0]
    for inner in commands:
        words += [len(inner), *inner]
    return Step(0, tuple(words), tuple(commands))


def in_a_transaction(commands: list[Words]) -> list[Step]:
    steps = [Step(0, words) for words in (("MULTI",), *commands)]
    return [*steps, Step(0, ("EXEC",), tuple(commands))]


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_are_answered_as_by_a_real_server(server: Server, seed: int) -> None:
    random = Random(seed)
    compare(server, [Step(0, command(random)) for _ in range(2500)])


@pytest.mark.parametrize("seed", range(2))
def test_random_swaps_are_answered_as_by_valkey(valkey_server: Server, seed: int) -> None:
    """SET with IFEQ, which Redis 7 does not know: on texts, on other types, with and without what goes with it."""
    random = Random(seed)
    steps = []
    for _ in range(600):
        key = random.choice(CHOICES["K"])
        extra = random.choice([[], [], ["KEEPTTL"], ["GET"], ["PX", "90000"], ["NX"], ["XX"], ["IFEQ"], ["IFEQ", "a"]])
        swap = ["SET", key, random.choice("abc"), "IFEQ", random.choice("abc"), *extra]
        if random.random() < 0.3:
            swap = ["SET", key, random.choice("abc"), *extra, "IFEQ", random.choice("abc")]
        steps.append(Step(0, random.choice([tuple(swap), ("SET", key, random.choice("abc")), command(random)])))
    compare(valkey_server, steps)


@pytest.mark.parametrize("seed", range(2))
def test_random_scripts_are_answered_as_by_a_real_server(server: Server, seed: int) -> None:
    random = Random(seed)
    steps = []
    for _ in range(120):
        steps.append(in_a_script([command(random) for _ in range(random.randrange(1, 12))]))
        alone = command(random)
        steps.append(Step(0, ("EVAL", "return redis.call(unpack(ARGV))", 0, *alone), instead=alone))
    compare(server, steps)


@pytest.mark.parametrize("seed", range(2))
def test_random_transactions_are_answered_as_by_a_real_server(server: Server, seed: int) -> None:
    """One connection watches and runs transactions, another writes in between."""
    random = Random(seed)
    steps: list[Step] = []
    for _ in range(200):
        if random.random() < 0.3:
            steps.append(Step(0, ("UNWATCH",)))
        steps += [Step(0, ("WATCH", random.choice(CHOICES["K"]))) for _ in range(random.randrange(3))]
        steps += [Step(1, watched_command(random)) for _ in range(random.randrange(4))]
        transaction = in_a_transaction([watched_command(random) for _ in range(random.randrange(5))])
        if random.random() < 0.1:
            transaction[-1] = Step(0, ("DISCARD",))
        at = random.randrange(1, len(transaction))
        steps += [*transaction[:at], Step(1, watched_command(random)), *transaction[at:]]
    compare(server, steps, connections=2)


def test_scores_are_printed_as_valkey_prints_them(valkey_server: Server) -> None:
    random = Random(7)
    numbers = [random.choice([-1, 1]) * round(random.random(), random.randrange(18)) for _ in range(300)]
    scores = [number * 10 ** random.randrange(-30, 30) for number in numbers]
    scores += [1700000000.1234567, 0.1, 2.0**62, -(2.0**63), 1e21, 12345678901234567890123.0, 1e-5, 1e-7]
    otherwise = 0
    with valkey_server.wire() as wire:
        for score in scores:
            wire.call("ZADD", "z", repr(score + 0.0), "m")
            printed: bytes = wire.call("ZSCORE", "z", "m")
            assert float(printed) == score
            otherwise += number_text(score + 0.0) != printed
    assert otherwise <= len(scores) // 100  # their algorithm is content with digits that are not always the shortest


def test_comparison_finds_a_wrong_reply_and_shows_the_shortest_run(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that never fails has not been tested: here a new value keeps the expiry of the old one."""
    monkeypatch.setattr(Keyspace, "put", lambda self, key, value: self.data.update({key: value}))
    random = Random(2)
    with pytest.raises(AssertionError) as caught:
        compare(server, [Step(0, command(random)) for _ in range(1500)])
    shown = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert len(shown) == 3, caught.value
    assert shown[-1].split()[1] in ("TTL", "PTTL", "PERSIST")
