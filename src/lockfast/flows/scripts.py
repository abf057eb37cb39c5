"""The server's side: each script's text and SHA, read from `lua/` on first use."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

_LUA = Path(__file__).parent.parent / "lua"


class Script:
    """One script of `lua/`, with the shared state and grant loop in it."""

    __slots__ = ("_sha", "_text", "arg_count", "name", "packed")

    def __init__(self, name: str, arg_count: int) -> None:
        self.name = name
        self.arg_count = arg_count
        self.packed = ""  # how a request to run it starts; filled in by drivers/wire.py on first use
        self._text = ""
        self._sha = ""

    @property
    def text(self) -> str:
        """What the server runs."""
        if not self._text:
            body = (_LUA / f"{self.name}.lua").read_text()
            self._text = body.replace("-- include state.lua\n", (_LUA / "state.lua").read_text())
        return self._text

    @property
    def sha(self) -> str:
        """The name under which the server keeps it."""
        if not self._sha:
            self._sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        return self._sha


ADMIT = Script("admit", 9)
LEAVE = Script("leave", 4)
RENEW = Script("renew", 3)
INSPECT = Script("inspect", 1)
