"""The forecast: numbers worked out by hand, what was measured, and what must hold for any nodes and network."""

import itertools
import time
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from daisychain.errors import UsageError
from daisychain.plan.forecast import (
    MOST,
    TIE,
    Machine,
    Network,
    Question,
    best,
    best_by_way,
    forecast,
    subsets,
    without,
)
from daisychain.plan.shares import Cost
from daisychain.plan.sync import Sync

NAMES = ("head", "mid", "old", "nuc", "pi")
FREE = 1e15


def question(per_sample_s, bytes_per_s=FREE, *, latency_s=0.0, shared=False, gamma=1.0, cap=None, **more):
    """Nodes without fixed costs, a model of 1 MB in one bucket and a batch of 700 unless said otherwise."""
    machines = tuple(
        Machine(name, Cost(0.0, each_s, cap), gamma=gamma) for name, each_s in zip(NAMES, per_sample_s, strict=False)
    )
    network = Network({machine.name: bytes_per_s for machine in machines}, latency_s, shared)
    return Question(machines, network, **{"buckets": (1_000_000,), "batch": 700, **more})


# --- by hand ---------------------------------------------------------------------------------------


def test_a_ring_sends_twice_all_but_its_own_part_over_its_slowest_link():
    network = Network({"head": 20e6, "mid": 10e6, "old": 20e6}, latency_s=0.001)
    assert network.sum_s(("head",), 3e6) == 0
    assert network.sum_s(("head", "old"), 3e6) == pytest.approx(2 * 1 / 2 * 3e6 / 20e6 + 2 * 0.001)
    assert network.sum_s(("head", "mid", "old"), 3e6) == pytest.approx(2 * 2 / 3 * 3e6 / 10e6 + 4 * 0.001)


def test_a_shared_medium_carries_what_all_nodes_send():
    network = Network({"head": 2e6, "mid": 2e6, "old": 2e6}, shared=True)
    assert network.sum_s(("head", "mid", "old"), 3e6) == pytest.approx(4 * 3e6 / 6e6)
    assert network.sum_s(("head", "mid"), 3e6) == pytest.approx(2 * 3e6 / 6e6)


def test_all_numbers_of_an_exact_run():
    # balanced: 0.4 s; the ring: 4/3 of 1 MB at 10 MB/s and 4 messages of 1 ms
    asked = question((0.001, 0.002, 0.004), 10e6, latency_s=0.001, steps=100, overhead_s=0.005)
    found = forecast(asked)
    assert found.shares == (400, 200, 100)
    assert found.compute_s == pytest.approx(0.405)
    assert found.exposed_s == pytest.approx(4 / 3 / 10 + 0.004)
    assert found.step_s == pytest.approx(0.405 + 0.13733333)
    assert found.samples_per_s == pytest.approx(700 / found.step_s)
    assert found.total_s == pytest.approx(100 * found.step_s)
    assert found.speedup == pytest.approx(0.705 / found.step_s)


def test_unknown_steps_give_no_time_to_finish():
    assert forecast(question((0.001, 0.002))).total_s is None


def test_buckets_that_leave_during_backward_are_hidden_and_the_last_one_is_not():
    # gamma = 0.5 of the 2/3 that are backward: the first bucket leaves after 2/3 of 0.35 s; 0.05 s of exchange each
    asked = question((0.001, 0.001), 20e6, gamma=0.5, buckets=(1_000_000, 1_000_000))
    found = forecast(asked)
    assert found.compute_s == pytest.approx(0.35)
    assert found.exposed_s == pytest.approx(0.05)
    # four times the bytes: 2/3 * 0.35 + 0.2 and the last 0.2
    longer = forecast(replace(asked, buckets=(4_000_000, 4_000_000)))
    assert longer.step_s == pytest.approx(0.35 * 2 / 3 + 0.4)


def test_every_bucket_waits_for_its_messages():
    asked = question((0.001, 0.001), latency_s=0.01, buckets=(1000, 1000, 1000))
    assert forecast(asked).exposed_s == pytest.approx(3 * 2 * 0.01, rel=1e-6)


def test_sixteen_bits_halve_the_bytes():
    asked = question((0.001, 0.001), 10e6)
    exact, bf16 = (forecast(replace(asked, sync=sync)).exposed_s for sync in (Sync("exact"), Sync("bf16")))
    assert exact == pytest.approx(0.1)
    assert bf16 == pytest.approx(0.05)


