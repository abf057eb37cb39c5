"""What every cell of the matrix should say, and why: written down before it was run, and compared by a test.

For each fault: the verdict and the reason that most algorithms share, then those that differ.
"""

from __future__ import annotations

from lockfast.lab.contenders import ROWS
from lockfast.lab.model import Expected
from lockfast.lab.scenarios import COLUMNS

SAFE, VIOLATED, STUCK, FENCED = "safe", "violated", "stuck", "fenced"
_TTL_LOCKS = ("setnx-expire", "setnx-expire-del", "set-nx-px", "set-nx-px-blind-del", "fine-grained", "keyed-semaphore")
_BY_CLIENT_TIME = ("counting-semaphore", "fair-semaphore", "refreshing-semaphore", "race-free-semaphore")
# What the one protocol does for the lock it does for all that stand on it; a transaction watches as the classic does.
_ALIKE = {
    "lockfast-semaphore": "lockfast",
    "lockfast-rwlock": "lockfast",
    "lockfast-several": "lockfast",
    "lockfast-rlock": "lockfast",
    "lockfast-election": "lockfast",
    "lockfast-guard": "lockfast",
    "lockfast-transaction": "optimistic",
}
_COMPARE = "it holds nothing: a write is made only if nobody has written since the read"
_NEVER_ENDS = "the key has no end, and only its dead holder would delete it"
_FALSY = "the test is never true for a lock without a TTL, and true for one in its last half second: it is prolonged"
_INVERTED = "every contender that looks prolongs the lock: as long as anybody wants it, it does not end"
_GUARD = "the server no longer knows the hold, and refuses a write that is made under it, whoever has it by then"
_FENCE = "the server let the next one in; the resource has seen its newer fence and refuses the older"

Verdicts = dict[str, tuple[str, str]]


def _all(keys: tuple[str, ...], verdict: str, why: str) -> Verdicts:
    return dict.fromkeys(keys, (verdict, why))


