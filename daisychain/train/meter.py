"""Where a step's time goes, measured by the rank that computes, without waiting in collectives. No torch.

    begin ---- load, forward, backward ----> ready ~~~ exchange ~~~> reduced ---- optimizer ----> end
               compute                              exposed                       compute

Gradients that are exchanged while backward still runs cost nothing here; only what comes after the last one is ready
does. A node that is slowed on purpose sleeps at the end of each stretch of computing, and that counts as computing.

Waiting isn't always for the others: where processors are short (a CPU quota that is used up, other programs), the
threads that exchange are kept waiting too. This rank would be quicker with less to do, so what it is charged for a step
includes that.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

LOOK_EVERY_S = 0.1
"""Between two steps whose exchanges are looked at, ..."""
TOGETHER_S = 0.8
"""... of which those within this time count together: that covers several periods of a CPU quota (0.1 s). A longer step
counts by itself; when a longer wait for the others was charged by short ones before it, slow nodes got too little."""


class Times(NamedTuple):
    """Seconds of one step on one rank."""

    compute_s: float
    exposed_s: float
    step_s: float
    charged_s: float
    """What to share samples by: the computing, and how long the threads that exchange waited for a processor."""


def waited_s(tasks: str = "/proc/self/task") -> float:
    """Seconds for which threads of this process, but for the caller, were ready to run and didn't; 0 if unknown.

    Linux alone tells (schedstat: nanoseconds run, nanoseconds waited, time slices).
    """
    total_ns, own = 0, str(threading.get_native_id())
    try:
        # without pathlib, which takes three times as long in the middle of a step
        for task in os.listdir(tasks):  # noqa: PTH208
            if task != own:
                with contextlib.suppress(OSError), open(f"{tasks}/{task}/schedstat", "rb", buffering=0) as file:  # noqa: PTH123
                    total_ns += int(file.read(100).split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return total_ns / 1e9


class Charge:
    """What steps cost a rank. It looks at some exchanges, a few in a second: looking takes a part of a millisecond."""

    def __init__(self, waited: Callable[[], float], clock: Callable[[], float] = time.perf_counter) -> None:
        """waited: seconds for which other threads were kept from running, so far."""
        self._waited, self._clock = waited, clock
        self._begun_s, self._next_s, self._looking = 0.0, 0.0, False
        self._threads_s = 0.0
        """For which threads waited during this step's exchanges."""
        self._before_s: float | None = None
        """What `waited` said as the open exchange began; None: it isn't looked at."""
        self._looks: deque[tuple[float, float, float]] = deque()
        """When a step began, seconds of its exchanges for which threads waited for a processor, and all of them."""

    def begin_step(self) -> None:
        """Look at this step's exchanges, if it is time. A step that wasn't one takes no look away (Meter.drop)."""
        self._begun_s, self._threads_s = self._clock(), 0.0
        self._looking = self._begun_s >= self._next_s

    def begin_exchange(self) -> None:
        """The script's thread begins to wait: what others do from now on is the exchange."""
        self._before_s = self._waited() if self._looking else None

    def end_exchange(self) -> None:
        """They are done; said again, it means nothing."""
        if self._before_s is not None:
            self._threads_s += max(0.0, self._waited() - self._before_s)  # a thread that ends takes its time along
            self._before_s = None

    def of(self, computed_s: float, exposed_s: float) -> float:
        """The cost of the step that is over, in which so much was computed, and waited for exchanges."""
        if self._looking:
            self._next_s = self._begun_s + LOOK_EVERY_S
            while self._looks and self._looks[0][0] <= self._begun_s - TOGETHER_S:
                self._looks.popleft()
            if exposed_s > 0:
                self._looks.append((self._begun_s, min(exposed_s, self._threads_s), exposed_s))
        threads_s, looked_s = sum(look[1] for look in self._looks), sum(look[2] for look in self._looks)
        return computed_s + (exposed_s * threads_s / looked_s if looked_s else 0.0)


def _nothing() -> None:
    """A CPU has always finished what it was told."""


class Meter:
    """One step after the other. `reduced` may be called from any thread, the rest from the script's."""

    def __init__(
        self,
        slowdown: float = 1.0,
        *,
        settle: Callable[[], None] = _nothing,
        charge: Charge | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """slowdown: stretch each second of computing to this many. settle: wait until the device has finished.

        charge: what steps cost; None: what they compute."""
        self._charge = charge
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
        if self._charge is not None:
            self._charge.begin_step()

    def ready(self) -> None:
        """The last gradients of a backward are computed; their exchange comes next."""
        if not self._running:
            return
        self._resume()
        self._stop_computing()
        if self._charge is not None:
            self._charge.begin_exchange()
        self._ready_s = self._reduced_s = self._clock()

    def reduced(self) -> None:
        """The exchange of some gradients is over."""
        self._reduced_s = self._clock()
        if self._charge is not None:
            self._charge.end_exchange()

    def end(self) -> Times:
        """The step is over."""
        self._resume()
        self._stop_computing()
        self._running = False
        step_s = self._clock() - self._begun_s
        charged_s = self._charge.of(self._compute_s, self._exposed_s) if self._charge is not None else self._compute_s
        return Times(self._compute_s, self._exposed_s, step_s, charged_s)

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
