"""Where a step's time goes, on a clock that only moves when told to."""

import threading

import pytest

from daisychain.train.meter import Charge, Meter, Times, waited_s


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
    assert one_step(meter_of(clock), clock) == Times(compute_s=3.25, exposed_s=0.5, step_s=3.75, charged_s=3.25)


def test_a_slowdown_stretches_computing_and_nothing_else(clock):
    assert one_step(meter_of(clock, slowdown=4.0), clock) == Times(
        compute_s=13.0, exposed_s=0.5, step_s=13.5, charged_s=13.0
    )


def test_alone_all_of_a_step_is_computing(clock):
    meter = meter_of(clock, slowdown=2.0)
    meter.begin()
    clock.sleep(1.0)
    assert meter.end() == Times(2.0, 0.0, 2.0, 2.0)


def test_two_backwards_in_a_step_are_both_exposed(clock):
    meter = meter_of(clock)
    meter.begin()
    for _ in range(2):
        clock.sleep(1.0)
        meter.ready()
        clock.sleep(0.5)
        meter.reduced()
    assert meter.end() == Times(2.0, 1.0, 3.0, 2.0)


def test_a_backward_outside_of_a_step_is_left_out(clock):
    meter = meter_of(clock)
    meter.ready()
    meter.reduced()
    assert one_step(meter, clock).exposed_s == 0.5


class Threads:
    """A rank whose exchange takes 0.03 s of a step of 0.05, in which its other threads wait for a processor."""

    def __init__(self, clock):
        self.clock, self.waited, self.looks = clock, 7.0, 0
        self.meter = Meter(clock=clock, sleep=clock.sleep, charge=Charge(self.look, clock))

    def look(self):
        self.looks += 1
        return self.waited

    def step(self, waits, computing_waits=0.0):
        self.meter.begin()
        self.clock.sleep(0.02)
        self.waited += computing_waits
        self.meter.ready()
        self.clock.sleep(0.03)
        self.waited += waits
        self.meter.reduced()
        return self.meter.end()


def test_threads_that_wait_for_a_processor_during_the_exchange_are_charged_too(clock):
    threads = Threads(clock)
    assert [threads.step(0.01).charged_s for _ in range(20)] == pytest.approx([0.03] * 20)
    assert threads.looks <= 20, "not at every step"
    for _ in range(20):  # and soon forgotten
        times = threads.step(0.0)
    assert times.charged_s == times.compute_s == pytest.approx(0.02)


def test_a_batch_that_did_not_come_takes_no_look_away(clock):
    threads = Threads(clock)
    threads.step(0.01)
    for _ in range(12):
        clock.sleep(0.2)
        threads.meter.begin()
        threads.meter.drop()  # an epoch of one step ends
        times = threads.step(0.0)
    assert times.charged_s == pytest.approx(0.02), "else the first look counts for ever"


def test_a_long_step_is_charged_by_its_own_exchange(clock):
    threads = Threads(clock)
    threads.step(0.03)
    clock.sleep(1.0)
    assert threads.step(0.001).charged_s == pytest.approx(0.021)


def test_that_pass_over_the_whole_exchange_at_most(clock):
    threads = Threads(clock)
    assert threads.step(0.5).charged_s == pytest.approx(0.05)  # several threads at once


def test_threads_that_help_computing_are_not_charged_twice(clock):
    threads = Threads(clock)
    assert threads.step(0.0, computing_waits=0.4).charged_s == pytest.approx(0.02)


def test_an_exchange_that_is_over_is_not_looked_at_again(clock):
    threads = Threads(clock)
    threads.meter.begin()
    threads.meter.ready()
    clock.sleep(0.03)
    threads.meter.reduced()
    threads.waited += 0.4  # while the optimizer computes
    threads.meter.reduced()
    assert threads.meter.end().charged_s == 0.0


def test_what_linux_says_of_threads_that_wait(tmp_path):
    for name, text in (("1", "500 1000000000 3\n"), (str(threading.get_native_id()), "9 9000000000 1\n"), ("2", None)):
        (tmp_path / name).mkdir()
        if text is not None:  # a thread may end meanwhile
            (tmp_path / name / "schedstat").write_text(text)
    assert waited_s(str(tmp_path)) == 1.0
    (tmp_path / "1" / "schedstat").write_text("nonsense")
    assert waited_s(str(tmp_path)) == 0.0
    assert waited_s(str(tmp_path / "not-linux")) == 0.0
