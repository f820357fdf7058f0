"""What kind each interface of a machine is, and what tells so. The system's own words count more than a name."""

from daisychain.facts import Nic, NicKind
from daisychain.machine.nics import hardware, names
from daisychain.machine.nics.addresses import CARRIER_GRADE, parse
from daisychain.machine.nics.names import Sort
from daisychain.machine.nics.raw import Interface, Machine

_LOOPBACK, _PPP = 772, 512
_TUNNEL_TYPES = (768, 769, 776, 778, 823)
"""ARPHRD_TUNNEL, _TUNNEL6, _SIT, _IPGRE, _IP6GRE."""

_LINK_KINDS: dict[str, NicKind] = {
    **dict.fromkeys(("bond", "team"), "bond"),
    **dict.fromkeys(("vlan",), "vlan"),
    **dict.fromkeys(("macvlan", "macvtap", "ipvlan", "ipvtap"), "macvlan"),
    **dict.fromkeys(("veth", "netkit"), "veth"),
    **dict.fromkeys(("vxlan", "geneve"), "container"),
    **dict.fromkeys(("wwan", "rmnet"), "tether"),
    **dict.fromkeys(("dummy", "ifb", "nlmon", "vrf"), "loopback"),
    **dict.fromkeys(("ppp", "gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl"), "tun"),
    **dict.fromkeys(("vti", "vti6", "xfrm", "ovpn"), "tun"),
    "wireguard": "wireguard",
}  # fmt: skip
"""IFLA_INFO_KIND or DEVTYPE -> kind, where it decides alone."""

_REAL: tuple[NicKind, ...] = ("ethernet", "wifi", "bond", "vlan", "macvlan", "tether", "wsl", "bridge")
_DEAD: tuple[NicKind, ...] = ("container", "hypervisor", "loopback")
_SPEED_MEANS_SOMETHING: tuple[NicKind, ...] = ("ethernet", "wifi", "bond", "vlan", "bridge")
"""Virtual interfaces report made-up speeds: a veth 10 Gbit/s, an old tun 10 Mbit/s."""
_SPEED_UNKNOWN = (0, 65535, 2**32 - 1)


def describe(machine: Machine) -> tuple[Nic, ...]:
    """Every interface with its kind and the evidence for it, in the same order. Never raises."""
    return tuple(_nic(interface, machine) for interface in machine.interfaces)


def _nic(interface: Interface, machine: Machine) -> Nic:
    kind, evidence = classify(interface, machine)
    speed = interface.speed_mbps if kind in _SPEED_MEANS_SOMETHING else None
    return Nic(
        name=interface.name,
        kind=kind,
        addresses=interface.addresses,
        up=interface.up,
        mtu=interface.mtu,
        speed_mbps=None if speed in _SPEED_UNKNOWN or (speed is not None and speed < 0) else speed,
        default_route=interface.default_route,
        gateway=interface.gateway,
        evidence=evidence,
        master=interface.master,
        over=interface.lower,
        emulated=hardware.emulated(interface, machine),
    )


def classify(interface: Interface, machine: Machine) -> Sort:
    """(kind, evidence) of one interface of this machine; 'unknown' where nothing tells. Never raises."""
    return _classify(interface, machine, frozenset())


def _classify(interface: Interface, machine: Machine, above: frozenset[str]) -> Sort:
    """`above`: interfaces that lie on this one, so that a circle in the facts ends."""
    if interface.known or interface.link_kind:
        kind, evidence = _by_system(interface, machine, above)
    else:
        kind, evidence = _by_name(interface)
    # Tailscale on macOS is utunN, and on Linux it may have any name.
    if kind == "tun" and not interface.name.lower().startswith("cloudflare") and _carrier_grade(interface):
        return "tailscale", f"{evidence}, with an address of 100.64.0.0/10"
    return kind, evidence


def _carrier_grade(interface: Interface) -> bool:
    return any(ip in CARRIER_GRADE for a in interface.addresses[:1] if (ip := parse(a.ip)) is not None)


