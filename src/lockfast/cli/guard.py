"""The guard: a process that stops the command in time when the one that should do so cannot.

`lockfast run` renews the lease, and each renewal tells the guard the new deadline through a pipe. The guard
does no other I/O, so no server and no terminal can hold it up:

- no news, because the server is silent or because `lockfast run` itself was stopped (SIGSTOP): TERM to the
  command's group one grace before the deadline, KILL at the deadline, which lies before the lease's end on
  the server;
- "lost": TERM now, KILL after the grace or at the deadline, whichever comes first;
- the pipe closes, because `lockfast run` was killed (SIGKILL): the same as "lost".

KILL also goes to processes that left the group (setsid): they are known by the hold's ticket in their
environment.

What it cannot do: stop processes of another user (sudo, setuid), processes that left the group *and*
cleared their environment, or anything while the machine is suspended; and if the guard itself is killed,
`lockfast run` takes over its work but can then be killed or stopped in turn. For those cases there is the
fence.
"""

from __future__ import annotations

import math
import os
import select
import signal
from typing import NoReturn

from lockfast.cli.child import group_exists
from lockfast.clock import now

# KILL goes out this long before the deadline, for the time that a busy machine takes to deliver it; less if the lease
# is so short that this would eat it up.
KILL_LEAD_S = 0.02
KILL_LEAD_SHARE = 0.05
# poll() does not count while the machine sleeps, the deadline does: so look at the clock at least this often.
TICK_S = 0.5
_GROUP_LOOK_S = 0.02


class Fuse:
    """When the command must be asked to stop, and when it must be dead. Once lit it cannot be put out."""

    def __init__(self, grace_s: float, lease_s: float, *, ask_first: bool) -> None:
        self._grace_s = min(grace_s, lease_s / 3)
        self._lead_s = min(KILL_LEAD_S, lease_s * KILL_LEAD_SHARE)
        self._ask_first = ask_first
        self.lit = False
        self.term_at = self.kill_at = math.inf

    def renewed(self, deadline: float) -> None:
        """The hold is sure until `deadline`, on lockfast.clock."""
        if not self.lit:
            self.kill_at = deadline - self._lead_s
            self.term_at = self.kill_at - self._grace_s if self._ask_first else math.inf

    def lost(self) -> None:
        """The hold is not sure any more: do not wait for the deadline."""
        if not self.lit:
            self.lit = True
            moment = now()
            self.term_at = moment if self._ask_first else math.inf
            self.kill_at = min(moment + self._grace_s, self.kill_at) if self._ask_first else moment

    def due(self) -> int:
        """The signal whose time has come, each once; 0 for none."""
        moment = now()
        if moment >= self.kill_at:
            self.lit, self.term_at, self.kill_at = True, math.inf, math.inf
            return signal.SIGKILL
        if moment >= self.term_at:
            self.lit, self.term_at = True, math.inf
            return signal.SIGTERM
        return 0

    @property
    def burnt(self) -> bool:
        """Whether KILL has been due: nothing more will come."""
        return self.lit and self.kill_at == math.inf

    @property
    def next_at(self) -> float:
        """When `due` is to be asked next."""
        return min(self.term_at, self.kill_at)


class Guard:
    """The supervising side's handle on the guard process. Never blocks, and survives the guard's death."""

    def __init__(self, pgid: int, fuse: Fuse) -> None:
        orders, self._orders = os.pipe()
        self.reports, reports = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _stand_guard(pgid, fuse, orders, reports)
        os.close(orders)
        os.close(reports)
        os.set_blocking(self._orders, False)
        os.set_blocking(self.reports, False)
        self.gone = False

    def arm(self, ticket: str, deadline: float) -> None:
        """From now on the group is guarded; call before the command starts."""
        self._tell(f"T{ticket}\nD{deadline!r}\n")

    def renewed(self, deadline: float) -> None:
        self._tell(f"D{deadline!r}\n")

    def lost(self) -> None:
        self._tell("L\n")

    def report(self) -> list[int]:
        """Signals that the guard has sent since the last call. Sets `gone` when it has died."""
        try:
            sent = os.read(self.reports, 64)
        except BlockingIOError:
            return []
        if not sent:
            self.gone = True
        return list(sent)

    def dismiss(self) -> None:
        """The command has ended. Returns when the guard has, which then signals nobody any more."""
        self._tell(".\n")
        os.close(self._orders)
        os.set_blocking(self.reports, True)
        poller = select.poll()
        poller.register(self.reports, select.POLLIN)
        while True:
            if not poller.poll(1000):  # Frozen: it must not wake up some day and signal a stranger.
                os.kill(self.pid, signal.SIGKILL)
            if not os.read(self.reports, 64):
                break
        os.close(self.reports)
        os.waitpid(self.pid, 0)

    def _tell(self, order: str) -> None:
        try:
            os.write(self._orders, order.encode())
        except OSError:  # Dead, or frozen for so long that the pipe is full.
            self.gone = True


