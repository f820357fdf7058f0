"""What a system says about its interfaces, before anybody judges it."""

from typing import Literal

from daisychain.facts import Address, Record


class Interface(Record, frozen=True, kw_only=True):
    """One interface in its system's own words; the defaults mean that the system says nothing.

    On Linux most of it are files below /sys/class/net/NAME; `link_kind` and relations come from netlink as well.
    """

    name: str
    addresses: tuple[Address, ...] = ()
    """IPv4 first, each family in the system's order."""
    up: bool = True
    mtu: int | None = None
    speed_mbps: int | None = None
    """As reported, made-up numbers of virtual interfaces included."""
    mac: str = ""
    """Lower case, colons."""
    default_route: bool = False
    gateway: str = ""

    known: bool = False
    """The system describes this interface; without, its name is all there is."""
    devtype: str = ""
    """DEVTYPE of `uevent`: wlan, bridge, bond, vlan, wireguard, wwan, bluetooth, gadget ..."""
    link_kind: str = ""
    """IFLA_INFO_KIND of rtnetlink(7): veth, bridge, dummy, tun, vxlan, ipvlan ...; empty for hardware."""
    arp_type: int | None = None
    """`type`, an ARPHRD_ constant."""
    wireless: bool = False
    bridge: bool = False
    bonding: bool = False
    tun: bool = False
    """`tun_flags` is there: a tun or tap device."""
    device: bool = False
    """A `device` link is there: hardware, or what a hypervisor shows as hardware."""
    driver: str = ""
    linked: bool = False
    """`iflink` names another interface than itself: a veth's other end, a macvlan's parent."""
    lower: tuple[str, ...] = ()
    """Interfaces of this same machine that it lies on."""
    master: str = ""
    """The interface that it is a member of: a bridge, bond, VRF or Open vSwitch."""

    port: str = ""
    """macOS's name of the hardware port: 'Wi-Fi', 'USB 10/100/1000 LAN'."""


class Machine(Record, frozen=True, kw_only=True):
    """All interfaces of one machine, in the system's order."""

    os: Literal["linux", "macos", "windows"] = "linux"
    kernel: str = ""
    """Linux: /proc/sys/kernel/osrelease."""
    vendor: str = ""
    """Linux: the vendor and product that the firmware (DMI) names."""
    interfaces: tuple[Interface, ...] = ()