_FAULTS: dict[str, tuple[tuple[str, str], Verdicts]] = {
    "holder-dies": (
        (SAFE, "the dead holder's lease ends, and the next one gets it"),
        {
            "optimistic": (SAFE, _COMPARE),
            "setnx": (STUCK, _NEVER_ENDS),
            "setnx-expire-falsy": (STUCK, _FALSY),
            "setnx-expire-inverted": (STUCK, _INVERTED),
        },
    ),
    "dies-in-between": (
        (SAFE, "what its first command left behind has an end of its own"),
        {
            "optimistic": (SAFE, _COMPARE),
            "setnx": (STUCK, _NEVER_ENDS),
            "setnx-expire": (SAFE, "SETNX was carried out and EXPIRE was not, and a contender gives the lock its TTL"),
            "setnx-expire-del": (
                SAFE,
                "SETNX was carried out and EXPIRE was not, and a contender gives the lock its TTL",
            ),
            "setnx-expire-falsy": (STUCK, "a lock without a TTL is what this test fails to see"),
            "setnx-expire-inverted": (STUCK, "a lock without a TTL is prolonged like any other, again and again"),
            "race-free-semaphore": (SAFE, "it dies inside the inner lock, which a contender mends"),
            "lockfast-election": (SAFE, "it led and had not said so yet: its lease ends, and the next one leads"),
        },
    ),
    "slow-holder": (
        (VIOLATED, "the lease ends in the middle of the work, and the holder is not told"),
        {
            "optimistic": (SAFE, "the slow one finds that others have written, and computes again"),
            "setnx": (SAFE, "without an end there is nothing to outlive"),
            "setnx-expire-falsy": (
                SAFE,
                "the waiting contenders prolong the slow holder's lock; so they do a dead one's",
            ),
            "setnx-expire-inverted": (
                SAFE,
                "the waiting contenders prolong the slow holder's lock; so they do a dead one's",
            ),
            "refreshing-semaphore": (SAFE, "the holder refreshes before every write"),
            "redlock": (SAFE, "the holder looks at its validity before every write, and stops half done"),
            "lockfast": (SAFE, "the keeper renews the lease for as long as the work takes"),
            "lockfast-transaction": (
                SAFE,
                "the slow one computes again, and takes the lock that those in conflict take",
            ),
        },
    ),
    "blind-release": (
        (SAFE, "its release looks whose it is, and leaves the next holder's alone"),
        {
            "optimistic": (SAFE, _COMPARE),
            "setnx": (SAFE, "the lock has not ended meanwhile"),
            "setnx-expire-del": (VIOLATED, "its DEL removes the next holder's lock, and a third one gets in"),
            "setnx-expire-falsy": (SAFE, "the waiting contenders have kept the lock alive"),
            "setnx-expire-inverted": (SAFE, "the waiting contenders have kept the lock alive"),
            "getset": (SAFE, "a holder whose time is up does not delete"),
            "set-nx-px-blind-del": (VIOLATED, "its DEL removes the next holder's lock, and a third one gets in"),
            "refreshing-semaphore": (SAFE, "it gives back its own place or none"),
            "lockfast": (SAFE, "the lease is renewed until it gives back"),
        },
    ),
    "expiry-rush": (
        (SAFE, "one command decides who is next"),
        {
            "optimistic": (SAFE, _COMPARE),
            "setnx": (STUCK, _NEVER_ENDS),
            "setnx-expire-falsy": (STUCK, _FALSY),
            "setnx-expire-inverted": (STUCK, _INVERTED),
            "getset": (SAFE, "GETSET hands the ended value to the first of them only"),
            "counting-semaphore": (VIOLATED, "who read the time early and arrives late ranks before those who are in"),
            "fair-semaphore": (VIOLATED, "counter and place are taken in two trips: the later counter may look first"),
            "refreshing-semaphore": (VIOLATED, "it takes its place as the fair one does, in two trips"),
            "race-free-semaphore": (SAFE, "inside its lock, counter and place are taken by one at a time"),
            "lockfast": (SAFE, "the server lets in the head of the queue, and nobody else"),
            "lockfast-semaphore": (SAFE, "one script counts and lets in, in the order of the queue"),
        },
    ),
    "clocks-0.3s": (
        (SAFE, "no client's clock is looked at"),
        {
            "optimistic": (SAFE, _COMPARE),
            "getset": (SAFE, "the section ends a second before its time: 0.3 s do not matter yet"),
            "counting-semaphore": (VIOLATED, "a clock that is behind ranks before the holder"),
            "fair-semaphore": (SAFE, "the counter ranks; for time-outs there is a second to spare"),
            "refreshing-semaphore": (SAFE, "the counter ranks; for time-outs there is a second to spare"),
            "race-free-semaphore": (SAFE, "the counter ranks; for time-outs there is a second to spare"),
        },
    ),
    "clocks-2s": (
        (SAFE, "no client's clock is looked at"),
        {
            "optimistic": (SAFE, _COMPARE),
            "getset": (VIOLATED, "for a clock that is ahead the time is up while the holder is at work"),
            "counting-semaphore": (VIOLATED, "a clock that is behind ranks before the holder"),
            "fair-semaphore": (VIOLATED, "a clock that is ahead drops the holder two seconds before its time"),
            "refreshing-semaphore": (SAFE, "refreshed every half second, it is never old enough to be dropped"),
            "race-free-semaphore": (VIOLATED, "a clock that is ahead drops the holder two seconds before its time"),
        },
    ),
    "getset-stretch": (
        (SAFE, "nobody gets in twice; but the loser's value locks for the rest of its time what nobody holds"),
        {},
    ),
    "slow-clock": (
        (SAFE, "a clock that is behind makes nobody's time end early"),
        {
            "optimistic": (SAFE, _COMPARE),
            "counting-semaphore": (VIOLATED, "its earlier time ranks before the holder's: it steals the place"),
            **_all(
                ("fair-semaphore", "refreshing-semaphore", "race-free-semaphore"),
                SAFE,
                "the counter ranks, not the clock",
            ),
        },
    ),
    "reply-lost": (
        (SAFE, "what nobody knows to hold ends by itself"),
        {
            "optimistic": (SAFE, "it is not known whether the write was made; it was made once at most"),
            "setnx": (STUCK, "nobody knows that it is held, and nothing ends it"),
            "setnx-expire": (SAFE, "EXPIRE was never sent, and a contender gives the lock its TTL"),
            "setnx-expire-del": (SAFE, "EXPIRE was never sent, and a contender gives the lock its TTL"),
            "setnx-expire-falsy": (STUCK, "a lock without a TTL is what this test fails to see"),
            "setnx-expire-inverted": (STUCK, "a lock without a TTL is prolonged like any other, again and again"),
            "redlock": (SAFE, "four other nodes have answered"),
            "lockfast": (SAFE, "it asks again with the same ticket, and is told that it holds it"),
            "lockfast-transaction": (SAFE, "EXEC is not sent again: the caller is told that it may have been made"),
        },
    ),
    "restart-empty": (
        (VIOLATED, "the server has forgotten the holder, which does not know, and there is no fence"),
        {
            "optimistic": (
                SAFE,
                "what was written is gone with the memory; but no write is made on top of a value it did not read",
            ),
            "refreshing-semaphore": (SAFE, "the refresh before the next write finds that the place is gone"),
            "lockfast": (FENCED, _FENCE),
            "lockfast-guard": (FENCED, _GUARD),
        },
    ),
    "failover": (
        (VIOLATED, "the replica never heard of the holder, which does not know, and there is no fence"),
        {
            "optimistic": (
                SAFE,
                "writes that the replica had not got are gone; but none is made on top of a value it did not read",
            ),
            "refreshing-semaphore": (SAFE, "the refresh before the next write finds that the place is gone"),
            "lockfast": (FENCED, _FENCE),
            "lockfast-guard": (FENCED, _GUARD),
        },
    ),
    "node-restart": ((VIOLATED, "the node that forgot votes a second time: two majorities inside one lease"), {}),
    "redlock-paused": ((VIOLATED, "the validity was looked at before the pause, and there is no fence"), {}),
    "minority-down": ((SAFE, "three nodes of five are a majority"), {}),
    "majority-down": ((STUCK, "two nodes of five are no majority: nobody gets it until a third is back"), {}),
    "connection-cut": (
        (SAFE, "the lease ends before anybody else gets in, and the late release does no harm"),
        {
            "optimistic": (SAFE, _COMPARE),
            "setnx": (STUCK, "its release did not get through, and nothing else ends it"),
            "setnx-expire-del": (VIOLATED, "the DEL gets through three seconds late, and removes another's lock"),
            "setnx-expire-falsy": (STUCK, _FALSY),
            "setnx-expire-inverted": (STUCK, _INVERTED),
            "getset": (
                VIOLATED,
                "the DEL was sent in time and gets through three seconds late: another's lock is gone",
            ),
            "set-nx-px-blind-del": (VIOLATED, "the DEL gets through three seconds late, and removes another's lock"),
            "refreshing-semaphore": (SAFE, "a refresh that is not answered stops the holder"),
            "redlock": (SAFE, "the holder looks at its validity before every write"),
            "lockfast": (SAFE, "the holder's own deadline passes before the server lets another in"),
            "lockfast-guard": (SAFE, "no write gets through, and the holder stops when its deadline has passed"),
        },
    ),
    "paused-holder": (
        (VIOLATED, "it wakes up, does not know how late it is, and writes; there is no fence"),
        {
            "optimistic": (SAFE, "others have written meanwhile: EXEC refuses, and it computes again"),
            "setnx": (SAFE, "without an end there is nothing to outlive"),
            "setnx-expire-falsy": (SAFE, "the waiting contenders have kept the lock alive; so they do a dead one's"),
            "setnx-expire-inverted": (SAFE, "the waiting contenders have kept the lock alive; so they do a dead one's"),
            "lockfast": (FENCED, "it writes before it looks; the resource has seen a newer fence and refuses"),
            "lockfast-guard": (
                FENCED,
                "its write was on its way past the lease; the server looks as it takes it, and refuses",
            ),
        },
    ),
    "clock-jump": (
        (SAFE, "no server's clock is looked at"),
        {
            "optimistic": (SAFE, _COMPARE),
            "setnx": (SAFE, "without an end there is nothing to jump over"),
            **_all(_TTL_LOCKS, VIOLATED, "the server's clock ends the key while its holder is at work"),
            "setnx-expire-falsy": (VIOLATED, "the server's clock ends the key while its holder is at work"),
            "setnx-expire-inverted": (VIOLATED, "the server's clock ends the key while its holder is at work"),
            "getset": (SAFE, "the clients' clocks decide, and they did not jump"),
            **_all(_BY_CLIENT_TIME, SAFE, "the clients' clocks decide, and they did not jump"),
            "redlock": (VIOLATED, "the clocks of a majority jumped, and with them the lease"),
            "lockfast": (FENCED, _FENCE),
            "lockfast-guard": (FENCED, _GUARD),
        },
    ),
    "crossed-order": (
        (VIOLATED, "both wait until the other's lease ends, then both get in: of two locks each has lost the first"),
        {
            "setnx": (SAFE, "both wait in vain until one loses patience; nobody gets in twice"),
            "setnx-expire-falsy": (SAFE, "each prolongs the other's lock, until one loses patience"),
            "setnx-expire-inverted": (SAFE, "each prolongs the other's lock, until one loses patience"),
            "redlock": (SAFE, "the validity of the first has ended when the second is won: it stops"),
            "lockfast": (SAFE, "both leases are renewed, until one loses patience and gives back"),
            "lockfast-several": (SAFE, "both wait in the same order, whatever they named first: there is no circle"),
        },
    ),
}


def expected(algorithm: str, fault: str) -> Expected:
    """What this cell should say. Raises KeyError for words that the matrix does not have."""
    common, others = _FAULTS[fault]
    verdict, why = others.get(algorithm) or others.get(_ALIKE.get(algorithm, algorithm), common)
    return Expected(verdict, why)


def table() -> dict[tuple[str, str], Expected]:
    """All cells. Where a fault does not apply, the reason says why."""
    made = {}
    for row in ROWS:
        for column in COLUMNS:
            reason = column.fits(row)
            made[row.key, column.key] = Expected("n/a", reason) if reason else expected(row.key, column.key)
    return made
