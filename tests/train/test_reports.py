"""Report lines on a pipe."""

import inspect
import json
import os
import threading

from daisychain.train import reports


def test_reports_are_one_json_object_a_line():
    reading, writing = os.pipe()
    tell = reports.writer(writing)
    tell(reports.note("one\ntwo"))
    tell(reports.done())
    os.close(writing)
    with os.fdopen(reading) as stream:
        lines = [json.loads(line) for line in stream]
    assert lines == [{"kind": "note", "text": "one\ntwo"}, {"kind": "done"}]


def test_reports_of_several_threads_are_whole_lines():
    reading, writing = os.pipe()
    tell = reports.writer(writing)
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


def test_nobody_listening_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    reports.writer(writing)(reports.done())
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