def test_local_steps_exchange_sixteen_bits_once_a_round():
    asked = question((0.001, 0.001), 10e6, buckets=(600_000, 400_000), gamma=0.1, sync=Sync("local", 10))
    found = forecast(asked)
    assert found.exposed_s == pytest.approx(0.05 / 200)  # it is over before the next round's steps are
    assert found.sync.steps == 10
    slower = forecast(replace(asked, network=question((0.001, 0.001), 1e5).network))
    assert slower.exposed_s == pytest.approx(5 / 10 - slower.compute_s + 5 / 200)


def test_where_a_round_is_not_given_its_exchange_takes_half_of_it_or_the_longest_round_is_taken():
    asked = question((0.001, 0.001), 0.5e6, batch=100, sync=Sync("local"))
    found = forecast(asked)
    assert found.sync.steps == 40  # of 50 ms, beside an exchange of 1 s
    assert found.exposed_s == pytest.approx(1 / 200)
    assert forecast(question((0.001, 0.001), 1e4, batch=100, sync=Sync("local"))).sync.steps == 200


def test_a_rank_without_samples_still_computes_one():
    machines = (Machine("head", Cost(0.0, 0.001)), Machine("old", Cost(1.0, 0.1)))
    found = forecast(Question(machines, Network(dict.fromkeys(NAMES, FREE)), (1,), 100))
    assert found.shares == (100, 0)
    assert found.step_s == pytest.approx(1.1)


def test_given_shares_are_taken_as_they_are():
    asked = question((0.001, 0.002, 0.004))
    assert forecast(asked, shares=(234, 233, 233)).compute_s == pytest.approx(233 * 0.004)
    with pytest.raises(ValueError, match="shares"):
        forecast(asked, shares=(700, 0))


def test_what_it_would_be_without_each_node():
    asked = question((0.001, 0.002, 0.004))
    rest = without(asked)
    assert {name: one.names for name, one in rest.items()} == {
        "head": ("mid", "old"), "mid": ("head", "old"), "old": ("head", "mid"),
    }  # fmt: skip
    # 1000 + 500 + 250 samples/s
    assert rest["old"].samples_per_s == pytest.approx(1500, rel=0.01)
    assert without(asked, ["head"]) == {"head": None}


def test_a_batch_that_only_fits_together_has_no_speedup():
    asked = question((0.001, 0.002), batch=100, cap=60)
    found = best(asked)
    assert found.names == ("head", "mid")
    assert found.shares == (60, 40)
    assert found.speedup is None
    assert without(asked) == {"head": None, "mid": None}
    with pytest.raises(UsageError, match="doesn't fit"):
        best(replace(asked, batch=121))


def test_the_simpler_of_two_sets_within_the_tie_is_best():
    # the second node adds 1 %, then 3 %
    assert best(question((0.001, 0.1), batch=10_000)).names == ("head",)
    assert best(question((0.001, 0.033), batch=10_000)).names == ("head", "mid")


def test_each_way_to_sync_has_its_own_best_set():
    asked = question((0.001, 0.001, 0.001), 2e6, batch=900, sync=Sync("local", 5))
    found = best_by_way(asked)
    assert found["exact"].names == ("head",)
    assert found["local"].names == ("head", "mid", "old")
    assert found["local"].sync.steps == 5


def test_questions_that_make_no_sense_are_refused():
    fine = question((0.001, 0.002))
    for wrong in ({"batch": 0}, {"buckets": ()}, {"machines": ()}, {"machines": fine.machines[:1] * 2}):
        with pytest.raises(ValueError, match="a forecast needs"):
            replace(fine, **wrong)
    with pytest.raises(ValueError, match="bandwidth"):
        replace(fine, network=Network({"head": 1e6}))
    with pytest.raises(ValueError, match="between 0 and 1"):
        Machine("head", Cost(0.0, 0.001), backward=1.0)
    with pytest.raises(FrozenInstanceError):
        fine.batch = 3


# --- what was measured --------------------------------------------------------------------------------


def test_speeds_of_four_two_one_are_at_most_1_75_times_the_fastest():
    asked = question((0.001, 0.002, 0.004))
    assert best(asked).speedup == pytest.approx(1.75)
    equal = forecast(asked, shares=(234, 233, 233))
    assert equal.samples_per_s / best(asked).samples_per_s == pytest.approx(3 / 7, rel=0.01)


