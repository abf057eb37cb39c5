"""Arguments, and which verb they mean. Verbs are imported only when asked for, so that `run` is quick."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lockfast.cli.talk import BUSY, BY_SIGNAL, IO_ERROR, USAGE, Failure, hint, say
from lockfast.specs import lease_seconds, parse_duration, wait_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ABOUT = """\
Locks on Redis and Valkey for commands: one at a time, across machines.

  lockfast run NAME -- CMD…     run a command while holding a lock
  lockfast ls                   every lock that is held or waited for
  lockfast show NAME            who holds it, who waits, in order
  lockfast revoke NAME          ask whoever has it to let go
  lockfast break NAME           take a hold away from whoever has it
  lockfast deadlocks            who waits in a circle, so that none can go on
  lockfast doctor               is the server fit for locks, and what would mend it
  lockfast server status        the embedded server: this user on this host only
  lockfast lab                  how each textbook lock fails, and why this one does not
  lockfast sim                  run the lock itself through simulated faults

Which server: --url, else LOCKFAST_URL, else the embedded one, which starts by itself.
"""

_RUN = """\
Wait for a lock, run a command while holding it, and end with the command's exit code.
The lease is renewed while the command runs. If it cannot be, the command is stopped
before the lock could pass to anyone else.
"""

_RUN_MORE = """\
examples:
  lockfast run nightly -- ./report.sh            wait for as long as it takes
  lockfast run nightly -w 5m -- ./report.sh      wait five minutes at most
  lockfast run nightly -n --skip-ok -- ./job     for cron: if it runs already, that is fine
  lockfast run 'cart|item:7' -- ./reprice 7      a name of two parts
  lockfast run deploy --url redis://cache:6379/0 -- make deploy
  lockfast run deploy --url redis://a,redis://b,redis://c -- make deploy

durations: 500ms 30s 5m 2h 1d; a bare number is seconds.

the command sees:
  LOCKFAST_LOCK, LOCKFAST_FENCE (a number that grows with every grant: hand it to what
  the lock protects), LOCKFAST_TICKET. LOCKFAST_URL is set from --url unless that holds
  a password; put such a URL into LOCKFAST_URL yourself, out of sight of `ps`.

exit codes:
  the command's own; 128+n if signal n ended it
   64  wrong usage, or a run of the same lock inside this one
   69  the server does not answer         75  busy, or --wait was over (-E changes it)
   76  lost while the command ran         77  the server refuses (password, rights, memory)
  126  the command cannot be executed    127  it was not found

signals and terminals:
  The command is a process group of its own. TERM, HUP, INT, QUIT, USR1, USR2, CONT and
  WINCH are passed on to it; while still waiting, TERM, HUP, INT and QUIT leave the queue.
  Ctrl-Z stops both, and with them the renewals: continue before the lease ends.
  The lock is released when the command itself ends, not what it left in the background.

what is guaranteed, and what is not:
  A guard process stops the whole group before the lease's end, also if `lockfast run`
  itself is killed (KILL) or stopped (STOP), and finds what left the group by its
  environment. It cannot stop another user's processes (sudo), a process that left the
  group and cleared its environment, or anything on a machine that is suspended; killed
  together, `lockfast run` and its guard stop nothing. For these, check the fence.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command `lockfast`. Returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except Failure as failure:
        say(failure.message)
        hint(failure.hint)
        return failure.code
    except ValueError as error:  # LOCKFAST_HOME or LOCKFAST_GRACE_S, or servers, that cannot be used for this
        say(str(error))
        if "docs/" not in str(error):
            hint("see the section Environment of the reference")
        return USAGE
    except KeyboardInterrupt:
        return BY_SIGNAL + 2
    except BrokenPipeError:  # `lockfast ls | head`: nobody wants the rest, not even at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BY_SIGNAL + 13
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        say(f"cannot write the output: {error.strerror}")
        hint("make room, or write somewhere else")
        return IO_ERROR


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:
        return _run(arguments)
    if arguments[:1] == ["waiting-for"]:  # For `run` itself, when it has waited for a second.
        from lockfast.cli.look import waiting_for

        return waiting_for(arguments[1])
    parser = _parser(arguments[0] if arguments else "")
    options = parser.parse_args(arguments)
    if options.verb in ("ls", "show"):
        from lockfast.cli import look

        return look.ls(options) if options.verb == "ls" else look.show(options)
    if options.verb == "revoke":
        from lockfast.cli.revoke import revoke

        return revoke(options)
    if options.verb == "break":
        from lockfast.cli.break_ import break_

        return break_(options)
    if options.verb == "deadlocks":
        from lockfast.cli.deadlocks import deadlocks

        return deadlocks(options)
    if options.verb == "doctor":
        from lockfast.cli.doctor import doctor

        return doctor(options)
    if options.verb == "server":
        from lockfast.cli.server import server

        return server(options)
    if options.verb in ("sim", "lab"):
        from lockfast.cli import lab, sim

        return sim.main(options) if options.verb == "sim" else lab.main(options)
    parser.print_help()
    return 0


def _run(arguments: list[str]) -> int:
    """`run` has a parser of its own: building those of the other verbs takes time."""
    own, command = split_command(arguments)
    options = _run_parser().parse_args(own[1:])
    if not command:
        raise Failure(USAGE, "no command to run", f"lockfast run {options.name} -- CMD…")
    options.command = command
    if options.skip_ok:
        options.conflict_exit_code = 0
    from lockfast.cli.run import run

    return run(options)


