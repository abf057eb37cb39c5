"""Cells and stories made by hand, as a run would give them: what the pictures and the page are tried on."""

from __future__ import annotations

import math
import random

from lockfast.lab.model import (
    About,
    Arrow,
    Bar,
    BarKind,
    Cell,
    Expected,
    Lane,
    Mark,
    MarkKind,
    Step,
    Story,
    Topic,
    mark_mistakes,
)

ALGORITHMS = (
    Topic("optimistic", "Optimistic lock", "WATCH, read, MULTI, write, EXEC; again when somebody else wrote."),
    Topic("setnx", "Simple lock", "SETNX with a random id, checked before DEL. It has no time-out."),
    Topic("setnx-expire", "Lock with time-out", "SETNX, then EXPIRE; a contender that finds no time-out sets one."),
    Topic("getset", "GETSET lock", "The value is the time it ends; whoever replaces an old one first has it."),
    Topic("set-nx-px", "SET NX PX", "One command takes the lock with a lease; a script checks before it deletes."),
    Topic("set-nx-px-blind-del", "SET NX PX, blind DEL", "The same, released by a plain DEL that asks nobody."),
    Topic("fine-grained", "Fine-grained lock", "SET NX PX on a key for one part of a thing."),
    Topic("counting-semaphore", "Counting semaphore", "A sorted set scored by the clients' clocks."),
    Topic("fair-semaphore", "Fair semaphore", "Ranks by a counter, time-outs by the clients' clocks."),
    Topic("refreshing-semaphore", "Refreshing semaphore", "The fair one, for holders that stay long."),
    Topic("race-free-semaphore", "Race-free semaphore", "The fair one, inside a short lock."),
    Topic("redlock", "Redlock", "A majority of five independent servers."),
    Topic("lockfast", "Lockfast", "A queue on the server, a deadline in the client, a fence for the resource."),
)
FAULTS = (
    Topic("holder-dies", "Holder dies", "The process that holds is killed."),
    Topic("dies-before-expire", "Dies between SETNX and EXPIRE", "Taken, and the time-out never set."),
    Topic("slow-holder", "Holder slower than its lease", "The work takes longer than was asked for."),
    Topic("blind-release", "Blind release", "A late holder releases what is no longer its own."),
    Topic("crowd-at-expiry", "Contenders at expiry", "Many wait for the same lease to end."),
    Topic("clocks-0.3s", "Client clocks 0.3 s apart"),
    Topic("clocks-2s", "Client clocks 2 s apart"),
    Topic("losers-stretch", "Losers' GETSET stretches", "Contenders that lose still write a later end."),
    Topic("slow-clock-steals", "Slow clock steals a place", "One client's clock is behind the others'."),
    Topic("reply-lost", "Reply lost", "The server did it, the client never heard."),
    Topic("restart-empty", "Server restarts empty"),
    Topic("failover", "Failover without the key"),
    Topic("node-restarts-empty", "Redlock node restarts empty"),
    Topic("quorum-paused-holder", "Redlock, paused holder"),
    Topic("minority-down", "Minority of nodes down"),
    Topic("majority-down", "Majority of nodes down"),
    Topic("connection-cut", "Connection cut"),
    Topic("paused-holder", "Holder paused past its lease", "A long pause, then a write before it looks."),
    Topic("server-clock-jumps", "Server's clock jumps ahead"),
    Topic("crossed-order", "Crossed order of two locks"),
)

A, B, C = Lane("A", "client"), Lane("B", "client"), Lane("C", "client")
SERVER, STOCK = Lane("server", "server"), Lane("stock", "resource")

