"""What rtnetlink(7) says about Linux's interfaces and sysfs doesn't: a virtual one's kind, and relations."""

import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping

from daisychain.facts import Record

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_LINK_NETNSID = 3, 5, 10, 18, 37
_IFLA_INFO_KIND = 1
_NETLINK_ROUTE = 0
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_LINK_BYTES = 16  # struct ifinfomsg
_STACKED = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "rmnet")


class Link(Record, frozen=True, kw_only=True):
    """One interface as netlink tells of it; the relations are names of interfaces of the same namespace."""

    kind: str = ""
    """IFLA_INFO_KIND: veth, bridge, dummy, tun ...; empty for hardware."""
    master: str = ""
    parent: str = ""


def links() -> Mapping[str, Link]:
    """Every link of this network namespace; none where the system has no netlink or refuses. Blocks for under 2 s."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return {}
    try:
        with socket.socket(family, socket.SOCK_RAW, _NETLINK_ROUTE) as asked:
            asked.settimeout(1.0)
            asked.bind((0, 0))
            body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)
            flags = _NLM_F_REQUEST | _NLM_F_DUMP
            asked.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETLINK, flags, 1, 0) + body)
            return parse(_answer(asked))
    except OSError:
        return {}


def _answer(asked: socket.socket) -> bytes:
    answer = b""
    while part := asked.recv(1 << 18):
        answer += part
        if any(kind in (_NLMSG_DONE, _NLMSG_ERROR) for kind, _ in _messages(part)):
            break
    return answer


def parse(answer: bytes) -> dict[str, Link]:
    """{name: Link} from the bytes of a dump, in its order; what is torn or strange is left out. Never raises."""
    found: dict[int, tuple[str, dict[int, bytes]]] = {}
    for kind, body in _messages(answer):
        if kind == _RTM_NEWLINK and len(body) >= _LINK_BYTES:
            attributes = dict(_attributes(body[_LINK_BYTES:]))
            name = _text(attributes.get(_IFLA_IFNAME, b""))
            if name:
                found[struct.unpack_from("=i", body, 4)[0]] = (name, attributes)
    names = {index: name for index, (name, _) in found.items()}
    return {name: _link(attributes, names) for name, attributes in found.values()}


def _link(attributes: Mapping[int, bytes], names: Mapping[int, str]) -> Link:
    kind = _text(dict(_attributes(attributes.get(_IFLA_LINKINFO, b""))).get(_IFLA_INFO_KIND, b""))
    here = kind in _STACKED and _IFLA_LINK_NETNSID not in attributes
    return Link(
        kind=kind,
        master=names.get(_index(attributes.get(_IFLA_MASTER, b"")), ""),
        parent=names.get(_index(attributes.get(_IFLA_LINK, b"")), "") if here else "",
    )


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each whole message."""
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, _, _, _ = _HEADER.unpack_from(answer, at)
        if length < _HEADER.size or at + length > len(answer):
            return
        yield kind, answer[at + _HEADER.size : at + length]
        at += -(-length // 4) * 4


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, value) of each whole attribute; the flags in the type's two upper bits are left out."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]
        at += -(-length // 4) * 4


def _text(value: bytes) -> str:
    return value.split(b"\0")[0].decode(errors="replace")


def _index(value: bytes) -> int:
    with contextlib.suppress(struct.error):
        return int(struct.unpack("=i", value)[0])
    return 0
