"""Bugs planted in copies of the shipped flows and scripts, to see that the simulator and the checkers find them.

Each is an edit of a file's text, applied for the length of a `with`: what it replaces must be there, so a mutation
cannot quietly stop being one when the code changes. `choices` are swarm options under which the bug shows soon; the
faults themselves are still drawn from the seed.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lockfast
from lockfast.flows import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(lockfast.__file__).parent
ADMISSION, STATE, ADMIT, LEAVE, RENEW = (
    "flows/admission.py", "lua/state.lua", "lua/admit.lua", "lua/leave.lua", "lua/renew.lua",
)  # fmt: skip
GRANTS, SWAPPING = "grants.py", "flows/swapping.py"


@dataclass(frozen=True)
class Planted:
    """One bug. edits: file, text, and what stands there instead. caught_by: the checkers that may find it first."""

    name: str
    edits: tuple[tuple[str, str, str], ...]
    caught_by: frozenset[str]
    choices: dict[str, Any] = field(default_factory=dict)


def _bug(name: str, caught_by: str, *edits: tuple[str, str, str], **choices: Any) -> Planted:
    return Planted(name, edits, frozenset(caught_by.split()), choices)


OVERLAP = "exclusion deadline_before_takeover"
MESSAGES = ("slow", "lost", "reset", "answer slow", "answer lost", "answer reset", "cut up", "freeze")

SENDS_A_LEAVE = """\
                try:
                    yield Call(leave_of(ask, False), (ticket,), env.now() + UNDO_S, behind=True)
                except Unreachable:
                    pass
"""
TAKES_WHAT_IS_FREE = """\
if (holder == '-' or holder_end <= now) and used + weight <= limit then
  forget_holder()
  hold(ticket, weight, now + lease, tonumber(ARGV[8]), ARGV[6])
  save()
  return fence
