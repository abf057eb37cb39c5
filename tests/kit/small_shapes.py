"""The smallest Sentinel there is: one process that watches one primary, for tests that only ask it questions."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kit.resp import ServerError, Wire
from kit.servers import _guard, free_port, server_binary, wait_until

if TYPE_CHECKING:
    from types import TracebackType

    from kit.resp import Argument
    from kit.servers import Server

SERVICE = "orders"


class OneSentinel:
    """A Sentinel of 127.0.0.1 that watches `primary` as the service SERVICE, alone, with a quorum of 1.

    port: of the primary, if that is another than its plain one. settings: more lines of its configuration. host: how it
    spells where the primary is.
    """

    def __init__(self, primary: Server, port: int = 0, settings: tuple[str, ...] = (), host: str = "127.0.0.1") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="lockfast-test-"))
        self.port = free_port()
        lines = "".join(f"{line}\n" for line in settings)
        config = self.directory / "sentinel.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {self.directory}\nlogfile {self.directory}/log\n"
            f"{lines}sentinel monitor {SERVICE} {host} {port or primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 60000\n"
        )
        program = server_binary(primary.kind)
        assert program
        self.process = subprocess.Popen(
            [program, str(config), "--sentinel"], stdout=subprocess.DEVNULL, start_new_session=True
        )
        _guard.watch(self.process.pid)
        wait_until(self._answers, what="sentinel start")

    def command(self, *words: Argument) -> Any:
        with Wire(("127.0.0.1", self.port)) as wire:
            return wire.call(*words)

    def _answers(self) -> bool:
        try:
            return bool(self.command("PING") == "PONG")
        except (TimeoutError, OSError, ServerError):
            return False

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        _guard.forget(self.process.pid)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
