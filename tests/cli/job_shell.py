"""As much of a shell with job control as the terminal's tests need.

`python job_shell.py TERMINAL-FD REPORT-FD ORDER-FD [--lead] CMD…` makes the terminal its own, runs CMD as a job in the
foreground, and reports "stopped" or "ended CODE FOREGROUND" (whether the job's group still had the terminal). The
order "fg" continues a stopped job. With --lead there is no shell: CMD itself leads the session, as under `ssh -t`.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    terminal, report, orders = (int(word) for word in sys.argv[1:4])
    command = sys.argv[4:]
    for descriptor in (report, orders):
        os.set_inheritable(descriptor, False)
    os.login_tty(terminal)
    if command[0] == "--lead":
        os.execvp(command[1], command[1:])
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(command[0], command)
    try:
        os.setpgid(job, job)
    except PermissionError:
        pass  # It did so itself, and runs CMD already.
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        foreground = os.tcgetpgrp(0) == job
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            os.write(report, f"ended {os.waitstatus_to_exitcode(status)} {foreground}\n".encode())
            return
        os.write(report, b"stopped\n")
        assert os.read(orders, 16) == b"fg"
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)


if __name__ == "__main__":
    main()
