"""The bench child: what it prints, that slowness counts, that it ends with its parent."""

import json
import subprocess
import sys

import pytest

from daisychain.train.bench import EACH_S, best_threads, measure


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("slowdown", [1.0, 4.0])
def test_a_slowed_machine_measures_as_slow_as_it_is(slowdown):
    clock = Clock()
    measured = measure(lambda: clock.sleep(0.01), slowdown, clock=clock, sleep=clock.sleep)
    assert measured == pytest.approx(0.01 * slowdown)
    assert EACH_S < clock.now < EACH_S + 0.1


def test_stalls_under_a_quota_count_as_often_as_they_come():
    clock = Clock()
    steps = iter(range(10_000))
    measured = measure(
        lambda: clock.sleep(0.04 if next(steps) % 4 == 0 else 0.005), 1.0, clock=clock, sleep=clock.sleep
    )
    assert measured == pytest.approx((0.04 + 3 * 0.005) / 4, rel=0.1)


@pytest.mark.parametrize(
    ("seconds", "most", "best"),
    [
        ({1: 8.0, 2: 4.2, 4: 2.4, 6: 1.9}, 6, 6),
        # a small model, whose threads cost more than they save
        ({1: 1.0, 2: 1.1}, 8, 1),
        # a quota of two cores on a machine with sixteen
        ({1: 1.0, 2: 0.5, 4: 15.0}, 16, 2),
        ({}, 1, 1),
    ],
)
def test_so_many_threads_are_taken_as_are_worth_it(seconds, most, best):
    assert best_threads(most, seconds.__getitem__) == best


@pytest.mark.torch
def test_the_child_prints_points_that_grow_and_ends_with_stdin():
    command = [sys.executable, "-m", "daisychain.train.bench", "--threads", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [json.loads(line) for line in child.stdout]
        assert child.wait(10) == 0
    assert [line["kind"] for line in lines] == ["point"] * (len(lines) - 1) + ["done"]
    points = lines[:-1]
    assert len(points) >= 2
    assert points[0]["samples"] < points[-1]["samples"]
    assert 0 < points[0]["seconds"] < points[-1]["seconds"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(20) == 1
