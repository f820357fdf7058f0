"""How ranks are kept alike: what `--sync` may say, and how many steps a round of local ones has. Pure.

exact       gradients are summed in every step: the updates of a single machine
bf16        the same, with 16 bits a gradient on the wire
local[:H]   each rank steps on its own shares; after H steps parameters are averaged (H chosen where not given)
"""

from math import ceil
from typing import Literal, NamedTuple

from daisychain.errors import UsageError

MAX_STEPS = 200
"""Of a round, where the tool chooses: longer ones converge less well, and a lost rank costs the others a round."""
FIRST_STEPS = 10
"""Of the first round, after which exchange and shares are measured."""
LEAST_STEPS = 32
"""Of later ones, where the tool chooses: comparing, copying and hashing parameters at each end is work too, and hosts
under a quota (0.1 s) come to a round's end, and to its middle, at times as far apart as that."""
ON_THE_WAY = 0.5
"""The part of a round for which the average of the one before may be on its way, while steps are done."""
SLACK = 1.25
"""How much longer a round may be than wanted, so that its pass doesn't end with a short one."""


class Outer(NamedTuple):
    """The step that all take together at a round's end, as torch.optim.SGD does it with nesterov=True.

    Its gradient is what the round has changed on average, with the sign turned round. (1, 0) is a plain average.
    """

    rate: float
    momentum: float


AVERAGE = Outer(1.0, 0.0)
SHORT = Outer(1.0, 0.5)
"""Parts of a batch are noisier than the batch, so that Adam's steps over them are smaller, and averages lag behind a
single machine. Three ranks simulated in one process, on a table of flights (1024 steps of 2048 samples; shares of 64,
27 and 9 %; rounds of 32): log loss 0.1041 on one machine, 0.1072 with plain averages, 0.1088 where these come half a
round late; so late, but with this momentum, 0.1049. Coming a whole round late undoes that (0.1110 with 0.4)."""
LONG = Outer(0.7, 0.9)
"""Of Douillard et al., "DiLoCo", 2023, for rounds of some hundred steps."""


def outer(steps: int) -> Outer:
    """For a round of so many steps; a single one is a step of the batch by itself."""
    if steps == 1:
        return AVERAGE
    return SHORT if steps <= MAX_STEPS else LONG


class Sync(NamedTuple):
    """A parsed `--sync`."""

    kind: Literal["exact", "bf16", "local"] = "exact"
    steps: int = 0
    """Of a round; 0: chosen from measured times."""

    @property
    def approximate(self) -> str:
        """What is not exact about it, for people; empty for exact."""
        match self.kind:
            case "bf16":
                return "approximate: gradients are rounded to 16 bits on the wire"
            case "local":
                steps = str(self.steps) if self.steps else "a number of"
                return f"approximate: nodes step on their own, and parameters are averaged after {steps} steps"
        return ""


def parse(text: str) -> Sync:
    """Raises UsageError, naming what is allowed."""
    kind, colon, steps = text.partition(":")
    match kind:
        case "exact" | "bf16" if not colon:
            return Sync(kind)
        case "local" if not colon:
            return Sync("local")
        case "local" if steps.isascii() and steps.isdigit() and 1 <= int(steps) <= 1_000_000:
            return Sync("local", int(steps))
    raise UsageError(
        f"{text!r} is no way to sync", "Use exact, bf16, local, or local:H with a number of steps H of 1 or more"
    )


def next_steps(steps: int, step_s: float, exchange_s: float) -> int:
    """Steps of the next round: the fewest during which an exchange is over in good time, LEAST_STEPS to MAX_STEPS.

    steps: of the last round; rounds grow twofold at most, since shares follow measured times only between rounds, and
    parameters move fastest at the beginning. step_s: of one step. exchange_s: of one exchange; 0: not yet known.
    """
    if step_s <= 0 or exchange_s <= 0:
        return steps
    wanted = max(LEAST_STEPS, ceil(exchange_s / ON_THE_WAY / step_s))
    return min(wanted, 2 * steps, MAX_STEPS)


def exposed_s(steps: int, step_s: float, exchange_s: float) -> float:
    """What exchanges add to a step of a round, in the mean: what doesn't fit beside the steps, and one that is waited
    for every MAX_STEPS, where a pass ends and the script looks at its model."""
    return max(0.0, exchange_s / steps - step_s) + exchange_s / MAX_STEPS


def fitted(steps: int, left: int) -> int:
    """Steps of a round such that the `left` steps of a pass make equal ones, at most SLACK times as long."""
    return ceil(left / ceil(left / (steps * SLACK)))
