"""Scripts: Lua 5.1 with the sandbox of the real servers, and the bridge from `redis.call` to the commands.

One Lua state serves all servers of a thread, and a script is compiled once per text, because nothing can pass from one
run to another: what scripts share (the globals and the libraries) they can only read, as on the real servers. A run
belongs to one keyspace, from start to end; runs do not nest, since no command that a script may call starts one.

What crosses between Python and Lua is kept flat, for that is where the time goes: values alone, or behind a mark. From
Python: `true, items…` is a list, `false, field, text` a status or an error. From Lua: see `answer` in sandbox.lua.

Left out of the sandbox: math.random, cjson, struct, bit, coroutine, load and loadstring.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lupa import lua51

from lockfast.sim.commands import COMMANDS, Command, Reply, Status, number_text
from lockfast.sim.keyspace import ReplyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.sim.keyspace import Keyspace

_SANDBOX = Path(__file__).with_name("sandbox.lua")

_NOT_IN_SCRIPTS = frozenset(
    b"EVAL EVALSHA SCRIPT MULTI EXEC DISCARD WATCH UNWATCH SUBSCRIBE UNSUBSCRIBE".split(),
)
_INT64_MIN = -(2**63)
_MOST_ON_STACK = 2000  # values in one call; Lua has room for 8000


class Script:
    """One text, compiled."""

    __slots__ = ("call", "commands", "sha")

    def __init__(self, call: Any, sha: bytes, commands: dict[bytes, Command]) -> None:
        self.call = call
        self.sha = sha
        self.commands = commands  # what it may run


def _refuse_write(db: Keyspace, args: Sequence[bytes]) -> Reply:
    raise ReplyError("ERR Write commands are not allowed from read-only scripts.")


def _without_writes(commands: dict[bytes, Command]) -> dict[bytes, Command]:
    return {name: entry._replace(run=_refuse_write) if entry.writes else entry for name, entry in commands.items()}


class Engine:
    """The Lua state, and the keyspace that the running script works on."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._scripts: dict[bytes, Script] = {}
        self._read_only = _without_writes(COMMANDS)
        self._db: Keyspace
        self._commands = COMMANDS
        self._compile, self._run = self._lua.execute(_SANDBOX.read_bytes(), self._call, _sha1hex)

    def script(self, text: bytes) -> Script:
        """The script of this text; raises `ReplyError` when it is none."""
        script = self._scripts.get(text)
        if script is None:
            flags, body = _read_shebang(text)
            call = self._compile(body)
            if isinstance(call, tuple):
                raise ReplyError(f"ERR Error compiling script (new function): {call[1].decode(errors='replace')}")
            commands = self._read_only if b"no-writes" in flags else COMMANDS
            script = self._scripts[text] = Script(
                call, sha1(text, usedforsecurity=False).hexdigest().encode(), commands
            )
        return script

    def run(self, db: Keyspace, script: Script, key_count: int, words: Sequence[bytes]) -> Reply:
        """Run it to its end. `words` are the keys and, behind them, the arguments."""
        self._db = db
        self._commands = script.commands
        answer = self._run(script.call, key_count, *words)
        kind = type(answer)
        if kind is bytes or kind is int or answer is None:
            return answer
        if kind is float:
            return _whole(answer)
        if answer is True:
            return []
        mark = answer[0]
        if mark is True:
            return [_whole(item) if type(item) is float else item for item in answer[1:]]
        if mark is None:
            raise ReplyError(_one_line(answer[1]).decode(errors="replace"))
        if lua51.lua_type(answer[1]) == "table":
            row = answer[1]
            return _nest([row[i] for i in range(1, answer[2] + 1)], 0)[0]
        return _nest(answer, 1)[0]

    def _call(self, name: Any = None, *args: Any) -> Any:
        """`redis.call`: a number, a string or nil, or several values as the head of this file says."""
        try:
            for word in args:
                if type(word) is not bytes:
                    args = tuple([word if type(word) is bytes else _argument(word) for word in args])
                    break
            run, least, most, _ = self._commands.get(name) or self._find(name)
            if not least <= len(args) <= most:
                raise ReplyError("ERR Wrong number of args calling command from script")
            reply = run(self._db, args)
        except ReplyError as error:
            return False, b"err", str(error).encode()
        kind = type(reply)
        if kind is bytes or kind is int or reply is None:
            return reply
        if kind is Status:
            return False, b"ok", bytes(reply)
        if None in reply:  # a table with holes would end at the first
            reply = [False if item is None else item for item in reply]
        if reply and type(reply[-1]) is list:  # SCAN alone has a list in its list
            reply = [self._lua.table_from(item) if type(item) is list else item for item in reply]
        return self._lua.table_from(reply) if len(reply) > _MOST_ON_STACK else (True, *reply)

    def _find(self, name: Any) -> Command:
        """A command that was not written in capitals, or the reason why it cannot be run."""
        if name is None:
            raise ReplyError("ERR Please specify at least one argument for this call")
        name = _argument(name).upper()
        if name in self._commands:
            return self._commands[name]
        if name in _NOT_IN_SCRIPTS:
            raise ReplyError("ERR This Valkey command is not allowed from script")
        raise ReplyError("ERR Unknown command called from script")