def _stand_guard(pgid: int, fuse: Fuse, orders: int, reports: int) -> NoReturn:
    try:
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE,
                       signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):  # fmt: skip
            signal.signal(signum, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)  # stderr stays, for the one case in which nobody else can say what happened.
        low, high = sorted((orders, reports))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, min(os.sysconf("SC_OPEN_MAX"), 65536))
        os.chdir("/")
        os.set_blocking(reports, False)
        _watch(pgid, fuse, orders, reports)
    finally:
        os._exit(0)


def _watch(pgid: int, fuse: Fuse, orders: int, reports: int) -> None:
    poller = select.poll()
    poller.register(orders, select.POLLIN)
    ticket, pending, orphaned = b"", b"", False
    while True:
        left_s = min(max(fuse.next_at - now(), 0), TICK_S) if fuse.next_at < math.inf else None
        if orphaned:
            left_s = _GROUP_LOOK_S if left_s is None else min(left_s, _GROUP_LOOK_S)
        ready = poller.poll(None if left_s is None else math.ceil(left_s * 1000))
        if ready:
            data = os.read(orders, 65536)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line[:1] == b"D":
                    fuse.renewed(float(line[1:]))
                elif line[:1] == b"T":
                    ticket = line[1:]
                elif line[:1] == b"L":
                    fuse.lost()
                elif line == b".":
                    if fuse.lit:
                        kill_strays(ticket)
                    return
            if not data:
                if not ticket:
                    return  # Nothing was started yet, and now nothing will be.
                orphaned = True
                poller.unregister(orders)
                fuse.lost()
        signum = fuse.due()
        if signum:
            _report(reports, signum)  # First, so that whoever sees the command's end can know whose doing it was.
            strike(pgid, signum, ticket)
            if orphaned:
                _say_orphaned(signum)
        if orphaned and (fuse.burnt or not group_exists(pgid)):
            kill_strays(ticket)
            return


def strike(pgid: int, signum: int, ticket: bytes) -> None:
    """Send TERM or KILL to the group; KILL also to whatever left it."""
    _send(pgid, signum)
    if signum == signal.SIGKILL:
        kill_strays(ticket)
    else:
        _send(pgid, signal.SIGCONT)  # A stopped process acts on TERM only when it goes on.


def kill_strays(ticket: bytes) -> None:
    """KILL every process with the ticket in its environment (Linux; elsewhere there is no /proc)."""
    if not ticket:
        return
    for _ in range(5):  # One that forks meanwhile has had its turn after a few rounds.
        found = False
        try:
            entries = os.listdir("/proc")
        except OSError:
            return
        for entry in entries:
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                environ = os.open(f"/proc/{entry}/environ", os.O_RDONLY)
            except OSError:
                continue  # Ended meanwhile, or another user's.
            try:
                if ticket in _read_all(environ):
                    os.kill(int(entry), signal.SIGKILL)
                    found = True
            except OSError:
                pass  # Ended meanwhile.
            finally:
                os.close(environ)
        if not found:
            return


def _read_all(descriptor: int) -> bytes:
    data = b""
    while part := os.read(descriptor, 1 << 18):
        data += part
    return data


def _send(pgid: int, signum: int) -> None:
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        pass  # Gone already, or another user's: the file's head names this limit.


def _report(reports: int, signum: int) -> None:
    try:
        os.write(reports, bytes([signum]))
    except OSError:
        pass  # Nobody reads it any more.


def _say_orphaned(signum: int) -> None:
    """One line, only if it can be written at once: a stuck terminal must not keep the guard from its work."""
    poller = select.poll()
    try:
        poller.register(2, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in poller.poll(0)):
            what = "ending" if signum == signal.SIGTERM else "killing"
            os.write(2, f"lockfast: the supervising process was killed: {what} its command\n".encode())
    except OSError:
        pass
