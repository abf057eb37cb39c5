"""Hand a hold on to another process, and ask a holder to let go.

A hold that is exported is renewed once more, so that its whole lease is there for the way, and is then over for the
exporter without a `leave`. Whoever adopts it gives the server a ticket of its own in place of the one in the text, in
the same step in which it is renewed. So the text is good for one adoption: the second finds a ticket that nobody has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast import names
from lockfast.errors import LeaseLost, LockfastError, Unreachable
from lockfast.flows import admission, renewal
from lockfast.flows.asks import Ask
from lockfast.flows.copying import copies, shortage
from lockfast.flows.effects import Call, Listen, Sleep, Wait, backoff
from lockfast.flows.scripts import RENEW, REVOKE, Bound
from lockfast.flows.watching import insist
from lockfast.specs import HEARTBEAT_S, MIN_LEASE_S

if TYPE_CHECKING:
    from lockfast.flows.admission import Held
    from lockfast.flows.effects import Env, Flow
    from lockfast.grants import Hold
    from lockfast.names import Name

START = "lockfast1."  # what every exported text starts with; the number is the version of the rest
MAX_TEXT = 8192


class Exported(NamedTuple):
    """A hold in words. max_ms: what is left of the time that it may last in all, 0 for no bound."""

    prefix: str
    parts: tuple[str, ...]
    kind: str
    limit: int
    weight: int
    lease_ms: int
    grace_ms: int
    max_ms: int
    fence: int
    ticket: str

    @property
    def max_hold_s(self) -> float | None:
        """What is left of the time that it may last in all."""
        return max(self.max_ms / 1000, MIN_LEASE_S) if self.max_ms else None

    def ask_for(self, name: Name, _lease: object, _grace: object) -> Ask:
        """What was asked for when it was acquired."""
        return Ask(name, self.kind, self.limit, self.weight, self.lease_ms / 1000, self.grace_ms / 1000)


def export(hold: Hold, prefix: str, new_ticket: str, env: Env) -> Flow[str]:
    """The text for whoever goes on with this hold, which is over here. Raises as renewal.extend does.

    A hold of which a request may still be under way goes over to a new ticket first: else, with nobody left to give
    the old one up, that request would ask for a hold that nobody wants. If that is not answered, nobody knows which
    ticket has it: it is given back and lost.
    """
    hold.check()
    heir = new_ticket if hold.unsure else ""
    try:
        yield from renewal.extend(hold, hold.lease_ms, env, heir=heir)
        hold.hand_on()
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except BaseException as reason:
        if not heir:
            raise
        hold.lose("its export was not answered")
        yield from _give_back(hold.ask, heir, env)
        if isinstance(reason, Unreachable):
            hold.check()
        raise
    ask = hold.ask
    parts = names.parts_of_key(prefix, ask.name.keys[0])
    assert parts is not None, "a name's first key is spelled with the client's prefix"
    from base64 import urlsafe_b64encode  # only here: most programs hand nothing on, and start faster without
    from json import dumps

    max_ms = 0 if hold.max_hold_s is None else max(round((hold.ends_at - env.now()) * 1000), 1)
    told = Exported(
        prefix,
        parts,
        ask.kind,
        ask.limit,
        ask.weight,
        hold.lease_ms,
        ask.grace_ms,
        max_ms,
        hold.fence,
        heir or hold.ticket,
    )
    return START + urlsafe_b64encode(dumps(told, separators=(",", ":")).encode()).decode().rstrip("=")


def read(text: str, prefix: str) -> Exported:
    """What an exported text says. Raises TypeError or ValueError when it is none, or is for another prefix."""
    if not isinstance(text, str):
        raise TypeError(f"adopt wants the text that export() returned, got {text!r}")
    if not text.startswith(START) or len(text) > MAX_TEXT:
        raise ValueError(f"not a text that export() returned: {text[:40]!r}")
    from base64 import urlsafe_b64decode  # as above
    from json import loads

    encoded = text[len(START) :]
    try:
        told = Exported(*loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))))
        told = told._replace(parts=tuple(told.parts))
        _check(told)
    except (ValueError, TypeError) as error:
        raise ValueError(f"not a text that export() returned, or only a part of it: {text[:40]!r}") from error
    if told.prefix != prefix:
        raise ValueError(f"this hold is of a client with the prefix {told.prefix!r}, this one has {prefix!r}")
    return told


def _check(told: Exported) -> None:
    """Raise ValueError or TypeError for what no export writes."""
    numbers: tuple[Any, ...] = told[3:9]
    if any(type(number) is not int or number < 0 for number in numbers) or not told.weight or not told.lease_ms:
        raise ValueError("a number is missing")
    if not told.parts or not all(isinstance(part, str) for part in told.parts):
        raise ValueError("no name")
    if not isinstance(told.kind, str) or not told.kind.isalpha() or not told.kind.isascii():
        raise ValueError("no kind")
    ticket = told.ticket
    if not isinstance(ticket, str) or not ticket.isascii() or not ticket.isprintable() or " " in ticket or not ticket:
        raise ValueError("no ticket")
    names.check_prefix(told.prefix)
    names.make(told.prefix, told.parts)


def adopt(told: Exported, ask: Ask, heir: str, env: Env) -> Flow[Held]:
    """Go on with an exported hold under the ticket `heir`. It is believed only once the server has renewed it.

    Raises LeaseLost when it has ended or was adopted before, Unreachable when the server does not answer. Whatever it
    raises, and whatever is thrown in, what it may have taken over is given back.
    """
    gives_up_at = env.now() + env.timeout_s
    lease_ms = ask.lease_ms if told.max_hold_s is None else renewal.bounded(ask.lease_ms, told.max_hold_s)
    bound = Bound(RENEW, ask.name, (lease_ms + ask.grace_ms, renewal.AS_IT_IS, heir))
    failures = 0
    try:
        while True:
            sent = env.now()
            by = min(sent + env.attempt_s, gives_up_at)
            wanted = copies(env.replicas, by - sent, ask.lease_ms)
            try:
                reply = yield Call(bound, (told.fence, told.ticket), by, copies=wanted)
            except Unreachable:
                failures += 1
                if env.now() >= gives_up_at:
                    raise
                yield backoff(failures, gives_up_at, env)
                continue
            break
        shown = ask.name.shown
        (code, ms), copied = (reply, 0) if wanted is None else reply
        short = shortage(shown, copied, wanted)
        if code and short is not None:
            raise short
        deadline = admission.deadline_of(sent, min(ms - ask.grace_ms, ask.lease_ms)) if code else 0.0
        if deadline <= env.now():
            words = f"the hold on {shown!r} (fence {told.fence}) has ended, or was adopted by another: acquire anew"
            raise LeaseLost(words, name=shown, fence=told.fence)
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except BaseException as reason:
        if not (isinstance(reason, LeaseLost) and code == 0):
            yield from _give_back(ask, heir, env)
        raise
    env.seen.learn(shown, told.fence)
    return told.fence, deadline, False


def _give_back(ask: Ask, heir: str, env: Env) -> Flow[None]:
    """Leave what may have gone over to `heir`, or may do so yet."""
    try:
        yield Call(admission.leave_of(ask, True), (heir,), env.now() + admission.UNDO_S, behind=True)
    except LockfastError:
        pass  # the lease ends it


def revoke(name: Name, channels: str, env: Env) -> Flow[int]:
    """Ask all who hold a name to let go. Returns how many were asked. Asked twice they are told twice: no harm."""
    asked: int = yield from insist(Bound(REVOKE, name), (env.routed(channels, name),), env.now() + env.timeout_s, env)
    return asked


def wait_revoked(hold: Hold, until: float, env: Env) -> Flow[bool]:
    """Wait until the holder is asked to let go. False when `until` came first, or the hold has ended."""
    heard = 0  # the subscription since which nothing can have been missed
    while not hold.revoked and hold.held() and env.now() < until:
        by = min(env.now() + env.attempt_s, max(until, env.now() + admission.UNDO_S))
        try:
            subscription = yield Listen(by, hold.ask.name)
            if subscription != heard or not subscription:
                yield from _ask_if_wanted(hold, by, env)  # asked before anybody listened?
                heard = subscription
                if subscription:
                    continue
        except Unreachable:
            yield Sleep(max(0.0, min(0.05 + 0.1 * env.jitter(), until - env.now())))
            continue
        wakes_at = min(until, env.now() + HEARTBEAT_S, hold.deadline)
        if not subscription:  # pushes are not allowed here
            yield Sleep(max(0.0, min(admission.POLL_S, wakes_at - env.now())))
            continue
        push = yield Wait(hold.ticket, wakes_at, hold.ask.name)
        if push is not None and push.kind == "wanted":
            hold.revoke()
    return hold.revoked


def _ask_if_wanted(hold: Hold, by: float, env: Env) -> Flow[None]:
    """Learn what a renewal would tell, and prolong nothing: that is up to the holder."""
    sent = env.now()
    bound = Bound(RENEW, hold.ask.name, (1, renewal.AS_IT_IS, ""))
    code, ms = yield Call(bound, (hold.fence, hold.ticket), by)
    if env.replicas:
        ms = 0  # the server may tell of a renewal that too few replicas have: it must not count by this way
    renewal.settle(hold, sent, code, ms)
