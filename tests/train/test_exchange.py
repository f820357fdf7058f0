"""Collectives that never raise, over a process group that fails when it is told to."""

import pytest
import torch

from daisychain.train import exchange
from daisychain.train.exchange import Exchange

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


class FakeWork:
    def __init__(self, backend):
        self._backend = backend

    def is_completed(self):
        return "to end" not in self._backend.fails

    def wait(self, timeout=None):
        self._backend._do("wait")
        if not self.is_completed():
            raise RuntimeError("Operation timed out!")


class FakeBackend:
    """Two ranks that always send the same: sums are doubled. `fails` names what raises, or "to end"."""

    def __init__(self):
        self.fails, self.error = set(), RuntimeError("Connection reset by peer")
        self.calls, self.sent = [], []

    def _do(self, name):
        self.calls.append(name)
        if name in self.fails:
            raise self.error

    def _begun(self, name):
        self._do(name)
        return FakeWork(self)

    def allreduce(self, values):
        values[0].mul_(2)
        return self._begun("allreduce")

    def allgather(self, everyone, mine):
        for theirs in everyone[0]:
            theirs.copy_(mine[0])
        return self._begun("allgather")

    def send(self, values, to, tag):
        self.sent.append((values[0].clone(), to))
        return self._begun("send")

    def recv(self, values, source, tag):
        begun = self._begun("recv")
        values[0].copy_(self.sent.pop(0)[0])
        return begun


@pytest.fixture
def dist():
    return FakeBackend()


@pytest.fixture
def pair(dist):
    made = Exchange()
    made.open(3, 2, dist)
    return made


def test_alone_nothing_is_exchanged(dist):
    subject = Exchange()
    subject.open(1, 1, dist)
    values = torch.ones(2)
    assert subject.alone
    assert subject.start(values) is None
    assert subject.total(values) is values
    assert subject.gather([1, -2]) == [[1, -2]]
    assert dist.calls == []


def test_sums_and_lists_of_all_ranks(pair):
    values = torch.tensor([1.0, 2.0])
    assert pair.total(values).tolist() == [2.0, 4.0]
    assert pair.gather([7, 2**62]) == [[7, 2**62]] * 2
    assert (pair.generation, pair.world_size, pair.broken) == (3, 2, "")


def test_bytes_arrive_as_they_were_sent(pair, dist):
    sent = torch.arange(256, dtype=torch.uint8)
    pair.send(sent, [1])
    assert [to for _, to in dist.sent] == [1, 1]
    assert torch.equal(pair.receive(0), sent)


@pytest.mark.parametrize("fails", ["allreduce", "wait"])
@pytest.mark.parametrize("error", [RuntimeError("Connection reset by peer"), ValueError("no group")])
def test_a_sum_that_fails_gives_back_the_own_values_and_nothing_more_is_tried(pair, dist, fails, error):
    dist.fails, dist.error = {fails}, error
    values = torch.tensor([1.0, 2.0])
    assert pair.total(values).tolist() == [1.0, 2.0]
    assert pair.broken == str(error)
    dist.calls.clear()
    assert pair.total(values) is values
    assert pair.start(values) is None
    assert pair.gather([4]) == [[4]]
    pair.send(torch.zeros(3, dtype=torch.uint8), [1])
    assert len(pair.receive(1)) == 0
    assert dist.calls == []


def test_a_list_that_fails_is_the_own_one_only(pair, dist):
    dist.fails = {"allgather"}
    assert pair.gather([4]) == [[4]]
    assert pair.broken


@pytest.mark.parametrize("fails", ["send", "recv"])
def test_bytes_that_do_not_arrive_are_none(pair, dist, fails):
    dist.fails = {fails}
    pair.send(torch.zeros(3, dtype=torch.uint8), [1])
    assert pair.receive(1).tolist() == []
    assert pair.broken


def test_the_first_failure_is_the_one_that_is_kept(pair, dist):
    pair.fail(RuntimeError("the first"))
    pair.fail(RuntimeError("a second"))
    assert pair.broken == "the first"
    pair.open(4, 2, dist)
    assert pair.broken == ""