BLIND = Story(
    "set-nx-px-blind-del", "blind-release", 7, "violated", "A's late DEL removes B's lock, and C walks in",
    (A, B, C, SERVER, STOCK),
    mark_mistakes(
        (
            Bar("A", 0.001, 14.2, "believes", "believes to hold"),
            Bar("A", 2.0, 14.0, "paused", "paused by the garbage collector"),
            Bar("B", 3.1, 10.4, "waits"),
            Bar("B", 10.401, 17.9, "believes", "believes to hold"),
            Bar("C", 8.0, 14.3, "waits"),
            Bar("C", 14.301, 19.0, "believes", "believes to hold"),
            Bar("server", 0.0005, 10.0, "holds", "A holds", "A"),
            Bar("server", 10.4005, 14.201, "holds", "B holds", "B"),
            Bar("server", 14.3005, 19.0, "holds", "C holds", "C"),
            Bar("stock", 10.9, 17.9, "section", "B works", "B"),
            Bar("stock", 14.8, 18.8, "section", "C works", "C"),
        ),
        ["server"],
    ),
    (
        Mark("stock", 12.0, "write", "B writes 41"),
        Mark("stock", 15.2, "write", "C writes 40"),
        Mark("stock", 17.1, "fatal", "B and C write in one another's hold"),
        Mark("stock", 17.1, "write", "B writes 40 too"),
        Mark("A", 2.0, "fault"),
    ),
    (
        Arrow("A", "server", 0.0, 0.0005, "SET NX PX 10000"),
        Arrow("server", "A", 0.0005, 0.001, "OK"),
        Arrow("B", "server", 10.4, 10.4005, "SET NX PX 10000"),
        Arrow("server", "B", 10.4005, 10.401, "OK"),
        Arrow("A", "server", 14.2, 14.201, "DEL"),
        Arrow("C", "server", 14.3, 14.3005, "SET NX PX 10000"),
        Arrow("server", "C", 14.3005, 14.301, "OK"),
    ),
    (
        Step(0.001, "A", "takes the lock for 10 s and starts to work."),
        Step(2.0, "A", "is paused for 12 s; nobody tells it about the time that passes."),
        Step(10.0, "server", "ends A's lease."),
        Step(10.401, "B", "takes the lock, as it should."),
        Step(14.2, "A", "wakes, still believes to hold, finishes, and sends a plain DEL. The key is B's."),
        Step(14.301, "C", "finds no key and takes the lock, while B works on."),
        Step(17.1, "B", "writes inside C's hold: one item of the stock is sold twice."),
    ),
    "A slept through the end of its lease and then deleted a lock that was no longer its own. From there on the key"
    " said nothing about who was inside.",
    "Note 002 releases by a plain DEL when the work took less than the time-out. Note 004 warns of just this: delete"
    " only what still holds your own random value.",
    "A release names its ticket, and the server forgets that ticket only. And A would have known before: its deadline"
    " passes in the client itself, so grant.check() raises before the server lets B in.",
)  # fmt: skip

DEAD = Story(
    "setnx", "holder-dies", 1, "stuck", "A dies, and its lock outlives it",
    (A, B, SERVER),
    (
        Bar("A", 0.001, 1.5, "believes", "believes"),
        Bar("A", 1.5, math.inf, "down", "killed"),
        Bar("server", 0.0005, math.inf, "holds", "A holds, for ever", "A"),
        Bar("B", 0.4, 10.4, "waits", "asks every millisecond"),
    ),
    (Mark("A", 1.5, "fault", "kill -9"), Mark("B", 10.4, "fatal", "B gives up; so will everybody")),
    (
        Arrow("A", "server", 0.0, 0.0005, "SETNX"),
        Arrow("server", "A", 0.0005, 0.001, "1"),
        Arrow("B", "server", 0.4, 0.401, "SETNX"),
        Arrow("server", "B", 0.401, 0.402, "0"),
    ),
    (
        Step(0.001, "A", "takes the lock."),
        Step(1.5, "A", "is killed while it works."),
        Step(10.4, "B", "has asked for 10 s, and gives up. The key has no time-out: nobody will ever be served."),
    ),
    "The lock has no lease, so a dead holder holds it until somebody deletes the key by hand.",
    "Note 001 gives this lock first and names the fault itself, as the reason for the next one.",
    "Every hold is a lease. When A is dead the server ends it by its own clock and serves the next in the queue.",
)  # fmt: skip

FENCED = Story(
    "lockfast", "paused-holder", 23, "fenced", "A sleeps past its lease; the stock refuses its old fence",
    (A, B, SERVER, STOCK),
    mark_mistakes(
        (
            Bar("A", 0.001, 9.9, "believes", "holds, fence 41"),
            Bar("A", 4.0, 16.0, "paused", "paused"),
            Bar("B", 1.0, 10.002, "waits", "waits in the queue"),
            Bar("B", 10.003, 15.0, "believes", "holds, fence 42"),
            Bar("server", 0.0005, 10.001, "holds", "A, fence 41", "A"),
            Bar("server", 10.001, 15.0005, "holds", "B, fence 42", "B"),
            Bar("stock", 10.5, 14.5, "section", "B works", "B"),
        ),
        ["server"],
    ),
    (
        Mark("stock", 11.0, "write", "B writes, fence 42"),
        Mark("stock", 16.0, "refused", "A's write with fence 41"),
    ),
    (
        Arrow("A", "server", 0.0, 0.0005, "admit"),
        Arrow("server", "A", 0.0005, 0.001, "fence 41"),
        Arrow("B", "server", 1.0, 1.0005, "admit"),
        Arrow("server", "B", 10.001, 10.003, "push: fence 42"),
        Arrow("A", "server", 3.9, None, "renew"),
    ),
    (
        Step(0.001, "A", "takes the lock with fence 41."),
        Step(4.0, "A", "is paused for 12 s; its deadline passes at 9.9 s, while it cannot look."),
        Step(10.001, "server", "ends the lease and hands over to B with fence 42."),
        Step(16.0, "stock", "refuses A's write: 41 is older than 42."),
    ),
    "A wrote on waking, before it looked. The resource had seen a newer fence and refused.",
    "No lease on one server can stop a paused holder from writing; the literature asks for a fence, and so do we.",
    "This is Lockfast: the fence grows with every grant, and whatever is guarded can compare it.",
)  # fmt: skip