def three_hosts(bytes_per_s):
    """80, 40 and 20 % of a core, a dense model of 670,000 parameters in two buckets."""
    return question([1 / 21_700, 1 / 10_000, 1 / 3_600], bytes_per_s, batch=1536, buckets=(1_050_000, 1_630_000))


def test_what_three_hosts_were_measured_to_do_at_100_mbit():
    asked = three_hosts(100e6 / 8 * 0.94)
    assert forecast(asked).samples_per_s == pytest.approx(4100, rel=0.1)
    assert forecast(asked, shares=(512, 512, 512)).samples_per_s == pytest.approx(3750, rel=0.1)
    assert forecast(asked).speedup < 1
    assert best(asked).names == ("head",)


@pytest.mark.parametrize("times", [0.1, 1, 10])
def test_the_speedup_of_exact_sync_does_not_depend_on_the_size_of_a_model_of_a_kind(times):
    small = three_hosts(12.5e6)
    grown = [Machine(m.name, Cost(0.0, m.cost.per_sample_s * times), m.backward, m.gamma) for m in small.machines]
    buckets = tuple(round(size * times) for size in small.buckets)
    large = replace(small, machines=tuple(grown), buckets=buckets)
    assert forecast(large).speedup == pytest.approx(forecast(small).speedup, rel=1e-6)


def test_dense_models_on_wifi_need_batches_of_thousands_and_convolutions_gain_at_100_mbit():
    # Wi-Fi of 96 Mbit/s for all together; 18 GFLOP/s a node: 6 FLOP a parameter and sample for a dense model
    dense = question([6 * 250_000 / 18e9] * 2, 6e6, shared=True)
    gains = {batch: best(replace(dense, batch=batch)).speedup for batch in (64, 512, 2048, 8192)}
    assert gains[64] == gains[512] == gains[2048] == 1
    assert gains[8192] > 1.3
    # 270,000 parameters, 0.24 GFLOP a sample
    convolutional = question([0.24e9 / 18e9] * 2, 12.5e6, buckets=(1_080_000,), batch=64)
    assert best(convolutional).speedup > 1.6


# --- what must always hold ------------------------------------------------------------------------------

machines = st.lists(
    st.builds(
        lambda fixed_s, each_s, cap, backward, gamma: (Cost(fixed_s, each_s, cap), backward, gamma),
        st.floats(0, 0.05),
        st.floats(1e-5, 0.01),
        st.one_of(st.none(), st.integers(0, 300)),
        st.floats(0, 0.9),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=5,
)
syncs = st.sampled_from([Sync("exact"), Sync("bf16"), Sync("local"), Sync("local", 7)])


@st.composite
def questions(draw):
    nodes = tuple(Machine(name, *one) for name, one in zip(NAMES, draw(machines), strict=False))
    network = Network(
        {node.name: draw(st.floats(1e4, 1e9)) for node in nodes}, draw(st.floats(0, 0.01)), draw(st.booleans())
    )
    buckets = tuple(draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=4)))
    asked = Question(nodes, network, buckets, draw(st.integers(1, 1000)), draw(syncs), overhead_s=0.0002)
    caps = [node.cost.cap for node in nodes]
    assume(None in caps or sum(caps) >= asked.batch)
    return asked


@settings(deadline=None)
@given(questions())
def test_a_forecast_is_sound(asked):
    found = forecast(asked)
    assert sum(found.shares) == asked.batch
    assert all(
        share >= 0 and (machine.cost.cap is None or share <= machine.cost.cap)
        for share, machine in zip(found.shares, asked.machines, strict=True)
    )
    assert found.exposed_s >= 0
    assert found.step_s > 0
    top = best(asked)
    if top.speedup is not None:
        assert top.speedup >= 1 - TIE


@settings(deadline=None)
@given(questions(), st.floats(1, 100))
def test_more_bandwidth_never_makes_a_run_slower(asked, times):
    rates = {name: rate * times for name, rate in asked.network.bytes_per_s.items()}
    faster = replace(asked, network=replace(asked.network, bytes_per_s=rates))
    if not (asked.sync.kind == "local" and not asked.sync.steps):  # there a round becomes shorter instead
        assert forecast(faster).step_s <= forecast(asked).step_s * (1 + 1e-9)