# Options of `run` that are followed by a value: `split_command` has to step over it.
_WITH_VALUE = ("--lease", "--wait", "--url", "--on-lost", "--grace", "--conflict-exit-code", "--label")
_SHORT_WITH_VALUE = "wE"


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and the command: what follows the first `--`, or begins at the second plain word.

    argparse alone would take the options of the command for its own.
    """
    position, words = 1, 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--":
            return arguments[:position], arguments[position + 1 :]
        if argument.startswith("--"):
            position += 2 if argument in _WITH_VALUE else 1
        elif argument.startswith("-") and len(argument) > 1:
            taking = [index for index, letter in enumerate(argument) if letter in _SHORT_WITH_VALUE]
            position += 2 if taking and taking[0] == len(argument) - 1 else 1  # -w 5 and -qw 5, but -w5
        elif words == 1:
            return arguments[:position], arguments[position:]
        else:
            words += 1
            position += 1
    return arguments, []


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Help as wide as the terminal. Left to itself, argparse imports shutil for this at every start."""
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
    except (OSError, ValueError):
        columns = 80
    return argparse.RawDescriptionHelpFormatter(prog, width=max(columns - 2, 40))


class _Parser(argparse.ArgumentParser):
    """argparse with the exit code for usage that the others of our family have, and a hint."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, formatter_class=_formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise Failure(USAGE, message, f"see `{self.prog} --help`")


class _Version(argparse.Action):
    """Reads the version only when it is asked for."""

    def __call__(self, *_: object) -> NoReturn:
        from lockfast._version import __version__

        print(f"lockfast {__version__}")
        raise SystemExit(0)


def _run_parser() -> _Parser:
    run = _Parser("lockfast run", usage="lockfast run NAME [options] -- CMD…", description=_RUN, epilog=_RUN_MORE)
    run.add_argument("name", metavar="NAME", help="the lock; parts of a name are joined by |")
    patience = run.add_mutually_exclusive_group()
    patience.add_argument("-w", "--wait", type=_wait, metavar="DUR", help="wait this long at most")
    patience.add_argument("-n", "--no-wait", dest="wait", action="store_const", const=0.0, help="do not wait")
    run.add_argument("--lease", type=_lease, default=30.0, metavar="DUR",
                     help="after a crash the lock is free again this much later (30s)")  # fmt: skip
    run.add_argument("--on-lost", choices=("term", "kill", "ignore"), default="term",
                     help="if the lease is lost: TERM, then KILL (default); KILL; only say so")  # fmt: skip
    run.add_argument("--grace", type=_duration, default=10.0, metavar="DUR",
                     help="time from TERM to KILL (10s); a third of the lease at most")  # fmt: skip
    run.add_argument("-E", "--conflict-exit-code", type=_exit_code, default=BUSY, metavar="N",
                     help=f"exit code when busy ({BUSY})")  # fmt: skip
    run.add_argument("--skip-ok", action="store_true", help="busy is fine: the same as -E 0")
    run.add_argument("--label", metavar="TEXT", help="what `show` tells of this hold (the command line)")
    _add_url(run)
    volume = run.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help="say nothing when busy or waiting")
    volume.add_argument("-v", "--verbose", action="store_true", help="say what happens")
    return run


def _parser(verb: str) -> _Parser:
    parser = _Parser("lockfast", description=_ABOUT, usage="lockfast VERB …")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", prog="lockfast", help="each has a --help")
    verbs.add_parser("run")
    ls = verbs.add_parser("ls")
    show = verbs.add_parser("show")
    show.add_argument("name", metavar="NAME")
    for reading in (ls, show):
        reading.add_argument("--json", action="store_true", help="for machines")
        _add_url(reading)
    breaking = verbs.add_parser(
        "break",
        description="Take a hold away and give the lock to the next in the queue. Asks first.\n"
        "The holder is not stopped: it learns of it at its next renewal.",
    )
    breaking.add_argument("name", metavar="NAME")
    breaking.add_argument("--reason", metavar="TEXT", help="kept with the lock, and told by `show`")
    breaking.add_argument("--yes", action="store_true", help="do not ask")
    _add_url(breaking)
    revoking = verbs.add_parser(
        "revoke",
        description="Ask whoever holds a name to let go of it. Nobody is made to: programs see `grant.revoked`, at\n"
        "their next renewal at the latest; a command under `lockfast run` is not told.",
    )
    revoking.add_argument("name", metavar="NAME")
    _add_url(revoking)
    circles = verbs.add_parser("deadlocks")
    if verb == "deadlocks":
        from lockfast.cli.deadlocks import add_arguments

        add_arguments(circles)
        _add_url(circles)
    judging = verbs.add_parser("doctor")
    if verb == "doctor":
        from lockfast.cli.doctor import add_arguments

        add_arguments(judging)
        _add_url(judging)
    server = verbs.add_parser(
        "server",
        description="The embedded server of this user on this host. It starts by itself when it is needed and stops\n"
        "when nobody has used it for a while. `status` ends with 3 when it does not run.",
    )
    server.add_argument("action", choices=("start", "status", "stop"))
    if verb in ("sim", "lab"):
        from lockfast.cli import lab, sim

        (sim if verb == "sim" else lab).add_arguments(verbs.add_parser(verb))
    else:
        verbs.add_parser("sim")
        verbs.add_parser("lab")
    return parser


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        help="default: LOCKFAST_URL, else the embedded one; several with commas between them: a majority decides",
    )


def _checked(check: Callable[[str], float]) -> Callable[[str], float]:
    def checked(text: str) -> float:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


_duration = _checked(parse_duration)
_lease = _checked(lambda text: lease_seconds(parse_duration(text)))
_wait = _checked(lambda text: wait_seconds(parse_duration(text)) or 0.0)


def _exit_code(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"an exit code is a number from 0 to 255, got {text!r}")
    return int(text)
