"""Histories for the tests: single events in a few letters, and whole runs of a small lock that is right by design."""

from __future__ import annotations

import random
from typing import Any

from lockfast.check import Event, History

NAME = "n"
LEASE_S = 10.0


def ev(at: float, what: str, ticket: str = "", until: float = 0.0, **more: Any) -> Event:
    """An event of the name "n"; the client is named as its ticket, in capitals. Events of the world name nothing."""
    if ticket:
        more = {"name": NAME, "client": ticket.upper(), "lease": LEASE_S} | more
    return Event(at=at, what=what, ticket=ticket, until=until, **({"name": ""} | more))


def crash(at: float, client: str) -> Event:
    return Event(at, "crashed", "", "", client)


def hold(ticket: str, start: float, end: float, until: float = 0.0, **more: Any) -> list[Event]:
    """What the client side tells of a hold that was given back at `end`."""
    return [ev(start, "granted", ticket, until or end + 1, **more), ev(end, "leaving", ticket, **more)]


def ordered(*events: Event | list[Event]) -> list[Event]:
    """All of them in the order of time; equal times as they were given."""
    flat = [each for event in events for each in (event if isinstance(event, list) else [event])]
    return sorted(flat, key=lambda event: event.at)


class Run:
    """A lock of one server with a queue, run by chance: holds, releases, time-outs, deaths, lapsed leases.

    It keeps every promise that the checkers ask about, so all of them must say ok; tests then spoil its history.
    """

    def __init__(self, seed: int, events: int, names: int = 2, clients: int = 5) -> None:
        self.rng = random.Random(seed)
        self.now = 1.0
        self.fence = 0
        self.tickets = 0
        self.history: list[Event] = []
        self.holders: dict[str, tuple[str, str, float]] = {}  # name -> ticket, client, end of lease
        self.queues: dict[str, list[tuple[str, str]]] = {f"name-{number}": [] for number in range(names)}
        self.idle = [f"client-{number}" for number in range(clients)]
        self.closing = False
        self.dead: set[str] = set()
        self.tell("quiet", "", "")
        while len(self.history) < events:
            self.step()
        self.closing = True
        while self.holders or any(self.queues.values()):
            self.step()
        self.tell("end", "", "")

    def tell(self, what: str, name: str, ticket: str, client: str = "", **more: Any) -> None:
        more = {"lease": LEASE_S} | more if ticket else more
        self.history.append(Event(self.now, what, name, ticket, client, **more))

    def step(self) -> None:
        self.now += self.rng.random() * 0.1
        for name, (ticket, client, end) in list(self.holders.items()):
            if end <= self.now:
                self.tell("expired", name, ticket, client)
                self.hand_on(name)
        choice = self.rng.random()
        if choice < 0.45 and self.idle and not self.closing:
            self.ask(self.rng.choice(list(self.queues)), self.idle.pop())
        elif choice < 0.55:
            self.give_up(self.rng.choice(list(self.queues)))
        elif self.holders:
            self.use(self.rng.choice(list(self.holders)), choice)

    def ask(self, name: str, client: str) -> None:
        self.tickets += 1
        ticket = f"t{self.tickets}"
        self.tell("asked", name, ticket, client)
        if name in self.holders:
            self.queues[name].append((ticket, client))
            self.tell("queued", name, ticket, client)
        else:
            self.let_in(name, ticket, client)

    def let_in(self, name: str, ticket: str, client: str) -> None:
        self.fence += self.rng.randrange(1, 9)
        self.holders[name] = (ticket, client, self.now + LEASE_S)
        self.tell("held", name, ticket, client, fence=self.fence, until=self.now + LEASE_S)
        self.tell("granted", name, ticket, client, fence=self.fence, until=self.now + LEASE_S * 0.99)

    def give_up(self, name: str) -> None:
        if self.queues[name]:
            ticket, client = self.queues[name].pop(self.rng.randrange(len(self.queues[name])))
            self.tell("failed", name, ticket, client)
            self.tell("unqueued", name, ticket, client)
            self.idle.append(client)

    def use(self, name: str, choice: float) -> None:
        ticket, client, _ = self.holders[name]
        if client in self.dead:
            return
        if choice < 0.8:
            fence = next(e.fence for e in reversed(self.history) if e.ticket == ticket and e.fence)
            self.holders[name] = (ticket, client, self.now + LEASE_S)
            self.tell("prolonged", name, ticket, client, fence=fence, until=self.now + LEASE_S)
            self.tell("renewed", name, ticket, client, fence=fence, until=self.now + LEASE_S * 0.99)
        elif choice < 0.81:
            self.tell("crashed", "", "", client)
            self.dead.add(client)
            self.idle.append(f"{client}'")  # another in its place
        else:
            self.tell("leaving", name, ticket, client)
            self.tell("let_go", name, ticket, client)
            self.hand_on(name)
            self.now += 0.001
            self.tell("left", name, ticket, client)
            self.idle.append(client)

    def hand_on(self, name: str) -> None:
        del self.holders[name]
        if self.queues[name]:
            self.let_in(name, *self.queues[name].pop(0))


def run(seed: int, events: int, **more: int) -> History:
    """The history of a lock that works."""
    return Run(seed, events, **more).history
