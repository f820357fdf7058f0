"""One line for what ended a script."""

from pathlib import Path

import pytest

from daisychain.errors import DataError, LinkError
from daisychain.train.blame import describe, is_lost_peer

GLOO = (
    "Got the following error when running the callback: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/"
    "transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:6059. This is typically caused by a crash."
)


def ended_by(error):
    try:
        raise error
    except BaseException as raised:
        return raised


@pytest.mark.parametrize("code", [None, 0])
def test_a_normal_exit_is_no_error(code):
    assert describe(ended_by(SystemExit(code)), Path("/work")) is None


def test_a_lost_peer_is_told_apart_from_the_scripts_own_errors():
    report = describe(ended_by(RuntimeError(GLOO)), Path("/work"))
    assert report is not None
    assert report["origin"] == "peer"
    assert report["message"] == "lost the connection to another node: Connection closed by peer [10.0.0.2]:6059"
    assert is_lost_peer(type("DistStoreError", (type("DistError", (RuntimeError,), {}),), {})("timed out"))
    assert is_lost_peer(LinkError("gone"))
    assert not is_lost_peer(ConnectionResetError("Connection reset by peer"))
    assert not is_lost_peer(RuntimeError("Expected to have finished reduction in the prior iteration"))


def test_the_innermost_frame_of_the_users_files_is_named():
    here = Path(__file__)
    report = describe(ended_by(DataError("no such column", "Check the name")), here.parent)
    assert report is not None
    assert report["file"] == here.name
    assert (report["message"], report["remedy"]) == ("no such column", "Check the name")
    code = compile("import json\njson.loads('{')", str(here.parent / "user.py"), "exec")
    try:
        exec(code, {})
    except ValueError as error:
        report = describe(error, here.parent)
    assert report is not None
    assert (report["type"], report["file"], report["line"]) == ("JSONDecodeError", "user.py", 2)
    assert "log" in report["remedy"]


def test_a_message_is_one_short_line():
    report = describe(ended_by(ValueError("\n" + "long " * 500 + "\nmore")), Path("/work"))
    assert report is not None
    assert len(report["message"]) == 500
    report = describe(ended_by(ValueError()), Path("/work"))
    assert report is not None
    assert report["message"] == "ValueError"
