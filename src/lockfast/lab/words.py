"""What is said about each fault beside the pictures: what the texts know about it, and what Lockfast does instead."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    text: str
    lockfast: str


WORDS: dict[str, Words] = {
    "holder-dies": Words(
        "Redis in Action (6.2.3) gives its first lock no end, shows that a crashed holder then blocks it for ever, and "
        "adds a time-out. A time-out only helps if nobody prolongs it for the dead.",
        "Every hold has a lease, ended by the server's clock alone. Waiters in the queue cannot prolong it.",
    ),
    "dies-in-between": Words(
        "SETNX and EXPIRE are two commands. Redis in Action (6.2.5) lets contenders mend a lock that was left without "
        "a TTL; two misprints of that test are in circulation. SET with NX and PX was added to make it one command.",
        "Taking, queueing and the lease are one script: it ran, or it did not.",
    ),
    "slow-holder": Words(
        "The usual advice is to choose the time-out longer than any work. The holder is not told when it was wrong: "
        "the first of the four symptoms that Redis in Action lists (6.2).",
        "A keeper renews the lease at a third of it, for all holds in one trip. If it cannot, the holder knows before "
        "the server could let anybody else in.",
    ),
    "blind-release": Words(
        "The Redlock page of the Redis documentation warns of it: release only what is yours, by comparing the random "
        "value in a script. A holder that is late deletes the lock of the next one otherwise.",
        "Only a ticket that holds is forgotten by leave, and a ticket is never used twice.",
    ),
    "expiry-rush": Words(
        "The third symptom in Redis in Action: a lease ends and several get in. Its fair semaphore (6.3.2) takes the "
        "counter and the place in two trips, and says that a race remains; the lock of 6.3.4 closes it.",
        "There is no rush: the server lets in the head of the queue, inside the script that ends the hold before.",
    ),
    "clocks-0.3s": Words(
        "Redis in Action (6.3.1) says that a clock which is 10 ms behind is enough to steal a place from the counting "
        "semaphore, and that the fair one bears a second or two.",
        "No client's wall clock is ever read. Only the server's decides.",
    ),
    "clocks-2s": Words(
        "The GETSET lock compares the clocks of its clients, and the SETNX page asks for them to agree. Time-outs of "
        "the fair semaphore are still decided by clients.",
        "No client's wall clock is ever read. Only the server's decides.",
    ),
    "getset-stretch": Words(
        "The SETNX page of the Redis documentation mentions that a loser's GETSET overwrites the winner's time a "
        "little, and that this does no harm. If it comes after the winner's DEL, it locks what nobody holds.",
        "Somebody who asks and does not get it changes nothing but their own place in the queue.",
    ),
    "slow-clock": Words(
        "Redis in Action (6.3.1) shows it: ranked by the clients' times, whoever's clock is behind comes first.",
        "Places in the queue are numbered by the server.",
    ),
    "reply-lost": Words(
        "The texts do not speak of it. A client library that sends a SETNX again after a lost answer even finds its "
        "own lock taken.",
        "An acquire has one ticket. Sent again, it is told that it holds, with the time that is left; given up, it is "
        "followed by a leave on the same connection.",
    ),
    "restart-empty": Words(
        "The Redlock page advises to keep a node that restarted without its memory down for the longest lease.",
        "No lease on one server can survive this. The next grant has a larger fence than the last (a fence is at least "
        "the server's time in microseconds), so the resource refuses the older holder; and that holder learns of it at "
        "its next renewal.",
    ),
    "failover": Words(
        "The Redlock page starts from this: replication is asynchronous, so a replica may take over without the key.",
        "No lease on one server can survive this. The fence grows all the same, and the resource refuses the older "
        "holder; that one learns of it at its next renewal.",
    ),
    "node-restart": Words(
        "The Redlock page names it: a node that forgot its vote may vote again inside the lease, unless it stays away "
        "for as long as the longest lease.",
        "Its lock has one server, and so no votes to lose. A majority of several servers is not a part of it.",
    ),
    "redlock-paused": Words(
        "Martin Kleppmann's analysis of Redlock shows it: no look at a clock helps against a pause after the look. "
        "Only the resource can refuse, if it is shown a number that grows.",
        "Every grant carries such a number, its fence.",
    ),
    "minority-down": Words(
        "The third property of the Redlock page: progress while a majority of nodes lives.",
        "Its lock has one server: when that is down, nobody gets it until it is back.",
    ),
    "majority-down": Words(
        "The Redlock page promises progress only while a majority of nodes lives.",
        "Its lock has one server: when that is down, nobody gets it until it is back.",
    ),
    "connection-cut": Words(
        "The texts do not speak of requests that arrive late. A DEL that waited in a buffer is carried out when the "
        "network is back, whoever holds the lock by then.",
        "The holder's own deadline passes before the server lets another in, by a timer that waits for no answer; a "
        "late leave names its ticket and finds nothing.",
    ),
    "paused-holder": Words(
        "The first and the fourth symptom in Redis in Action: a holder whose lease is gone and that does not know. "
        "A garbage collection, a swapped machine or a suspended laptop is enough.",
        "A holder that looks knows at once: its deadline is on a clock that counts through suspend. One that writes "
        "before it looks is refused by its fence.",
    ),
    "clock-jump": Words(
        "The Redlock page assumes clocks that tick alike. A server whose clock is set ahead ends every lease at once.",
        "No lease can survive this. The fence does: the newer holder's is larger, and the older one is refused.",
    ),
    "crossed-order": Words(
        "Redis in Action (6.2.4) locks parts of a thing, and leaves it to the caller to take them in one order.",
        "A wait has an end, holds are renewed meanwhile, and whoever loses patience gives back what it had: slow, and "
        "nobody gets in twice. Take parts in one order.",
    ),
}
