"""A piece that is too much at once, done part by part."""

import pytest
import torch
from torch import nn

from daisychain.errors import ScriptError
from daisychain.train.batches import Piece
from daisychain.train.micro import Parts, parts_of


def piece(share, first=0):
    return Piece(torch.arange(first, first + max(share, 1)), share, 100, (share, 100 - share), first)


@pytest.fixture
def model():
    return nn.Linear(3, 1, bias=False)


@pytest.fixture
def parts():
    return Parts()


def begun(parts, whole, most):
    cut = parts_of(whole, most)
    parts.begin(whole, cut, adds_up=False)
    return cut


@pytest.mark.parametrize(
    ("share", "most", "sizes"),
    [(10, None, [10]), (10, 10, [10]), (10, 4, [3, 3, 4]), (7, 2, [1, 2, 2, 2]), (0, 1, [0])],
)
def test_a_piece_is_cut_into_as_few_equal_parts_as_possible(share, most, sizes):
    whole = piece(share, first=30)
    found = parts_of(whole, most)
    assert [part.share for part in found] == sizes
    assert torch.cat([part.rows for part in found]).tolist() == whole.rows.tolist()
    assert [part.first for part in found] == [30 + sum(sizes[:number]) for number in range(len(sizes))]
    assert all((part.batch, part.shares) == (100, whole.shares) for part in found)


def add_up(parts, model, x, cut, count=None):
    """What a script's loop does: the mean over each part, clipped and cleared after it."""
    parameters = list(model.parameters())
    for number, part in enumerate(cut):
        if number:
            parts.next(part)
        if count:
            parts.count(count[number])
        rows = x[part.rows]
        (model(rows).sum() / (count[number] if count else len(rows))).backward()
        parts.add(parameters)
        if parts.is_open:
            nn.utils.clip_grad_norm_(parameters, 1e-3)
            model.zero_grad()


def test_gradients_of_parts_add_up_to_that_of_the_whole(parts, model):
    x = torch.randn(11, 3)
    add_up(parts, model, x, begun(parts, piece(11), 4))
    torch.testing.assert_close(model.weight.grad, x.sum(0, keepdim=True) / 100)
    assert parts.weight == 1


def test_parts_weigh_by_their_targets_where_these_are_counted(parts, model):
    x, count = torch.randn(11, 3), [5.0, 0.0, 9.0]
    x[3:7] = float("nan")  # a mean over no targets
    add_up(parts, model, x, begun(parts, piece(11), 4), count)
    wanted = (x[:3].sum(0, keepdim=True) + x[7:].sum(0, keepdim=True)) / 28
    torch.testing.assert_close(model.weight.grad * 100 / 28, wanted)


def test_a_parameter_that_no_part_used_has_no_gradient(parts):
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "idle": nn.Linear(3, 1)})
    parameters = list(model.parameters())
    for number, part in enumerate(begun(parts, piece(4), 2)):
        if number:
            parts.next(part)
        model["used"](torch.ones(2, 3)).mean().backward()
        parts.add(parameters)
    assert [p.grad is None for p in parameters] == [False, False, True, True]


def test_a_script_with_two_backwards_a_batch_is_told_so(parts, model):
    begun(parts, piece(6), 2)
    parameters = list(model.parameters())
    parts.add(parameters)
    parts.add([])  # another model's
    with pytest.raises(ScriptError, match="one backward"):
        parts.add(parameters)


def test_a_script_that_adds_up_gradients_itself_is_told_so(parts):
    whole = piece(6)
    parts.begin(whole, parts_of(whole, 6), adds_up=True)
    with pytest.raises(ScriptError, match="adds up"):
        parts.begin(whole, parts_of(whole, 2), adds_up=True)


def test_a_script_that_steps_twice_in_a_part_is_told_so(parts):
    begun(parts, piece(6), 2)
    parts.act(closure=False)
    with pytest.raises(ScriptError, match="once a batch"):
        parts.act(closure=False)
    begun(parts, piece(6), None)
    parts.act(closure=False)
    parts.act(closure=False)


def test_an_optimizer_that_calls_a_closure_is_refused_where_its_samples_would_be_lost(parts):
    begun(parts, piece(6), 2)
    with pytest.raises(ScriptError, match="closure"):
        parts.act(closure=True)
    begun(parts, piece(6), None)
    assert parts.weight == 0
    parts.act(closure=True)


def test_what_is_logged_of_parts_is_averaged_over_samples(parts):
    _, last = begun(parts, piece(7), 4)
    parts.log(1.0, {"accuracy": 0.5})
    parts.next(last)
    loss, values = parts.logged(4.5, {"accuracy": 0.85, "rate": 0.1})
    assert (loss, values) == (pytest.approx(3.0), {"accuracy": pytest.approx(0.7), "rate": pytest.approx(0.1)})
    begun(parts, piece(6), 4)
    assert parts.logged(None, {}) == (None, {})


def test_losses_of_counted_parts_are_averaged_over_targets(parts):
    _, last = begun(parts, piece(7), 4)
    parts.count(9)
    parts.log(1.0, {})
    parts.next(last)
    parts.count(1)
    assert parts.logged(2.0, {})[0] == pytest.approx(1.1)


LEFT_EARLY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain
chain = daisychain.init()
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
loader = DataLoader(TensorDataset(torch.ones(12, 3)), batch_size=6)
model, optimizer, scheduler, loader = chain.prepare(model, optimizer, scheduler, loader)
for epoch in chain.epochs(3):
    for number, (x,) in enumerate(loader):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == 4:
            break
    scheduler.step()
chain.report_scores({"rate": scheduler.get_last_lr()[0], "finished": chain._steps.finished})
"""


@pytest.mark.torch
def test_a_loop_left_between_two_parts_leaves_no_step_open(start):
    """Two parts of three belong to the second batch, which is not done; the epoch's end comes all the same."""
    (rank,) = start(LEFT_EARLY, 1, settings={"micro": 2})
    code, reports = rank.finish()
    assert code == 0, rank.log.read_text()
    (scores,) = (report["scores"] for report in reports if report["kind"] == "scores")
    assert scores == {"rate": pytest.approx(0.0125), "finished": 3}
