"""How fast this machine trains: `python -m daisychain.train.bench --threads N --slowdown F`.

Real forward, backward and optimizer steps of a reference MLP (about 400,000 parameters) at several batch sizes, with
the number of threads, N at most, that is fastest here: under a CPU quota two can be thirty times slower than one.
Prints JSON lines, {"kind": "point", "samples", "seconds"} for each size, then {"kind": "done", "torch": version,
"threads": number}. Ends when stdin does.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SIZES = (16, 64, 192, 512)
EACH_S = 0.75
"""Time for each size: several periods of a CPU quota (0.1 s), so that its stalls count as often as they come."""
TRIAL_SIZE = 192
WORTH = 0.1
"""Part of a step's time that more threads must save."""
FEWEST = 2
PATIENCE_S = 3.4
"""After so long no larger size is begun, once two have been measured."""


def main() -> None:
    options = _options()
    threading.Thread(target=end_with_stdin, daemon=True).start()
    import torch

    torch.manual_seed(0)
    threads = best_threads(options.threads, _time_with_threads)
    torch.set_num_threads(threads)
    begun_s = time.perf_counter()
    for index, samples in enumerate(SIZES):
        if index >= 2 and time.perf_counter() - begun_s > PATIENCE_S - EACH_S:
            break
        say({"kind": "point", "samples": samples, "seconds": measure(reference_step(samples), options.slowdown)})
    say({"kind": "done", "torch": torch.__version__, "threads": threads})


def best_threads(most: int, seconds: Callable[[int], float]) -> int:
    """The number of threads up to `most` whose step takes the fewest `seconds`: 1, 2, 4 ... and `most` are tried.

    More threads must be worth WORTH, and the search ends with the first number that isn't.
    """
    best, best_s = 1, seconds(1) if most > 1 else 0.0
    tried = 1
    while tried < most:
        tried = min(2 * tried, most)
        took_s = seconds(tried)
        if took_s > best_s * (1 - WORTH):
            break
        best, best_s = tried, took_s
    return best


def _time_with_threads(threads: int) -> float:
    import torch

    torch.set_num_threads(threads)
    return measure(reference_step(TRIAL_SIZE), 1.0)


def reference_step(samples: int, device: str = "cpu") -> Callable[[], None]:
    """One training step of the reference model over `samples`, done when it returns."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model, x, y = model.to(device), torch.randn(samples, 256).to(device), torch.randint(10, (samples,)).to(device)

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        with torch.no_grad():  # SGD by hand: the first torch.optim optimizer takes a second to load its modules
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
        if device != "cpu":
            torch.cuda.synchronize(device)

    return step


def measure(
    step: Callable[[], None],
    slowdown: float,
    *,
    each_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Seconds a step, over `each_s` of steps and at least FEWEST; each stretched by `slowdown` as in a run.

    each_s: None: EACH_S.

    The mean, not the median: under a CPU quota most short steps run at full speed and then one stalls for all.
    """
    enough_s = EACH_S if each_s is None else each_s
    step()  # allocations and lazy set-up
    begun_s = before_s = clock()
    steps = 0
    while steps < FEWEST or before_s - begun_s < enough_s:
        step()
        steps += 1
        if slowdown > 1:
            sleep((clock() - before_s) * (slowdown - 1))
        before_s = clock()
    return (before_s - begun_s) / steps


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m daisychain.train.bench")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads at most")
    parser.add_argument("--slowdown", type=float, default=1.0, help="stretch each second of computing to this many")
    return parser.parse_args()


def say(line: dict[str, Any]) -> None:
    """One JSON line for the agent."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def end_with_stdin() -> None:
    """For a thread: the end of stdin ends this process."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
