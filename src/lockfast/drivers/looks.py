"""What a look at every server of a quorum came to: a majority has to answer, as others may know more.

Once it has, the rest is given a node's time-out: a server that hangs holds nobody up for longer. One that is down is
tried again only as long as there is no majority without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from lockfast.errors import LockfastError, Refused, Unreachable

if TYPE_CHECKING:
    from lockfast.endpoints import Endpoint

R = TypeVar("R")


class Looks(Generic[R]):
    """What was found, in the order of the servers, and who did not tell."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints
        self._majority = len(endpoints) // 2 + 1
        self._found: dict[int, R] = {}
        self._failures: dict[int, BaseException] = {}
        self._stumbled: set[int] = set()

    def found(self, place: int, what: R) -> None:
        self._found[place] = what

    def failed(self, place: int, why: BaseException) -> None:
        self._failures[place] = why

    def stumbles(self, place: int) -> bool:
        """A look has failed, and may be made again. Whether that is not needed any more."""
        self._stumbled.add(place)
        return self.is_enough

    @property
    def missing(self) -> int:
        """How many are still looked at."""
        return len(self._endpoints) - len(self._found) - len(self._failures)

    @property
    def hopeful(self) -> int:
        """How many of them have not failed yet: only these are worth a moment more."""
        return len(self._endpoints) - len({*self._found, *self._failures, *self._stumbled})

    @property
    def is_enough(self) -> bool:
        """Whether a majority has answered."""
        return len(self._found) >= self._majority

    def judge(self) -> list[R]:
        """What those that answer know. Raises Unreachable or Refused, with all reasons, if these are too few."""
        for failure in self._failures.values():
            if not isinstance(failure, (Unreachable, Refused)):
                raise failure
        if self.is_enough:
            return [self._found[place] for place in sorted(self._found)]
        reasons = []
        for place, failure in sorted(self._failures.items()):
            where = self._endpoints[place].where
            reasons.append(f"{where}: {str(failure).replace(f' to {where}', '').removeprefix(f'{where} ')}")
        words = f"{self._majority} of {len(self._endpoints)} servers have to answer, too few do; {'; '.join(reasons)}"
        codes = [failure.code for failure in self._failures.values() if isinstance(failure, Refused)]
        error: LockfastError = Unreachable(words, sent=False)
        if len(self._endpoints) - len(codes) < self._majority:
            error = Refused(words, code=codes[0])
        raise error
