"""What the doctor tells to paste into a shell: it does what it says there, and no more."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from lockfast.doctor import access
from lockfast.doctor.catalogue import CATALOGUE, found
from topologies.doctoring import bare, keys, look, pasted, the

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.servers import Server


# Words that a shell would not take as they are


@pytest.mark.parametrize("key", [key for key, entry in CATALOGUE.items() if entry.mend])
def test_every_command_of_the_catalogue_survives_a_shell(key: str) -> None:
    values = {word: ["+acl|whoami", "~x:*"] for word in re.findall(r"{(\w+)}", CATALOGUE[key].mend)}
    assert bare(found(key, "redis://h:1/0", "seen", **values).mend) == []


@pytest.mark.parametrize("shape", ["", "quorum", "sentinel", "cluster"])
def test_whole_rule_survives_a_shell(shape: str) -> None:
    rules = access.all_rules("lockfast", shape)
    finding = found("scope-open", "redis://h:1/0", "seen", rules=rules)
    assert "+client|setname" in rules
    assert pasted(finding.mend)[-len(rules) :] == rules


@pytest.mark.parametrize(
    ("lacking", "untold", "whole"),
    [
        ("-acl|whoami", "ACL WHOAMI", ("ACL", "SETUSER", "x")),
        ("-config|get", "CONFIG GET", ("CONFIG", "SET", "x", "y")),
    ],
)
def test_right_to_ask_pasted_into_a_shell_does_not_make_an_administrator(
    server: Server, account: Callable[..., str], lacking: str, untold: str, whole: tuple[str, ...]
) -> None:
    container = lacking[1:].partition("|")[0]
    url = account(f"-{container}")
    user = url.partition("://")[2].partition(":")[0]
    (finding,) = [one for one in look(url).findings if one.key == "not-told" and one.seen.startswith(untold)]
    server.command(*pasted(finding.mend))
    assert (
        server.command("ACL", "DRYRUN", user, *lacking[1:].upper().split("|"), *["x"] * (container == "config")) == "OK"
    )
    assert server.command("ACL", "DRYRUN", user, *whole) != "OK"
    assert not [one for one in look(url).findings if one.key == "not-told" and one.seen.startswith(untold)]


def test_name_of_an_account_is_no_command_of_a_shell(server: Server) -> None:
    user = "clerk;$(id)|x&*"
    server.command("ACL", "SETUSER", user, "on", ">hunter2", "~*", "&*", "+@all", "-zrank")
    url = server.url.replace("://", f"://{quote(user, safe='')}:hunter2@")
    try:
        mend = the(look(url), "rights-commands").mend
        assert shlex.split(mend)[-3:] == ["SETUSER", user, "+zrank"]
        server.command(*pasted(mend))
        assert "rights-ok" in keys(look(url))
    finally:
        server.command("ACL", "DELUSER", user)
