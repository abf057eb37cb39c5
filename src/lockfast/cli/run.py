"""`lockfast run`: take the lock, run the command under it, answer with the command's exit code.

The order of things is what makes it safe: first the command's process and its guard are forked, while this
process is small and has one thread; then the library comes in and the lock is taken; only then the command
starts.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from typing import TYPE_CHECKING

from lockfast.cli import chain, talk
from lockfast.cli.child import Child
from lockfast.cli.connect import connect, failure, given_url, parts_of
from lockfast.cli.guard import Fuse, Guard
from lockfast.cli.supervise import Interrupted, Signals, Supervisor
from lockfast.cli.talk import BY_SIGNAL, USAGE, Failure, duration, moment, say
from lockfast.clock import now
from lockfast.errors import LockfastError, NotAcquired
from lockfast.names import join

if TYPE_CHECKING:
    from argparse import Namespace

    from lockfast.snapshots import Snapshot
    from lockfast.sync import Grant, Lockfast

NOTICE_AFTER_S = 1.0
LABEL_LENGTH = 120


def run(options: Namespace) -> int:
    """The verb. Returns the exit code."""
    _open_standard_descriptors()
    parts = parts_of(options.name)
    options.name = join(parts)  # However it was typed, messages and variables have it in one form.
    fuse = Fuse(options.grace, options.lease, ask_first=options.on_lost == "term")
    child = Child(options.command)
    guard = None if options.on_lost == "ignore" else Guard(child.pid, fuse)
    signals = Signals(child)
    try:
        # Renewals begin at a third of the lease, and at two thirds it may be time for TERM: there must be room for
        # a second try in between.
        timeout_s = max(min(2.0, options.lease / 6), 0.2)
        label = options.label or talk.shorten(" ".join(options.command), LABEL_LENGTH)
        with connect(options.url, timeout_s=timeout_s, label=label, quiet=options.quiet) as client:
            _say_log_lines(options)
            _refuse_nested(client, parts, options.name)
            _tell_embedded(options)
            grant = _take(client, parts, options, signals)
            if grant is None:
                return int(options.conflict_exit_code)
            if options.verbose:
                say(f"took {options.name}, fence {grant.fence}, lease {duration(options.lease)}")
            added = chain.environment(chain.Hold(grant.ticket, options.name), grant.fence, options.url)
            return Supervisor(grant, child, guard, fuse, signals, options).run(added)
    except Interrupted as interrupted:
        return BY_SIGNAL + interrupted.signum
    except LockfastError as error:
        raise failure(error, options.url) from error
    finally:
        signals.ignore()
        child.close()
        if guard is not None:
            guard.dismiss()


def _open_standard_descriptors() -> None:
    """Where the caller closed stdin, stdout or stderr, our pipes must not take their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _say_log_lines(options: Namespace) -> None:
    """Have what the library logs said as all else is, and not with -q. Logging is imported only if it logs."""
    from lockfast import grants

    def handler() -> object:
        import logging

        class Said(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if not options.quiet:
                    say(record.getMessage())

        return Said()

    grants.log_handlers.append(handler)


def _refuse_nested(client: Lockfast, parts: tuple[str, ...], name: str) -> None:
    """A run inside a run of the same lock would wait for its own end."""
    tickets = {hold.ticket for hold in chain.held() if hold.name == name}
    # What left a run and lives on still has the variables, so ask: only a hold that stands is waited for.
    if tickets and any(holder.ticket in tickets for holder in client.inspect(*parts).holders):
        raise Failure(
            USAGE,
            f"{name} is held by the run that this one is inside of: it would wait for itself",
            "take the lock once, around both, or give the inner one a name of its own",
        )


def _tell_embedded(options: Namespace) -> None:
    """Say once, when the embedded server is about to start, whom it can exclude; -v says it every time."""
    if options.quiet or given_url(options.url) is not None or not (options.verbose or talk.on_terminal()):
        return
    from lockfast import embedded

    if options.verbose or embedded.status() is None:
        say("embedded server: this user on this host only")


def _take(client: Lockfast, parts: tuple[str, ...], options: Namespace, signals: Signals) -> Grant | None:
    """The grant, or None when busy, which has then been said."""
    lock = client.lock(*parts, lease=options.lease, wait=options.wait, renew=False)
    if options.wait != 0 and not options.quiet and (options.verbose or talk.on_terminal()):
        signal.signal(signal.SIGALRM, lambda *_: _notice(client, options))
        signal.setitimer(signal.ITIMER_REAL, NOTICE_AFTER_S)
    try:
        grant = lock.acquire()
        signals.forward()
    except ValueError as error:  # a lease that is longer than these servers allow
        raise Failure(USAGE, str(error), "ask for a shorter --lease: it is renewed while the command runs") from error
    except NotAcquired:
        signals.ignore()
        if not options.quiet:
            say(_describe_busy(client, parts, options.name))
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return grant


def _notice(client: Lockfast, options: Namespace) -> None:
    """Say what is being waited for: servers of a majority that started lately; or somebody who holds it."""
    fleet = client._driver.env.fleet
    left_s = fleet.counts_at() - now() if fleet is not None else 0.0
    if not 0 < left_s < math.inf:
        _spawn_notice(options)
        return
    say(f"waiting until {options.name} can be held: too few servers count yet, in {duration(left_s)} enough will")
    signal.setitimer(signal.ITIMER_REAL, left_s + NOTICE_AFTER_S)


def _spawn_notice(options: Namespace) -> None:
    """Say who is being waited for, from a process of its own: this one is in the middle of its request."""
    environ = dict(os.environ)
    url = given_url(options.url)
    if url is not None:
        environ["LOCKFAST_URL"] = url  # Not as an argument: those can be read by other users.
    nothing = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1)]
    argv = [sys.executable, "-P", "-m", "lockfast", "waiting-for", options.name]
    try:
        os.posix_spawn(sys.executable, argv, environ, file_actions=nothing)
    except OSError:
        pass  # Waiting goes on without the notice.


def _describe_busy(client: Lockfast, parts: tuple[str, ...], name: str) -> str:
    try:
        return f"{name} is {describe_holder(client.inspect(*parts))}"
    except LockfastError:
        return f"{name} is held by another"  # That it is busy stands; who it was cannot be told now.


def describe_holder(snapshot: Snapshot) -> str:
    """Who holds it, since when, for how long at least, and how many wait: the rest of a sentence."""
    if not snapshot.holders:
        return "free again just now"
    holder = snapshot.holders[0]
    host, pid, label = holder.owner
    waiting = f", {snapshot.queue_length} waiting" if snapshot.queue_length else ""
    return (
        f"held by {host} pid {pid}{f' ({label})' if label else ''} since {moment(holder.since)}"
        f" ({duration(snapshot.at - holder.since)}), lease {duration(holder.lease_left)} left{waiting}"
    )
