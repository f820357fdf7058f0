"""Where a step's time goes, on a clock that only moves when told to."""

import pytest

from daisychain.train.meter import Meter, Times


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def meter_of(clock, slowdown=1.0):
    return Meter(slowdown, clock=clock, sleep=clock.sleep)


def one_step(meter, clock):
    meter.begin()
    clock.sleep(2.0)  # load, forward
    meter.reduced()  # an earlier bucket, exchanged while backward runs
    clock.sleep(1.0)
    meter.ready()
    clock.sleep(0.5)  # exchange
    meter.reduced()
    clock.sleep(0.25)  # optimizer
    return meter.end()


def test_waiting_for_the_exchange_is_not_computing(clock):
    assert one_step(meter_of(clock), clock) == Times(compute_s=3.25, exposed_s=0.5, step_s=3.75)


def test_a_slowdown_stretches_computing_and_nothing_else(clock):
    assert one_step(meter_of(clock, slowdown=4.0), clock) == Times(compute_s=13.0, exposed_s=0.5, step_s=13.5)


def test_alone_all_of_a_step_is_computing(clock):
    meter = meter_of(clock, slowdown=2.0)
    meter.begin()
    clock.sleep(1.0)
    assert meter.end() == Times(2.0, 0.0, 2.0)


def test_two_backwards_in_a_step_are_both_exposed(clock):
    meter = meter_of(clock)
    meter.begin()
    for _ in range(2):
        clock.sleep(1.0)
        meter.ready()
        clock.sleep(0.5)
        meter.reduced()
    assert meter.end() == Times(2.0, 1.0, 3.0)


def test_a_backward_outside_of_a_step_is_left_out(clock):
    meter = meter_of(clock)
    meter.ready()
    meter.reduced()
    assert one_step(meter, clock).exposed_s == 0.5
