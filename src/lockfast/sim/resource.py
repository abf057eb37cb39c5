"""What a lock guards: a store that takes a write only if its fence is not older than the newest it has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockfast.sim.client import Client
    from lockfast.sim.world import World


class Resource:
    """One guarded thing per name. checks: whether it looks at fences at all; a write with fence 0 has none."""

    def __init__(self, world: World, checks: bool = True) -> None:
        self._world = world
        self._checks = checks
        self._newest: dict[str, int] = {}

    def write(self, client: Client, name: str, ticket: str, fence: int = 0, note: str = "") -> bool:
        """Try to write. True when it was taken."""
        newest = self._newest.get(name, 0)
        taken = not self._checks or fence == 0 or fence >= newest
        if taken:
            self._newest[name] = max(fence, newest)
        self._world.say(client.name, f"writes to what {name!r} guards" + ("" if taken else ": refused by its fence"))
        self._world.record(
            "wrote" if taken else "refused", name=name, ticket=ticket, client=client.name, fence=fence, note=note
        )
        return taken
