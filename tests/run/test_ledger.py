"""The ledger: what is proven, what is found out, and the file."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.run.ledger import Applied, Ledger, check, mix, read, whole

Line = dict[str, Any]


def epochs(count: int, samples: int = 43, batch: int = 10, drop_last: bool = False) -> list[Line]:
    """Lines of a faultless run; every epoch has its rows in another order."""
    lines: list[Line] = []
    for epoch in range(count):
        rows = [(i + 7 * epoch) % samples for i in range(samples)]
        for index, first in enumerate(range(0, samples - samples % batch if drop_last else samples, batch)):
            part = rows[first : first + batch]
            lines.append({
                "v": 1, "step": len(lines) + 1, "epoch": epoch, "index": index, "first": first, "batch": len(part),
                "digest": sum(map(mix, part)) % 2**64, "shares": {"head": len(part) - 1, "old": 1}, "generation": 0,
            })  # fmt: skip
    return lines


def resumed(step: int) -> Line:
    return {"v": 1, "event": "resumed", "step": step}


def judge(lines: list[Line], samples: int = 43, batch: int = 10, drop_last: bool = False) -> tuple[str, str]:
    verdict = check([json.dumps(line) for line in lines], samples, drop_last, batch)
    assert verdict.check == "ledger"
    assert bool(verdict.remedy) == (verdict.level == "refuse")
    return verdict.level, verdict.reason


def test_mix_is_splitmix64() -> None:
    """The first outputs of the reference implementation for the seeds 0 and 1234567."""
    assert (mix(0), mix(1234567)) == (0xE220A8397B1DCDAF, 6457827717110365317)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (epochs(10), "10 epochs of 43 samples, each applied exactly once"),
        (epochs(1), "1 epoch of 43 samples, each applied exactly once"),
        (epochs(2)[:7], "1 epoch of 43 samples, each applied exactly once; epoch 2 isn't finished: 20 of 43 samples"),
        (epochs(1)[:1], "epoch 1 isn't finished: 10 of 43 samples"),
        ([], "no step was applied yet"),
        ([*epochs(2)[:8], resumed(3), *epochs(2)[3:]], "2 epochs of 43 samples, each applied exactly once"),
        ([*epochs(1), resumed(0), *epochs(1)], "1 epoch of 43 samples, each applied exactly once"),
        ([*epochs(1), {"v": 1, "event": "moved"}], "1 epoch of 43 samples, each applied exactly once"),
    ],
)
def test_a_faultless_run_is_proven(lines: list[Line], reason: str) -> None:
    assert judge(lines) == ("ok", reason)


def test_a_batch_larger_than_the_data_is_one_step_an_epoch() -> None:
    assert judge(epochs(3, 4, 10), 4) == ("ok", "3 epochs of 4 samples, each applied exactly once")


def test_with_drop_last_only_counts_are_proven() -> None:
    level, reason = judge(epochs(2, drop_last=True), drop_last=True)
    assert level == "ok"
    assert reason.startswith("2 epochs of 43 samples, 40 of them in each epoch applied")
    assert "can't be checked" in reason


def test_drop_last_that_drops_nothing_proves_as_much_as_without() -> None:
    lines = epochs(2, 40, drop_last=True)
    assert judge(lines, 40, drop_last=True)[1] == "2 epochs of 40 samples, each applied exactly once"
    lines[3]["digest"] ^= 1
    assert judge(lines, 40, drop_last=True) == (
        "refuse",
        "epoch 1's digest differs: some sample is missing or doubled",
    )


def changed(at: int, **fields: Any) -> list[Line]:
    lines = epochs(3)
    lines[at] |= fields
    return lines


def without(*steps: int) -> list[Line]:
    return [line for line in epochs(3) if line["step"] not in steps]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (without(4), "step 4 is missing"),
        (without(1), "step 1 is missing"),
        (without(4, 5, 6), "steps 4 to 6 are missing"),
        ([*epochs(1), epochs(1)[4]], "step 5 was applied twice"),
        ([*epochs(1)[:3], *epochs(1)[1:]], "step 2 was applied twice"),
        ([*epochs(1)[:2], resumed(4), *epochs(1)[4:]], "steps 3 to 4 are missing before a resume"),
        ([*epochs(1), resumed(2), *epochs(1)[3:]], "step 3 is missing"),
        (changed(12, digest=5), "epoch 3's digest differs: some sample is missing or doubled"),
        (changed(0, digest=-1), "step 1's digest isn't one"),
        (changed(1, batch=9), "step 2 had 9 samples instead of 10"),
        (changed(1, first=9), "step 2 began at sample 9 of its epoch instead of 10"),
        (changed(1, shares={"head": 9}), "step 2's shares {'head': 9} don't add up to its 10 samples"),
        (changed(1, shares={"a": 11, "b": -1}), "step 2's shares {'a': 11, 'b': -1} don't add up to its 10 samples"),
        (changed(1, shares={}), "step 2's shares {} don't add up to its 10 samples"),
        (
            changed(4, epoch=1, index=0),
            "step 5 is epoch 2, batch 1 instead of epoch 1, batch 5, but epoch 1 had 40 of 43 samples",
        ),
        (changed(5, epoch=0, index=5), "step 6 is epoch 1, batch 6 instead of epoch 2, batch 1"),
    ],
)
def test_the_first_thing_wrong_is_named(lines: list[Line], reason: str) -> None:
    assert judge(lines) == ("refuse", reason)


def test_a_doubled_sample_in_place_of_another_is_found() -> None:
    """Right counts in every step, but one row twice and another never."""
    lines = epochs(1)
    lines[2]["digest"] = (lines[2]["digest"] - mix(5) + mix(6)) % 2**64
    assert judge(lines)[0] == "refuse"


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "3", '{"v": 2}', '{"v": 1, "event": "resumed"}', "\ud800", "[" * 9999]
)
def test_what_is_no_line_is_refused_with_its_number(text: str) -> None:
    verdict = check([json.dumps(epochs(1)[0]), text], 43, False, 10)
    assert verdict.level == "refuse"
    assert verdict.reason.startswith("line 2 isn't a ledger's line")


@pytest.mark.parametrize(("samples", "batch", "drop_last"), [(0, 10, False), (43, 0, False), (5, 10, True)])
def test_settings_that_make_no_epoch_are_refused(samples: int, batch: int, drop_last: bool) -> None:
    assert judge(epochs(1), samples, batch, drop_last)[0] == "refuse"


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 4), st.data())
def test_any_single_fault_is_found(samples: int, batch: int, count: int, data: st.DataObject) -> None:
    lines = epochs(count, samples, batch)
    assert judge(lines, samples, batch)[0] == "ok"
    at = data.draw(st.integers(0, len(lines) - 1))
    fault = data.draw(st.sampled_from(["digest", "first", "batch", "index", "epoch", "step", "again"]))
    if fault == "again":
        lines.insert(at, lines[at])
    else:
        lines[at][fault] += data.draw(st.sampled_from([-1, 1]))
    assert judge(lines, samples, batch)[0] == "refuse"


@given(st.lists(st.text() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps), max_size=4))
def test_no_text_makes_the_check_raise(lines: list[str]) -> None:
    assert check(lines, 43, False, 10).level == ("refuse" if lines else "ok")


def test_the_whole_epochs_digest_is_the_sum_of_its_rows() -> None:
    assert whole(0) == 0
    assert whole(1) == mix(0)
    assert whole(1000) == sum(mix(row) for row in range(1000)) % 2**64


# --- the file ---------------------------------------------------------------------------------------------------


def write(path: Path, lines: list[Line]) -> None:
    ledger = Ledger(path)
    for line in lines:
        if "event" in line:
            ledger.resumed(line["step"])
        else:
            ledger.applied(**{key: value for key, value in line.items() if key != "v"})
    ledger.close()


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert read(path) == []
    lines = [*epochs(1)[:3], resumed(2), *epochs(1)[2:]]
    write(path, lines)
    assert [json.loads(line) for line in read(path)] == lines


def test_a_line_is_there_before_the_ledger_is_closed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.resumed(3)
    assert [json.loads(line) for line in read(tmp_path / "ledger.jsonl")] == [resumed(3)]
    ledger.close()


def test_wherever_a_write_was_torn_the_next_writer_goes_on(tmp_path: Path) -> None:
    """Whatever is left of the last line: it is whole or gone, and lines after it are whole."""
    path = tmp_path / "ledger.jsonl"
    write(path, epochs(1)[:3])
    data = path.read_bytes()
    second = data.index(b"\n", data.index(b"\n") + 1) + 1
    for end in range(second, len(data) + 1):
        path.write_bytes(data[:end])
        there = len(read(path))
        assert there == (3 if end >= len(data) - 1 else 2)
        write(path, [resumed(2), *epochs(1)[2:]])
        assert len(read(path)) == there + 4
        assert check(read(path), 43, False, 10).reason == "1 epoch of 43 samples, each applied exactly once"


def test_torn_bytes_in_the_middle_of_a_letter_are_no_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"v":1,"event":"resumed","step":0}\n{"v":1,"shares":{"gr\xc3')
    assert len(read(path)) == 1


@pytest.mark.parametrize(
    "before",
    [
        [],
        epochs(1)[:3],
        epochs(2)[:9],
        [*epochs(2)[:10], resumed(5), *epochs(2)[5:6]],
        [*epochs(2)[:10], resumed(2), *epochs(2)[2:9], resumed(4)],
    ],
    ids=["nothing", "too few", "too many", "too few after a resume", "too few after two resumes"],
)
def test_whatever_a_ledger_has_a_run_that_goes_on_from_a_checkpoint_is_proven(
    tmp_path: Path, before: list[Line]
) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, before)
    ledger = Ledger(path)
    ledger.catch_up([msgspec.convert(line, Applied) for line in epochs(2)[:8]], 8)
    ledger.close()
    write(path, epochs(2)[8:])
    assert check(read(path), 43, False, 10).reason == "2 epochs of 43 samples, each applied exactly once"


def test_the_state_of_a_rank_that_was_away_brings_its_steps_back(tmp_path: Path) -> None:
    """Nine steps; the others go back to a checkpoint of step 3 and do one again; then the one with nine is back."""
    path = tmp_path / "ledger.jsonl"
    write(path, epochs(2)[:9])
    ledger = Ledger(path)
    ledger.catch_up([], 3)
    ledger.close()
    write(path, epochs(2)[3:4])
    ledger = Ledger(path)
    ledger.catch_up([], 9)
    ledger.close()
    write(path, epochs(2)[9:])
    assert check(read(path), 43, False, 10).reason == "2 epochs of 43 samples, each applied exactly once"


def test_what_a_checkpoint_doesnt_have_either_stays_missing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, epochs(2)[:3])
    ledger = Ledger(path)
    ledger.catch_up([msgspec.convert(line, Applied) for line in epochs(2)[5:8]], 8)
    ledger.close()
    assert check(read(path), 43, False, 10).reason == "steps 4 to 5 are missing"
