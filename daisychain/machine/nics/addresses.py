"""IPv4 addresses of a NIC, as gloo sees them: the first one counts."""

import ipaddress

from daisychain.facts import Address, Nic

IPv4 = ipaddress.IPv4Address
IPv4Net = ipaddress.IPv4Network

CARRIER_GRADE = IPv4Net("100.64.0.0/10")
"""Shared address space (RFC 6598); on a tunnel it is the mark of Tailscale."""


def is_public(ip: str) -> bool:
    """Whether strangers may reach a listener on this address (a scope such as %eth0 is ignored).

    True as well for what means every address (0.0.0.0, ::) and for what isn't an address at all: a guard that is
    asked about such a thing should refuse it.
    """
    try:
        address = ipaddress.ip_address(ip.strip().split("%")[0])
    except ValueError:
        return True
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_global or address.is_unspecified


def parse(ip: str) -> IPv4 | None:
    """The IPv4 address that this text is; None for anything else."""
    try:
        return IPv4(ip)
    except ValueError:
        return None


def private(ip: IPv4) -> bool:
    """Fit for a chain: neither public nor one that the machine gave itself."""
    return not (is_public(str(ip)) or ip.is_link_local or ip.is_loopback)


def fours(nic: Nic) -> list[tuple[IPv4, IPv4Net | None]]:
    """Its IPv4 addresses in order, each with its network; None where the prefix makes no sense."""
    return [(ip, network_of(address)) for address in nic.addresses if (ip := parse(address.ip)) is not None]


def network_of(address: Address) -> IPv4Net | None:
    """The network of 'IP/PREFIX'; None where that makes no sense."""
    try:
        return IPv4Net(f"{address.ip}/{address.prefix}", strict=False)
    except ValueError:
        return None


def first(nic: Nic) -> IPv4 | None:
    """The address that gloo will use: the first IPv4 one."""
    return next((ip for ip, _ in fours(nic)), None)


def network(nic: Nic) -> IPv4Net | None:
    """The network of the address that gloo will use."""
    return next((net for _, net in fours(nic)), None)


def usable(nic: Nic) -> bool:
    """Up and beyond loopback, with a first IPv4 address that is fit for a chain."""
    ip = first(nic)
    return nic.up and nic.kind != "loopback" and ip is not None and private(ip)
