"""Where a step's time goes, measured by the rank that computes, without waiting in collectives. No torch.

    begin ---- load, forward, backward ----> ready ~~~ exchange ~~~> reduced ---- optimizer ----> end
               compute                              exposed                       compute

Gradients that are exchanged while backward still runs cost nothing here; only what comes after the last one is ready
does. A node that is slowed on purpose sleeps at the end of each stretch of computing, and that counts as computing.
"""

import time
from collections.abc import Callable
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds of one step on one rank."""

    compute_s: float
    exposed_s: float
    step_s: float


def _nothing() -> None:
    """A CPU has always finished what it was told."""


class Meter:
    """One step after the other. `reduced` may be called from any thread, the rest from the script's."""

    def __init__(
        self,
        slowdown: float = 1.0,
        *,
        settle: Callable[[], None] = _nothing,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """slowdown: stretch each second of computing to this many. settle: wait until the device has finished."""
        self._slowdown, self._settle, self._clock, self._sleep = slowdown, settle, clock, sleep
        self._running = False
        self._begun_s = self._resumed_s = self._reduced_s = 0.0
        self._ready_s: float | None = None
        self._compute_s = self._exposed_s = 0.0

    def begin(self) -> None:
        """The next batch is asked for."""
        self._begun_s = self._resumed_s = self._clock()
        self._ready_s = None
        self._compute_s = self._exposed_s = 0.0
        self._running = True

    def ready(self) -> None:
        """The last gradients of a backward are computed; their exchange comes next."""
        if not self._running:
            return
        self._resume()
        self._stop_computing()
        self._ready_s = self._reduced_s = self._clock()

    def reduced(self) -> None:
        """The exchange of some gradients is over."""
        self._reduced_s = self._clock()

    def end(self) -> Times:
        """The step is over."""
        self._resume()
        self._stop_computing()
        self._running = False
        return Times(self._compute_s, self._exposed_s, self._clock() - self._begun_s)

    def drop(self) -> None:
        """There was no further batch: no step."""
        self._running = False

    def _stop_computing(self) -> None:
        self._settle()
        if self._slowdown > 1:
            self._sleep((self._clock() - self._resumed_s) * (self._slowdown - 1))
        self._compute_s += self._clock() - self._resumed_s

    def _resume(self) -> None:
        """Computing went on when the exchange was over; several backwards in a step each count."""
        if self._ready_s is not None:
            self._exposed_s += self._reduced_s - self._ready_s
            self._resumed_s, self._ready_s = self._reduced_s, None
