"""Cutting one's own connections: all of the generation's, and none of the script's."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from daisychain.train import group
from daisychain.train.group import Group, Listener
from daisychain.train.task import Formation

pytestmark = pytest.mark.torch


@pytest.fixture
def pair() -> Iterator[Any]:
    """Makes both ends of a TCP connection."""
    with ExitStack() as stack:

        def make() -> tuple[socket.socket, socket.socket]:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            near = stack.enter_context(socket.create_connection(server.getsockname()))
            return near, stack.enter_context(server.accept()[0])

        yield make


def test_connections_are_those_that_are_connected_and_of_this_process(pair: Any) -> None:
    before = group._connections()
    near, far = pair()
    one, other = socket.socketpair()
    with one, other, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(("127.0.0.1", 9))
        found = group._connections() - before
    ends = near.getsockname(), far.getsockname()
    assert found == {(near.fileno(), *ends), (far.fileno(), *reversed(ends))}


def test_where_descriptors_are_not_listed_the_table_of_all_sockets_says_the_same(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair()
    own = {near.fileno(), far.fileno()}
    listed = {(fd, tuple(here), tuple(there)) for fd, here, there in group._connections() if fd in own}
    monkeypatch.setattr(group, "DESCRIPTORS", "/no such folder")
    assert {(fd, tuple(here), tuple(there)) for fd, here, there in group._connections() if fd in own} == listed


def test_a_descriptor_that_is_closed_meanwhile_is_none(pair: Any) -> None:
    near, _ = pair()
    fd = os.dup(near.fileno())
    os.close(fd)
    assert group._ends(fd) is None


@pytest.mark.parametrize("formed", [True, False])
def test_severing_cuts_what_was_connected_since_and_nothing_else(
    pair: Any, formed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = pair()
    ours: list[Any] = []

    def connect(formation: Any, descriptor: Any, given_up: Any, found: Any) -> None:
        ours.extend(pair())
        if formed:
            found.put("a backend")

    monkeypatch.setattr(group, "_connect", connect)
    subject = Group()
    if formed:
        subject.form(Formation(rank=1, names=("a", "b")), Listener("127.0.0.1"), lambda: False)
    else:
        with pytest.raises(RuntimeError, match="lost while the ranks connected"):
            subject.form(Formation(rank=1, names=("a", "b")), Listener("127.0.0.1"), lambda: bool(ours))
    subject.sever()
    assert ours[0].recv(1) == b""
    scripts[0].sendall(b"x")
    assert scripts[1].recv(1) == b"x"
    subject.close()
    late = pair()
    subject.sever()
    late[0].sendall(b"x")
    assert late[1].recv(1) == b"x"


def test_a_group_that_something_is_still_under_way_in_is_never_dropped() -> None:
    """Its end would wait for that."""
    subject = Group()
    dropped: list[str] = []

    class Backend:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            dropped.append(self.name)

    subject.backend = Backend("ended")
    subject.close(has_ended=True)
    subject.backend = Backend("stuck")
    subject.close(has_ended=False)
    assert subject.backend is None
    assert dropped == ["ended"]
    group._stuck.clear()