def _redlock() -> Story:
    nodes = [f"node {number}" for number in range(1, 6)]
    bars: list[Bar] = [
        Bar("A", 0.004, 9.9, "believes", "believes to hold: 3 of 5"),
        Bar("B", 3.009, 12.9, "believes", "believes to hold: 3 of 5"),
        Bar("node 3", 1.2, 2.0, "down", "restarts"),
        Bar("stock", 0.5, 8.0, "section", "A works", "A"),
        Bar("stock", 3.5, 8.5, "section", "B works", "B"),
    ]
    bars += [Bar(node, 0.002, 1.2 if node == "node 3" else 10.002, "holds", "A", "A") for node in nodes[:3]]
    bars += [Bar(node, 3.006, 13.006, "holds", "B", "B") for node in nodes[2:]]
    arrows = [Arrow("A", node, 0.0, 0.002 if node in nodes[:3] else None) for node in nodes]
    arrows += [Arrow("B", node, 3.003, 3.006) for node in nodes]
    return Story(
        "redlock", "node-restarts-empty", 12, "violated", "A node forgets A's vote and gives it to B",
        (A, B, *(Lane(node, "server") for node in nodes), STOCK),
        tuple(bars),
        (
            Mark("node 3", 1.2, "fault", "loses its memory"),
            Mark("stock", 4.0, "fatal", "two majorities, two holders"),
            Mark("stock", 4.0, "write", "B writes"),
            Mark("stock", 1.0, "write", "A writes"),
        ),
        tuple(arrows),
        (
            Step(0.004, "A", "has nodes 1, 2 and 3: a majority."),
            Step(1.2, "node 3", "restarts and comes back empty."),
            Step(3.009, "B", "gets nodes 3, 4 and 5: a majority too."),
            Step(4.0, "B", "writes while A is inside."),
        ),
        "One vote was given twice, because the node that gave it forgot.",
        "Note 004 asks for a delayed restart: a node that came back stays silent for the longest lease.",
        "A node that cannot show that it kept its memory is not counted until the longest lease has passed.",
    )  # fmt: skip


REDLOCK = _redlock()

SLOW_CLOCK = Story(
    "counting-semaphore", "slow-clock-steals", 3, "violated", "A slow clock sorts in front",
    (A, B, SERVER, STOCK),
    mark_mistakes(
        (
            Bar("A", 0.002, 2.0, "believes", "believes to hold"),
            Bar("B", 0.012, 1.8, "believes", "believes to hold"),
            Bar("server", 0.001, 0.011, "holds", "A is first", "A"),
            Bar("server", 0.011, 1.8, "holds", "B is first", "B"),
            Bar("stock", 0.1, 2.0, "section", "A", "A"),
            Bar("stock", 0.3, 1.8, "section", "B", "B"),
        ),
        ["server"],
    ),
    (Mark("stock", 0.3, "fatal", "two holders, limit 1"), Mark("B", 0.0, "fault", "clock 10 ms slow")),
    (
        Arrow("A", "server", 0.0, 0.001, "ZADD 100.000"),
        Arrow("server", "A", 0.001, 0.002, "rank 0"),
        Arrow("B", "server", 0.01, 0.011, "ZADD 99.999"),
        Arrow("server", "B", 0.011, 0.012, "rank 0"),
    ),
    (
        Step(0.002, "A", "is rank 0 of limit 1: it is in."),
        Step(0.012, "B", "comes later, but its clock says earlier: also rank 0."),
        Step(0.3, "B", "works beside A."),
    ),
    "Ranks came from the clients' clocks, so the later one was sorted first.",
    "Note 003: 10 ms between the clocks are enough.",
    "Order and time are the server's. No client's clock enters a script.",
)  # fmt: skip

STORIES = (BLIND, DEAD, FENCED, REDLOCK, SLOW_CLOCK)

