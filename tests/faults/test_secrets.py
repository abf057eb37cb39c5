"""Passwords and certificates: wrong ones are refused at once, and a secret is shown nowhere."""

from __future__ import annotations

import io
import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from lockfast.clock import now
from lockfast.errors import LockfastError, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side

SECRET = "Hush-4711-hush"


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """Everything that is logged by anybody, at any level."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


def library_frames(error: BaseException) -> str:
    """The tracebacks of an error and of all it came from, with the locals of the library's own frames.

    That is how crash reporters print them. The test's frames hold the URL, of course, and are left out.
    """
    shown = []
    reported = traceback.TracebackException.from_exception(error, capture_locals=True)
    seen: list[traceback.TracebackException | None] = [reported]
    while seen:
        part = seen.pop()
        if part is None:
            continue
        shown.append(str(part))
        shown.extend(
            f"{frame.name}: {frame.line} {frame.locals}"
            for frame in part.stack
            if "lockfast/" in frame.filename and "tests" not in frame.filename
        )
        seen += [part.__cause__, part.__context__]
    return "\n".join(shown)


def test_wrong_password_is_refused_and_shown_nowhere(
    fresh_server: FreshServer, server_kind: Kind, side: Side, said: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    """F24: not in the repr of anything, not in a log, not in a traceback, not even in one that prints locals."""
    server = fresh_server(server_kind, requirepass="the right one")
    places: dict[str, str] = {}
    urls = (f"redis://:{SECRET}@127.0.0.1:{server.port}/0", f"redis://user:{SECRET}@127.0.0.1:{server.port}/0")
    for url in urls:
        with side.client(url) as lf:
            lock = lf.lock("name")
            inside: Any = getattr(lf, "twin_of", lf)
            places[f"repr of {url[8:12]}"] = repr(
                (lf, lock, vars(inside), vars(inside._driver), inside._driver.endpoint)
            )
            for attempt in (lock.try_acquire, lambda: lf.lock("name", wait=10).acquire()):
                began = now()
                with pytest.raises(Refused) as caught:
                    attempt()
                assert caught.value.code == "WRONGPASS"
                assert now() - began < 2, "no second try with the same password"
                plain = "".join(traceback.format_exception(caught.value)).replace(url, "")
                places["traceback"] = plain
                places["traceback with locals"] = library_frames(caught.value)
    places["log"] = said.getvalue()
    places["stderr"] = "".join(capfd.readouterr())
    leaked = [place for place, text in places.items() if SECRET in text]
    assert not leaked


@pytest.mark.slow
def test_right_password_is_shown_nowhere_when_the_server_is_lost(
    fresh_server: FreshServer, side: Side, said: io.StringIO
) -> None:
    """F24: the same when the connection breaks, and with the settings of a redis-py client."""
    import redis

    server = fresh_server(requirepass=SECRET)
    handed_in = redis.Redis(host="127.0.0.1", port=server.port, password=SECRET)
    clients = [side.client(given, timeout=0.3) for given in (server.url, handed_in)]
    for lf in clients:
        with lf.lock("name"):
            pass
    server.kill9()
    for lf in clients:
        with pytest.raises(LockfastError) as caught:
            lf.lock("name").acquire(wait=0.1)
        assert SECRET not in library_frames(caught.value)
        assert SECRET not in repr(lf)
    assert SECRET not in said.getvalue()
    handed_in.close()


def test_missing_password_is_refused(fresh_server: FreshServer, server_kind: Kind, side: Side) -> None:
    """F24: NOAUTH is no outage."""
    server = fresh_server(server_kind, requirepass=SECRET)
    with side.client(f"redis://127.0.0.1:{server.port}/0") as lf, pytest.raises(Refused) as caught:
        lf.lock("name").acquire(wait=10)
    assert caught.value.code == "NOAUTH"


@pytest.mark.slow
@pytest.mark.needs_redis
def test_trusted_certificate_works(fresh_server: FreshServer, side: Side) -> None:
    """F25: with the right authority a lock works over TLS, contention and renewal included."""
    server = fresh_server("redis", tls="valid")
    with side.client(trusting(server, server)) as lf, side.client(trusting(server, server)) as other:
        with lf.lock("name", lease=0.6, wait=5) as grant:
            waiting = side.spawn(other.lock("name", lease=5).acquire, wait=20)
            wait_until(lambda: lf.inspect("name").waiters, what="queued")
            before = grant.deadline
            wait_until(lambda: grant.deadline > before, what="renewed")
        waiting.result().release()


@pytest.mark.slow
@pytest.mark.needs_redis
@pytest.mark.parametrize("certificate", ["valid", "expired"])
def test_certificate_that_is_not_trusted_is_told_fast(fresh_server: FreshServer, side: Side, certificate: str) -> None:
    """F25: the wrong authority, or expired: told at once, whatever the patience: it will not get better by waiting."""
    server, authority = fresh_server("redis", tls=certificate), fresh_server("redis", tls="valid")
    url = trusting(server, server if certificate == "expired" else authority)
    with side.client(url) as lf:
        began = now()
        with pytest.raises(LockfastError, match=r"(?i)certificate"):
            lf.lock("name").acquire(wait=5)
        assert now() - began < 3


def trusting(server: Server, authority: Server) -> str:
    return f"{server.tls_url}?ssl_ca_certs={authority.ca_file}"