_of_thread = threading.local()


def engine() -> Engine:
    """The engine of this thread. Servers made in it share it, and are to be used in it."""
    made: Engine | None = getattr(_of_thread, "engine", None)
    if made is None:
        made = _of_thread.engine = Engine()
    return made


def _sha1hex(text: bytes) -> bytes:
    return sha1(text, usedforsecurity=False).hexdigest().encode()


@lru_cache(4096, typed=True)
def _argument(word: Any) -> bytes:
    """The text of what a script gives as an argument; most are small numbers, and the same ones."""
    if type(word) is bytes:
        return word
    if type(word) is int or type(word) is float:
        return number_text(word)
    raise ReplyError("ERR Command arguments must be strings or integers")


def _whole(number: float) -> int:
    """As the servers make an integer of a number: cut off, and what does not fit is the lowest one."""
    return int(number) if -(2.0**63) <= number < 2.0**63 else _INT64_MIN


def _one_line(text: bytes) -> bytes:
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


def _nest(row: Sequence[Any], at: int) -> tuple[Reply, int]:
    """One reply of a row that `flatten` made, and where the next one starts."""
    item = row[at]
    if item is True:
        items, count = [], row[at + 1]
        at += 2
        for _ in range(count):
            inner, at = _nest(row, at)
            items.append(inner)
        return items, at
    if item is False:
        text = _one_line(row[at + 2])
        return (text if row[at + 1] == b"ok" else ReplyError(text.decode(errors="replace"))), at + 3
    return (_whole(item) if type(item) is float else item), at + 1


def _read_shebang(text: bytes) -> tuple[set[bytes], bytes]:
    """The flags of a `#!lua` line, and the text without the line but with its end, so that lines keep their number."""
    if not text.startswith(b"#!"):
        return set(), text
    line, newline, rest = text.partition(b"\n")
    engine_name, *options = line[2:].split()
    if not newline:
        raise ReplyError("ERR Invalid script shebang")
    if engine_name != b"lua":
        raise ReplyError(f"ERR Could not find scripting engine '{engine_name.decode(errors='replace')}'")
    flags: set[bytes] = set()
    for option in options:
        if not option.startswith(b"flags="):
            raise ReplyError(f"ERR Unknown lua shebang option: {option.decode(errors='replace')}")
        flags.update(option[len(b"flags=") :].split(b","))
    for flag in sorted(flags - {b"no-writes", b"allow-oom", b"allow-stale", b"no-cluster", b"allow-cross-slot-keys"}):
        raise ReplyError(f"ERR Unexpected flag in script shebang: {flag.decode(errors='replace')}")
    return flags, newline + rest
