"""What runs inside a client process: threads, or tasks of its loop; here they are the same thing.

A task is a generator that yields what it waits for: `(pending, by)`, where `by` is on the client's own clock. It is
sent True when the pending answer is there, False when time ran out. The code of `pooled.py`, `shared.py` and `hub.py`
is written this way so that it can be read side by side with the real drivers.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.errors import LockfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockfast.sim.client import Client
    from lockfast.sim.world import Timer

R = TypeVar("R")
TICK_S = 0.25  # drivers look at their deadlines at least this often while they wait for a reply


class Cancelled(BaseException):
    """Ctrl-C, or a cancelled task: whoever asked no longer wants it."""


class PowerOff(GeneratorExit):
    """The process died between two of its instructions."""


class Pending:
    """An answer that may come. One task at a time may wait for it."""

    __slots__ = ("done", "error", "then", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.then: Callable[[], None] | None = None

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """The answer is there, or surely will not come. The first word counts."""
        if self.done:
            return
        self.done = True
        self.value = value
        self.error = error
        then, self.then = self.then, None
        if then is not None:
            then()

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


# by: on the client's clock. tick: whether the wait looks at the clock again soon after the machine slept.
Waited = tuple[Pending | None, float, bool]
Steps = Generator[Waited, bool, R]


def until(pending: Pending | None, by: float = inf, tick: bool = False) -> Steps[bool]:
    """Wait for an answer, or for a moment."""
    return (yield pending, by, tick)


class Task:
    """One generator being run to its end."""

    __slots__ = ("_alarm", "_client", "_running", "_serial", "_steps", "ended", "label")

    def __init__(self, client: Client, steps: Steps[Any], label: str) -> None:
        self.label = label
        self.ended = Pending()
        self._client = client
        self._steps = steps
        self._serial = 0  # of the wait that is under way: a wake-up for an earlier one means nothing
        self._alarm: Timer | None = None
        self._running = False
        client.tasks[self] = None
        client.soon(self._wake, 0, True)

    @property
    def done(self) -> bool:
        return self.ended.done

    def result(self) -> Any:
        """What the body returned; raises what it raised."""
        assert self.ended.done, f"{self.label} of {self._client.name} is still running"
        return self.ended.result()

    def cancel(self) -> None:
        """Throw Cancelled in where it waits, as Ctrl-C and asyncio do."""
        if not self.ended.done:
            self._client.deliver(self, self._step, False, Cancelled("cancelled"))

    def power_off(self) -> None:
        """The process is gone. What is in mid-step (a stall) dies when it comes back to itself."""
        self._serial += 1
        if not self._running:
            self._steps.close()

    def _wake(self, serial: int, in_time: bool) -> None:
        if serial == self._serial and not self.ended.done:
            self._step(in_time, None)

    def _step(self, answer: bool, error: BaseException | None) -> None:
        if self.ended.done or self._running:
            return  # a second Ctrl-C while the first one is still being dealt with
        self._serial += 1
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        steps = self._steps
        sent: Any = answer if self._serial > 1 else None
        self._running = True
        try:
            while True:
                pending, by, tick = steps.send(sent) if error is None else steps.throw(error)
                error = None
                if pending is None or not pending.done:
                    break
                sent = True
        except StopIteration as stop:
            self._finish(stop.value, None)
            return
        except PowerOff:
            return
        except (LockfastError, Cancelled) as struck:
            self._finish(None, struck)
            return
        finally:
            self._running = False
        client, serial = self._client, self._serial
        if client.dead:
            steps.close()
            return
        if pending is not None:
            pending.then = lambda: client.wake(self._wake, serial)
        if by != inf:
            self._alarm = client.alarm(by, tick, self._wake, serial, False)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self._client.tasks.pop(self, None)
        self.ended.settle(value, error)