@settings(deadline=None)
@given(questions())
def test_a_node_more_never_makes_the_best_set_worse(asked):
    assume(len(asked.machines) > 1)
    fewer = replace(asked, machines=asked.machines[:-1])
    caps = [machine.cost.cap for machine in fewer.machines]
    assume(None in caps or sum(caps) >= asked.batch)
    assert best(asked).samples_per_s >= best(fewer).samples_per_s * (1 - TIE) * (1 - 1e-9)
    assert max(s.samples_per_s for s in subsets(asked)) >= max(s.samples_per_s for s in subsets(fewer)) * (1 - 1e-9)


def brute_force_step_s(asked, members):
    """The least time of a step over all whole shares, from the formula alone."""
    number, batch = len(members), asked.batch
    latency_s = 2 * (number - 1) * asked.network.latency_s
    rates = asked.network.bytes_per_s

    def sum_s(size):
        if number == 1:
            return 0.0
        if asked.network.shared:
            return 2 * (number - 1) * size / sum(rates.values()) + latency_s
        return 2 * (number - 1) / number * size / min(rates[m.name] for m in members) + latency_s

    *first, last = asked.buckets
    overlapped_s = sum(map(sum_s, first))
    times = []
    for shares in itertools.product(range(batch + 1), repeat=number):
        caps = all(m.cost.cap is None or n <= m.cost.cap for m, n in zip(members, shares, strict=True))
        if sum(shares) == batch and caps:
            steps = [m.cost.step_s(max(n, 1)) for m, n in zip(members, shares, strict=True)]
            firsts = [s * (1 - m.backward + m.gamma * m.backward) for s, m in zip(steps, members, strict=True)]
            times.append(max(max(steps), max(firsts) + overlapped_s) + sum_s(last) + asked.overhead_s)
    return min(times, default=None)


@settings(deadline=None, max_examples=60)
@given(questions(), st.integers(1, 9))
def test_every_subset_is_as_good_as_trying_all_shares(asked, batch):
    nodes = asked.machines[:3]
    asked = replace(asked, machines=nodes, batch=batch, sync=Sync("exact"))
    expected = {}
    for size in range(1, len(nodes) + 1):
        for members in itertools.combinations(nodes, size):
            step_s = brute_force_step_s(asked, members)
            if step_s is not None:
                expected[tuple(m.name for m in members)] = step_s
    assert {one.names: one.step_s for one in subsets(asked)} == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(st.floats(1e-4, 1e-2), min_size=2, max_size=5), st.floats(1e5, 1e8), st.booleans())
def test_a_node_helps_when_what_it_saves_exceeds_the_exchange_it_adds(per_sample_s, rate, shared):
    """s_j / (sum s + s_j) * T > the extra exchange, with T balanced over the others: forecast.py against that rule."""
    asked = question(per_sample_s, rate, shared=shared, batch=10**7, buckets=(10**9,))
    whole, rest = forecast(asked), forecast(asked, asked.names[:-1])
    speed, others = 1 / per_sample_s[-1], sum(1 / each_s for each_s in per_sample_s[:-1])
    saved_s = speed / (others + speed) * asked.batch / others
    extra_s = whole.exposed_s - rest.exposed_s
    assume(abs(saved_s - extra_s) > 0.01 * rest.step_s)
    assert (saved_s > extra_s) == (whole.step_s < rest.step_s)


# --- many nodes -------------------------------------------------------------------------------------------


def many(number):
    nodes = tuple(Machine(f"n{i}", Cost(0.001 * (i % 4), 0.0005 + 0.0001 * i), gamma=0.3) for i in range(number))
    network = Network({node.name: 1e8 for node in nodes}, 1e-4)
    return Question(nodes, network, (1_000_000, 3_000_000, 800_000), 2048)


def test_twelve_nodes_have_4095_sets_and_take_a_fraction_of_a_second():
    asked = many(MOST)
    took_s = []
    for _ in range(3):
        begun_s = time.process_time()
        found = subsets(asked)
        took_s.append(time.process_time() - begun_s)
    assert len(found) == 2**MOST - 1
    assert min(took_s) < 0.2


def test_adding_node_by_node_finds_about_the_best_of_all_sets(monkeypatch):
    every = best(many(8))
    monkeypatch.setattr("daisychain.plan.forecast.MOST", 4)
    assert best(many(8)).samples_per_s >= every.samples_per_s * (1 - TIE)


def test_forty_nodes_that_only_hold_the_batch_together():
    nodes = tuple(replace(node, cost=Cost(0.0, 0.001, 60)) for node in many(40).machines)
    found = best(replace(many(40), machines=nodes))
    assert len(found.names) >= 2048 / 60
    assert found.speedup is None
