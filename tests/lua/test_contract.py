"""What a script's header promises is what its body uses, and every key it touches is given to it."""

from __future__ import annotations

import re

import pytest

from lockfast.flows import scripts
from lockfast.names import make, watched
from lua.scripts import LUA, Named, header_of

INCLUDE = "-- include state.lua"
WATCHING = ["proclaim", "observe", "latch", "barrier"]  # these have a sixth key, and share watchers.lua
SCRIPTS = ["admit", "vote", "leave", "renew", "resize", "revoke", "inspect", *WATCHING]
WITHOUT_KEYS = {"TIME", "PUBLISH", "SPUBLISH"}


def parts_of(script: str) -> tuple[str, str]:
    """The header (the comment at the top, with the shebang) and the rest."""
    header = header_of(script)
    return header, (LUA / f"{script}.lua").read_text().removeprefix(header)


def code_of(text: str) -> str:
    return "\n".join(re.sub(r"(^|\s)--.*", "", line) for line in text.splitlines())


def indexes(what: str, text: str) -> set[int]:
    return {int(index) for index in re.findall(what + r"\[(\d+)\]", text)}


@pytest.mark.parametrize("script", SCRIPTS)
def test_header_names_every_argument_that_the_body_reads_and_no_other(script: str) -> None:
    header, body = parts_of(script)
    assert indexes("ARGV", header) == indexes("ARGV", code_of(body))
    assert max(indexes("ARGV", header)) == getattr(scripts, script.upper()).arg_count
    assert "ARGV" not in (LUA / "state.lua").read_text(), "the shared part knows no arguments"


@pytest.mark.parametrize("script", SCRIPTS)
def test_header_says_what_comes_back_and_which_keys_are_given(script: str) -> None:
    header, body = parts_of(script)
    assert "Returns" in header
    assert "KEYS[1..5]" in header
    assert INCLUDE in body.splitlines()
    assert indexes("KEYS", code_of(body)) <= {1, 2, 3, 4, 5} | ({6} if script in WATCHING else set())
    assert ("KEYS[6]" in header) is (script in WATCHING)


def test_second_shared_part_describes_its_key_and_knows_no_arguments() -> None:
    text = (LUA / "watchers.lua").read_text()
    assert indexes("KEYS", text.partition("local ")[0]) >= {6}
    assert "ARGV" not in text
    assert len(watched(make("lockfast", ("x",))).keys) == 6
    for script in WATCHING:
        assert "local function tell(" in getattr(scripts, script.upper()).text


def test_shared_part_describes_the_five_keys_that_names_have() -> None:
    header = (LUA / "state.lua").read_text().partition("local ")[0]
    assert indexes("KEYS", header) == {1, 2, 3, 4, 5}
    assert len(make("lockfast", ("x",)).keys) == 5


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_key_is_written_as_one_of_KEYS(script: str) -> None:  # noqa: N802 - it is spelled so
    text = code_of(getattr(scripts, script.upper()).text)
    calls = re.findall(r"redis\.p?call\('([A-Z]+)'(?:, ([^,)]+))?", text)
    assert len(calls) == len(re.findall(r"redis\.p?call\(", text)), (
        "a command is spelled in a way this test cannot read"
    )
    for command, first in calls:
        assert command in WITHOUT_KEYS or re.fullmatch(r"KEYS\[\d\]", first), f"{command} {first}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_only_server_time_is_read(script: str) -> None:
    text = code_of(getattr(scripts, script.upper()).text)
    assert "os.time" not in text
    assert "os.clock" not in text
    assert "redis.call('TIME')" in text


def test_unknown_script_cannot_be_mistaken_for_a_shared_part() -> None:
    for script in SCRIPTS:
        text = getattr(scripts, script.upper()).text
        assert INCLUDE not in text.splitlines(), "the include was not replaced"
        assert "local function settle(" in text


def test_entries_are_as_the_shared_part_describes_them(shared: Named) -> None:
    held = shared.admit("a", weight=1, lease=9000, owner="host 7 some label")
    shared.admit("b", weight=4, lease=8000, place=5000, seen=3, channel="ch", owner="host 8 other")
    now = shared.scripts.now_ms
    _, queue, _, _, entries = shared.everything()
    fields = shared.fields()
    assert fields["fence"] == str(held.fence)
    assert [fields[key] for key in ("FORMAT", "kind", "limit", "used", "waiting")] == ["1", "semaphore", "4", "1", "1"]
    assert [fields[key] for key in ("tombs", "holder", "end", "since", "owner")] == ["0", "-", "0", "0", ""]
    assert queue == [b"b", b"1"]
    assert entries[b"a"].decode() == f"{held.fence} 1 {now} host 7 some label"
    assert entries[b"b"].decode() == f"{now + 5000} 4 8000 {now} 3 ch host 8 other"


def test_state_of_a_whole_holder_is_as_the_shared_part_describes_it(lock: Named) -> None:
    held = lock.admit("a", lease=9000, owner="host 7 some label")
    now = lock.scripts.now_ms
    fields = lock.fields()
    assert [fields[key] for key in ("holder", "owner", "fence")] == ["a", "host 7 some label", str(held.fence)]
    assert (fields["end"], fields["since"]) == (str(now + 9000), str(now))
