"""What the system says about this machine's network interfaces. Nothing is judged here.

Every function blocks for some milliseconds, so call it in a thread. What can't be read is unknown, never an error.
"""

import ipaddress
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import psutil  # type: ignore[import-untyped,unused-ignore]
from msgspec.structs import replace

from daisychain.facts import Address
from daisychain.machine import netlink
from daisychain.machine.files import number, read
from daisychain.machine.netlink import Link
from daisychain.machine.nics.raw import Interface, Machine

ROOT = Path("/")
_RTF_UP, _RTF_REJECT = 0x1, 0x200


def read_machine(root: Path = ROOT, links: Mapping[str, Link] | None = None) -> Machine:
    """All interfaces in the system's order, each with its addresses in the system's order, IPv4 first.

    root: the folder that /proc and /sys are looked for in. links: what netlink says; None asks it, for the real root.
    """
    if links is None:
        links = netlink.links() if sys.platform == "linux" and root == ROOT else {}
    addresses, macs = _addresses()
    stats = _stats()
    routes = _default_routes(root)
    ports = _hardware_ports()
    interfaces = []
    for name in dict.fromkeys([*_names(), *addresses]):
        base = name.partition(":")[0] if sys.platform == "linux" else name  # eth0:1 is a second label of eth0
        mine, stat = addresses.get(name, ()), stats.get(base)
        interface = Interface(
            name=name,
            addresses=mine,
            up=stat.isup if stat else bool(mine),
            mtu=stat.mtu if stat and stat.mtu > 0 else None,
            speed_mbps=stat.speed if stat else None,
            mac=macs.get(base, ""),
            default_route=base in routes,
            gateway=routes.get(base, ""),
            port=ports.get(base, ""),
        )
        interfaces.append(_with_links(_with_sysfs(interface, root, base), base, links))
    return Machine(
        os=os_family(),
        kernel=read(root / "proc/sys/kernel/osrelease"),
        vendor=" ".join(read(root / "sys/class/dmi/id" / file) for file in ("sys_vendor", "product_name")).strip(),
        interfaces=_mark_default(tuple(interfaces), root),
    )


def os_family() -> Literal["linux", "macos", "windows"]:
    """Which of the three this is; whatever else there is counts as Linux."""
    return "macos" if sys.platform == "darwin" else "windows" if sys.platform == "win32" else "linux"


# --- names, addresses, routes --------------------------------------------------------------------


def _names() -> list[str]:
    """Names in the system's order: psutil sorts them by address family."""
    if sys.platform == "win32":
        return []  # other names than psutil's
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []


def _stats() -> Mapping[str, Any]:
    """psutil's records with isup, speed (Mbit/s) and mtu."""
    try:
        return dict(psutil.net_if_stats())
    except OSError:  # an interface vanished meanwhile
        return {}


def _addresses() -> tuple[dict[str, tuple[Address, ...]], dict[str, str]]:
    """(IP addresses, hardware address) of each interface."""
    found: dict[str, tuple[Address, ...]] = {}
    macs: dict[str, str] = {}
    for name, entries in psutil.net_if_addrs().items():
        v4 = [_address(e.address, e.netmask) for e in entries if e.family == socket.AF_INET]
        v6 = [_address(e.address, e.netmask) for e in entries if e.family == socket.AF_INET6]
        found[name] = tuple(address for address in (*v4, *v6) if address is not None)
        hardware = [e.address for e in entries if e.family == psutil.AF_LINK and e.address]
        macs[name] = hardware[0].lower().replace("-", ":") if hardware else ""
    return found, macs


def _address(ip: str, netmask: str | None) -> Address | None:
    """The scope after % is left out: it is the interface's own name."""
    try:
        address = ipaddress.ip_address(ip.split("%")[0])
        ones = int(ipaddress.ip_address(netmask)).bit_count() if netmask else address.max_prefixlen
    except ValueError:
        return None
    return Address(ip=str(address), prefix=ones)


def _default_routes(root: Path) -> dict[str, str]:
    """{interface: router} of the IPv4 default routes in /proc/net/route; no router on a point-to-point link."""
    found: dict[str, str] = {}
    for line in read(root / "proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        flags = number(f"0x{fields[3]}") or 0
        if flags & _RTF_UP and not flags & _RTF_REJECT:
            found.setdefault(fields[0], _router(fields[2]))
    return found


def _router(digits: str) -> str:
    """The address in eight hexadecimal digits of this machine's byte order; empty for none."""
    value = number(f"0x{digits}") or 0
    return str(ipaddress.IPv4Address(value.to_bytes(4, sys.byteorder))) if 0 < value < 2**32 else ""


def _mark_default(interfaces: tuple[Interface, ...], root: Path) -> tuple[Interface, ...]:
    """Where there is no /proc/net/route, mark the interface that the system would send from."""
    if sys.platform == "linux" or root != ROOT:
        return interfaces
    source = source_address()
    owner = next((one.name for one in interfaces if any(a.ip == source for a in one.addresses)), None)
    return tuple(replace(one, default_route=one.name == owner) for one in interfaces)


def source_address() -> str:
    """The address that packets to elsewhere leave from. Connecting a UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: never this machine's neighbour
            return str(probe.getsockname()[0])
        except OSError:
            return ""


# --- what each interface is ----------------------------------------------------------------------


def _with_sysfs(interface: Interface, root: Path, base: str) -> Interface:
    """With what /sys/class/net tells; unchanged where there is no such folder."""
    folder = root / "sys/class/net" / base
    if not folder.is_dir():
        return interface
    devtype = re.search(r"^DEVTYPE=(\S+)", read(folder / "uevent"), re.MULTILINE)
    index, link = number(read(folder / "ifindex")), number(read(folder / "iflink"))
    device = folder / "device"
    return replace(
        interface,
        known=True,
        devtype=devtype[1] if devtype else "",
        arp_type=number(read(folder / "type")),
        wireless=(folder / "wireless").exists() or (folder / "phy80211").exists(),
        bridge=(folder / "bridge").is_dir(),
        bonding=(folder / "bonding").is_dir(),
        tun=(folder / "tun_flags").exists(),
        device=device.exists(),
        driver=(device / "driver").resolve().name if (device / "driver").exists() else "",
        linked=index is not None and link not in (None, 0, index),
        lower=tuple(sorted(path.name.removeprefix("lower_") for path in folder.glob("lower_*"))),
        master=(folder / "master").resolve().name if (folder / "master").exists() else "",
    )


def _with_links(interface: Interface, base: str, links: Mapping[str, Link]) -> Interface:
    """With what netlink tells, which is there too where /sys isn't mounted."""
    link = links.get(base)
    if link is None:
        return interface
    members = [name for name, other in links.items() if other.master == base]
    parents = [link.parent] if link.parent else []
    return replace(
        interface,
        link_kind=link.kind,
        master=link.master or interface.master,
        lower=tuple(dict.fromkeys([*interface.lower, *members, *parents])),
    )


def _hardware_ports() -> Mapping[str, str]:
    """macOS's names of its ports; en0 may be Wi-Fi or Ethernet, and only this tells."""
    if sys.platform != "darwin":
        return {}
    try:
        words = ["/usr/sbin/networksetup", "-listallhardwareports"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return ports_in(done.stdout.decode(errors="replace"))


def ports_in(listing: str) -> dict[str, str]:
    """{'en0': 'Wi-Fi'} from the output of networksetup -listallhardwareports."""
    return {device: port for port, device in re.findall(r"Hardware Port: (.+)\nDevice: (\S+)", listing)}
