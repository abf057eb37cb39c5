"""The server's side: each script's text and SHA, read from `lua/` on first use."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

_LUA = Path(__file__).parent.parent / "lua"


class Script:
    """One script of `lua/`, with the shared state and grant loop in front of it."""

    __slots__ = ("_sha", "_text", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._text = ""
        self._sha = ""

    @property
    def text(self) -> str:
        """What the server runs. A first line that starts with #! holds flags for the server and stays first."""
        if not self._text:
            body = (_LUA / f"{self.name}.lua").read_text()
            flags = ""
            if body.startswith("#!"):
                flags, _, body = body.partition("\n")
                flags += "\n"
            self._text = flags + (_LUA / "state.lua").read_text() + body
        return self._text

    @property
    def sha(self) -> str:
        """The name under which the server keeps it."""
        if not self._sha:
            self._sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        return self._sha


ADMIT = Script("admit")
LEAVE = Script("leave")
RENEW = Script("renew")
INSPECT = Script("inspect")
