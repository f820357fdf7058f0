"""Exact gradients over unequal shares: while backward runs, weighted gradients are summed over all ranks.

With the loss a mean over its samples, the gradient of a whole batch of B is the sum over ranks of n_r / B times the
rank's own gradient. Gradients go into buckets in the order in which backward makes them; a bucket leaves as soon as it
is full, so that the exchange overlaps with the rest of backward.

Why not DistributedDataParallel with a comm hook: it runs collectives of its own (bucket order, unused parameters) that
raise in the script when a rank is lost, and it can't be told that its group has changed.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from daisychain.train.exchange import Exchange

FIRST_BUCKET_BYTES = 1024 * 1024
"""Small, so that the exchange begins early."""
BUCKET_BYTES = 25 * 1024 * 1024


class Steps(Protocol):
    """What the reducer asks and tells (steps.Steps)."""

    @property
    def weight(self) -> float:
        """The factor of this rank's gradients."""

    @property
    def in_parts(self) -> bool:
        """Whether gradients of several backwards are added up before they are exchanged (micro-batches)."""

    def add_part(self, parameters: list[nn.Parameter]) -> bool:
        """One of these is over; whether it was the last, and the parameters have the sums."""

    def ready(self) -> None:
        """The last gradients are computed."""

    def reduced(self) -> None:
        """The exchange is over."""

    def bulletin(self) -> list[float]:
        """What this rank tells all others along with its gradients."""

    def posted(self, bulletin: list[float]) -> None:
        """The elementwise sum of all ranks' bulletins."""


class Bucket:
    """Some parameters' gradients in one buffer, with room for what else travels along."""

    def __init__(self, parameters: list[nn.Parameter], extra: int, wire: torch.dtype | None = None) -> None:
        """wire: the buffer's type; None: the parameters' own."""
        self.parameters, self._rounds = parameters, wire is not None
        self.size = sum(p.numel() for p in parameters)
        first = parameters[0]
        self.buffer = torch.zeros(self.size + extra, dtype=wire or first.dtype, device=first.device)
        self.views: list[Tensor] = []
        at = 0
        for parameter in parameters:
            self.views.append(self.buffer[at : at + parameter.numel()].view(parameter.shape))
            at += parameter.numel()
        self.missing = len(parameters)

    def fill(self, weight: float) -> None:
        """Weighted gradients into the buffer; zero where there are none."""
        gradients = self.buffer[: self.size]
        if not weight:  # a sample that doesn't count may have a gradient of NaN, and 0 * NaN is NaN
            gradients.zero_()
            return
        views, found = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                views.append(view)
                found.append(parameter.grad)
        if self._rounds and found:  # once, at the end
            found = list(torch._foreach_mul(found, weight))
        if found:
            torch._foreach_copy_(views, found)
        if not self._rounds:
            gradients.mul_(weight)

    def hand_out(self, used: Iterable[bool]) -> None:
        """The sums become the parameters' gradients, but for parameters that no rank used."""
        views, gradients = [], []
        for view, parameter, is_used in zip(self.views, self.parameters, used, strict=True):
            if parameter.grad is not None:
                views.append(view)
                gradients.append(parameter.grad)
            elif is_used:
                parameter.grad = view.to(parameter.dtype, copy=True)
        if views:
            torch._foreach_copy_(gradients, views)


class Departures:
    """Sums of buckets, begun in their order, the same on every rank: each once all its gradients are complete.

    The last one waits until backward is over.
    """

    def __init__(self, buckets: list[Bucket], exchange: Exchange, weight: Callable[[], float]) -> None:
        """weight: the factor of this rank's gradients, asked for when they leave."""
        self.buckets = buckets
        self._exchange, self._weight = exchange, weight
        self._sent: list[Any] = []

    def begin(self) -> None:
        """A backward pass begins."""
        self._sent = []
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def complete(self, index: int) -> None:
        """One of this bucket's gradients is."""
        self.buckets[index].missing -= 1
        while len(self._sent) < len(self.buckets) - 1 and not self.buckets[len(self._sent)].missing:
            self.send()

    def send_others(self) -> None:
        """What hasn't left yet, but for the last."""
        while len(self._sent) < len(self.buckets) - 1:
            self.send()

    def send(self) -> None:
        """Begin the next one's sum."""
        bucket = self.buckets[len(self._sent)]
        bucket.fill(self._weight())
        self._sent.append(self._exchange.start(bucket.buffer))

    def send_along(self, values: Tensor) -> None:
        """Begin the sum of something else."""
        self._sent.append(self._exchange.start(values))

    def wait(self) -> None:
        """Until all sums have arrived."""
        for work in self._sent:
            self._exchange.finish(work)


