"""One simulated server process: its keyspace, its scripts, its sessions. No network, no randomness, no threads.

Speaks RESP2: a session that has subscribed gets its messages through its `push`, in between its replies. Within one
command, script or transaction the server's time stands still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lockfast.sim import commands_keys, commands_sorted, commands_values, scripting
from lockfast.sim.commands import COMMANDS, MANY, Command, Reply, Status, integer, wrong_count
from lockfast.sim.keyspace import Keyspace, ReplyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.sim.keyspace import Snapshot

Word: TypeAlias = str | int | float | bytes

# Importing them has filled COMMANDS.
assert all((commands_keys, commands_sorted, commands_values))


class Session:
    """One client's connection, as the server knows it."""

    __slots__ = ("aborted", "channels", "push", "queue", "stale", "watching")

    def __init__(self, push: Callable[[list[Any]], None]) -> None:
        self.push = push
        self.channels: dict[bytes, None] = {}
        self.watching: dict[bytes, bool] = {}  # kept by the keyspace, as is `stale`
        self.stale = False  # something watched was changed
        self.queue: list[tuple[Entry, list[bytes]]] | None = None  # the commands after MULTI
        self.aborted = False  # one of them was refused


class Entry(NamedTuple):
    """A command as clients call it; what `Command` is to scripts."""

    name: str
    run: Callable[[Server, Session, list[bytes]], Reply]
    least: int
    most: int
    while_subscribed: bool = False
    in_multi: str = "queued"  # or "runs", or "refused"


