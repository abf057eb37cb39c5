"""A master, its replicas and three sentinels, all real, in a hurry: a failover takes about a second.

Servers can be killed, frozen, cut off from the sentinels (`cut_off`: it stays up and writable) or from their master
(`stop_following`: what is written from then on is lost in a failover); `heal` makes everything whole again.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kit.resp import ServerError, Wire
from kit.servers import Server, _guard, free_port, server_binary, wait_until

if TYPE_CHECKING:
    from types import TracebackType

    from kit.resp import Argument
    from kit.servers import Kind

SERVICE = "orders"
DOWN_AFTER_MS = 500
# In a failover servers are asked every second how they are doing. Four publish periods is how long the other sentinels
# wait until they make a promoted server follow the old master again, and five ping periods how old what is known of a
# replica may be for it to be promoted: both have to be longer than that second.
QUICKLY = (
    *("INFO-PERIOD", "100", "PING-PERIOD", "300", "ASK-PERIOD", "100", "PUBLISH-PERIOD", "400"),
    *("MIN-LINK-RECONNECT-PERIOD", "100", "ELECTION-TIMEOUT", "500", "SLAVE-RECONF-TIMEOUT", "1000"),
)


class Sentinel:
    """One sentinel process, which monitors SERVICE."""

    def __init__(self, kind: Kind, master_port: int, down_after_ms: int = DOWN_AFTER_MS) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="lockfast-test-"))
        self._kind: Kind = kind
        self._master_port, self._down_after_ms = master_port, down_after_ms
        for _ in range(20):  # another process may take the free port between our look and the sentinel's bind
            self.port = free_port()
            self.process = self._start()
            wait_until(lambda: self.process.poll() is not None or self.answers(), what="sentinel start")
            if self.process.poll() is None:
                return
            _guard.forget(self.process.pid)
        raise RuntimeError(f"the sentinel did not start: {self.directory / 'log'}")

    def _start(self) -> subprocess.Popen[bytes]:
        config = self.directory / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            "protected-mode no",
            f"dir {self.directory}",
            f"logfile {self.directory / 'log'}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._master_port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 1000",
            f"sentinel auth-user {SERVICE} watcher",
            f"sentinel auth-pass {SERVICE} watching",
        ]
        config.write_text("\n".join(lines) + "\n")
        program = server_binary(self._kind)
        assert program, f"no {self._kind} server is installed"
        process = subprocess.Popen(
            [program, str(config), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _guard.watch(process.pid)
        return process

    def command(self, *arguments: Argument) -> Any:
        """One command on its own connection."""
        with Wire(("127.0.0.1", self.port), timeout_s=5) as wire:
            return wire.call(*arguments)

    def answers(self) -> bool:
        try:
            return int(self.command("INFO", "server").split(b"process_id:")[1].split()[0]) == self.process.pid
        except (OSError, ServerError):
            return False

    def master_port(self) -> int:
        """The port of the master that it names."""
        return int(self.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def sees(self, replicas: int, sentinels: int) -> bool:
        """Whether it knows that many others, and all of them are well."""
        master = _fields(self.command("SENTINEL", "MASTER", SERVICE))
        found = [_fields(each) for each in self.command("SENTINEL", "REPLICAS", SERVICE)]
        return (
            master["flags"] == "master"
            and int(master["num-other-sentinels"]) == sentinels
            and len(found) == replicas
            and all(each["flags"] == "slave" and each["master-link-status"] == "ok" for each in found)
            and all(each["master-port"] == master["port"] for each in found)
        )

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        _guard.forget(self.process.pid)
        shutil.rmtree(self.directory, ignore_errors=True)


class Sentinels:
    """The whole of it. `url` is what a client is given."""

    def __init__(self, kind: Kind = "valkey", *, replicas: int = 1, faketime: bool = False) -> None:
        user = ("--user", "watcher", "on", ">watching", "+@all", "~*", "&*")
        quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        self.servers = [Server(kind, faketime=faketime, extra=(*user, *quick)) for _ in range(1 + replicas)]
        self.sentinels: list[Sentinel] = []
        self._kind: Kind = kind

    def start(self) -> Self:
        first, *others = self.servers
        first.start()
        for server in others:
            server.start("--replicaof", "127.0.0.1", str(first.port))
        # The third is slow to notice. So it only votes, and an election is not split three ways, which costs seconds.
        self.sentinels = [Sentinel(self._kind, first.port, after) for after in (DOWN_AFTER_MS, DOWN_AFTER_MS, 5000)]
        for sentinel in self.sentinels:
            sentinel.command("SENTINEL", "DEBUG", *QUICKLY)
        self.wait_whole()
        return self

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    @property
    def url(self) -> str:
        return f"sentinel://{self.hosts}/{SERVICE}"

    @property
    def master(self) -> Server:
        """The server that a sentinel names."""
        port = self.sentinels[0].master_port()
        return next(server for server in self.servers if server.port == port)

    @property
    def replica(self) -> Server:
        """One of the others."""
        master = self.master
        return next(server for server in self.servers if server is not master)

    def wait_whole(self) -> None:
        """Until every sentinel sees all servers in order, all of them following one master."""
        wait_until(
            lambda: all(sentinel.sees(len(self.servers) - 1, 2) for sentinel in self.sentinels),
            timeout_s=20,
            what="sentinels see everything",
        )

    def wait_moved(self, old: Server) -> Server:
        """Until every sentinel names another master, and that says so itself. Returns it."""

        def moved() -> bool:
            ports = {sentinel.master_port() for sentinel in self.sentinels}
            return len(ports) == 1 and old.port not in ports

        wait_until(moved, timeout_s=20, what="failover")
        new = self.master
        wait_until(lambda: new.command("ROLE")[0] == b"master", what="promotion")
        return new

    def fail_over(self) -> Server:
        """Have a sentinel make another server the master, as an operator would. Returns the new one."""
        old = self.master

        def begun() -> bool:
            try:
                self.sentinels[0].command("SENTINEL", "FAILOVER", SERVICE)
            except ServerError:  # one is under way, or no replica is good enough at this moment
                pass
            return self.sentinels[0].master_port() != old.port

        wait_until(begun, timeout_s=20, what="a sentinel fails over")
        return self.wait_moved(old)

    def cut_off(self, server: Server) -> None:
        """The sentinels no longer reach it: to them it is down. Clients do, and it goes on as it was."""
        server.command("ACL", "SETUSER", "watcher", "-@all")

    def stop_following(self, server: Server) -> None:
        """What the master writes from now on does not come to this replica."""
        server.command("REPLICAOF", "127.0.0.1", "1")

    def heal(self) -> None:
        """Everything runs, one master, all following it, and nothing is stored."""
        for sentinel in self.sentinels:
            sentinel.resume()
        for server in self.servers:
            if not server.running:
                server.start()
            server.resume()
            server.command("ACL", "SETUSER", "watcher", "+@all")
            if server.kind == "valkey" and server.clock_file.exists():
                server.clock_shift(0)
        wait_until(lambda: len({each.master_port() for each in self.sentinels}) == 1, what="sentinels agree")
        master = self.master
        for server in self.servers:
            if server is not master and server.command("ROLE")[:3] != [b"slave", b"127.0.0.1", master.port]:
                server.command("REPLICAOF", "127.0.0.1", str(master.port))
        master.command("REPLICAOF", "NO", "ONE")
        self.wait_whole()
        master.command("FLUSHALL")
        wait_until(lambda: self.replica.command("DBSIZE") == 0, what="the replicas follow")

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _fields(reply: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in reply]
    return {"master-link-status": "", "master-port": "", **dict(zip(words[::2], words[1::2], strict=True))}
