"""The words of a history: what happened to locks, in the order of true time. Checkers read nothing else.

`at` and `until` are true seconds: the world's time in the simulator, CLOCK_MONOTONIC of one host for real servers.
`until` may be `inf` where a lock never ends by itself. Equal times stand in the order in which things happened.

Client side
  asked       an acquire starts                       granted   believes to hold, until `until`
  renewed     believes to hold until `until`          leaving   a release begins: the belief ends here
  left        a release was confirmed                 lost      knows that it is no longer sure
  failed      an acquire ended without a hold         crashed   the whole client died; `ticket` is ""
  wrote       a write to what is guarded was taken    refused   such a write was turned away by its fence
Server side, of the one server that decides for the name (a history over several servers leaves these out)
  queued      took a place                            unqueued     gave its place back
  place_ended its place was dropped                   held         became a holder, with `fence`, until `until`
  prolonged   its lease now ends at `until`           let_go       is forgotten because it left
  expired     is forgotten because its lease ended
World; `name` is "" when every name is meant
  server_lost_memory  restarted empty, flushed, or failed over without the key
  server_clock_jumped `lease` says by how many seconds, negative for back; 0.0 when that is not known
  quiet               faults have stopped; from here on everybody must be served
  end                 the history was watched until here
A hold that goes over to another ticket with its fence is `let_go` for the one and `held` for the other, with the note
"handed on".
`lease` of the other events is the lease that was asked for, in seconds; 0.0 when it is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan

HANDED_ON = "handed on"
CLIENT = frozenset({"asked", "granted", "renewed", "leaving", "left", "lost", "failed", "crashed", "wrote", "refused"})
SERVER = frozenset({"queued", "unqueued", "place_ended", "held", "prolonged", "let_go", "expired"})
WORLD = frozenset({"server_lost_memory", "server_clock_jumped", "quiet", "end"})


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. Nothing is checked here, to be quick; `validate` checks a whole history."""

    at: float
    what: str
    name: str
    ticket: str
    client: str = ""
    fence: int = 0
    weight: int = 1
    limit: int = 1
    until: float = 0.0
    lease: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        words = [f"{self.at:.6f}", self.what]
        words += [word for word in (self.name, self.ticket, self.client and f"by {self.client}") if word]
        words += [f"fence {self.fence}"] if self.fence else []
        words += [f"weight {self.weight} of {self.limit}"] if self.limit != 1 else []
        words += [f"until {self.until:.6f}"] if self.until else []
        words += [f"({self.note})"] if self.note else []
        return " ".join(words)


History = Sequence[Event]


class BadHistory(ValueError):
    """The history cannot be read: the recorder is wrong, not the lock. The message names the event."""


def server_lost_memory(at: float, name: str = "", note: str = "") -> Event:
    """The server has forgotten one name, or everything."""
    return Event(at, "server_lost_memory", name, "", note=note)


def server_clock_jumped(at: float, by_s: float, note: str = "") -> Event:
    """The server's clock was set ahead by `by_s` seconds (negative: back; 0.0: nobody knows)."""
    return Event(at, "server_clock_jumped", "", "", lease=by_s, note=note)


# What an event must carry beside a time.
_NOTHING, _CLIENT, _TICKET, _UNTIL = range(4)
_NEEDS = (
    dict.fromkeys(WORLD, _NOTHING)
    | dict.fromkeys(CLIENT | SERVER, _TICKET)
    | dict.fromkeys(("granted", "renewed", "held", "prolonged"), _UNTIL)
    | {"crashed": _CLIENT}
)


def validate(history: History) -> None:
    """Raise BadHistory unless every event is well formed and time never goes back."""
    before = -inf
    for number, event in enumerate(history):
        need = _NEEDS.get(event.what)
        if need is None:
            raise _bad(number, event, f"unknown event {event.what!r}")
        at = event.at
        if not before <= at < inf or at == -inf:
            raise _bad(number, event, f"time goes back, from {before} to {at}" if at < before else f"time is {at}")
        before = at
        if need >= _TICKET:
            if not (event.name and event.ticket):
                raise _bad(number, event, "needs a name and a ticket")
            if event.weight < 1 or event.limit < 1 or event.fence < 0:
                raise _bad(number, event, "weight and limit are at least 1, a fence is not negative")
            # 0.0 is what a recorder leaves that forgot it; a belief that is empty would make every verdict "ok".
            if need == _UNTIL and (event.until == 0.0 or isnan(event.until)):
                raise _bad(number, event, "needs `until`")
        elif event.ticket or (need == _CLIENT and not event.client):
            raise _bad(number, event, "needs a client and no ticket" if need else "is of the world: no ticket")


def _bad(number: int, event: Event, why: str) -> BadHistory:
    return BadHistory(f"event {number}: {why}: {event!r}")
