"""The command while it runs: signals, renewals, losses, stops from the keyboard, and its end.

One thread. The library is asked not to renew by itself; the loop here does it. What happens when the lease
cannot be kept stands in guard.py; here the outcome is told.

The lock is released when the command itself has ended, also if it left processes in the background: those
are no longer under the lock. After a loss it is the other way round: this process stays until the whole
group is gone or killed, so that exit code 76 means that nothing of it runs any more.
"""

from __future__ import annotations

import math
import os
import select
import signal
from typing import TYPE_CHECKING

from lockfast.cli import talk
from lockfast.cli.child import Child, Ended, Stopped
from lockfast.cli.guard import TICK_S, Fuse, Guard, strike
from lockfast.cli.talk import LOST, duration, say
from lockfast.cli.terminal import Terminal
from lockfast.clock import now
from lockfast.errors import LeaseLost, LockfastError, Refused, Unreachable

if TYPE_CHECKING:
    from argparse import Namespace
    from types import FrameType

    from lockfast.sync import Grant

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT)


class Interrupted(BaseException):
    """A signal came while waiting for the lock. Not an Exception: no retry may swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Signals:
    """What a signal does: end the waiting, reach the command, or nothing more when all is over.

    Handlers run between two steps of whatever the thread does, also while it waits for the server.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._state = "waiting"
        self._terminal: Terminal | None = None
        self.stop_asked = False
        self.continued = False
        self.wakeup, wakeup = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._handle)
        for signum in PASSED_ON:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup, or `&` in a script: that is to stay.
                signal.signal(signum, self._handle)

    def forward(self, terminal: Terminal | None = None) -> None:
        """From now on signals are for the command, whose process exists already."""
        self._state = "running"
        self._terminal = terminal
        if terminal is not None and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._handle)

    def ignore(self) -> None:
        """Nothing is left that a signal could be for; what remains is short."""
        self._state = "over"

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGCHLD:
            return  # It only has to end the poll; the wakeup descriptor does that.
        if self._state == "waiting" and signum in ENDING:
            self._state = "over"  # A second Ctrl-C must not keep the library from leaving the queue.
            raise Interrupted(signum)
        if self._state == "running":
            if signum == signal.SIGCONT:
                self.continued = True
                self.stop_asked = False
                if self._terminal is not None:
                    self._terminal.give()
            elif signum == signal.SIGTSTP:
                self.stop_asked = True
            self._child.signal(signum)

    def drain(self) -> None:
        """Empty the wakeup pipe."""
        try:
            while len(os.read(self.wakeup, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass


class Supervisor:
    """The command while it runs: renewals, losses, stops, and its end."""

    def __init__(
        self,
        grant: Grant,
        child: Child,
        guard: Guard | None,
        fuse: Fuse,
        signals: Signals,
        options: Namespace,
    ) -> None:
        self._grant = grant
        self._child = child
        self._guard = guard
        self._fuse = fuse  # A second one beside the guard's, for the case that the guard dies.
        self._signals = signals
        self._options = options
        self._terminal = Terminal(child.pid)
        self._lost = False
        self._trouble: LockfastError | None = None
        self._renew_at = grant.deadline - options.lease + options.lease / 3

    def run(self, added: dict[str, str]) -> int:
        """Start the command and stay until it has ended; then release. Returns the exit code."""
        grant, guard = self._grant, self._guard
        self._signals.forward(self._terminal)
        self._fuse.renewed(grant.deadline)
        if guard is not None:
            guard.arm(grant.ticket, grant.deadline)
        self._terminal.give()
        self._child.start(added)
        try:
            ended = self._until_ended()
            if self._lost and guard is not None:
                self._until_group_gone()
        finally:
            self._child.kill()  # Does nothing if it has ended; after a bug of ours nobody would guard it.
            self._terminal.take()
            gone = self._release()
        if gone and not self._lost:
            say(f"{self._options.name} was gone before the command ended with {ended.code}: {gone}")
            talk.hint("another may have held it at the same time; check what both did")
            self._lost = True
        return LOST if self._lost and self._options.on_lost != "ignore" else ended.code

    def _until_ended(self) -> Ended:
        poller = select.poll()
        poller.register(self._signals.wakeup, select.POLLIN)
        if self._guard is not None:
            poller.register(self._guard.reports, select.POLLIN)
        while True:
            outcome = self._child.poll()
            if isinstance(outcome, Ended):
                self._hear_guard()  # It may have been the one who ended it.
                return outcome
            if isinstance(outcome, Stopped):
                self._stopped(outcome.signum)
            self._keep()
            poller.poll(math.ceil(self._idle_s() * 1000))
            self._signals.drain()
            if self._hear_guard() and self._guard is not None:
                poller.unregister(self._guard.reports)
                say("the guard process has died; going on without it")
                talk.hint("until this run ends, do not kill or stop `lockfast run` itself")

    def _hear_guard(self) -> bool:
        """Take note of what the guard has done. True when it turns out to have died."""
        if self._guard is None or self._guard.gone:
            return False
        for signum in self._guard.report():
            self._lose(self._late(), signum)
        return self._guard.gone

    def _idle_s(self) -> float:
        """How long nothing has to be done. poll() does not count suspended time, hence the upper bound."""
        next_at = math.inf if self._lost else self._renew_at
        if self._guard is None:
            next_at = min(next_at, math.inf if self._lost else self._grant.deadline)
        elif self._guard.gone:
            next_at = min(next_at, self._fuse.next_at)
        return min(max(next_at - now(), 0), TICK_S)

    def _keep(self) -> None:
        """Renew if it is time to, and do the guard's work where there is no guard."""
        if not self._lost and now() >= self._renew_at:
            self._renew()
        if self._guard is None:
            if not self._lost and now() >= self._grant.deadline:
                self._lose(self._late(), 0)
        elif self._guard.gone:
            signum = self._fuse.due()
            if signum:
                strike(self._child.pid, signum, self._grant.ticket.encode())
                self._lose(self._late(), signum)

    def _renew(self) -> None:
        asked = now()
        lease_s = self._options.lease
        try:
            self._grant.extend()
        except LeaseLost as error:
            self._lose(str(error), 0)
        except (Unreachable, Refused) as error:
            self._trouble = error
            self._renew_at = now() + min(max(lease_s / 20, 0.02), 1.0)
            if self._options.verbose:
                say(f"could not renew {self._options.name}, trying again: {error}")
        else:
            self._trouble = None
            self._renew_at = asked + lease_s / 3
            self._fuse.renewed(self._grant.deadline)
            if self._guard is not None:
                self._guard.renewed(self._grant.deadline)

    def _late(self) -> str:
        return str(self._trouble) if self._trouble else "the lease was not renewed in time"

    def _lose(self, reason: str, signum: int) -> None:
        """The hold is no longer sure. `signum` is what the command was sent already, 0 if nothing."""
        if self._lost:
            return
        self._lost = True
        if not signum and self._guard is not None:
            self._guard.lost()
            self._fuse.lost()
        then = {
            "ignore": "the command goes on without the lock",
            "kill": "killing the command",
            "term": "ending the command" if signum != signal.SIGKILL else "the command was killed",
        }
        say(f"lost {self._options.name} (fence {self._grant.fence}): {then[self._options.on_lost]}: {reason}")
        talk.hint("another may hold it soon; check what the command had done before running it again")

    def _stopped(self, signum: int) -> None:
        """Ctrl-Z, or using the keyboard from the background. Any other stop is not ours: renew on."""
        by_keyboard = os.isatty(0) and signum in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
        if not by_keyboard and not self._signals.stop_asked:
            return
        if not self._lost:
            left = duration(self._grant.remaining)
            say(f"stopped, and the lease is not renewed: continue within {left} or the command is ended")
        self._signals.continued = False
        self._terminal.stop_with_it()
        if not self._signals.continued and signum == signal.SIGTSTP:
            # There is no shell that could continue us, so neither may the command stay stopped.
            self._terminal.give()
            self._child.signal(signal.SIGCONT)

    def _until_group_gone(self) -> None:
        """After a loss: what the command started gets its grace too, and is killed at its end."""
        assert self._guard is not None
        last = self._fuse.kill_at if math.isfinite(self._fuse.kill_at) else now()
        while self._child.group_exists() and now() < last + 1:  # Longer only if the kernel cannot end it.
            if self._guard.gone:
                signum = self._fuse.due()
                if signum:
                    strike(self._child.pid, signum, self._grant.ticket.encode())
            select.select([], [], [], 0.02)

    def _release(self) -> str | None:
        """Give the lock back. Returns why it was not ours any more, if it was not."""
        self._signals.ignore()
        try:
            self._grant.release()
        except LeaseLost as error:
            return str(error)
        except (Unreachable, Refused) as error:
            if not self._lost:
                left = duration(self._left_s())
                say(f"could not release {self._options.name}, it is free again in at most {left}: {error}")
        return None

    def _left_s(self) -> float:
        """How long the server may keep it yet: the margin by which the deadline is early counts as well."""
        from lockfast.flows.admission import MARGIN_RATIO, MARGIN_S  # long imported: it took the lock

        margin_s: float = self._options.lease * (1 - MARGIN_RATIO) + MARGIN_S
        return max(self._grant.deadline - now(), 0.0) + margin_s