def test_a_failure_without_words_is_one_too(pair):
    pair.fail(RuntimeError())
    assert pair.broken == "RuntimeError"


def test_what_is_no_network_error_is_raised(pair, dist):
    dist.fails, dist.error = {"allreduce"}, KeyError("a bug")
    with pytest.raises(KeyError):
        pair.total(torch.ones(1))


# --- what gloo doesn't end ------------------------------------------------------------------------------------


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(exchange, "LETTING_GO_S", 0.05)


def test_a_sum_that_takes_long_is_waited_for(pair, dist):
    dist.fails = {"to end"}
    begun = pair.start(torch.ones(2))
    waits = []
    dist._do = lambda name: waits.append(name) or (len(waits) > 3 and dist.fails.clear())
    pair.finish(begun)
    assert (len(waits), pair.broken) == (4, "")
    assert pair.close()


@pytest.mark.parametrize("how", ["sum", "list"])
def test_what_does_not_end_is_left_to_itself_once_its_generation_is_over(dist, hurried, how):
    asked = []
    subject = Exchange()
    subject.open(3, 2, dist, lambda: asked.append(1) or len(asked) > 2)
    begun = [subject.start(torch.ones(2)) for _ in range(3)]
    dist.fails = {"to end"}
    if how == "sum":
        subject.finish(begun[0])
    else:
        assert subject.gather([4]) == [[4]]
    assert subject.broken
    assert len(asked) == 3
    dist.calls.clear()
    subject.finish(begun[1])
    assert dist.calls == []
    assert not subject.close()
    # the next generation has nothing to do with it
    dist.fails = set()
    subject.open(4, 2, dist)
    assert subject.total(torch.ones(2)).tolist() == [2, 2]
    assert subject.close()


def test_closing_waits_until_what_failed_has_ended_also_by_another_door(pair, dist):
    door = pair.twin()
    dist.fails = {"wait", "to end"}
    begun = door.start(torch.ones(2))
    calls = []

    class Ending(FakeWork):
        def is_completed(self):
            return calls.append(1) or len(calls) > 3

    begun.__class__ = Ending
    assert pair.close()
    assert len(calls) == 4


# --- from a GPU ---------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """All tensors count as lying on a GPU."""
    monkeypatch.setattr(exchange, "needs_staging", lambda values: True)


def test_values_that_gloo_cant_take_go_through_a_copy_and_the_sums_come_back(pair, dist, elsewhere):
    seen = []
    dist.allreduce = lambda values: seen.append(values[0]) or FakeBackend.allreduce(dist, values)
    values = torch.tensor([1.0, 2.0])
    work = pair.start(values)
    assert values.tolist() == [1, 2]
    assert seen[0] is not values
    pair.finish(work)
    assert values.tolist() == [2, 4]
    assert pair.total(values).tolist() == [4, 8]
    assert values.tolist() == [2, 4]


def test_a_lost_rank_leaves_values_on_a_gpu_as_they_were(pair, dist, elsewhere):
    values = torch.tensor([1.0, 2.0])
    dist.fails = {"wait"}
    pair.finish(pair.start(values))
    assert (pair.broken, values.tolist()) == ("Connection reset by peer", [1, 2])


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("meta", True)])
def test_only_what_is_not_on_the_cpu_needs_a_copy(device, expected):
    assert exchange.needs_staging(torch.empty(1, device=device)) is expected


def test_a_large_state_travels_in_pieces_that_each_have_time(pair, dist, monkeypatch):
    monkeypatch.setattr(exchange, "PIECE_BYTES", 4)
    values = torch.arange(10, dtype=torch.uint8)
    pair.send(values, [1, 2])
    # in turns: nobody waits for long while others get theirs
    assert [(len(sent), to) for sent, to in dist.sent] == [
        (1, 1),
        (1, 2),
        (4, 1),
        (4, 2),
        (4, 1),
        (4, 2),
        (2, 1),
        (2, 2),
    ]
    dist.sent = [(sent, to) for sent, to in dist.sent if to == 1]
    assert pair.receive(1).tolist() == values.tolist()
