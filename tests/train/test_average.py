"""The mean of what all ranks' rounds changed, without ranks: the exchange is a fake that adds a second rank's part."""

import pytest
import torch
from torch import nn

from daisychain.plan.sync import AVERAGE, LONG
from daisychain.train.average import Average
from daisychain.train.exchange import Exchange
from daisychain.train.state import Training

pytestmark = pytest.mark.torch
EVERYTHING = ()


class Second(Exchange):
    """Adds what another rank sends, or breaks."""

    def __init__(self, theirs=None):
        super().__init__()
        self.theirs = theirs

    def start(self, values):
        if self.theirs is None:
            self.broken = "gone"
        else:
            values += self.theirs.to(values.dtype)


def trained(change):
    """A model that has moved by `change` since `start`, its averager, and the start."""
    model = nn.Linear(2, 1, bias=False)
    model.register_buffer("seen", torch.zeros(1))
    training = Training([model], [], [])
    start = training.capture()
    with torch.no_grad():
        model.weight += torch.tensor([change])
        model.seen += 1.0
    return model, Average(training, torch.float32), start


def take(average, start, moved, *, weight, outer, exchange):
    average.end(average.begin(start, moved, weight=weight, exchange=exchange), outer=outer, exchange=exchange)


def test_the_mean_is_weighted_and_starts_from_the_common_state():
    model, average, start = trained([0.4, -0.8])
    assert average.moved(start) == [1.0, 1.0]
    take(average, start, EVERYTHING, weight=0.75, outer=AVERAGE, exchange=Second(torch.tensor([0.1, 0.1, 0.25])))
    wanted = start["models"][0]["parameters"]["weight"] + torch.tensor([[0.3 + 0.1, -0.6 + 0.1]])
    assert torch.allclose(model.weight, wanted)
    assert torch.allclose(model.seen, torch.tensor([1.0]))


def test_the_outer_step_is_that_of_nesterov_and_leaves_buffers_alone():
    model, average, start = trained([0.4, -0.8])
    reference = nn.Parameter(start["models"][0]["parameters"]["weight"].clone())
    sgd = torch.optim.SGD([reference], LONG.rate, momentum=LONG.momentum, nesterov=True)
    for _ in range(3):
        before = average._training.capture()
        with torch.no_grad():
            model.weight += torch.tensor([[0.4, -0.8]])
        reference.grad = -torch.tensor([[0.4, -0.8]])
        sgd.step()
        take(average, before, EVERYTHING, weight=1.0, outer=LONG, exchange=Second(torch.zeros(3)))
    offset = torch.tensor([[0.4, -0.8]])  # the move of `trained`, before the first round
    assert torch.allclose(model.weight, reference + offset, atol=1e-6)
    assert model.seen == 1.0


def test_a_rank_without_samples_adds_nothing_even_when_it_has_diverged():
    model, average, start = trained([float("nan"), 1.0])
    take(average, start, EVERYTHING, weight=0.0, outer=AVERAGE, exchange=Second(torch.tensor([0.5, 0.5, 1.0])))
    assert torch.allclose(model.weight, start["models"][0]["parameters"]["weight"] + 0.5)


def test_what_no_rank_has_changed_is_not_exchanged():
    model, average, start = trained([0.0, 0.0])
    assert average.moved(start) == [0.0, 1.0]
    model.weight.requires_grad_(False)
    take(average, start, [0.0, 2.0], weight=0.5, outer=AVERAGE, exchange=Second(torch.tensor([0.5])))
    assert torch.equal(model.weight, start["models"][0]["parameters"]["weight"])


def test_what_does_not_train_but_moved_before_is_exchanged():
    model, average, start = trained([0.4, 0.0])
    model.weight.requires_grad_(False)
    take(average, start, [1.0, 2.0], weight=0.5, outer=AVERAGE, exchange=Second(torch.zeros(3)))
    assert torch.allclose(model.weight, start["models"][0]["parameters"]["weight"] + torch.tensor([[0.2, 0.0]]))


def test_what_changes_while_the_average_is_on_its_way_is_kept():
    model, average, start = trained([0.4, -0.8])
    exchange = Second(torch.tensor([0.1, 0.1, 0.25]))
    on_its_way = average.begin(start, EVERYTHING, weight=0.5, exchange=exchange)
    later = average._training.capture()
    with torch.no_grad():
        model.weight += torch.tensor([[0.0, 1.0]])
    average.end(on_its_way, outer=AVERAGE, exchange=exchange, later=later)
    mean = start["models"][0]["parameters"]["weight"] + torch.tensor([[0.3, -0.3]])
    average = later["models"][0]["parameters"]["weight"]
    assert torch.allclose(average, mean)
    assert torch.allclose(model.weight, mean + torch.tensor([[0.0, 1.0]]))
    assert model.weight[0, 0] == average[0, 0], "to the bit where nothing has moved"


def test_a_broken_exchange_changes_nothing():
    model, average, start = trained([0.4, -0.8])
    before = model.weight.clone()
    take(average, start, EVERYTHING, weight=0.5, outer=LONG, exchange=Second())
    assert torch.equal(model.weight, before)
    assert not average.momentum
