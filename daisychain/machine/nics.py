"""Which network interface: what kind each is, whether it can carry a chain, and which one to take.

All of it is pure: the facts come from probe.py, the answer is a NIC and a verdict.
"""

import difflib
import ipaddress
import re
from collections.abc import Sequence

import msgspec

from daisychain.facts import Level, Nic, NicKind, Verdict

IPv4 = ipaddress.IPv4Address
IPv4Net = ipaddress.IPv4Network

ARPHRD_LOOPBACK = 772
ARPHRD_PPP = 512

CARRIER_GRADE = IPv4Net("100.64.0.0/10")
"""Shared address space (RFC 6598); on a tunnel it is the mark of Tailscale."""


class NicHints(msgspec.Struct, frozen=True, kw_only=True):
    """What the system says about an interface beyond its name; the defaults mean it says nothing.

    On Linux these are files below /sys/class/net/NAME.
    """

    known: bool = False
    """The system describes this interface; without, its name is all there is."""
    devtype: str = ""
    """DEVTYPE of `uevent`: wlan, bridge, bond, vlan, wireguard, wwan ..."""
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
    lower: bool = False
    """It lies on top of another interface of this same machine."""
    wsl: bool = False
    """The kernel is Microsoft's."""
    address: str = ""
    """The first IPv4 address."""
    port: str = ""
    """macOS's name of the hardware port: 'Wi-Fi', 'USB 10/100/1000 LAN'."""