end
"""

ALL = (
    _bug(
        "blind release",
        OVERLAP,
        (LEAVE, "if holder == ARGV[4] then", "if holder ~= '-' then"),
        (LEAVE, "local ticket, found = ARGV[4], 0\nif holder == ticket then",
                "local ticket, found = ARGV[4], 0\nif holder ~= '-' then"),
        renew_share=0.0,
        work="lease",
    ),
    _bug(
        "a swap that does not compare",
        f"{OVERLAP} fifo",
        (SWAPPING, '"IFEQ", held', '"XX"'),
        work="lease",
    ),
    _bug(
        "deadline counted from the reply",
        OVERLAP,
        (ADMISSION, "deadline = deadline_of(sent, min(ms - ask.grace_ms, ask.lease_ms))",
                    "deadline = deadline_of(heard_at, min(ms - ask.grace_ms, ask.lease_ms))"),
        renew_share=0.0,
        work="lease",
    ),
    _bug(
        "a pushed grant counted from the push",
        OVERLAP,
        (ADMISSION, "deadline = deadline_of(sent, ask.lease_ms)\n                    moment = env.now()",
                    "deadline = deadline_of(env.now(), ask.lease_ms)\n                    moment = env.now()"),
        renew_share=0.0,
        work="lease",
        kinds=("push slow", "pause", "late", "stall", "suspend"),
        faults=20,
    ),
    _bug(
        "re-admit answered with a fresh lease",
        OVERLAP,
        (ADMIT, "return {1, fence, holder_end - now, 0}", "return {1, fence, lease, 0}"),
        renew_share=0.0,
        work="lease",
        kinds=MESSAGES,
        faults=20,
    ),
    _bug(
        "a stale push believed",
        OVERLAP,
        (ADMISSION, "if number > fence:", "if number:"),
        kinds=("push slow", "pause", "late", "stall", "suspend"),
        faults=20,
    ),
    _bug(
        "a ticket retried after its leave",
        OVERLAP,
        (ADMISSION, "                yield backoff(failures, gives_up_at, env)\n                sent",
                    SENDS_A_LEAVE + "                yield backoff(failures, gives_up_at, env)\n                sent"),
        kinds=MESSAGES,
        faults=30,
    ),
    _bug(
        "no tombstone",
        "no_orphan",
        (LEAVE, "if found == 0 or ARGV[2] == '1' then", "if false then"),
        kinds=MESSAGES,
        faults=30,
        leases_s=(3.0,),
        longest_s=2.0,
        work="short",
    ),
    _bug(
        "a renew that lowers",
        OVERLAP,
        (
            RENEW,
            "if lease_end > stood or lowers or heir ~= '' then\n  stood = math.max(stood, lease_end)",
            "if lease_end ~= stood or lowers or heir ~= '' then\n  stood = lease_end",
        ),
        extend_share=1.0,
        renew_share=0.0,
        work="lease",
    ),
    _bug(
        "a renew that revives",
        "no_resumption",
        (RENEW, "or holder_end <= now then", "then"),
        kinds=MESSAGES,
        faults=20,
    ),
    _bug(
        "a fence from a counter lost on restart",
        "fences_grow",
        (STATE, "fence = math.max(fence + 1, seen + 1, now_us)", "fence = fence + 1"),
        (ADMIT, "if seen > fence then fence = seen end", ""),
        (ADMIT, "if now_us > fence then fence = now_us end", ""),
        kinds=("forget",),
        faults=5,
    ),
    _bug(
        "the grant loop only for waiters",
        "not_stuck",
        (ADMIT, "local changed = settle(ticket)",
                "local changed = redis.call('ZRANK', KEYS[2], ticket) and settle(ticket)"),
        kinds=MESSAGES,
        faults=20,
        leases_s=(0.1,),
        waits_s=(None,),
        clients=2,
    ),
    _bug(
        "no heartbeat",
        "not_stuck",
        (ADMISSION, "until = env.now() + HEARTBEAT_S * (0.75 + env.jitter() / 4)", "until = inf"),
        waits_s=(None,),
        leases_s=(3.0,),
        work="long",
        clients=6,
    ),
    _bug(
        "barging",
        "fifo",
        (ADMIT, "local changed = settle(ticket)",
                TAKES_WHAT_IS_FREE + "local changed = settle(ticket)"),
        renew_share=0.0,
        work="lease",
    ),
    _bug(
        "no drift margin",
        OVERLAP,
        (ADMISSION, "MARGIN_RATIO = 0.99 ", "MARGIN_RATIO = 1.0 "),
        drift=0.0049,
        leases_s=(3.0,),
        spread_s=0.001,
        renew_share=0.0,
        work="lease",
    ),
    _bug(
        "a loss that is not final",
        "no_resumption",
        (GRANTS, "if self.state is not HELD or self.era.now() >= self.deadline:\n                return",
                 "self.state = HELD"),
        kinds=(*MESSAGES, "pause"),
        faults=20,
    ),
    _bug(
        "barging past a heavy head",
        "fifo",
        (ADMIT, "if (holder == '-' or used > 0) and waiting == 0 and used + weight <= limit then",
                "if (holder == '-' or used > 0) and used + weight <= limit then"),
        limit=3,
        work="lease",
    ),
    _bug(
        "a grant loop that does not weigh",
        "permits deadline_before_takeover",
        (STATE, "elseif used + weight > limit then\n      break", "elseif used > limit then\n      break"),
        limit=3,
        work="lease",
    ),
    _bug(
        "a lease that the server never ends",
        "not_stuck no_orphan",
        (STATE, "if holder ~= '-' and holder_end <= now then", "if false then"),
        kinds=("crash", "kill"),
        faults=5,
    ),
)  # fmt: skip


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """Let the bug be there, for as long as the block runs."""
    texts: dict[str, str] = {}
    for path, old, new in bug.edits:
        text = texts.get(path) or (SOURCE / path).read_text()
        assert old in text, f"{bug.name}: {path} no longer has {old!r}"
        texts[path] = text.replace(old, new)
    undo = []
    lua = {path: text for path, text in texts.items() if path.endswith(".lua")}
    if lua:
        undo.append(_swap_scripts(lua))
    undo += [_swap_module(path, text) for path, text in texts.items() if path.endswith(".py")]
    try:
        yield
    finally:
        for put_back in reversed(undo):
            put_back()


def _swap_scripts(texts: dict[str, str]) -> Any:
    """Let every script have the new texts."""
    all_scripts = (scripts.ADMIT, scripts.LEAVE, scripts.RENEW, scripts.RESIZE, scripts.GUARD, scripts.VOTE)
    before = [(script._text, script._sha, script.packed) for script in all_scripts]
    state = texts.get(STATE) or (SOURCE / STATE).read_text()
    for script in all_scripts:
        path = f"lua/{script.name}.lua"
        body = texts.get(path) or (SOURCE / path).read_text()
        script._text = body.replace("-- include state.lua\n", state)
        script._sha = script.packed = ""

    def put_back() -> None:
        for script, fields in zip(all_scripts, before, strict=True):
            script._text, script._sha, script.packed = fields

    return put_back


def _swap_module(path: str, text: str) -> Any:
    """Run the new text in the module's place, and give what others imported from it to them as well.

    Classes keep their identity: only their functions are replaced.
    """
    name = "lockfast." + path.removesuffix(".py").replace("/", ".")
    module = sys.modules[name]
    new: dict[str, Any] = {"__name__": name, "__file__": module.__file__}
    exec(compile(text, path, "exec", dont_inherit=True), new)
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, key: str, value: Any) -> None:
        undo.append((owner, key, getattr(owner, key)))
        setattr(owner, key, value)

    for key, value in new.items():
        old = getattr(module, key, None)
        if isinstance(old, type) and old.__module__ == name:
            for inner, function in vars(value).items():
                if callable(function) and inner in vars(old) and not inner.startswith("__"):
                    put(old, inner, function)
        elif (callable(value) and getattr(value, "__module__", "") == name) or isinstance(value, (int, float, str)):
            if key.startswith("__"):
                continue
            for other in [m for m_name, m in sys.modules.items() if m_name.startswith("lockfast") and m is not None]:
                if getattr(other, key, None) is old and old is not None:
                    put(other, key, value)

    def put_back() -> None:
        for owner, key, value in reversed(undo):
            setattr(owner, key, value)

    return put_back
