"""Requests, replies and pushes in plain words, for the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.sim.clocks import EPOCH_S

if TYPE_CHECKING:
    from lockfast.flows.effects import Push
    from lockfast.sim.client import Client
    from lockfast.sim.net import Connection, Request

_VERBS = {
    "admit": "asks for",
    "vote": "asks for a vote for",
    "leave": "gives back",
    "renew": "renews",
    "inspect": "looks at",
}


def fence_text(fence: int) -> str:
    """A fence as people can compare it: most are microseconds since 1970, and the world began not long ago."""
    return str(fence - EPOCH_S * 1_000_000) if fence > EPOCH_S * 1_000_000 else str(fence)


_GREETING = "INFO"  # how the introduction of a server begins, that nobody wants to read in full


def requests(client: Client, connection: Connection, sent: list[Request]) -> None:
    """What a client writes on a connection."""
    if sent[0][0][0] == _GREETING:
        client.world.say(client.name, f"asks who it is → {connection.where}/{connection.number}")
        return
    told = []
    for args, call in sent:
        if call is None:
            told.append("sends " + " ".join(_word(arg) for arg in args))
            continue
        verb = _VERBS.get(call.bound.script.name, f"runs {call.bound.script.name} on")
        behind = ", to undo it" if call.behind else ""
        again = ", with the script's text" if args[0] == "EVAL" and not call.behind else ""
        told.append(f"{verb} {call.bound.name.shown!r} (ticket {_word(call.args[-1])}){behind}{again}")
    client.world.say(client.name, f"{'; '.join(told)} → {connection.where}/{connection.number}")


def replies(client: Client, connection: Connection, asked: list[Request], answers: list[Any]) -> None:
    """What a client reads on a connection."""
    if asked[0][0][0] == _GREETING:
        client.world.say(client.name, f"hears who it is ← {connection.where}/{connection.number}")
        return
    words = "; ".join(_answer(request, answer) for request, answer in zip(asked, answers, strict=True))
    client.world.say(client.name, f"hears {words} ← {connection.where}/{connection.number}")


def _answer(request: Request, answer: Any) -> str:
    call = request[1]
    if call is None or isinstance(answer, Exception):
        return _reply(answer)
    ticket = _word(call.args[-1])
    script = call.bound.script.name
    if script == "admit" and isinstance(answer, int):
        return f"that {ticket} holds it, fence {fence_text(answer)}"
    if script == "admit" and len(answer) == 4:
        code, fence, ms, position = answer
        if code == 1:
            return f"that {ticket} held it before, fence {fence_text(fence)}, {ms} ms left"
        if code == 0:
            place = f"{ticket} has place {position}" if position else f"{ticket} has no place"
            return f"that it is taken, {place}, fence {fence_text(fence)}, due in {ms} ms"
        return f"that {ticket} is refused"
    if script == "vote" and len(answer) == 4:
        code, fence, ms, _ = answer
        if code >= 1:
            return f"that {ticket} has the vote, fence {fence_text(fence)}, {ms} ms left"
        return f"that {ticket} is refused" if code < 0 else f"no vote for {ticket}, due in {ms} ms"
    if script == "leave" and answer in (0, 1, 2):
        return f"that {ticket} " + ("was nowhere", "held it until now", "has left the queue")[answer]
    if script == "renew" and len(answer) == 2:
        return f"that {ticket} has {answer[1]} ms left" if answer[0] == 1 else f"that {ticket} is gone"
    return _reply(answer)


def push(client: Client, ticket: str, news: Push) -> None:
    """A push that a client reads."""
    number = fence_text(news.number) if news.kind == "grant" else str(news.number)
    client.world.say(client.name, f"is told: {news.kind} {number} for {ticket}")


def _reply(answer: Any) -> str:
    if isinstance(answer, Exception):
        return f"error {answer}"
    if isinstance(answer, list):
        return "[" + ", ".join(_reply(item) for item in answer) + "]"
    if isinstance(answer, int):
        return fence_text(answer)
    return _word(answer) if answer is not None else "nil"


def _word(word: Any) -> str:
    text = word.decode(errors="replace") if isinstance(word, bytes) else str(word)
    return text if len(text) <= 40 else text[:37] + "…"