class Reducer:
    """Watches one model's backward passes. All ranks must build it from the same model."""

    def __init__(
        self,
        model: nn.Module,
        steps: Steps,
        exchange: Exchange,
        *,
        bucket_bytes: int | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        """bucket_bytes: a bucket's size; None: what suits the exchange.

        wire: what weighted gradients are rounded to before they are summed; None: they leave as they are."""
        self._steps, self._exchange, self._bucket_bytes = steps, exchange, bucket_bytes
        self._parameters = list(model.parameters())
        self._wire = wire
        self._handles: list[Any] = []
        self._laid_out: tuple[Any, ...] = ()
        self._departures = Departures([], exchange, lambda: steps.weight)
        self._running = self._in_parts = False
        self.lay_out()
        model.register_forward_pre_hook(lambda *_: self.lay_out())

    @property
    def groups(self) -> list[list[nn.Parameter]]:
        """Parameters whose gradients leave together, in the order in which they do."""
        self.lay_out()
        return [bucket.parameters for bucket in self._departures.buckets]

    def lay_out(self) -> None:
        """Make the buckets, if their size or the trained parameters have changed (some were frozen or freed).

        Alone, with nothing to add up, no gradient is watched: that would be a large part of a small model's step.
        """
        limit = self._bucket_bytes or self._exchange.bucket_bytes or BUCKET_BYTES
        watches = not self._exchange.alone or self._steps.in_parts
        layout = (limit, watches, *(p.requires_grad for p in self._parameters))
        if layout == self._laid_out:
            return
        self._laid_out = layout
        for handle in self._handles:
            handle.remove()
        parameters = [p for p in reversed(self._parameters) if p.requires_grad]
        groups = list(_groups(parameters, limit))
        self._departures.buckets = [Bucket(group, 0, self._wire) for group in groups]
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._ready, index))  # type: ignore[no-untyped-call]
            for index, group in enumerate(groups)
            for parameter in group
            if watches
        ]

    def _ready(self, index: int, _: Tensor) -> None:
        """A parameter's gradient is computed."""
        if not self._running:
            self._in_parts = self._steps.in_parts
            if self._exchange.alone and not self._in_parts:
                return
            self._running = True
            self._departures.begin()
            Variable._execution_engine.queue_callback(self._finish_part if self._in_parts else self._finish)
        if not self._in_parts:
            self._departures.complete(index)

    def _finish_part(self) -> None:
        """A part's backward is over. After the last one, the sums are exchanged like any gradients."""
        self._running = False
        if not self._steps.add_part(self._parameters):
            return
        if not self._exchange.alone:
            self._finish()
            return
        found = [p.grad for p in self._parameters if p.grad is not None]
        if found:
            torch._foreach_mul_(found, self._steps.weight)

    def _finish(self) -> None:
        """Backward is over: exchange what is left, and give every parameter its sum."""
        self._running = False
        self._departures.send_others()
        used = [float(p.grad is not None) for bucket in self._departures.buckets for p in bucket.parameters]
        bulletin = self._steps.bulletin()
        self._steps.ready()
        news = self._send_last(bulletin + used)
        self._departures.wait()
        self._steps.reduced()
        if self._exchange.broken:
            return
        told: list[float] = news.tolist()
        self._steps.posted(told[: len(bulletin)])
        flags = iter(told[len(bulletin) :])
        for bucket in self._departures.buckets:
            bucket.hand_out([next(flags) > 0 for _ in bucket.parameters])

    def _send_last(self, news: list[float]) -> Tensor:
        """The last bucket, the news behind its gradients; in an exchange of their own where they lose precision."""
        buckets = self._departures.buckets
        last = buckets[-1]
        along = last.buffer.dtype in (torch.float32, torch.float64)
        if along and len(last.buffer) != last.size + len(news):
            last = buckets[-1] = Bucket(last.parameters, len(news))
        values = last.buffer[last.size :] if along else torch.empty(len(news))
        values.copy_(torch.tensor(news, dtype=values.dtype))
        self._departures.send()
        if not along:
            self._departures.send_along(values)
        return values


def _groups(parameters: list[nn.Parameter], limit_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Parameters in order, in runs of one dtype and device, the first run small."""
    group: list[nn.Parameter] = []
    size, limit = 0, min(FIRST_BUCKET_BYTES, limit_bytes)
    for parameter in parameters:
        alike = group and (group[0].dtype, group[0].device) == (parameter.dtype, parameter.device)
        if group and (not alike or size >= limit):
            yield group
            group, size, limit = [], 0, limit_bytes
        group.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if group:
        yield group


def fingerprint(models: Iterable[nn.Module]) -> tuple[int, int, int, int]:
    """Names, shapes and types of all parameters, hashed; their values don't matter, the newest are sent to all."""
    parameters = [named for model in models for named in model.named_parameters()]
    text = "\n".join(f"{name} {tuple(p.shape)} {p.dtype}" for name, p in parameters)
    digest = hashlib.sha256(text.encode()).digest()
    words = [int.from_bytes(digest[at : at + 8], "little", signed=True) for at in range(0, 32, 8)]
    return words[0], words[1], words[2], words[3]
