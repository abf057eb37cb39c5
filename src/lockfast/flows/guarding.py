"""Guard: commands that the server runs only while a hold stands, all in one step and once.

What can be known up front is refused up front: the server is asked for its own table of commands, once per client and
command, so a misspelled command or a wrong number of arguments is found before anything is written. The same table
tells which words are keys. A guard that was not answered is sent again with the same operation id; the server keeps
what it answered for as long as an earlier copy may still be under way, so that nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lockfast.errors import Refused, Unreachable
from lockfast.flows.admission import TOMBSTONE_MS
from lockfast.flows.effects import Call, Command, backoff
from lockfast.flows.renewal import GONE
from lockfast.flows.scripts import GUARD, Bound
from lockfast.names import Name, ran_key

if TYPE_CHECKING:
    from lockfast.flows.effects import Effect, Env, Flow
    from lockfast.grants import Hold

Word = str | bytes | int | float
Words = tuple[bytes, ...]
MAX_WORDS = 5000  # of one command: a script can hand on some 8000 at once


class Shape(NamedTuple):
    """What the server's table says of a command. arity: words it takes, its name included; -n: n or more."""

    arity: int
    first: int  # the words that are keys; 0: none that the table knows of
    last: int
    step: int
    in_scripts: bool
    subcommands: dict[bytes, Any]


def prepare(commands: tuple[Sequence[Word], ...]) -> list[Words]:
    """The commands as they go over the wire. Raises TypeError or ValueError for what cannot be one."""
    if not commands:
        raise ValueError('name at least one command: guard(("SET", "key", 1))')
    return [_words(command) for command in commands]


def _words(command: object) -> Words:
    if isinstance(command, (str, bytes)) or not isinstance(command, Sequence):
        raise TypeError(f'a command is a tuple of its words, ("SET", "key", 1), got {command!r}')
    if not 1 <= len(command) <= MAX_WORDS:
        raise ValueError(f"a command has from 1 to {MAX_WORDS} words, got {len(command)}")
    return tuple([_word(word) for word in command])


def _word(word: object) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, bool) or not isinstance(word, (str, int, float)):
        raise TypeError(f"a word of a command is str, bytes, int or float, got {word!r}")
    return str(word).encode()


def guard(hold: Hold, commands: list[Words], operation: str, env: Env) -> Flow[list[Any]]:
    """Run the commands if the hold stands. Raises ValueError, LeaseLost, NotHeld, Refused, Unreachable.

    operation: an id that no other guard has.
    """
    hold.check()
    yield from _learn(commands, hold, env)
    name = hold.ask.name
    keys: tuple[Any, ...] = (*name.keys, ran_key(name, operation), *_keys(commands, env))
    bound = Bound(GUARD, Name(name.shown, keys))
    # A copy may come as late as its connection stays open, counted from the end of the client's patience.
    args: list[str | int | bytes] = [hold.fence, hold.ticket, TOMBSTONE_MS + round(env.timeout_s * 1000)]
    for words in commands:
        args += [len(words), *words]
    try:
        code, replies = yield from _answer(lambda by: Call(bound, tuple(args), by), hold, env)
    except Unreachable as failure:
        if not failure.sent:
            hold.check()  # if it is over by now, that is what the caller must hear
            raise
        raise Unreachable(f"{failure} (guard of {name.shown!r}: it may have run)", sent=True) from failure
    if code == 0:
        hold.lose(GONE)
        hold.check()
    if code == 2:
        raise Unreachable(f"the guard of {name.shown!r} has run, but its replies were lost on the way", sent=True)
    for place, reply in enumerate(replies):
        if isinstance(reply, Exception):
            which = f"command {place + 1} of {len(commands)} ({_shown(commands[place])})"
            raise Refused(f"{which} failed, the others have run: {reply}", code=str(reply).partition(" ")[0])
    return list(replies)


def _answer(request: Callable[[float], Effect], hold: Hold, env: Env) -> Flow[Any]:
    """Ask what may be asked again, within the client's time-out and for as long as the hold is sure."""
    gives_up_at = env.now() + env.timeout_s
    failures = 0
    sent = False
    while True:
        try:
            return (yield request(min(env.now() + env.attempt_s, gives_up_at)))
        except Refused as refusal:
            if sent:  # the copy before this one was not refused, for all that is known
                raise Unreachable(str(refusal), sent=True) from refusal
            raise
        except Unreachable as failure:
            failures += 1
            sent = sent or failure.sent
            yield backoff(failures, gives_up_at, env)
            # Loss is final: what has not run by then must not run later.
            if env.now() >= gives_up_at or not hold.held():
                raise Unreachable(str(failure), sent=sent) from failure


def _learn(commands: list[Words], hold: Hold, env: Env) -> Flow[None]:
    """Know the commands, and refuse those that cannot run."""
    unknown = sorted({words[0].lower() for words in commands} - env.commands.keys())
    if unknown:
        try:
            table = yield from _answer(lambda by: Command(("COMMAND", "INFO", *unknown), by, hold.ask.name), hold, env)
        except Unreachable as failure:
            hold.check()
            raise Unreachable(str(failure), sent=False) from failure  # nothing was written yet
        for known, entry in zip(unknown, table, strict=True):
            if entry is not None:
                env.commands[known] = _shape(entry)
    for words in commands:
        shape = _shape_of(words, env)
        if shape is None:
            raise ValueError(f"the server knows no command {_shown(words)}")
        if len(words) < abs(shape.arity) or len(words) > shape.arity > 0:
            raise ValueError(f"wrong number of arguments for {_shown(words)}: {len(words) - 1}")
        if not shape.in_scripts or words[0].lower() == b"select":  # what has run is noted in this database
            raise ValueError(f"{_shown(words)} cannot be a part of a guard")


def _shape(entry: Any) -> Shape:
    _, arity, flags, first, last, step, *more = entry
    inner = more[3] if len(more) > 3 else []
    subcommands = {sub[0].rpartition(b"|")[2].lower(): _shape(sub) for sub in inner}
    return Shape(arity, first, last, step, b"noscript" not in flags, subcommands)


def _shape_of(words: Words, env: Env) -> Shape | None:
    shape: Shape | None = env.commands.get(words[0].lower())
    if shape is not None and shape.subcommands and len(words) > 1:
        return shape.subcommands.get(words[1].lower())
    return shape


def _keys(commands: list[Words], env: Env) -> list[bytes]:
    """The words that are keys, each once."""
    keys: dict[bytes, None] = {}
    for words in commands:
        shape = _shape_of(words, env)
        if shape is not None and shape.first:
            end = shape.last + 1 if shape.last >= 0 else len(words) + shape.last + 1
            keys |= dict.fromkeys(words[shape.first : end : shape.step])
    return list(keys)


def _shown(words: Words) -> str:
    return repr(words[0].decode(errors="replace")[:40])
