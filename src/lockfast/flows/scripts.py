"""The server's side: each script's text and SHA, read from `lua/` on first use, and scripts bound to a name."""

from __future__ import annotations

import re
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockfast.names import Name

_LUA = Path(__file__).parent.parent / "lua"
_INCLUDE = re.compile(r"^-- include (\w+\.lua)\n", re.MULTILINE)
VARIES = -1


class Script:
    """One script of `lua/`, with the files that it includes in their place."""

    __slots__ = ("_sha", "_text", "arg_count", "name", "packed")

    def __init__(self, name: str, arg_count: int) -> None:
        self.name = name
        self.arg_count = arg_count  # VARIES: as many as a call has, and then they may be bytes
        self.packed = ""  # how every request for it starts; filled in by drivers/wire.py
        self._text = ""
        self._sha = ""

    @property
    def text(self) -> str:
        """What the server runs."""
        if not self._text:
            body = (_LUA / f"{self.name}.lua").read_text()
            self._text = _INCLUDE.sub(lambda found: (_LUA / found[1]).read_text(), body)
        return self._text

    @property
    def sha(self) -> str:
        """The name under which the server keeps it."""
        if not self._sha:
            self._sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        return self._sha


class Bound:
    """A script with its name and its leading arguments: what stays the same from call to call."""

    __slots__ = ("args", "name", "packed", "script")

    def __init__(self, script: Script, name: Name, args: tuple[str | int, ...] = ()) -> None:
        self.script = script
        self.name = name
        self.args = args
        self.packed = ""  # the start of the request as it goes over the wire; filled in by drivers/wire.py


ADMIT = Script("admit", 9)
LEAVE = Script("leave", 4)
VOTE = Script("vote", 7)
RENEW = Script("renew", 5)
RESIZE = Script("resize", 2)
REVOKE = Script("revoke", 1)
INSPECT = Script("inspect", 1)
ADMIT_ALL = Script("admit_all", 5)
LEAVE_ALL = Script("leave_all", 3)
PROCLAIM = Script("proclaim", 4)
OBSERVE = Script("observe", 3)
LATCH = Script("latch", 7)
BARRIER = Script("barrier", 8)
GUARD = Script("guard", VARIES)
