"""Micro-batches: a rank's piece of a global batch that is more than it may compute at once, done part by part.

With g_m the mean gradient of part m over n_m samples, and B samples in the global batch, a rank keeps

    sum over its parts of n_m / B * g_m

beside the parameters, out of reach of whatever the script does with `.grad` after each part (clipping, clearing), and
makes it their gradient after the last one. Nothing is exchanged before that, since ranks may have different numbers of
parts. Where targets are counted, c_m of a part, B is replaced by all ranks' targets in the end.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from daisychain.errors import ScriptError
from daisychain.train.batches import Piece

REMEDY = "Leave --micro-batch out, or use a smaller --batch"


def parts_of(piece: Piece, most: int | None) -> list[Piece]:
    """The piece in as few parts of at most so many samples as possible, equal but for one sample."""
    if most is None or piece.share <= most:
        return [piece]
    number = -(-piece.share // most)
    ends = [piece.share * part // number for part in range(number + 1)]
    return [
        piece._replace(rows=piece.rows[begin:end], share=end - begin, first=piece.first + begin)
        for begin, end in pairwise(ends)
    ]


class Parts:
    """The parts of the step that is being done. Most steps have one, and then nothing here does anything."""

    def __init__(self) -> None:
        self._count, self._number = 1, 0
        self._part_weight = 1.0
        """Of the part's mean gradient in the sum: its samples, or its targets, over the batch."""
        self._batch = 1
        self._targets = 0.0
        self._acts = 0
        self._done: set[int] = set()
        """Models that have had their backward in this part."""
        self._kept: dict[nn.Parameter, Tensor] = {}
        self._logged: list[tuple[float, float | None, dict[str, float]]] = []

    def begin(self, piece: Piece, parts: Sequence[Piece], *, adds_up: bool) -> None:
        """A step begins. adds_up: the script itself adds up gradients of several batches. Raises ScriptError then."""
        self._count, self._number, self._acts = len(parts), 0, 0
        if not self.many:
            return
        if adds_up:
            raise ScriptError("the script adds up gradients of several batches, and micro-batches do the same", REMEDY)
        self._kept, self._logged, self._targets, self._batch = {}, [], 0.0, piece.batch
        self._weigh(parts[0])

    def next(self, part: Piece) -> None:
        """The next part begins."""
        self._number, self._acts = self._number + 1, 0
        self._weigh(part)

    def _weigh(self, part: Piece) -> None:
        self._part_weight = part.share / self._batch
        self._done = set()

    @property
    def many(self) -> bool:
        return self._count > 1

    @property
    def is_open(self) -> bool:
        """Whether further parts come after this one."""
        return self._number < self._count - 1

    @property
    def weight(self) -> float:
        """Of the sum over a step's parts, in which they are weighed already, in that over all ranks; 0: one part."""
        return 1.0 if self.many else 0.0

    def add(self, parameters: Sequence[nn.Parameter]) -> None:
        """A backward is over: keep its gradients, or after the last part's, give the parameters the sums.

        parameters: of one model, always the same list. Raises ScriptError at a second backward in a part.
        """
        if id(parameters) in self._done:
            raise ScriptError("micro-batches need a script with one backward a batch", REMEDY)
        self._done.add(id(parameters))
        found = [p for p in parameters if p.grad is not None]
        if self._part_weight:  # a part that doesn't count may have a gradient of NaN, and 0 * NaN is NaN
            self._keep(found, [p.grad for p in found if p.grad is not None])
        for parameter in found:
            parameter.grad = None
        if not self.is_open:
            for parameter in parameters:
                parameter.grad = self._kept.pop(parameter, None)

    def _keep(self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        weighed = torch._foreach_mul(list(gradients), self._part_weight) if gradients else ()
        for parameter, gradient in zip(parameters, weighed, strict=True):
            kept = self._kept.get(parameter)
            self._kept[parameter] = gradient if kept is None else kept.add_(gradient)

    def act(self, *, closure: bool) -> None:
        """An optimizer is to step. Raises ScriptError at a second time in a part, and for one that calls a closure."""
        self._acts += 1
        if self.many and closure:
            raise ScriptError("an optimizer that calls a closure needs the whole batch at once", REMEDY)
        if self.many and self._acts > 1:
            raise ScriptError("micro-batches need a script whose optimizers step once a batch, all together", REMEDY)

    def count(self, targets: float) -> float:
        """This part weighs by its targets; the step's targets so far."""
        if not self.many:
            return targets
        self._targets += targets
        self._part_weight = targets / self._batch
        return self._targets

    def log(self, loss: float | None, values: dict[str, float]) -> None:
        """What the script said of a part that is over."""
        self._logged.append((self._part_weight, loss, values))

    def logged(self, loss: float | None, values: dict[str, float]) -> tuple[float | None, dict[str, float]]:
        """What it said of the whole step: means by what the parts weigh. The arguments: of the last part."""
        everything = [*self._logged, (self._part_weight, loss, values)]
        names = dict.fromkeys(name for _, _, said in everything for name in said)
        means = {name: _mean((weight, said[name]) for weight, _, said in everything if name in said) for name in names}
        losses = [(weight, value) for weight, value, _ in everything if value is not None]
        return (_mean(losses) if losses else None), means


def _mean(values: Iterable[tuple[float, float]]) -> float:
    pairs = list(values)
    total = sum(weight for weight, _ in pairs)
    return sum(weight * value for weight, value in pairs) / total if total else pairs[-1][1]
