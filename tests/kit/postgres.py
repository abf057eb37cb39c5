"""A PostgreSQL of the tests' own, from Debian's package: in a temporary directory, on a unix socket."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kit.servers import _guard, wait_until

if TYPE_CHECKING:
    import psycopg

USER = "tests"


def postgres_programs() -> Path | None:
    """Where `initdb` and `postgres` are, or None where they are not installed."""
    found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
    on_path = shutil.which("postgres")
    if not found:
        return Path(on_path).parent if on_path else None
    return Path(max(found, key=lambda path: int("0" + "".join(filter(str.isdigit, path.split("/")[4]))))).parent


class Postgres:
    """One server. Its programs refuse to run as root, so then they run as the user that Debian made for them."""

    def __init__(self) -> None:
        programs = postgres_programs()
        assert programs, "postgresql is not installed; mark the test needs_postgres"
        self.directory = Path(tempfile.mkdtemp(prefix="lockfast-pg-"))
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(next(name for name in ("postgres", "nobody") if _exists(name)))
            os.chown(self.directory, account.pw_uid, account.pw_gid)
            self._who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data = self.directory / "data"
        try:
            self._run(
                programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"
            )
            quick = (
                "fsync=off",
                "synchronous_commit=off",
                "full_page_writes=off",
                "autovacuum=off",
                "max_connections=20",
            )
            settings = (*quick, "listen_addresses=", f"unix_socket_directories={self.directory}", "shared_buffers=16MB")
            # A session of its own: Ctrl-C at the terminal is for the tests, which then end the server.
            with (self.directory / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [programs / "postgres", "-D", data, *(word for setting in settings for word in ("-c", setting))],
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **self._who,
                )
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        _guard.watch(self.process.pid)
        wait_until(lambda: self._answers() or self.process.poll() is not None, timeout_s=30, what="postgres start")
        if self.process.poll() is not None:
            text = (self.directory / "log").read_text()
            self.close()
            raise RuntimeError(f"postgres did not start:\n{text[-2000:]}")

    @property
    def address(self) -> str:
        """What psycopg.connect takes."""
        return f"host={self.directory} user={USER} dbname=postgres"

    @property
    def url(self) -> str:
        """What SQLAlchemy takes."""
        return f"postgresql+psycopg://{USER}@/postgres?host={self.directory}"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(self.address, **options)

    def close(self) -> None:
        """Ends it at once, with its children, and removes its directory."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        _guard.forget(self.process.pid)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._who,
        )
        assert done.returncode == 0, done.stderr

    def _answers(self) -> bool:
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True
