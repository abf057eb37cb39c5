"""The servers of the kit do what their methods say."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.leaks import child_processes
from kit.resp import ServerError, Wire
from kit.servers import Server, faketime_env, set_clock, wait_until

if TYPE_CHECKING:
    from kit.servers import FreshServer, Kind


def test_answers_on_tcp_and_on_the_unix_socket(server: Server) -> None:
    with Wire(("127.0.0.1", server.port)) as wire:
        assert wire.call("SET", "key", "over tcp") == "OK"
    assert server.command("GET", "key") == b"over tcp"
    assert server.url == f"redis://127.0.0.1:{server.port}/0"
    assert server.unix_url == f"unix://{server.unix_path}?db=0"


def test_is_of_the_kind_asked_for(server: Server, server_kind: Kind) -> None:
    assert ("valkey_version" in server.info("server")) == (server_kind == "valkey")


def test_error_replies_are_raised_with_the_servers_words(server: Server) -> None:
    with pytest.raises(ServerError, match="unknown command"):
        server.command("NOSUCH")


def test_each_test_finds_an_empty_server_part_1(valkey_server: Server, server: Server) -> None:
    assert server.command("DBSIZE") == 0
    server.command("SET", "left", "behind")


test_each_test_finds_an_empty_server_part_2 = test_each_test_finds_an_empty_server_part_1


def test_append_only_data_survives_kill_9(fresh_server: FreshServer, server_kind: Kind) -> None:
    server = fresh_server(server_kind, appendonly=True)
    port = server.port
    server.command("SET", "key", "kept")
    server.kill9()
    assert not server.running
    server.start()
    assert server.command("GET", "key") == b"kept"
    assert server.port == port


def test_restart_keeps_or_empties(fresh_server: FreshServer, server_kind: Kind) -> None:
    server = fresh_server(server_kind)
    server.command("SET", "key", "kept")
    server.restart()
    assert server.command("GET", "key") == b"kept"
    server.restart(keep=False)
    assert server.command("GET", "key") is None


def test_append_only_data_is_gone_after_an_empty_restart(fresh_server: FreshServer) -> None:
    server = fresh_server(appendonly=True)
    server.command("SET", "key", "value")
    server.restart(keep=False)
    assert server.command("DBSIZE") == 0


@pytest.mark.slow
def test_loading_can_be_seen(fresh_server: FreshServer) -> None:
    server = fresh_server()
    with server.wire() as wire:
        for number in range(200):
            wire.send("SET", f"key{number}", "x" * 100)
        assert [wire.read() for _ in range(200)] == ["OK"] * 200
    slow = ("--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")
    server.restart(*slow, wait_loaded=False)
    with pytest.raises(ServerError, match="LOADING"):
        server.command("GET", "key1")


def test_paused_server_is_silent_until_resumed(fresh_server: FreshServer, server_kind: Kind) -> None:
    server = fresh_server(server_kind)
    server.pause()
    with Wire(("127.0.0.1", server.port), timeout_s=0.05) as wire:
        wire.send("PING")
        with pytest.raises(TimeoutError):
            wire.read()
        server.resume()
        wire.socket.settimeout(5)
        assert wire.read() == "PONG"


def test_close_ends_a_paused_server_and_removes_its_files(server_kind: Kind) -> None:
    server = Server(server_kind).start()
    server.pause()
    pid = server.pid
    server.close()
    assert pid not in child_processes()
    assert not server.directory.exists()


def test_password_is_asked_for(fresh_server: FreshServer, server_kind: Kind) -> None:
    server = fresh_server(server_kind, requirepass="secret")
    assert server.command("PING") == "PONG"
    assert server.url == f"redis://:secret@127.0.0.1:{server.port}/0"
    with Wire(server.unix_path) as wire, pytest.raises(ServerError, match="NOAUTH"):
        wire.call("PING")


def test_full_server_refuses_writes(fresh_server: FreshServer, server_kind: Kind) -> None:
    server = fresh_server(server_kind, maxmemory="1")
    with pytest.raises(ServerError, match="OOM"):
        server.command("SET", "key", "value")


def test_extra_arguments_reach_the_server(fresh_server: FreshServer) -> None:
    server = fresh_server(extra=("--maxclients", "20"))
    assert server.command("CONFIG", "GET", "maxclients") == [b"maxclients", b"20"]


def test_server_that_cannot_start_says_why() -> None:
    broken = Server("valkey", extra=("--no-such-option", "1"))
    with pytest.raises(RuntimeError, match="valkey did not start"):
        broken.start()
    broken.close()


def test_stats_count_calls_per_command(server: Server) -> None:
    server.reset_stats()
    for _ in range(3):
        server.command("GET", "key")
    server.command("CLIENT", "ID")
    stats = server.stats()
    assert stats["get"] == 3
    assert stats["client|id"] == 1


def test_connections_are_counted_without_the_one_that_asks(server: Server) -> None:
    wait_until(lambda: server.connections() == 0)
    with server.wire() as wire:
        wire.call("PING")
        assert server.connections() == 1


@pytest.mark.needs_faketime
def test_clock_shift_moves_the_server_clock_both_ways(faketime_server: Server) -> None:
    server = faketime_server
    server.command("SET", "key", "value", "PX", 30_000)
    server.clock_shift(25)
    assert server.command("PTTL", "key") <= 5_100
    server.clock_shift(-100)
    assert server.command("PTTL", "key") > 120_000
    server.clock_shift(60)
    assert server.command("GET", "key") is None


@pytest.mark.needs_faketime
def test_client_clock_can_be_shifted_too(tmp_path: Path) -> None:
    clock_file = tmp_path / "clock"
    set_clock(clock_file, 1000)
    shifted = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"],
        env={**os.environ, **faketime_env(clock_file)},
        capture_output=True,
        check=True,
    )
    wall_s, monotonic_s = map(float, shifted.stdout.split())
    assert wall_s - time.time() == pytest.approx(1000, abs=30)
    assert monotonic_s == pytest.approx(time.monotonic(), abs=30)


@pytest.mark.needs_redis
@pytest.mark.parametrize("tls", ["valid", "expired"])
def test_tls_certificate_is_trusted_only_while_valid(fresh_server: FreshServer, tls: str) -> None:
    server = fresh_server("redis", tls=tls)
    trust = ("-CAfile", server.ca_file, "-verify_return_error", "-verify_ip", "127.0.0.1", "-quiet")
    asked = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{server.tls_port}", *trust],
        input=b"PING\r\nQUIT\r\n",
        capture_output=True,
        check=False,
        timeout=10,
    )
    assert (b"+PONG" in asked.stdout) == (tls == "valid"), asked.stderr.decode()
    assert server.tls_url == f"rediss://127.0.0.1:{server.tls_port}/0"


def test_impossible_combinations_are_refused() -> None:
    with pytest.raises(ValueError, match="jemalloc"):
        Server("redis", faketime=True)
    with pytest.raises(ValueError, match="without TLS"):
        Server("valkey", tls="valid")


def test_servers_end_with_the_process_that_started_them() -> None:
    script = (
        "import time; from kit.servers import Server; server = Server().start(); "
        "print(server.pid, server.directory, flush=True); time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    starter = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)
    with starter:
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().split()
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not _runs(int(pid)), what="server ended")
    shutil.rmtree(directory)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
