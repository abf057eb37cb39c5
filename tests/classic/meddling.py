"""Recipes that a test can interfere with: do something at one exact step of a flow, or give it another wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.flows.plain import Env, Pipeline
from lockfast.lab.contender import watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.classic import Taken, Updated
    from lockfast.flows.plain import Flow, Word

R = TypeVar("R")


class Died(Exception):
    """Stands for the end of a client in the middle of a flow."""


class Meddled:
    """A recipe to which something is done just before it sends a command for the first time (`again`: every time).

    before: the word by which the command is known. skew_s: how far the client's wall clock is ahead.
    """

    def __init__(
        self,
        recipe: Any,
        before: str = "",
        meddle: Callable[[], object] = lambda: None,
        *,
        again: bool = False,
        skew_s: float = 0.0,
    ) -> None:
        self.name: str = recipe.name
        self._recipe = recipe
        self._before = before
        self._meddle = meddle
        self._again = again
        self._skew_s = skew_s

    def acquire(self, env: Env) -> Flow[Taken | None]:
        return self._wrapped(self._recipe.acquire(self._env(env)))

    def release(self, taken: Taken, env: Env) -> Flow[bool]:
        return self._wrapped(self._recipe.release(taken, self._env(env)))

    def refresh(self, taken: Taken, env: Env) -> Flow[bool]:
        return self._wrapped(self._recipe.refresh(taken, self._env(env)))

    def update(self, change: Callable[[bytes | None], Word | None], env: Env) -> Flow[Updated | None]:
        return self._wrapped(self._recipe.update(change, self._env(env)))

    def _env(self, env: Env) -> Env:
        def wall() -> float:
            return env.wall() + self._skew_s

        return Env(env.now, wall, env.token, env.jitter, env.servers, env.timeout_s)

    def _wrapped(self, flow: Flow[R]) -> Flow[R]:
        waiting = True

        def about_to(effect: Any) -> None:
            nonlocal waiting
            if waiting and isinstance(effect, Pipeline) and any(self._before == words[0] for words in effect.commands):
                waiting = self._again
                self._meddle()

        return watched(flow, about_to)


def die() -> None:
    raise Died
