"""Requests are packed as hiredis packs them, whatever their words are."""

from __future__ import annotations

import pytest

from lockfast.drivers import wire
from lockfast.flows import scripts
from lockfast.flows.scripts import Bound, Script
from lockfast.names import make

LONG = "w" * 300


@pytest.mark.parametrize(
    ("script", "bound", "args"),
    [
        (scripts.LEAVE, (30_000, 0, ""), ("client.agent.ticket",)),
        (scripts.LEAVE, (30_000, 0, ""), (LONG,)),
        (scripts.LEAVE, (30_000, 0, ""), ("ééFLUSHALL",)),
        (scripts.ADMIT, ("lock", 1, 1, 30_000, "kanal", "höst 1", 10_000), (0, "client.agent.ticket")),
        (scripts.ADMIT, ("lock", 1, 1, 30_000, "kanal", "höst 1", 10_000), (2**53 - 1, LONG)),
        (scripts.ADMIT, ("lock", 1, 1, 30_000, "kanal", "höst 1", 10_000), (0, "ééFLUSHALL")),
        (scripts.OBSERVE, (0,), (LONG, "ticket")),
        (scripts.PROCLAIM, ("ein Wert, größer als ASCII",), (7, 2**53 - 1, "ticket")),
        (scripts.GUARD, (), (b"\x00\xff", 3, "ü")),
    ],
    ids=lambda value: value.name if isinstance(value, Script) else None,
)
def test_request_is_packed_as_hiredis_packs_it(
    script: Script, bound: tuple[str | int, ...], args: tuple[str | int | bytes, ...]
) -> None:
    name = make("lockfast", ("straße", 7))
    binding = Bound(script, name, bound)
    words = ("EVALSHA", script.sha, len(name.keys), *name.keys, *bound, *args)
    for _ in range(2):  # the first time its start is put together, the second time it is there
        assert wire.evalsha(binding, args) == wire.pack(words)
