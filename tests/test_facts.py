"""The vocabulary."""

import subprocess
import sys
from typing import get_args

import msgspec
import pytest

from daisychain import facts
from daisychain.facts import ENDED, Capacity, NodeStep, Phase, Record, RunSpec, Verdict

RECORDS = [
    kind for kind in vars(facts).values() if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
]


def test_a_capacity_is_a_straight_line() -> None:
    capacity = Capacity(fixed_s=0.01, per_sample_s=0.0001, threads=2, torch="2.9.0")
    assert capacity.step_s(0) == 0.01
    assert capacity.step_s(100) == pytest.approx(0.02)
    assert capacity.samples_per_second(100) == pytest.approx(5000)
    assert capacity.samples_per_second() == pytest.approx(256 / 0.0356)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_record_is_frozen_and_has_no_positions(kind: type[Record]) -> None:
    assert kind.__struct_config__.frozen
    with pytest.raises(TypeError, match="positional"):
        kind("x")


def test_records_are_compared_by_value_and_can_not_be_changed() -> None:
    one, two = (NodeStep(node="old", share=3) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(AttributeError):
        one.share = 4  # type: ignore[misc]


def test_what_has_ended_is_a_phase() -> None:
    assert set(ENDED) < set(get_args(Phase))


@pytest.mark.parametrize("spec", [{"job": "shell"}, {"job": "demo", "batch": "8"}, {}])
def test_a_specification_of_another_shape_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(spec, RunSpec)


def test_a_verdict_needs_a_reason() -> None:
    with pytest.raises(TypeError):
        Verdict(level="ok", check="nic")  # type: ignore[call-arg]


def test_the_vocabulary_imports_nothing_of_ours_but_itself() -> None:
    code = (
        "import sys, daisychain.facts; print(sorted(m for m in sys.modules if m.startswith(('daisychain', 'torch'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['daisychain', 'daisychain.facts']"