# What a story must not be able to do to a page or a terminal.
HOSTILE_TEXT = "</title><script>alert('1')</script>\" onload=x &amp; \x1b[31m \x00 \ud800 ]]> {{x}}"
HOSTILE = Story(
    "redlock", "failover", 0, "unknown", HOSTILE_TEXT,
    (Lane(HOSTILE_TEXT, "client"), Lane("<b>s</b>", "server")),
    (Bar(HOSTILE_TEXT, 0.0, 1.0, "believes", HOSTILE_TEXT), Bar("<b>s</b>", 0.0, 1.0, "holds", "&", HOSTILE_TEXT)),
    (Mark("<b>s</b>", 0.5, "fatal", HOSTILE_TEXT), Mark("<b>s</b>", 0.5, "note", HOSTILE_TEXT)),
    (Arrow(HOSTILE_TEXT, "<b>s</b>", 0.1, None, HOSTILE_TEXT),),
    (Step(0.1, HOSTILE_TEXT, HOSTILE_TEXT),),
    HOSTILE_TEXT, HOSTILE_TEXT, HOSTILE_TEXT,
)  # fmt: skip


def crowded(seed: int) -> Story:
    """A story with more in it than anyone can read."""
    chance = random.Random(seed)
    lanes = [*(Lane(f"client-{number}", "client") for number in range(7)), SERVER, STOCK]
    names = [lane.name for lane in lanes]
    bar_kinds: tuple[BarKind, ...] = ("waits", "believes", "mistaken", "holds", "paused", "down", "section")
    mark_kinds: tuple[MarkKind, ...] = ("send", "reply", "lost", "write", "refused", "fatal", "fault", "note")
    words = [
        "asks again",
        "SET NX PX 30000",
        "is refused",
        "OK",
        "writes 41 to the stock of item 7",
        "长时间的暂停",
        "WWWW",
    ]
    at = [round(chance.choice([chance.uniform(0, 0.05), chance.uniform(0, 30)]), 4) for _ in range(60)]

    def time() -> float:
        return chance.choice(at)

    bars = []
    for _ in range(40):
        start, end = sorted((time(), time()))
        bars.append(
            Bar(
                chance.choice(names),
                start,
                end,
                chance.choice(bar_kinds),
                chance.choice(words),
                chance.choice(names[:7]),
            )
        )
    marks = [Mark(chance.choice(names), time(), chance.choice(mark_kinds), chance.choice(words)) for _ in range(40)]
    arrows = []
    for _ in range(40):
        start, end = sorted((time(), time()))
        one, other = chance.sample(names, 2)
        arrows.append(Arrow(one, other, start, chance.choice([end, None]), chance.choice(words)))
    return Story(
        "fair-semaphore",
        "crowd-at-expiry",
        seed,
        "violated",
        f"A crowd, {seed}",
        tuple(lanes),
        tuple(bars),
        tuple(marks),
        tuple(arrows),
    )


def _cells() -> tuple[Cell, ...]:
    """A whole matrix: what the stories say where there is one, made up in a fixed way elsewhere."""
    told = {story.key: story for story in STORIES}
    chance = random.Random(1)
    made = []
    for algorithm in ALGORITHMS:
        for fault in FAULTS:
            story = told.get(f"{algorithm.key}/{fault.key}")
            verdict = (
                story.verdict
                if story
                else chance.choice(["safe", "safe", "safe", "safe", "n/a", "n/a", "violated", "stuck"])
            )
            if algorithm.key == "lockfast" and not story:
                verdict = "fenced" if fault.key in ("restart-empty", "failover", "server-clock-jumps") else "safe"
            if (algorithm.key, fault.key) == ("redlock", "majority-down"):
                verdict = "unknown"
            seeds = 0 if verdict == "n/a" else 50
            bad = 0 if verdict in ("safe", "n/a") else chance.choice([50, 50, 3, 17])
            seed = story.seed if story else None if verdict == "n/a" else chance.randrange(50)
            made.append(
                Cell(algorithm.key, fault.key, verdict, seeds, bad, seed, "" if story else "Made up for the tests.")
            )
    return tuple(made)


CELLS = _cells()
EXPECTED = {
    (cell.algorithm, cell.fault): Expected(
        cell.verdict, "No client can be both." if cell.verdict == "safe" else "Its text says so."
    )
    for cell in CELLS
}
EXPECTED["optimistic", "holder-dies"] = Expected("stuck", "Written down wrongly, to see that the page says so.")
ABOUT = About(
    "The lock lab",
    "Twelve locks and semaphores from textbooks, and Lockfast's own, each under every fault that is known to break one"
    " of them. All of it ran in a simulator, so every cell can be replayed.",
    ALGORITHMS,
    FAULTS,
    "Lockfast 0.3.0, 50 seeds for each cell",
)  # fmt: skip
