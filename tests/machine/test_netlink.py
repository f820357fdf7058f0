"""What rtnetlink answers: made-up messages, and this machine's own."""

import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.machine.netlink import Link, links, parse

IFNAME, LINK, MASTER, LINKINFO, NETNSID = 3, 5, 10, 18, 37
NEWLINK, DONE = 16, 3
NESTED = 0x8000


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def link(index: int, name: str, kind: str = "", **numbers: int) -> bytes:
    """A RTM_NEWLINK message; `numbers`: master, link, netnsid."""
    body = struct.pack("=BxHiII", 0, 1, index, 0, 0) + attribute(IFNAME, name.encode() + b"\0")
    ids = {"master": MASTER, "link": LINK, "netnsid": NETNSID}
    body += b"".join(attribute(ids[key], struct.pack("=i", value)) for key, value in numbers.items())
    if kind:
        body += attribute(LINKINFO | NESTED, attribute(1, kind.encode() + b"\0") + attribute(4, b"bridge\0"))
    return message(NEWLINK, body)


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body + b"\0" * (-len(body) % 4)


DUMP = (
    link(1, "lo")
    + link(2, "eth0", master=3)
    + link(3, "br0", "bridge")
    + link(4, "eth0.5", "vlan", link=2)
    + link(5, "mac0", "macvlan", link=9, netnsid=0)
    + link(6, "veth1", "veth", link=7, master=3)
    + link(7, "veth2", "veth", link=6, master=99)
    + message(DONE, b"\0\0\0\0")
)


def test_kinds_and_relations_are_read() -> None:
    assert parse(DUMP) == {
        "lo": Link(),
        "eth0": Link(master="br0"),
        "br0": Link(kind="bridge"),
        "eth0.5": Link(kind="vlan", parent="eth0"),
        "mac0": Link(kind="macvlan"),
        "veth1": Link(kind="veth", master="br0"),
        "veth2": Link(kind="veth"),
    }


def test_a_parent_in_another_namespace_is_not_taken_for_one_of_here() -> None:
    assert parse(link(2, "eth0") + link(5, "mac0", "macvlan", link=2, netnsid=0))["mac0"].parent == ""


def test_a_torn_dump_gives_what_is_whole() -> None:
    whole = link(1, "lo")
    assert [*parse(whole + DUMP[len(whole) : len(whole) + 30])] == ["lo"]
    for end in range(len(DUMP)):
        assert set(parse(DUMP[:end])) <= set(parse(DUMP))


@pytest.mark.parametrize(
    "odd",
    [
        message(NEWLINK, b"short"),
        message(NEWLINK, struct.pack("=BxHiII", 0, 1, 5, 0, 0)),
        struct.pack("=IHHII", 3, NEWLINK, 0, 0, 0),
        message(NEWLINK, struct.pack("=BxHiII", 0, 1, 5, 0, 0) + attribute(IFNAME, b"x\0") + attribute(MASTER, b"ab")),
        message(NEWLINK, struct.pack("=BxHiII", 0, 1, 5, 0, 0) + struct.pack("=HH", 1, IFNAME)),
    ],
)
def test_strange_messages_are_no_error(odd: bytes) -> None:
    assert set(parse(odd)) <= {"x"}
    assert all(one == Link() for one in parse(odd).values())


@given(st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, len(DUMP)), st.binary(max_size=9))))
def test_no_bytes_raise(given: bytes | tuple[int, bytes]) -> None:
    data = given if isinstance(given, bytes) else DUMP[: given[0]] + given[1] + DUMP[given[0] + len(given[1]) :]
    assert all(isinstance(name, str) for name in parse(data))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's netlink")
def test_this_machine_s_links_are_those_that_the_system_lists() -> None:
    found = links()
    assert set(found) == {name for _, name in socket.if_nameindex()}
    assert found["lo"].kind == ""
