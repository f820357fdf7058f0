"""One global order, cut between ranks, whatever the shares, workers and batch sizes."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from daisychain.errors import ScriptError
from daisychain.train import batches
from daisychain.train.batches import SharedLoader, order, piece
from daisychain.train.micro import parts_of
from daisychain.train.state import mixed

pytestmark = pytest.mark.torch


class Follower:
    """The shares by step, and what a loader said."""

    def __init__(self, shares, rank=0, breaks=()):
        """breaks: steps, counted over all passes, after which the loader must start again, and at which batch."""
        self.shares, self.rank, self.breaks = shares, rank, dict(breaks)
        self.pieces, self.calls = [], []
        self.first = self.ended = 0
        self.again = []

    def shares_at(self, ahead):
        return self.shares[(self.first + ahead) % len(self.shares)]

    def starts(self, number):
        self.again.append(0)
        while self.again:
            self.calls.append(f"pass {number}")
            self.first = len(self.pieces)
            yield number, self.again.pop()

    def begin(self):
        self.calls.append("begin")

    def take(self, piece, parts):
        self.pieces.append(piece)
        self.calls.append("take")

    def next_part(self, part):
        self.calls.append(f"part of {part.share}")

    def end(self):
        self.calls.append("end")
        self.ended += 1
        if self.ended in self.breaks:
            self.again.append(self.breaks[self.ended])
            return False
        return True

    def drop(self):
        self.calls.append("drop")


class Rows(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return row


def shared(loader, follower, batch=None, seed=1):
    made = SharedLoader(loader, batch=batch, seed=seed)
    made.follow(follower)
    return made


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.data(), st.integers(1, 4))
def test_every_sample_is_taken_exactly_once_an_epoch(samples, batch, shuffle, data, ranks):
    cuts = st.lists(st.integers(0, batch), min_size=ranks - 1, max_size=ranks - 1).map(sorted)
    edges = [[0, *data.draw(cuts), batch] for _ in range(3)]
    shares = [tuple(b - a for a, b in pairwise(e)) for e in edges]
    loader = DataLoader(TensorDataset(torch.arange(samples)), batch_size=batch, shuffle=shuffle)
    taken: list[list[int]] = [[] for _ in range(-(-samples // batch))]
    for rank in range(ranks):
        follower = Follower(shares, rank)
        mine = shared(loader, follower)
        batches = list(mine)
        assert len(batches) == len(mine) == len(taken)
        for index, ((rows,), part) in enumerate(zip(batches, follower.pieces, strict=True)):
            assert len(rows) == max(part.share, 1)
            taken[index] += rows[: part.share].tolist()
    assert sorted(row for rows in taken for row in rows) == list(range(samples))
    whole = [rows.tolist() for (rows,) in shared(loader, Follower([(batch,)]))]
    assert taken == whole


def test_epochs_differ_and_seeds_differ_and_nothing_else_matters():
    first = order(100, 1, 0, shuffle=True).tolist()
    assert first == order(100, 1, 0, shuffle=True).tolist()
    assert first != order(100, 1, 1, shuffle=True).tolist()
    assert first != order(100, 2, 0, shuffle=True).tolist()
    assert order(5, 1, 7, shuffle=False).tolist() == [0, 1, 2, 3, 4]


def test_a_rank_without_samples_gets_one_that_does_not_count():
    part = piece(torch.arange(10, 13), (9, 1, 0), 2)
    assert (part.rows.tolist(), part.share, part.batch, part.shares) == ([10], 0, 3, (3, 0, 0))


def test_a_piece_says_where_it_lies_and_what_the_whole_batch_is():
    batch = torch.arange(20, 30)
    parts = [piece(batch, (7, 2, 1), rank, epoch=3, index=4) for rank in range(3)]
    assert [(part.first, part.share) for part in parts] == [(0, 7), (7, 2), (9, 1)]
    assert {(part.epoch, part.number, part.batch, part.digest) for part in parts} == {(3, 4, 10, mixed(batch))}
    assert piece(batch.flip(0), (7, 2, 1), 0).digest == mixed(batch)
    assert piece(batch + 1, (7, 2, 1), 0).digest != mixed(batch)


def test_the_plain_dataloader_gives_the_same_as_the_fast_path():
    data = TensorDataset(torch.arange(23), torch.arange(23) * 2)
    fast = list(shared(DataLoader(data, batch_size=5, shuffle=True), Follower([(3, 2)], 1)))
    plain = list(shared(DataLoader(Subset(data, range(23)), batch_size=5, shuffle=True), Follower([(3, 2)], 1)))
    assert [[t.tolist() for t in batch] for batch in fast] == [[t.tolist() for t in batch] for batch in plain]


def test_worker_processes_prepare_ahead_and_change_nothing():
    loader = DataLoader(Rows(20), batch_size=4, num_workers=1, prefetch_factor=2, persistent_workers=True)
    follower = Follower([(4,)])
    subject = shared(loader, follower)
    assert subject.lookahead == 2
    for _ in range(2):
        assert [batch.tolist() for batch in subject] == [list(range(i, i + 4)) for i in range(0, 20, 4)]
    assert [part.rows.tolist() for part in follower.pieces[:2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_collate_drop_last_and_the_runs_own_batch_are_honoured():
    loader = DataLoader(Rows(10), batch_size=2, collate_fn=lambda rows: tuple(rows), drop_last=True)
    subject = shared(loader, Follower([(4,)]), batch=4)
    assert subject.batch_size == 4
    assert list(subject) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_loader_tells_its_follower_of_every_step_also_when_left_early():
    follower = Follower([(2,)])
    subject = shared(DataLoader(Rows(4), batch_size=2), follower)
    list(subject)
    for _ in subject:
        break
    whole = ["begin", "take", "end"]
    assert follower.calls == ["pass 0", *whole, *whole, "begin", "drop", "pass 1", *whole]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_that_is_broken_off_goes_on_where_it_is_told_to_with_other_shares(workers):
    follower = Follower([(4, 0), (4, 0), (1, 3), (1, 3), (1, 3)], breaks={2: 1})
    loader = DataLoader(Rows(20), batch_size=4, num_workers=workers)
    given = [batch.tolist() for batch in shared(loader, follower)]
    assert given == [[0, 1, 2, 3], [4, 5, 6, 7], [4], [8], [12], [16, 17, 18, 19]]
    assert [(part.number, part.share) for part in follower.pieces[:6]] == [
        (0, 4), (1, 4), (1, 1), (2, 1), (3, 1), (4, 4)
    ]  # fmt: skip
    assert follower.calls.count("pass 0") == 2


def test_a_pass_that_others_have_done_already_is_passed_over():
    follower = Follower([(2,)])
    follower.starts = lambda number: iter(() if number == 0 else ((1, 1),))
    subject = shared(DataLoader(Rows(6), batch_size=2), follower)
    assert list(subject) == []
    assert [batch.tolist() for batch in subject] == [[2, 3], [4, 5]]
    assert [part.epoch for part in follower.pieces] == [1, 1]
    assert subject.passes == 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("loader", "what"),
    [
        (lambda: DataLoader(Stream(), batch_size=2), "IterableDataset"),
        (lambda: DataLoader(Rows(4), sampler=WeightedRandomSampler([1.0], 4), batch_size=2), "WeightedRandomSampler"),
        (lambda: DataLoader(Rows(4), sampler=RandomSampler(Rows(4), replacement=True), batch_size=2), "RandomSampler"),
        (lambda: DataLoader(Rows(4), sampler=RandomSampler(Rows(4), num_samples=2), batch_size=2), "RandomSampler"),
        (lambda: DataLoader(Rows(4), batch_sampler=[[0], [1, 2, 3]]), "batch_sampler"),
        (lambda: DataLoader(Rows(4), batch_size=None), "no batches"),
        (lambda: DataLoader(Rows(0), batch_size=2), "empty"),
        (lambda: DataLoader(Rows(3), batch_size=4, drop_last=True), "leaves nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused_with_what_to_do(loader, what):
    with pytest.raises(ScriptError, match=what) as refused:
        SharedLoader(loader(), batch=None, seed=0)
    assert refused.value.remedy


@pytest.mark.parametrize(("samples", "size"), [(10, 3), (12, 3), (2, 5), (9, 1)])
def test_digests_of_a_pass_are_those_of_its_batches(samples, size, monkeypatch):
    monkeypatch.setattr(batches, "AT_ONCE", 7)
    rows = order(samples, 3, 0, shuffle=True)
    assert list(batches.digests(rows, size)) == [mixed(batch) for batch in rows.split(size)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_piece_that_is_too_much_comes_in_parts_of_one_step(workers):
    loader = DataLoader(Rows(20), batch_size=10, num_workers=workers)
    made = SharedLoader(loader, batch=None, seed=0, parts=lambda piece: parts_of(piece, 3))
    follower = Follower([(7, 3)])
    made.follow(follower)
    assert [batch.tolist() for batch in made] == [
        [0, 1], [2, 3], [4, 5, 6], [10, 11], [12, 13], [14, 15, 16]
    ]  # fmt: skip
    step = ["begin", "take", "part of 2", "part of 3", "end"]
    assert follower.calls == ["pass 0", *step, *step, "begin", "drop"]
    assert [piece.share for piece in follower.pieces] == [7, 7]


def test_a_loop_that_is_left_between_two_parts_has_not_done_the_step():
    made = SharedLoader(DataLoader(Rows(20), batch_size=10), batch=None, seed=0, parts=lambda piece: parts_of(piece, 3))
    follower = Follower([(7, 3)])
    made.follow(follower)
    for number, _ in enumerate(made):
        if number == 4:
            break
    whole = ["begin", "take", "part of 2", "part of 3", "end"]
    assert follower.calls == ["pass 0", *whole, "begin", "take", "part of 2", "drop"]
