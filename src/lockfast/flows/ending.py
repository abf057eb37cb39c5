"""Release: the end of a hold, and what is said when it had ended before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lockfast.errors import LeaseLost, LockfastError, Unreachable
from lockfast.flows import swapping
from lockfast.flows.admission import UNDO_S, leave
from lockfast.grants import LEAVING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockfast.flows.effects import Env, Flow
    from lockfast.grants import Hold


class Keeps(Protocol):
    """The part of a keeper that a release needs."""

    def unwatch(self, hold: Hold) -> None: ...

    def unwatch_all(self, holds: Sequence[Hold]) -> None: ...

    def finish(self, hold: Hold) -> None: ...


def begin(hold: Hold, keeper: Keeps, moment: float | None = None) -> bool:
    """Decide to give a hold back. False when a release that was interrupted has been finished since.

    moment: what time it is, for a caller that has just looked.
    """
    if not hold.begin_leave(moment):
        return False
    keeper.unwatch(hold)
    return True


def release(hold: Hold, keeper: Keeps, env: Env) -> Flow[None]:
    """Give a hold back. Raises NotHeld, LeaseLost, or Unreachable when it was not confirmed (call again)."""
    try:
        if begin(hold, keeper):
            yield from finish(hold, keeper, env)
    except GeneratorExit:
        raise  # the process died here; nobody is left to tidy up
    except LockfastError:
        raise
    except BaseException:
        rescue(hold, keeper)
        raise


def rescue(hold: Hold, keeper: Keeps) -> None:
    """An interrupt has ended a release, maybe where nobody was prepared for it: the keeper goes on with it."""
    if hold.state is LEAVING:
        hold.stop_leaving(sent=True)  # it may be on its way
        keeper.finish(hold)


def finish(hold: Hold, keeper: Keeps, env: Env, swaps: bool = False) -> Flow[None]:
    """The rest of a release. swaps: try it without the script first; see swapping.py.

    Whatever ends this early, the ticket is kept until the server has confirmed: the caller may try again, and after
    an interrupt the keeper does. Who has lost it must hear so soon: the server is asked for a moment only, and the
    keeper goes on.
    """
    patience_s = UNDO_S if hold.why_lost else None
    try:
        stood = False
        if swaps:
            gives_up_at = env.now() + env.timeout_s
            stood = yield from swapping.swap(hold, env)
            patience_s = max(gives_up_at - env.now(), UNDO_S)
        if not stood:
            stood = yield from leave_by(hold, env, hold.leave_sent, patience_s)
    except GeneratorExit:
        raise
    except Unreachable as failure:
        hold.stop_leaving(failure.sent)
        if hold.why_lost:
            keeper.finish(hold)
            raise hold.loss() from failure
        raise
    except BaseException:
        rescue(hold, keeper)
        raise
    end(hold, stood)


def abandon(hold: Hold, keeper: Keeps) -> None:
    """Let the keeper give back a hold whose grant nobody has, and nobody will have."""
    if begin(hold, keeper):
        rescue(hold, keeper)


def leave_by(hold: Hold, env: Env, sent_before: bool, patience_s: float | None = None) -> Flow[bool]:
    """Have the end of a hold confirmed: see admission.leave, or that of a majority."""
    if hold.votes is None:
        return (yield from leave(hold.ask, hold.ticket, hold.unsure, env, sent_before, patience_s))
    from lockfast.flows import quorum_holds  # only where there is one

    return (yield from quorum_holds.leave(hold, env, sent_before, patience_s))


def end(hold: Hold, stood: bool) -> None:
    """The server has confirmed. stood: the hold was there until now."""
    hold.end_leave(stood, told=True)
    if hold.why_lost:
        raise hold.loss()


def conclude(hold: Hold, keeper: Keeps, error: BaseException | None, failure: Exception) -> bool:
    """What a block does about a release that failed. True: raise the failure; False: the body's outcome stands.

    A body's own error is never replaced by ours.
    """
    if isinstance(failure, Unreachable):
        # The body ran under the lock to its end, so raising now would only make callers do it again. The keeper
        # sees to it that the server hears of the release; at the latest the lease ends it.
        keeper.finish(hold)
        return False
    if error is not None:
        if not isinstance(error, LeaseLost):
            error.add_note(f"lockfast: {failure}")
        return False
    return True
