"""Report lines on a pipe."""

import inspect
import json
import os
import threading

import pytest

from daisychain.train import reports


def test_reports_are_one_json_object_a_line():
    reading, writing = os.pipe()
    tell = reports.Writer(writing)
    tell(reports.note("one\ntwo"))
    tell(reports.done())
    os.close(writing)
    with os.fdopen(reading) as stream:
        lines = [json.loads(line) for line in stream]
    assert lines == [{"kind": "note", "text": "one\ntwo"}, {"kind": "done"}]


def test_reports_of_several_threads_are_whole_lines():
    reading, writing = os.pipe()
    tell = reports.Writer(writing)
    found = []

    def read():
        with os.fdopen(reading) as stream:
            found.extend(json.loads(line) for line in stream)

    threads = [threading.Thread(target=lambda: [tell(reports.note("x" * 9000)) for _ in range(50)]) for _ in range(4)]
    reader = threading.Thread(target=read)
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    os.close(writing)
    reader.join()
    assert found == [{"kind": "note", "text": "x" * 9000}] * 200


@pytest.fixture
def pipe():
    """A writer whose clock is set by hand, and its lines so far."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    class Clocked(reports.Writer):
        now = 100.0

        def lines(self):
            try:
                return [json.loads(line) for line in os.read(reading, 1 << 20).decode().splitlines()]
            except BlockingIOError:
                return []

    writer = Clocked(writing, lambda: writer.now)
    yield writer
    os.close(reading)
    os.close(writing)


def numbered(number):
    return {"kind": "step", "step": number}


def test_steps_that_follow_each_other_fast_go_together_with_their_times(pipe):
    for number in range(1, 5):
        pipe(numbered(number))
        pipe.now += 0.08
    first, second = pipe.lines()
    assert (first["kind"], first["steps"]) == ("steps", [{"kind": "step", "step": 1, "ago_ms": 0.0}])
    assert [(one["step"], one["ago_ms"]) for one in second["steps"]] == [(2, 160.0), (3, 80.0), (4, 0.0)]


def test_a_slow_step_is_told_at_once(pipe):
    for number in (1, 2):
        pipe(numbered(number))
        assert [one["step"] for line in pipe.lines() for one in line["steps"]] == [number]
        pipe.now += reports.GATHER_S


def test_nothing_overtakes_a_step_and_none_waits_for_ever(pipe):
    pipe(numbered(1))
    pipe(numbered(2))
    pipe(reports.done())
    pipe(numbered(3))
    pipe.flush()
    pipe.flush()
    said = [
        [one["step"] for one in line["steps"]] if line["kind"] == "steps" else line["kind"] for line in pipe.lines()
    ]
    assert said == [[1], [2], "done", [3]]


def test_a_line_has_a_limit(pipe):
    for number in range(2 * reports.GATHER_STEPS + 1):
        pipe(numbered(number))
    assert [len(line["steps"]) for line in pipe.lines()] == [1, reports.GATHER_STEPS, reports.GATHER_STEPS]


def test_nobody_listening_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    reports.Writer(writing)(reports.done())
    os.close(writing)


def test_a_waiting_and_a_joined_rank_say_all_that_the_next_generation_needs():
    waiting = reports.waiting(port=4242, generation=3, completed=17, why="Connection reset by peer")
    assert waiting["kind"] == "waiting"
    assert {name: waiting[name] for name in ("port", "generation", "completed", "why")} == {
        "port": 4242, "generation": 3, "completed": 17, "why": "Connection reset by peer"
    }  # fmt: skip
    assert reports.joined(4, 17) == {"kind": "joined", "generation": 4, "completed": 17}


def test_every_report_has_a_kind_of_its_own():
    made = [
        reports.started(), reports.beat(), reports.done(), reports.note("x"), reports.joined(1, 0),
        reports.waiting(1, 0, 0, ""), reports.scores({}), reports.shares(1, [1], ""), reports.error("peer", "", ""),
    ]  # fmt: skip
    kinds = [report["kind"] for report in made]
    assert len(set(kinds)) == len(kinds)
    assert "epoch" in inspect.signature(reports.step).parameters