class Server:
    """A server with a clock of its own, in microseconds since 1970.

    `store` is the memory, for reading it from outside: `server.store.get(b"key")`.
    """

    def __init__(self, time_us: Callable[[], int]) -> None:
        self.store = Keyspace()
        self.run_id = ""
        self.keeps = False  # whether it writes what it is told to disk before it answers
        self._time_us = time_us
        self._started_us = time_us()
        self._engine = scripting.engine()
        self._scripts: dict[bytes, scripting.Script] = {}

    def open(self, push: Callable[[list[Any]], None]) -> Session:
        """A client connects. `push` gets messages, and all but the last notice of one (UN)SUBSCRIBE.

        It may keep what it gets, and must not run commands on any simulated server before it returns: a script may be
        in the middle of its work.
        """
        return Session(push)

    def close(self, session: Session) -> None:
        """The client is gone: nothing is pushed to it and nothing is watched for it any more."""
        self.store.unwatch(session)
        for channel in session.channels:
            self._unlisten(session, channel)
        session.channels.clear()
        session.queue = None

    def execute(self, session: Session, args: tuple[Word, ...]) -> Reply:
        """Run one command. Answers what hiredis would give; an error is a `ReplyError` value, never raised."""
        self.store.set_time(self._time_us())
        words = [
            word if type(word) is bytes else word.encode() if type(word) is str else str(word).encode() for word in args
        ]
        name = words.pop(0)
        entry = None
        try:
            entry = _ENTRIES.get(name) or _find(name, words)
            if not entry.least <= len(words) <= entry.most:
                raise wrong_count(entry.name)
            if session.channels and not entry.while_subscribed:
                raise _subscribed(entry.name)
            if session.queue is None or entry.in_multi == "runs":
                return entry.run(self, session, words)
            if entry.in_multi == "refused":
                raise ReplyError(f"ERR Command '{entry.name}' not allowed inside a transaction")
        except ReplyError as error:
            session.aborted = True  # reset by MULTI
            return error
        session.queue.append((entry, words))
        return b"QUEUED"

    def empty(self) -> None:
        """Lose the memory, data and scripts. The caller closes the sessions."""
        self.store.clear()
        self._scripts.clear()

    def begin(self, run_id: str, up_s: float = 0.0) -> None:
        """The process starts: another one than before. up_s: it did so a while ago."""
        self.run_id = run_id
        self._started_us = self._time_us() - round(up_s * 1_000_000)

    def copy_data(self) -> Snapshot:
        """The data as of now, for a restart with memory or for a replica. Scripts are not in it."""
        return self.store.copy()

    def restore(self, data: Snapshot) -> None:
        """Take over what `copy_data` gave, of this server or another. It may be given to many."""
        self.store.restore(data)

    # Transactions

    def _multi(self, session: Session, words: list[bytes]) -> Reply:
        session.queue = []
        session.aborted = False
        return b"OK"

    def _exec(self, session: Session, words: list[bytes]) -> Reply:
        if session.queue is None:
            raise ReplyError("ERR EXEC without MULTI")
        queue, session.queue = session.queue, None
        stale = self.store.is_stale(session)
        self.store.unwatch(session)
        if session.aborted:
            raise ReplyError("EXECABORT Transaction discarded because of previous errors.")
        return None if stale else [self._reply(session, entry, args) for entry, args in queue]

    def _reply(self, session: Session, entry: Entry, words: list[bytes]) -> Reply:
        try:
            return entry.run(self, session, words)
        except ReplyError as error:
            return error

    def _discard(self, session: Session, words: list[bytes]) -> Reply:
        if session.queue is None:
            raise ReplyError("ERR DISCARD without MULTI")
        session.queue = None
        self.store.unwatch(session)
        return b"OK"

    def _watch(self, session: Session, words: list[bytes]) -> Reply:
        for key in words:
            self.store.watch(session, key)
        return b"OK"

    def _unwatch(self, session: Session, words: list[bytes]) -> Reply:
        self.store.unwatch(session)
        return b"OK"

    # Scripts

    def _eval(self, session: Session, words: list[bytes]) -> Reply:
        key_count = _key_count(words)
        return self._engine.run(self.store, self._load(words[0]), key_count, words[2:])

    def _evalsha(self, session: Session, words: list[bytes]) -> Reply:
        key_count = _key_count(words)
        script = self._scripts.get(words[0]) or self._scripts.get(words[0].lower())
        if script is None:
            raise ReplyError("NOSCRIPT No matching script.")
        return self._engine.run(self.store, script, key_count, words[2:])

    def _script_load(self, session: Session, words: list[bytes]) -> Reply:
        return self._load(words[0]).sha

    def _script_exists(self, session: Session, words: list[bytes]) -> Reply:
        return [int(sha.lower() in self._scripts) for sha in words]

    def _script_flush(self, session: Session, words: list[bytes]) -> Reply:
        if words and (len(words) > 1 or words[0].upper() not in (b"SYNC", b"ASYNC")):
            raise ReplyError("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
        self._scripts.clear()
        return b"OK"

    def _load(self, text: bytes) -> scripting.Script:
        script = self._engine.script(text)
        self._scripts[script.sha] = script
        return script

    # About itself

    def _info(self, session: Session, words: list[bytes]) -> Reply:
        about = {
            b"server": {
                "redis_mode": "standalone",
                "run_id": self.run_id,
                # As the real ones have it: the difference of two clocks that show whole seconds.
                "uptime_in_seconds": self._time_us() // 1_000_000 - self._started_us // 1_000_000,
            },
            b"persistence": {"aof_enabled": int(self.keeps), "aof_last_write_status": "ok"},
        }
        chosen = about.get(words[0].lower(), {})
        title = words[0].decode(errors="replace").capitalize()
        lines = [f"# {title}", *(f"{key}:{value}" for key, value in chosen.items())]
        return "".join(f"{line}\r\n" for line in lines).encode()

    def _config_get(self, session: Session, words: list[bytes]) -> Reply:
        fsync = [b"appendfsync", b"always" if self.keeps else b"everysec", b"no-appendfsync-on-rewrite", b"no"]
        return fsync if words == [b"*appendfsync*"] else []

    # Push

    def _subscribe(self, session: Session, words: list[bytes]) -> Reply:
        notices = []
        for channel in words:
            session.channels[channel] = None
            self.store.listeners.setdefault(channel, {})[session] = None
            notices.append([b"subscribe", channel, len(session.channels)])
        return _last(session, notices)

    def _unsubscribe(self, session: Session, words: list[bytes]) -> Reply:
        notices: list[list[Any]] = []
        for channel in words or list(session.channels):
            if channel in session.channels:
                del session.channels[channel]
                self._unlisten(session, channel)
            notices.append([b"unsubscribe", channel, len(session.channels)])
        return _last(session, notices or [[b"unsubscribe", None, 0]])

    def _unlisten(self, session: Session, channel: bytes) -> None:
        listeners = self.store.listeners[channel]
        del listeners[session]
        if not listeners:
            del self.store.listeners[channel]

    def _ping(self, session: Session, words: list[bytes]) -> Reply:
        if session.channels:
            return [b"pong", words[0] if words else b""]
        return words[0] if words else b"PONG"


def _last(session: Session, notices: list[list[Any]]) -> list[Any]:
    """A command with several channels has as many answers: the last is its reply, the others go before it."""
    for notice in notices[:-1]:
        session.push(notice)
    return notices[-1]


def _key_count(words: list[bytes]) -> int:
    count = integer(words[1])
    if count > len(words) - 2:
        raise ReplyError("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise ReplyError("ERR Number of keys can't be negative")
    return count


# The table of all commands


def _plain(name: bytes, command: Command) -> Entry:
    def run(server: Server, session: Session, words: list[bytes]) -> Reply:
        reply = command.run(server.store, words)
        return bytes(reply) if type(reply) is Status else reply

    return Entry(name.decode().lower(), run, command.least, command.most)


_OWN = (
    Entry("multi", Server._multi, 0, 0, in_multi="refused"),
    Entry("exec", Server._exec, 0, 0, in_multi="runs"),
    Entry("discard", Server._discard, 0, 0, in_multi="runs"),
    Entry("watch", Server._watch, 1, MANY, in_multi="refused"),
    Entry("unwatch", Server._unwatch, 0, 0),
    Entry("eval", Server._eval, 2, MANY),
    Entry("evalsha", Server._evalsha, 2, MANY),
    Entry("script|load", Server._script_load, 1, 1),
    Entry("script|exists", Server._script_exists, 1, MANY),
    Entry("script|flush", Server._script_flush, 0, MANY),
    Entry("subscribe", Server._subscribe, 1, MANY, while_subscribed=True),
    Entry("unsubscribe", Server._unsubscribe, 0, MANY, while_subscribed=True),
    Entry("ping", Server._ping, 0, 1, while_subscribed=True),
    Entry("info", Server._info, 1, 1),
    Entry("config|get", Server._config_get, 1, MANY),
)
_ENTRIES = {name: _plain(name, command) for name, command in COMMANDS.items()}
_ENTRIES.update({entry.name.upper().encode(): entry for entry in _OWN})


def _find(name: bytes, words: list[bytes]) -> Entry:
    """A command that is not in capitals or has two words; the second is taken away from `words`."""
    upper = name.upper()
    if upper in (b"SCRIPT", b"CONFIG"):
        if not words:
            raise wrong_count(upper.decode().lower())
        entry = _ENTRIES.get(upper + b"|" + words[0].upper())
        if entry is None:
            shown = words[0].decode(errors="replace")
            raise ReplyError(f"ERR unknown subcommand '{shown}'. Try {upper.decode()} HELP.")
        del words[0]
        return entry
    if upper in _ENTRIES:
        return _ENTRIES[upper]
    shown = ""
    for word in words:
        if len(shown) >= 128:
            break
        shown += f"'{word.decode(errors='replace')[: 128 - len(shown)]}' "
    raise ReplyError(f"ERR unknown command '{name.decode(errors='replace')[:128]}', with args beginning with: {shown}")


def _subscribed(name: str) -> Exception:
    return ReplyError(
        f"ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this"
        " context"
    )
