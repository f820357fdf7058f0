"""Report lines on a pipe."""

import json
import os

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


def test_nobody_listening_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    reports.writer(writing)(reports.done())
    os.close(writing)
