"""Accounts: the rule in the docs is enough for everything, and not more than that; what is missing is told."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.servers import wait_until
from kit.transacting import plus_one, transact
from lockfast import LeaseLost, Refused
from lockfast.clock import now
from topologies.everything import everything

if TYPE_CHECKING:
    from kit.servers import FreshServer, Kind, Server
    from kit.sides import Side
    from lockfast import Transaction

PAGE = Path(__file__).parents[2] / "docs" / "topologies" / "acl.md"
RULE = re.findall(r"^```acl\nACL SETUSER app (.*)\n```$", PAGE.read_text(), re.MULTILINE)[0].split()
COMMANDS = [word for word in RULE if word.startswith("+")]
ONLY_NOTED = {"+ping", "+client|setname"}  # without these nothing changes but ACL LOG
PUSHES = {"+subscribe", "+publish"}  # without these the waiters poll
AT_ONCE_S = 5.0


def account(server: Server, *rights: str, name: str = "app") -> str:
    """The URL of an account with exactly these rights."""
    server.command("ACL", "SETUSER", name, "reset", *(right.replace("PASSWORD", "secret") for right in rights))
    server.command("ACL", "LOG", "RESET")
    return server.url.replace("//", f"//{name}:secret@")


def extras() -> dict[str, list[str]]:
    """What the page says to add, by the text in front of it."""
    rows = re.findall(r"^\| ([^|]*) \| (`\+.*) \|$", PAGE.read_text().replace("\\|", "!"), re.MULTILINE)
    return {what: re.findall(r"\+[\w!]+", add.replace("`", "").split("(")[0]) for what, add in rows}


def noted(server: Server) -> list[Any]:
    """What ACL LOG has, as (reason, context, object)."""
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in server.command("ACL", "LOG")]
    return [(entry[b"reason"], entry[b"context"], entry[b"object"]) for entry in entries]


@pytest.mark.slow
def test_rule_of_the_docs_is_enough_for_every_primitive(side: Side, server: Server, name: str) -> None:
    server.command("SCRIPT", "FLUSH")
    url = account(server, *RULE)
    with side.client(url) as lf, side.client(url) as other:
        everything(side, lf, other, name)
    assert noted(server) == []


def test_extras_of_the_docs_are_enough(side: Side, server: Server, name: str) -> None:
    found = {what: [right.replace("!", "|") for right in rights] for what, rights in extras().items()}
    (scan,) = [rights for what, rights in found.items() if "names()" in what]
    (guard,) = [rights for what, rights in found.items() if "guard" in what]
    (transaction,) = [rights for what, rights in found.items() if "transaction" in what]
    (database,) = [rights for what, rights in found.items() if "database" in what]
    if server.version < (7,):
        guard = ["+command"]
    url = account(server, *RULE, *scan, *guard, *transaction, *database, "~own:*", "+incr")
    with side.client(url) as lf:
        with lf.lock(name) as grant:
            assert lf.names() == [(name,)]
            assert lf.deadlocks() == ()
            assert grant.guard(("INCR", "own:n")) == [1]

        assert transact(side, lf, plus_one("own:n"), "own:n").value == 1
    with side.client(url[:-1] + "3") as lf, lf.lock(name):
        pass
    assert noted(server) == []


@pytest.mark.slow
@pytest.mark.parametrize("right", COMMANDS)
def test_nothing_of_the_rule_can_be_left_out(side_of_threads: Side, valkey_server: Server, right: str) -> None:
    server = valkey_server
    server.command("FLUSHALL")
    server.command("SCRIPT", "FLUSH")
    url = account(server, *(word for word in RULE if word != right))
    side = side_of_threads
    with side.client(url) as lf, side.client(url) as other:
        if right in ONLY_NOTED | PUSHES:
            everything(side, lf, other, "name")
        else:
            with pytest.raises((Refused, LeaseLost)):
                everything(side, lf, other, "name")
    command = right[1:] if server.version >= (7,) else right[1:].partition("|")[0]
    assert command in {thing.decode() for reason, _, thing in noted(server) if reason == b"command"}


@pytest.fixture
def side_of_threads() -> Any:
    from kit.sides import Side as Threads

    side = Threads()
    yield side
    side.close()


def refusal(side: Side, url: str, name: str = "name") -> Refused:
    with side.client(url) as lf:
        began = now()
        with pytest.raises(Refused) as caught:
            lf.lock(name).acquire(wait=30)
        with pytest.raises(Refused):
            lf.lock(name).try_acquire()
        assert now() - began < AT_ONCE_S
    return caught.value


@pytest.mark.parametrize("lacking", ["+evalsha", "+eval", "~lockfast:*"])
def test_account_that_may_not_lock_is_told_the_line_to_add(side: Side, server: Server, lacking: str) -> None:
    server.command("SCRIPT", "FLUSH")
    url = account(server, *(word for word in RULE if word != lacking))
    told = refusal(side, url)
    assert told.code == "NOPERM"
    assert re.search(rf"ACL SETUSER \w+ {re.escape(lacking)}; ", str(told))
    assert "acl.md" in str(told)
    if lacking == "+eval":
        assert "cannot be brought" in str(told)
        if server.version < (7,):
            return  # which form of the script it takes is found out by EVAL
        with side.client(server.url) as lf, lf.lock("name"):
            pass  # now the server knows the scripts
        with side.client(url) as lf, lf.lock("name") as grant:
            assert grant.held


@pytest.mark.parametrize("lacking", ["+watch", "+multi", "+exec", "+get", "+incr", "~own:*"])
def test_transaction_that_an_account_may_not_do_is_told_the_rule(side: Side, server: Server, lacking: str) -> None:
    rules = [*RULE, "+watch", "+unwatch", "+multi", "+exec", "+discard", "+incr", "~own:*"]
    url = account(server, *(word for word in rules if word != lacking))

    def work(tx: Transaction) -> None:
        tx.get("own:a")
        tx.write("INCR", "own:a")

    with side.client(url) as lf, pytest.raises(Refused) as caught:
        transact(side, lf, work, "own:a")
    assert caught.value.code == "NOPERM"
    right = "~KEY for each key that you use" if lacking == "~own:*" else lacking
    assert f" {right}; the whole rule is in docs/topologies/acl.md" in str(caught.value)


def test_command_that_only_a_script_lacks_is_told_too(side: Side, server: Server) -> None:
    url = account(server, *(word for word in RULE if word != "+set"))
    told = refusal(side, url)
    assert told.code == "NOPERM"
    assert "ACL" in str(told)


PUSHLESS = {
    "no SUBSCRIBE": [word for word in RULE if word != "+subscribe"],
    "no PUBLISH": [word for word in RULE if word != "+publish"],
    "no channels": [word for word in RULE if not word.startswith("&")],
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", PUSHLESS.values(), ids=PUSHLESS.keys())
def test_account_without_pushes_takes_turns_by_polling(
    side: Side, valkey_server: Server, name: str, rule: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    url = account(valkey_server, *rule)
    with caplog.at_level(logging.WARNING, "lockfast"), side.client(url) as lf, side.client(url) as other:
        held = lf.lock(name, lease=30).acquire()
        order: list[str] = []

        def wait(mark: str) -> None:
            with other.lock(name, lease=30, wait=20):
                order.append(mark)

        waiting = []
        for mark in "abc":
            waiting.append(side.spawn(wait, mark))
            wait_until(lambda: len(lf.inspect(name).waiters) == len(waiting), what="queued")
        released = now()
        held.release()
        for one in waiting:
            one.result()
        assert order == ["a", "b", "c"]
        assert now() - released < 3
    told = [record.getMessage() for record in caplog.records if "no pushes" in record.getMessage()]
    assert len(told) == 1, "once for each client that had to wait"
    assert "acl.md" in told[0]


@pytest.mark.slow
def test_waiter_that_hears_finds_its_turn_after_a_holder_that_may_not_publish(
    side: Side, valkey_server: Server, name: str
) -> None:
    mute = account(valkey_server, *PUSHLESS["no PUBLISH"])
    with side.client(mute) as lf, side.client(valkey_server.url) as other:
        held = lf.lock(name, lease=30).acquire()
        waiting = side.spawn(other.lock(name, lease=30).acquire, wait=20)
        wait_until(lambda: lf.inspect(name).waiters, what="queued")
        released = now()
        held.release()
        after = waiting.result()
        assert now() - released < 2.5
        assert after.fence > held.fence
        assert after.remaining > 20, "the whole lease, although the server did not give it at first"
        after.release()


@pytest.mark.parametrize("missing", ["EVALSHA", "EVAL"])
def test_server_without_scripts_is_told_at_once(
    side: Side, fresh_server: FreshServer, server_kind: Kind, missing: str
) -> None:
    server = fresh_server(server_kind, extra=("--rename-command", missing, ""))
    told = refusal(side, server.url)
    assert f"does not offer {missing};" in str(told)


def test_server_that_offers_only_what_is_needed_takes_turns_by_polling(
    side: Side, fresh_server: FreshServer, name: str
) -> None:
    missing = ("SUBSCRIBE", "PUBLISH", "CLIENT", "SCRIPT")
    server = fresh_server(extra=tuple(word for command in missing for word in ("--rename-command", command, "")))
    with side.client(server.url) as lf, side.client(server.url) as other:
        held = lf.lock(name).acquire()
        waiting = side.spawn(other.lock(name).acquire, wait=20)
        wait_until(lambda: lf.inspect(name).waiters, what="queued")
        held.release()
        waiting.result().release()


@pytest.mark.slow
@pytest.mark.parametrize("change", [("DELUSER", "app"), ("SETUSER", "app", "-@all")], ids=" ".join)
def test_holder_whose_account_is_taken_away_loses_its_hold_in_time(
    side: Side, valkey_server: Server, name: str, change: tuple[str, ...]
) -> None:
    server = valkey_server
    url = account(server, *RULE)
    with side.client(url) as lf, side.client(url) as other, side.client(server.url) as stranger:
        grant = lf.lock(name, lease=1.0).acquire()
        waiting = side.spawn(other.lock(name, lease=1.0).acquire, wait=20)
        wait_until(lambda: stranger.inspect(name).waiters, what="queued")
        server.command("ACL", *change)
        assert grant.wait_lost(5)
        with pytest.raises(LeaseLost, match=r"WRONGPASS|NOPERM|permission|refuses"):
            grant.check()
        # Before anybody else asks: whose call lets a waiter in has the rights for it, and the push reaches it still.
        assert isinstance(waiting.error(), Refused)
        # The waiter could not leave the queue, so its turn may come once more: for a lease of its own at most.
        stranger.lock(name).acquire(wait=20).release()
        with pytest.raises(Refused):
            lf.lock(name, "another").acquire(wait=30)


def test_account_that_is_switched_off_keeps_what_is_connected(side: Side, server: Server, name: str) -> None:
    url = account(server, *RULE)
    with side.client(url) as lf:
        with lf.lock(name) as grant:
            server.command("ACL", "SETUSER", "app", "off")
            grant.extend()
        with side.client(url) as late, pytest.raises(Refused) as caught:
            late.lock(name).acquire(wait=30)
        assert caught.value.code == "WRONGPASS"


def test_page_names_each_command_that_scripts_call() -> None:
    """A script that begins to use another command needs another line here."""
    from lockfast.flows import scripts

    called = {
        command.lower()
        for script in vars(scripts).values()
        if isinstance(script, scripts.Script)
        for command in re.findall(r"redis\.p?call\('([A-Z]+)'", script.text)
    }
    outer = {"evalsha", "eval", "subscribe", "ping", "client|setname"}
    in_clusters = {"spublish"}
    assert {word[1:] for word in COMMANDS} == (called - in_clusters) | outer
    assert all(f"+{word}" in PAGE.read_text() for word in in_clusters)