_BY_NAME: tuple[tuple[str, NicKind], ...] = (
    (r"lo\d*|loopback pseudo.*", "loopback"),
    (r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|(lxc|lxd|incus)br\d+|podman\d+|cni.*|nerdctl.*", "container"),
    (r"flannel.*|cali.*|cilium.*|kube-.*|nodelocaldns|weave|lxc[0-9a-f_].*|vxlan\.calico", "container"),
    (r"virbr\d+(-nic)?|vnet\d+|vmnet\d+|vmenet\d+|vboxnet\d+|bridge1\d\d", "hypervisor"),
    (r"vethernet.*|virtualbox host-only.*|vmware network adapter.*", "hypervisor"),
    (r"tailscale\d*", "tailscale"),
    (r"wg\d+|nordlynx|wg-.*", "wireguard"),
    (r"zt[0-9a-z]{8,}|ham\d+|utun\d+|ppp\d+|gpd\d+|ipsec\d+|tun\d+|tap\d+|zerotier.*|openvpn.*", "tun"),
)
"""Names that say more than the system's own description: sysfs shows docker0 as any other bridge."""

_BY_NAME_ALONE: tuple[tuple[str, NicKind], ...] = (
    (r"veth.*|venet\d+", "veth"),
    (r"macvlan.*|macvtap.*", "macvlan"),
    (r"br\d+|vmbr\d+|bridge\d+|br-lan", "bridge"),
    (r"bond\d+|team\d+", "bond"),
    (r"vlan\d+|.+\.\d+", "vlan"),
    (r"wl.*|wi-?fi.*|ath\d+|ra\d+", "wifi"),
    (r"ww.*|usb\d+|rndis\d+|cellular.*", "tether"),
    (r"eth\d+|en[opsx]\w+|em\d+|end\d+|ethernet.*", "ethernet"),
)
"""Names to go by only where the system doesn't describe the interface. macOS's en0 isn't here: it may be either."""

_BY_PORT: tuple[tuple[str, NicKind], ...] = (
    (r".*(wi-?fi|airport).*", "wifi"),
    (r".*(iphone|ipad|bluetooth).*", "tether"),
    (r".*bridge.*", "bridge"),
    (r".*(ethernet|lan|thunderbolt).*", "ethernet"),
)

_BY_DEVTYPE: dict[str, NicKind] = {
    "wlan": "wifi",
    "bridge": "bridge",
    "bond": "bond",
    "team": "bond",
    "vlan": "vlan",
    "macvlan": "macvlan",
    "macvtap": "macvlan",
    "wireguard": "wireguard",
    "vxlan": "container",
    "geneve": "container",
    "wwan": "tether",
    "ppp": "tun",
}

_TETHER_DRIVERS = ("rndis_host", "ipheth", "cdc_mbim", "qmi_wwan")


def _match(table: tuple[tuple[str, NicKind], ...], text: str) -> NicKind | None:
    return next((kind for pattern, kind in table if re.fullmatch(pattern, text, re.IGNORECASE)), None)


def classify(name: str, hints: NicHints) -> NicKind:
    """What kind of interface this is; 'unknown' where neither name nor system tells."""
    kind = _classify(name, hints)
    # Tailscale on macOS is utunN, and on Linux it may have any name.
    if kind == "tun" and (ip := _parse(hints.address)) is not None and ip in CARRIER_GRADE:
        return "tailscale"
    return kind


def _classify(name: str, hints: NicHints) -> NicKind:
    if hints.arp_type == ARPHRD_LOOPBACK:
        return "loopback"
    if (kind := _match(_BY_NAME, name)) is not None:
        return kind
    if hints.wsl and re.fullmatch(r"eth\d+", name):
        return "wsl"
    if hints.known:
        return _by_system(name, hints)
    if hints.port and (kind := _match(_BY_PORT, hints.port)) is not None:
        return kind
    return _match(_BY_NAME_ALONE, name) or "unknown"


def _by_system(name: str, hints: NicHints) -> NicKind:
    if hints.wireless:
        return "wifi"
    if hints.tun or hints.arp_type == ARPHRD_PPP:
        return "tun"
    if hints.bonding:
        return "bond"
    if hints.bridge:
        # A bridge without a member leads nowhere: what a container tool leaves behind, under whatever name.
        return "bridge" if hints.lower else "container"
    if (kind := _BY_DEVTYPE.get(hints.devtype)) is not None:
        return kind
    if hints.device:
        # cdc_ether and cdc_ncm drive phones and plain USB Ethernet adapters; usbN is what phones get.
        return "tether" if hints.driver in _TETHER_DRIVERS or re.fullmatch(r"usb\d+", name) else "ethernet"
    if hints.linked:
        return "macvlan" if hints.lower else "veth"
    return "veth" if name.startswith("venet") else "unknown"


# --- addresses -----------------------------------------------------------------------------------


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


def _parse(ip: str) -> IPv4 | None:
    try:
        return IPv4(ip)
    except ValueError:
        return None


def _first(nic: Nic) -> IPv4 | None:
    """The address that gloo will use: the first IPv4 one."""
    return next((ip for address in nic.addresses if (ip := _parse(address.ip)) is not None), None)


def _network(nic: Nic) -> IPv4Net | None:
    for address in nic.addresses:
        if _parse(address.ip) is not None:
            try:
                return IPv4Net(f"{address.ip}/{address.prefix}", strict=False)
            except ValueError:
                return None
    return None


def _usable(nic: Nic) -> bool:
    """Up, with a first IPv4 address that is neither public nor one this machine gave itself."""
    ip = _first(nic)
    return (
        nic.up
        and nic.kind != "loopback"
        and ip is not None
        and not (is_public(str(ip)) or ip.is_link_local or ip.is_loopback)
    )


# --- verdicts ------------------------------------------------------------------------------------

_WIRED: tuple[NicKind, ...] = ("ethernet", "bond", "bridge", "vlan", "macvlan")
_PHYSICAL: tuple[NicKind, ...] = ("ethernet", "wifi", "bond", "bridge", "vlan", "macvlan", "tether", "unknown")
_ORDER: tuple[NicKind, ...] = (
    "ethernet", "bond", "bridge", "vlan", "macvlan", "wifi", "tether", "unknown", "veth", "wsl",
    "wireguard", "tailscale", "tun", "hypervisor", "container", "loopback",
)  # fmt: skip
"""Best first, where nothing else decides."""

_WORDS: dict[NicKind, str] = {
    "ethernet": "wired",
    "wifi": "Wi-Fi",
    "bond": "bonded wired links",
    "veth": "virtual cable",
    "tun": "tunnel",
    "tether": "phone or modem",
    "unknown": "unknown kind",
    "wsl": "WSL",
    "tailscale": "Tailscale",
    "wireguard": "WireGuard",
}

_USE_ANOTHER = "Connect this machine to the network that the other machines are on, or name another NIC with --nic"

_VIRTUAL: dict[NicKind, tuple[str, str]] = {
    "container": ("is the inside of a container network on this machine, which no other machine reaches", _USE_ANOTHER),
    "hypervisor": ("leads to virtual machines on this machine only", _USE_ANOTHER),
    "tun": (
        "is a tunnel (VPN): reachable only for machines in the same VPN, and likely slow",
        "Use a wired or Wi-Fi NIC if the other machines are on the same network",
    ),
    "wireguard": (
        "is a WireGuard tunnel: encrypted, reachable only for its peers, and likely slower than the network below it",
        "Use a wired or Wi-Fi NIC if the other machines are on the same network",
    ),
    "tailscale": (
        "is Tailscale: encrypted, but slow where a path is relayed, and without multicast, so heads aren't found",
        "Use a wired or Wi-Fi NIC if the machines share a network; otherwise join by address",
    ),
    "tether": ("goes through a phone or modem, which other machines rarely reach", _USE_ANOTHER),
    "unknown": ("is of a kind that DaisyChain doesn't know", "If no node gets through, name another NIC with --nic"),
}

_NAT_NETWORKS: tuple[tuple[IPv4Net, int, str, str], ...] = (
    (
        IPv4Net("172.16.0.0/12"), 16, "Docker",
        "Start the container with --network host",
    ),
    (
        IPv4Net("10.88.0.0/16"), 16, "Podman",
        "Start the container with --network host",
    ),
    (
        IPv4Net("10.0.2.0/24"), 24, "VirtualBox or QEMU",
        "Give the virtual machine a bridged network adapter",
    ),
)  # fmt: skip
"""(pool, prefix, whose, remedy): what these tools hand out by default behind address translation."""


def _verdict(level: Level, reason: str, remedy: str = "") -> Verdict:
    return Verdict(level=level, check="nic", reason=reason, remedy=remedy)


def _describe(nic: Nic) -> str:
    ip = _first(nic)
    return f"{nic.name} ({_WORDS.get(nic.kind, nic.kind)}, {ip or 'no IPv4'})"


def _twins(nic: Nic, nics: Sequence[Nic]) -> list[Nic]:
    """Other usable hardware NICs in the same subnet."""
    network = _network(nic)
    return [
        other
        for other in nics
        if other.name != nic.name
        and other.kind in _PHYSICAL
        and _usable(other)
        and (theirs := _network(other)) is not None
        and network is not None
        and network.overlaps(theirs)
        and max(network.prefixlen, theirs.prefixlen) < 32
    ]


def judge(nic: Nic, nics: Sequence[Nic]) -> Verdict:
    """Whether this NIC can carry a chain, given all NICs of the machine. Never raises."""
    return _refuse(nic, nics) or _warn(nic, nics) or _verdict("ok", _reason(nic, nics))


def _reason(nic: Nic, nics: Sequence[Nic]) -> str:
    twins = _twins(nic, nics)
    if not twins:
        return _describe(nic)
    return f"{_describe(nic)}, preferred to {', '.join(map(_describe, twins))} in the same subnet {_network(nic)}"


def _refuse(nic: Nic, nics: Sequence[Nic]) -> Verdict | None:
    ip = _first(nic)
    if not nic.up:
        return _verdict("refuse", f"{nic.name} is down", "Plug in its cable, connect it, or name another NIC")
    if ip is None or ip.is_unspecified:
        carrier = next((other for other in nics if other.kind in ("bridge", "bond") and _usable(other)), None)
        if carrier is not None and nic.kind in ("ethernet", "wifi", "veth"):
            return _verdict("refuse", f"{nic.name} has no IPv4 address, {_describe(carrier)} has", _use(carrier.name))
        return _verdict(
            "refuse", f"{nic.name} has no IPv4 address", "Give it one (DHCP or by hand) or name another NIC"
        )
    if is_public(str(ip)):
        return _verdict(
            "refuse",
            f"{nic.name}'s first address {ip} is public: DaisyChain never listens on a public address",
            "Name a NIC with a private address, or put both machines in one WireGuard or Tailscale network",
        )
    return None


def _warn(nic: Nic, nics: Sequence[Nic]) -> Verdict | None:
    ip = _first(nic)
    if ip is None or nic.kind == "loopback" or ip.is_loopback:
        return _verdict("warn", f"{nic.name} reaches this machine only", "Name another NIC to chain other machines")
    if ip.is_link_local:
        return _verdict(
            "warn",
            f"{nic.name} has only the address {ip} that it gave itself: no DHCP server answered",
            "Fine for one direct cable; otherwise check the cable and the router",
        )
    if nic.kind == "wsl":
        return _warn_wsl(nic, nics)
    if nic.kind in _VIRTUAL:
        reason, remedy = _VIRTUAL[nic.kind]
        return _verdict("warn", f"{nic.name} {reason}", remedy)
    return _warn_nat(nic, ip) or _warn_end(nic) or _warn_twin(nic, nics)


def _warn_wsl(nic: Nic, nics: Sequence[Nic]) -> Verdict:
    # WSL adds an interface named loopback0 in mirrored mode, and only then.
    if any(other.name == "loopback0" for other in nics):
        return _verdict(
            "warn",
            f"{nic.name} is WSL's mirrored network: Windows' firewall decides who gets in",
            "If no node gets through, allow incoming connections in the Hyper-V firewall, or use native Linux",
        )
    return _verdict(
        "warn",
        f"{nic.name} is WSL's own network behind address translation: other machines can't connect to it",
        "Set networkingMode=mirrored in .wslconfig and restart WSL, or use native Linux",
    )


def _warn_nat(nic: Nic, ip: IPv4) -> Verdict | None:
    network = _network(nic)
    for pool, prefix, whose, remedy in _NAT_NETWORKS:
        # A real LAN may lie in 172.16/12; on a veth it is Docker's. 10.0.2.0/24 is the same in every such machine.
        if nic.kind != "veth" and prefix != 24:
            continue
        if ip in pool and network is not None and network.prefixlen == prefix:
            reason = f"{nic.name} has {ip}, as {whose} gives behind address translation: others may not reach it"
            return _verdict("warn", reason, remedy)
    return None


def _warn_end(nic: Nic) -> Verdict | None:
    if nic.kind == "veth" and nic.name.startswith("veth"):
        return _verdict("warn", f"{nic.name} is the outer end of a container's virtual cable", _USE_ANOTHER)
    return None


def _warn_twin(nic: Nic, nics: Sequence[Nic]) -> Verdict | None:
    better = next((twin for twin in _twins(nic, nics) if twin.kind in _WIRED), None)
    if nic.kind in _WIRED or better is None:
        return None
    reason = f"{_describe(nic)} and {_describe(better)} are in the same subnet; the wired one is faster and steadier"
    return _verdict("warn", reason, _use(better.name))


# --- the choice ----------------------------------------------------------------------------------


def choose(nics: Sequence[Nic], wanted: str = "") -> tuple[Nic | None, Verdict]:
    """The NIC to use and why; the NIC is None exactly when the verdict refuses. Never raises.

    wanted: the name that a person gave; empty: the best there is.
    """
    wanted = wanted.strip()
    nic = next((nic for nic in nics if nic.name == wanted), None) if wanted else _best(nics)
    if nic is None:
        return None, _refuse_wanted(nics, wanted) if wanted else _refuse_all(nics)
    verdict = judge(nic, nics)
    if verdict.level == "refuse":
        return None, verdict
    if not wanted and nic.kind == "loopback":
        why = "; ".join(_excuses(nics)) or "there is no other NIC"
        return nic, msgspec.structs.replace(verdict, reason=f"{verdict.reason}, and {why}", remedy=_USE_ANOTHER)
    return nic, verdict


def _best(nics: Sequence[Nic]) -> Nic | None:
    """The best NIC that isn't refused: private address, else link-local, else loopback."""
    fit = [nic for nic in nics if _refuse(nic, nics) is None]
    return min(fit, key=_rank, default=None)


def _rank(nic: Nic) -> tuple[bool, bool, bool, int, bool, bool, int]:
    """Smaller is better; the operating system's order decides between equals."""
    # A bridge that isn't the way out is more likely one of containers or virtual machines than of the LAN.
    inner = nic.kind == "bridge" and not nic.default_route
    medium = 0 if nic.kind in _WIRED and not inner else 1 if nic.kind == "wifi" else 2
    virtual = inner or nic.kind not in _PHYSICAL
    dead_end = nic.kind in ("container", "hypervisor")
    order = _ORDER.index(nic.kind)
    return nic.kind == "loopback", dead_end, not _usable(nic), medium, virtual, not nic.default_route, order


def _excuses(nics: Sequence[Nic]) -> list[str]:
    """Why each NIC but loopback can't be used; those without any address are no news unless hardware."""
    return [
        verdict.reason
        for nic in nics
        if nic.kind != "loopback"
        and (nic.kind in _PHYSICAL or _first(nic) is not None)
        and (verdict := judge(nic, nics)).level == "refuse"
    ][:4]


def _refuse_all(nics: Sequence[Nic]) -> Verdict:
    reason = "; ".join(_excuses(nics)) or "this machine has no network interface that is up"
    return _verdict("refuse", f"no usable NIC: {reason}", "Connect this machine to a network with private addresses")


def _use(name: str) -> str:
    return f"Use --nic {name}" if " " not in name else f'Use --nic "{name}"'


def _refuse_wanted(nics: Sequence[Nic], wanted: str) -> Verdict:
    """What is wrong with a name that no NIC has."""
    shown = repr(wanted if len(wanted) <= 40 else wanted[:39] + "…")
    there = _list(nics)
    if "," in wanted or ";" in wanted:
        return _verdict(
            "refuse", f"NIC {shown} is several names, and a chain uses one NIC a node", f"Give one of {there}"
        )
    if (address := _as_address(wanted)) is not None:
        owner = next((nic for nic in nics if any(a.ip == address for a in nic.addresses)), None)
        remedy = _use(owner.name) if owner else f"Give one of {there}"
        return _verdict("refuse", f"NIC {shown} is an address, not the name of a NIC", remedy)
    if re.search(r"[*?^$=!\[\]|]", wanted):
        return _verdict("refuse", f"NIC {shown} is a pattern, not the name of a NIC", f"Give one of {there}")
    names = {nic.name.lower(): nic.name for nic in nics}
    close = difflib.get_close_matches(wanted.lower(), names, n=1)
    hint = f"Did you mean {names[close[0]]}? " if close else ""
    return _verdict("refuse", f"there is no NIC {shown} on this machine", f"{hint}Give one of {there}")


def _as_address(text: str) -> str | None:
    """The address in 'IP', 'IP/PREFIX' or 'IP:PORT'; None when it isn't any of them."""
    for candidate in (text, text.split("/")[0].split("%")[0], text.rsplit(":", 1)[0]):
        try:
            return str(ipaddress.ip_address(candidate))
        except ValueError:
            continue
    return None


def _list(nics: Sequence[Nic]) -> str:
    """The names there are, best first, at most ten."""
    names = [_describe(nic) for nic in sorted(nics, key=lambda nic: (not nic.up, _rank(nic)))]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "none: this machine has no NIC") + more
