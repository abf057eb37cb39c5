"""Leader election: the leader is who holds the name, and others see what it has said.

Campaigning is admission, and leading is holding: one at a time, in order, lost before another can lead. What this file
adds is a value that goes with the hold (`proclaim`; a new leader's first act, so that those who observe are told of it)
and a way to follow it (`next_change`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from lockfast import names
from lockfast.errors import LeaseLost, LockfastError, NotAcquired, Unreachable
from lockfast.flows import admission
from lockfast.flows.asks import PLACE_MS, Ask
from lockfast.flows.effects import Call, backoff
from lockfast.flows.renewal import GONE
from lockfast.flows.scripts import OBSERVE, PROCLAIM, Bound
from lockfast.flows.several import give_back
from lockfast.flows.watching import insist, news, patience
from lockfast.specs import grace_seconds, lease_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from lockfast.flows.effects import Env, Flow
    from lockfast.flows.group import Holder
    from lockfast.grants import Hold
    from lockfast.names import Name

MAX_VALUE_BYTES = 1024  # it is written again with every renewal
UNSEEN = object()  # stands for a leader: nobody has looked yet


class Leader(NamedTuple):
    """Who leads: what it has proclaimed, its fence, and where it runs. since: the server's wall clock, in seconds."""

    value: str
    fence: int
    host: str
    pid: int
    label: str
    since: float


class Candidacy(Ask):
    """What a candidate asks for: to hold the election's name, with something to say from the start."""

    __slots__ = ("value", "watched")

    def __init__(self, name: Name, lease_s: float, value: str, grace_s: float = 0.0) -> None:
        super().__init__(name, "election", 1, 1, lease_s, grace_s)
        self.value = value
        self.watched = names.watched(name)


class Candidates:
    """Makes candidacies with one value."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = check_value(value)

    def __call__(self, name: Name, lease: object, grace: object = 0) -> Candidacy:
        return Candidacy(name, lease_seconds(lease), self.value, grace_seconds(grace))


def check_value(value: object) -> str:
    """A value that can be proclaimed: text of up to 1024 bytes, as it is stored."""
    if not isinstance(value, str):
        raise TypeError(f"value must be a str, got {value!r}")
    try:
        length = len(names.join([value]).encode())
    except UnicodeEncodeError:
        raise ValueError(f"value must be encodable as UTF-8, got {value[:80]!r}") from None
    if length > MAX_VALUE_BYTES:
        raise ValueError(f"value may have {MAX_VALUE_BYTES} bytes at most (odd characters count thrice), got {length}")
    return value


def campaign(ask: Candidacy, wait_s: float | None, env: Env, holder: Holder) -> Flow[Hold]:
    """Lead, and say so. Raises as admission.acquire does; then, or if it is interrupted, nothing is held."""
    started = env.now()
    while True:
        left_s = None if wait_s is None else max(wait_s - (env.now() - started), 0.0)
        ticket = holder.new_ticket()
        held = yield from admission.acquire(ask, ticket, left_s, env)
        hold = holder.keep(ask, ticket, held)
        try:
            yield from proclaim(hold, ask.value, env)
            return hold
        except GeneratorExit:
            raise  # the process died here; nobody is left to tidy up
        except LeaseLost:
            give_back(hold, holder.keeper)
            if wait_s is not None and env.now() >= started + wait_s:
                words = f"{ask.name.shown!r} was led for a moment only, and lost before it began"
                raise NotAcquired(words, name=ask.name.shown, waited_s=wait_s) from None
        except BaseException:
            give_back(hold, holder.keeper)
            raise


def proclaim(hold: Hold, value: str, env: Env) -> Flow[None]:
    """Let the leader say something, trying as long as it leads. Raises LeaseLost, NotHeld, Unreachable, Refused."""
    hold.check()
    hold.unchanged = False  # what is proclaimed is kept with the hold
    ask = hold.ask
    assert isinstance(ask, Candidacy), "only a leader proclaims"
    # Numbered by a clock that never steps back: what is said later has the larger number.
    number = int(env.now() * 1_000_000)
    bound = Bound(PROCLAIM, ask.watched, (names.join([value]),))
    gives_up_at = min(env.now() + env.timeout_s, hold.deadline)
    failures = 0
    while True:
        try:
            stood = yield Call(bound, (number, hold.fence, hold.ticket), min(env.now() + env.attempt_s, gives_up_at))
        except Unreachable:
            failures += 1
            if env.now() >= gives_up_at:
                hold.check()  # if it is over by now, that is what the caller must hear
                raise
            yield backoff(failures, gives_up_at, env)
            continue
        if stood == 0:
            hold.lose(GONE)
        hold.check()
        return


def farewell(hold: Hold, env: Env) -> Flow[None]:
    """The leader has left: let those who observe look. If this is lost, their heartbeat finds out."""
    ask = hold.ask
    assert isinstance(ask, Candidacy), "only a leader resigns"
    try:
        yield Call(Bound(PROCLAIM, ask.watched, ("",)), (0, hold.fence, hold.ticket), env.now() + env.attempt_s)
    except LockfastError:
        pass


def leader(watched: Name, ticket: str, env: Env) -> Flow[Leader | None]:
    """Who leads at this moment."""
    by = env.now() + env.timeout_s
    reply = yield from insist(Bound(OBSERVE, watched, (0,)), (env.channel(watched), ticket), by, env)
    return _read(reply)


def next_change(watched: Name, ticket: str, last: object, is_over: Callable[[], bool], env: Env) -> Flow[Leader | None]:
    """Wait until another leads than `last`, or nobody, or it says something else. Changes in between may be skipped.

    Raises Unreachable when the server is silent for long. When `is_over`, it returns anything.
    """
    bound = Bound(OBSERVE, watched, (PLACE_MS,))
    while True:
        listening = env.hears(watched)
        reply = yield from insist(bound, (env.channel(watched), ticket), patience(env.now(), None, env), env)
        found = _read(reply)
        if found != last or is_over():
            return found
        ms = reply[1]
        ends_at = env.now() + ms / 1000 + 0.003 if ms else inf
        yield from news(ticket, ends_at, listening, watched, env)
        if is_over():
            return found


def forget(watched: Name, ticket: str, env: Env) -> Flow[None]:
    """No longer observe; whoever waits for a change with this ticket wakes. If it is lost, it ends by itself."""
    try:
        yield Call(Bound(OBSERVE, watched, (0,)), (env.channel(watched), ticket), env.now() + env.attempt_s)
    except LockfastError:
        pass


def _read(reply: list[Any]) -> Leader | None:
    fence, _, since_ms, text = reply
    if not fence:
        return None
    owner, _, said = text.decode().partition("\t")
    host, pid, label = (*owner.split(" ", 2), "", "")[:3]
    (value,) = names.split(said.partition(" ")[2])
    return Leader(value, fence, host, int(pid) if pid.isdigit() else 0, label, since_ms / 1000)
