"""What a look at every server of a quorum came to: a majority has to answer, as others may know more."""

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
        self._found: dict[int, R] = {}
        self._failures: dict[int, BaseException] = {}

    def found(self, place: int, what: R) -> None:
        self._found[place] = what

    def failed(self, place: int, why: BaseException) -> None:
        self._failures[place] = why

    @property
    def missing(self) -> int:
        """How many are still looked at."""
        return len(self._endpoints) - len(self._found) - len(self._failures)

    def judge(self) -> list[R]:
        """What those that answer know. Raises Unreachable or Refused, with all reasons, if these are too few."""
        for failure in self._failures.values():
            if not isinstance(failure, (Unreachable, Refused)):
                raise failure
        majority = len(self._endpoints) // 2 + 1
        if len(self._found) >= majority:
            return [self._found[place] for place in sorted(self._found)]
        reasons = []
        for place, failure in sorted(self._failures.items()):
            where = self._endpoints[place].where
            reasons.append(f"{where}: {str(failure).replace(f' to {where}', '').removeprefix(f'{where} ')}")
        words = f"{majority} of {len(self._endpoints)} servers have to answer, too few do; {'; '.join(reasons)}"
        codes = [failure.code for failure in self._failures.values() if isinstance(failure, Refused)]
        error: LockfastError = Unreachable(words, sent=False)
        if len(self._endpoints) - len(codes) < majority:
            error = Refused(words, code=codes[0])
        raise error
