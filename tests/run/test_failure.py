"""Which of several failures is shown."""

import itertools

import pytest

from daisychain.run.failure import BY_CAUSE, Failure, cause, from_exit, from_report


def failure(origin: str, at_s: float, node: str = "old") -> Failure:
    return Failure(node=node, origin=origin, message=origin, at_s=at_s)


@pytest.mark.parametrize(("better", "worse"), list(itertools.combinations(BY_CAUSE, 2)))
def test_the_better_explanation_wins_whenever_it_came(better: str, worse: str) -> None:
    for early, late in ((better, worse), (worse, better)):
        assert cause([failure(early, 1.0), failure(late, 2.0)]).origin == better


def test_the_order_is_the_one_that_is_promised() -> None:
    assert BY_CAUSE == ("script", "killed", "chain", "lost", "peer")


def test_among_equals_the_first() -> None:
    found = cause([failure("script", 3.0, "c"), failure("script", 1.0, "a"), failure("script", 2.0, "b")])
    assert found.node == "a"


def test_a_script_error_has_its_place_and_exit_code() -> None:
    report = {
        "kind": "error",
        "origin": "script",
        "type": "ValueError",
        "message": "bad",
        "file": "train.py",
        "line": 7,
        "remedy": "Correct it",
    }
    found = from_report("old", report, "/log", 2.0)
    assert found.text == "old: train.py:7: ValueError: bad. Correct it"
    assert from_report("old", report | {"message": "Bad."}, "", 0.0).text.endswith("ValueError: Bad. Correct it")
    assert (found.exit_code, found.log_path, found.at_s) == (6, "/log", 2.0)


@pytest.mark.parametrize(
    ("report", "text"),
    [
        ({}, "old"),
        ({"message": "no route"}, "old: no route"),
        ({"origin": "peer", "type": "RuntimeError", "message": "reset"}, "old: RuntimeError: reset"),
        ({"origin": "nonsense", "message": "x", "file": None, "line": None}, "old: x"),
        ({"message": "x", "file": "a.py", "line": "7"}, "old: a.py: x"),
    ],
)
def test_a_report_with_gaps_is_still_a_failure(report: dict[str, object], text: str) -> None:
    found = from_report("old", report, "", 0.0)
    assert found.text == text
    assert found.origin in BY_CAUSE
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("code", "word"),
    [(-9, "memory"), (-4, "AVX2"), (-6, "SIGABRT"), (-11, "SIGSEGV"), (3, "exit code 3"), (-15, "-15")],
)
def test_a_silent_end_says_what_its_code_means_and_what_to_try(code: int, word: str) -> None:
    found = from_exit("old", code, "/log", 1.0)
    assert found.origin == "killed"
    assert found.text.startswith("old: ")
    assert word in found.text
    assert found.remedy
    assert found.log_path == "/log"


def test_a_processor_that_is_known_to_lack_an_instruction_is_told_which() -> None:
    assert "it has no AVX, AVX2" in from_exit("old", -4, "", 0.0, ("avx", "avx2")).text
    assert "most often AVX2" in from_exit("old", -4, "", 0.0).text


@pytest.mark.parametrize(
    ("peak_bytes", "oom", "words"),
    [
        (3_210_000_000, True, ["the kernel ended a process there for want of memory", "it held 3.21 GB"]),
        (40_000_000, False, ["not by the kernel", "0.04 GB"]),
        (None, True, ["for want of memory"]),
        (None, None, ["most often memory ran out"]),
    ],
)
def test_a_killed_rank_says_what_memory_it_held_and_how_to_cap_it(
    peak_bytes: int | None, oom: bool | None, words: list[str]
) -> None:
    found = from_exit("old", -9, "", 0.0, peak_bytes=peak_bytes, oom=oom)
    assert found.text.startswith("old: its rank was killed (SIGKILL)")
    assert all(word in found.message for word in words)
    assert ("GB" in found.message) == (peak_bytes is not None)
    assert "--micro-batch" in found.remedy