def _by_name(interface: Interface) -> Sort:
    """macOS, Windows, and Linux without a readable /sys."""
    if interface.port:
        return names.port(interface.name, interface.port)
    if interface.name.lower().startswith("vethernet") and interface.default_route:
        return "bridge", "a Hyper-V switch that has the default route"
    return names.by_mac(interface.mac) or names.product(interface.name) or names.plain(interface.name)


def _by_system(interface: Interface, machine: Machine, above: frozenset[str]) -> Sort:
    if interface.arp_type == _LOOPBACK:
        return "loopback", "the system's loopback"
    if interface.wireless or interface.devtype == "wlan":
        return "wifi", f"wireless, driver {interface.driver}" if interface.driver else "wireless"
    if interface.device:
        return hardware.sort(interface, machine)
    link = interface.link_kind or _from_sysfs(interface)
    if link in ("bridge", "openvswitch"):
        return _bridge(interface, machine, above)
    if link == "tun":
        return _tunnel(interface)
    if link in _LINK_KINDS:
        return _virtual(link, interface, machine, above)
    # what VMware and VirtualBox put on a Linux host says nothing of itself
    if interface.name.startswith("venet"):
        return "veth", "named as OpenVZ names its own"
    return names.product(interface.name) or (
        "unknown",
        f"the system calls it {link}" if link else "nothing tells what it is",
    )


def _from_sysfs(interface: Interface) -> str:
    """A stand-in for netlink's word; empty where the files don't tell."""
    if interface.bridge:
        return "bridge"
    if interface.bonding:
        return "bond"
    if interface.tun:
        return "tun"
    if interface.arp_type == _PPP:
        return "ppp"
    if interface.arp_type in _TUNNEL_TYPES:
        return "sit"
    if interface.devtype:
        return interface.devtype
    if interface.linked:
        return "macvlan" if interface.lower else "veth"
    return ""


def _virtual(link: str, interface: Interface, machine: Machine, above: frozenset[str]) -> Sort:
    kind = _LINK_KINDS[link]
    if kind == "loopback" and (own := names.product(interface.name)) is not None:
        return own
    if kind not in ("vlan", "macvlan") or not interface.lower:
        return kind, f"the system calls it {link}"
    over = ", ".join(interface.lower)
    below = _below(interface, machine, above)
    if below and all(kind in _DEAD for kind in below):
        return "container", f"{link} over {over}, which leads nowhere"
    return kind, f"{link} over {over}"


def _bridge(interface: Interface, machine: Machine, above: frozenset[str]) -> Sort:
    """A bridge leads out if one of its members does; otherwise it is what container tools or hypervisors leave."""
    below = _below(interface, machine, above)
    if any(kind in _REAL for kind in below):
        members = ", ".join(interface.lower) or "a member of its switch"
        return "bridge", f"a bridge over {members}"
    if (own := names.product(interface.name)) is not None and own[0] in _DEAD:
        return own[0], f"a bridge without a physical member, {own[1]}"
    kind: NicKind = "hypervisor" if any(kind in ("tun", "hypervisor") for kind in below) else "container"
    return kind, "a bridge without a physical member" if below else "a bridge without any member"


def _tunnel(interface: Interface) -> Sort:
    if (own := names.product(interface.name)) is not None:
        return own
    if interface.master:
        return "hypervisor", f"a tap device in {interface.master}"
    return "tun", "a tun or tap device"


def _below(interface: Interface, machine: Machine, above: frozenset[str]) -> list[NicKind]:
    """Kinds of what it lies on. Open vSwitch puts hardware under ovs-system, not under its own bridges."""
    switch = "ovs-system" if interface.link_kind == "openvswitch" else None
    above |= {interface.name}
    return [
        _classify(other, machine, above)[0]
        for other in machine.interfaces
        if other.name not in above
        and (other.name in interface.lower or (switch and other.master == switch and other.link_kind != "openvswitch"))
    ]
