"""Several servers asked at once, each in a thread: a hung one costs the others nothing, and an address that is being
looked up for ever no more than the bound of the whole.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from lockfast.clock import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")


def each(things: Sequence[T], ask: Callable[[T], R], late: Callable[[T], R], by: float) -> list[R]:
    """ask(thing) for all, in order; late(thing) for those that are not done by `by`. An error of one is raised here."""
    answers: dict[int, R] = {}
    errors: list[BaseException] = []

    def call(index: int) -> None:
        try:
            answers[index] = ask(things[index])
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            errors.append(error)

    # Daemons: Ctrl-C ends the program at once. They write nothing that would have to be undone.
    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(len(things))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(by - now(), 0.0))
    if errors:
        raise errors[0]
    return [answers[index] if index in answers else late(thing) for index, thing in enumerate(things)]
