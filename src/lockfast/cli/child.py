"""The command, as a process group of its own.

It is forked before anything else happens, while this process is small, has one thread and no connection:
what the library opens or starts later can then not leak into it. It waits on a pipe, and becomes the
command only when told that the lock is held; told nothing, because the lock was busy or because this
process died, it ends. Its group exists from the start, so the guard knows whom to stop before there is
anything to stop.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import NamedTuple, NoReturn

from lockfast.cli.talk import BY_SIGNAL, NOT_EXECUTABLE, NOT_FOUND, Failure

_GO = b"\0go"  # Ends the message: half a message means that the sender died while writing it.


class Ended(NamedTuple):
    """The command is over: its exit code as a shell would give it."""

    code: int


class Stopped(NamedTuple):
    """The command was stopped (Ctrl-Z, or reading a terminal from the background) and can go on."""

    signum: int


class Child:
    """A command that has not started yet. `pid` is also the number of its process group."""

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv
        go_end, self._go = os.pipe()
        self._error, error_end = os.pipe()
        self._over = False
        self.pid = os.fork()
        if self.pid == 0:
            _stand_by(argv, go_end, error_end, (self._go, self._error))
        os.close(go_end)
        os.close(error_end)
        try:
            os.setpgid(self.pid, self.pid)  # Both sides do it, so that neither has to wait for the other.
        except OSError:
            pass  # It was quicker, or has ended.

    def start(self, added: dict[str, str]) -> None:
        """Let it become the command, with these variables added to its environment."""
        message = os.fsencode("\0".join(f"{name}={value}" for name, value in added.items()))
        try:
            os.write(self._go, message + _GO)
        except BrokenPipeError:
            pass  # A signal ended it while it stood by; `poll` tells.
        os.close(self._go)
        self._go = -1

    def signal(self, signum: int) -> None:
        """Send a signal to every process of the group."""
        if self._over:
            return
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            pass  # It has just ended, or is another user's now (sudo); there is nobody else to tell.

    def poll(self) -> Ended | Stopped | None:
        """What became of the command since the last look. Failure when it could not be started at all."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:  # Somebody made SIGCHLD ignored, so the kernel keeps no exit codes.
            self._over = True
            return Ended(0)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            return Stopped(os.WSTOPSIG(status))
        self._over = True
        failed = os.read(self._error, 16)  # The other end closed when the command began or ended.
        if failed:
            raise _cannot_start(self._argv[0], int(failed))
        return Ended(BY_SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    def kill(self) -> None:
        """Make sure that a started command is over. For when nobody will watch it any longer."""
        if not self._over and self._go < 0:
            self.signal(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._over = True

    def group_exists(self) -> bool:
        """Whether anything of the group is left. Ask only after the command itself has ended."""
        return group_exists(self.pid)

    def close(self) -> None:
        """Give up a command that was never started, and the pipes of one that was."""
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
            if not self._over:
                os.waitpid(self.pid, 0)
                self._over = True
        if self._error >= 0:
            os.close(self._error)
            self._error = -1


def group_exists(pgid: int) -> bool:
    """Whether a process group has any member, ended but unreaped ones included."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _stand_by(argv: list[str], go_end: int, error_end: int, others: tuple[int, int]) -> NoReturn:
    """The life of the forked process until it becomes the command. Never returns to the caller."""
    try:
        for descriptor in others:
            os.close(descriptor)
        os.setpgid(0, 0)
        # What Python changed at its start goes back; what the caller ignored (nohup, `&`) stays ignored.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        message = b""
        while part := os.read(go_end, 65536):
            message += part
        if not message.endswith(_GO):
            os._exit(0)
        for pair in message[: -len(_GO)].split(b"\0"):
            name, _, value = pair.partition(b"=")
            os.environb[name] = value
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(error_end, str(error.errno).encode())
        except ValueError:  # An empty name, or NUL in an argument.
            os.write(error_end, str(errno.ENOENT).encode())
    finally:
        os._exit(NOT_FOUND)


def _cannot_start(command: str, number: int) -> Failure:
    if number in (errno.ENOENT, errno.ENOTDIR):
        if "/" in command and os.path.exists(command):
            return Failure(NOT_FOUND, f"{command}: its interpreter was not found", "see its first line (#!)")
        where = "the path" if "/" in command else "PATH and the spelling"
        advice = f"check {where}; no shell is involved, so no aliases and no builtins"
        return Failure(NOT_FOUND, f"{command}: command not found", advice)
    if number == errno.ENOEXEC:
        return Failure(NOT_EXECUTABLE, f"{command}: not a program", "begin the script with #!/bin/sh or the like")
    advice = f"chmod +x {command}" if number == errno.EACCES and os.path.isfile(command) else "check the file"
    return Failure(NOT_EXECUTABLE, f"{command}: cannot be executed: {os.strerror(number)}", advice)
