"""What a forecast means, in words: every kind of sentence, and none that the forecast doesn't bear out."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from daisychain.errors import UsageError
from daisychain.plan.advice import LOSES, Decision, advise, decide, judge
from daisychain.plan.forecast import TIE, Machine, Network, Question, best, forecast
from daisychain.plan.shares import Cost
from daisychain.plan.sync import Sync

NAMES = ("desk", "nuc", "old", "pi")


def question(per_sample_s, bytes_per_s=1e15, *, fixed_s=(), cap=None, latency_s=0.0, shared=False, wifi=False, **more):
    fixed_s = fixed_s or [0.0] * len(per_sample_s)
    costs = [Cost(fixed, each, cap) for fixed, each in zip(fixed_s, per_sample_s, strict=True)]
    machines = tuple(Machine(name, cost) for name, cost in zip(NAMES, costs, strict=False))
    network = Network({machine.name: bytes_per_s for machine in machines}, latency_s, shared, wifi)
    return Question(machines, network, **{"buckets": (1_000_000,), "batch": 700, **more})


def test_one_node_needs_no_advice():
    assert advise(question([0.001])) == ""


def test_all_help():
    assert advise(question([0.001, 0.002, 0.0039])) == "these three machines are 1.8x as fast as desk alone"


def test_the_fastest_is_named_wherever_it_stands():
    assert advise(question([0.004, 0.001])) == "these two machines are 1.2x as fast as nuc alone"


def test_a_node_that_holds_the_others_up_is_to_be_left_out():
    asked = question([0.001, 0.05, 0.0011], fixed_s=[0, 0.6, 0])
    assert advise(asked) == "leave nuc out: 1.9x instead of 1.1x"


def test_a_node_that_makes_no_difference_is_to_be_left_out_all_the_same():
    assert advise(question([0.001, 0.1, 0.001], batch=7000)) == "leave nuc out: 2.0x all the same"


def test_two_nodes_are_to_be_left_out():
    asked = question([0.001, 0.05, 0.0011, 0.05], fixed_s=[0, 0.6, 0, 0.6])
    assert advise(asked) == "leave nuc and pi out: 1.9x instead of 1.1x"


def test_on_wifi_a_larger_batch_a_cable_and_local_steps_would_help():
    asked = question([1 / 9000, 1 / 6000], 3e6, shared=True, wifi=True, buckets=(800_000,), batch=512)
    assert advise(asked) == (
        "on this Wi-Fi exact sync is slower than desk alone (0.2x); batch 8192 would make it 1.1x, "
        "a gigabit cable 1.4x, --sync local (approximate) 1.6x"
    )


def test_a_medium_that_is_shared_is_called_wifi_only_where_all_are_on_wifi():
    asked = question([1 / 9000, 1 / 6000], 3e6, shared=True, buckets=(800_000,), batch=512)
    assert advise(asked).startswith("on this network exact sync is slower than desk alone (0.2x); batch 8192")


def test_a_cable_is_no_remedy_for_a_wired_network_that_is_as_fast():
    asked = question([1 / 9000, 1 / 6000], 117e6, buckets=(8_000_000,), batch=512)
    assert "on this network exact sync is slower than desk alone" in advise(asked)
    assert "cable" not in advise(asked)


def test_nothing_is_promised_where_nothing_helps():
    asked = question([0.001, 0.0011], 117e6, latency_s=9.0, sync=Sync("local", 1))
    assert advise(asked) == "on this network local sync is slower than desk alone (0.04x); use --nodes desk"


def test_where_the_network_is_not_to_blame_it_is_not_blamed():
    asked = question([0.001, 0.1], fixed_s=[0, 5.0])
    assert advise(asked) == "these two machines are slower than desk alone (0.1x); use --nodes desk"
    assert advise(question([0.001, 0.2])) == "these two machines are no faster than desk alone; use --nodes desk"


def test_where_no_node_holds_the_batch_alone_throughput_is_told():
    asked = question([0.001, 0.002, 0.004], cap=400)
    assert advise(asked) == "these three machines make 1,750 samples/s; none of them holds the batch alone"


def test_a_batch_that_does_not_fit_raises():
    with pytest.raises(UsageError, match="doesn't fit"):
        advise(question([0.001, 0.002], cap=300))


def test_each_node_has_its_verdict():
    asked = question([0.001, 0.05, 0.0011], fixed_s=[0, 0.6, 0])
    desk, nuc, old = judge(asked)
    assert (desk.level, desk.reason, desk.node) == ("ok", "desk adds 110%", "desk")
    assert (old.level, old.reason) == ("ok", "old adds 91%")
    assert (nuc.level, nuc.reason) == ("warn", "nuc slows the run down: 1.1x with it, 1.9x without")
    assert nuc.remedy == "Leave it out: --nodes desk,old"


def test_a_run_that_loses_is_refused_unless_it_is_wanted_anyway():
    asked = question([1 / 9000, 1 / 6000], 3e6, buckets=(800_000,), batch=512)
    refusal = decide(asked).refusal
    assert refusal is not None
    assert refusal.level == "refuse"
    assert refusal.reason.startswith("forecast: on this network exact sync is slower than desk alone (0.2x)")
    assert refusal.remedy == "Use --nodes desk, or launch it with --anyway"
    assert decide(asked, anyway=True) == Decision()
    assert decide(asked, auto=True) == Decision(left_out=("nuc",))


def test_a_refusal_says_only_once_which_node_to_use():
    hopeless = decide(question([0.001, 0.002], fixed_s=[0, 5])).refusal
    assert f"{hopeless.reason}. {hopeless.remedy}".count("--nodes desk") == 1


def test_a_run_that_gains_is_begun_and_so_is_one_that_loses_less_than_forecasts_err():
    assert decide(question([0.001, 0.002])) == Decision()
    assert decide(question([0.001, 0.002, 0.002], 1e15, cap=400)) == Decision(), "nobody holds the batch alone"
    free, wanted_s = question([0.001, 0.002]), 0.7 / (1 - LOSES / 2)
    exchange_s = wanted_s - forecast(free).step_s
    nearly = question([0.001, 0.002], 1_000_000 / exchange_s)
    assert 1 - LOSES < forecast(nearly).speedup < 1
    assert decide(nearly) == Decision()


def test_the_best_set_is_taken_where_that_is_left_to_the_forecast():
    asked = question([0.001, 0.05, 0.0011], fixed_s=[0, 0.6, 0])
    assert decide(asked, auto=True) == Decision(left_out=("nuc",))
    assert decide(question([0.001, 0.002]), auto=True) == Decision()


def test_verdicts_where_one_node_alone_is_best():
    desk, nuc = judge(question([0.001, 0.2]))
    assert desk.reason == "desk alone is as fast as any set of nodes, within 2%"
    assert (nuc.level, nuc.reason) == ("warn", "nuc makes next to no difference: 1.0x without it too")


def test_verdicts_where_memory_needs_all():
    assert [v.reason for v in judge(question([0.001, 0.002], cap=400))] == [
        "without desk the batch doesn't fit into memory",
        "without nuc the batch doesn't fit into memory",
    ]


asked_anything = st.builds(
    question,
    st.lists(st.floats(1e-5, 1e-2), min_size=2, max_size=4),
    st.floats(1e4, 1e9),
    cap=st.one_of(st.none(), st.integers(350, 2000)),
    latency_s=st.floats(0, 0.01),
    shared=st.booleans(),
    sync=st.sampled_from([Sync("exact"), Sync("bf16"), Sync("local"), Sync("local", 3)]),
)


@settings(deadline=None)
@given(asked_anything)
def test_every_claim_is_a_number_of_the_forecast(asked):
    said = advise(asked)
    assert said
    assert not said.endswith(".")
    whole, top = forecast(asked), best(asked)
    if found := re.match(r"leave .* out: ([\d.]+)x instead of ([\d.]+)x", said):
        assert float(found[1]) == pytest.approx(top.speedup, abs=0.051)
        assert float(found[2]) == pytest.approx(whole.speedup, abs=0.051)
    if found := re.search(r"batch (\d+)[^;]*?([\d.]+)x", said):
        larger = best(replace(asked, batch=int(found[1])))
        assert float(found[2]) == pytest.approx(larger.speedup, abs=0.051)
    if "slower than" in said:
        assert whole.speedup < 1 - TIE


@settings(deadline=None)
@given(asked_anything)
def test_verdicts_agree_with_the_best_set(asked):
    verdicts = judge(asked)
    assert tuple(v.node for v in verdicts if v.level == "ok") == best(asked).names
    assume(any(v.level == "warn" for v in verdicts))
    assert all(v.remedy for v in verdicts if v.level == "warn")
