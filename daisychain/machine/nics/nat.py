"""Addresses that tools hand out by default behind address translation: no other machine reaches them."""

from ipaddress import IPv4Address, IPv4Network
from typing import Literal, NamedTuple

from daisychain.facts import Nic, Verdict
from daisychain.machine.nics.addresses import first, network
from daisychain.machine.nics.words import verdict

_BRIDGED = "Give the virtual machine a bridged network adapter"
_HOST_NETWORK = "Start the container with --network host"


class _Pool(NamedTuple):
    pool: IPv4Network
    prefix: int
    on: Literal["container", "guest", "any"]
    """Where it means something: a real LAN may have the same addresses."""
    whose: str
    remedy: str
    only: tuple[str, ...] = ()
    """Hypervisors that this is about; empty: any."""


_POOLS = (
    # Docker: 172.17.0.0/16 up to 172.31.0.0/16, then pieces of 192.168.0.0/16 (default-address-pools of dockerd)
    _Pool(IPv4Network("172.16.0.0/12"), 16, "container", "Docker", _HOST_NETWORK),
    _Pool(IPv4Network("192.168.0.0/16"), 20, "container", "Docker", _HOST_NETWORK),
    # Podman: containers.conf, default_subnet and default_subnet_pools
    _Pool(IPv4Network("10.88.0.0/16"), 16, "container", "Podman", _HOST_NETWORK),
    _Pool(IPv4Network("10.89.0.0/16"), 24, "container", "Podman", _HOST_NETWORK),
    _Pool(IPv4Network("0.0.0.0/0"), 32, "container", "Kubernetes", "Start the pod with hostNetwork: true"),
    # the first guest of every VirtualBox or QEMU user network is 10.0.2.15
    _Pool(IPv4Network("10.0.2.15/32"), 24, "any", "VirtualBox or QEMU", _BRIDGED),
    _Pool(IPv4Network("10.0.2.0/24"), 24, "guest", "VirtualBox or QEMU", _BRIDGED),
    _Pool(IPv4Network("192.168.122.0/24"), 24, "guest", "libvirt", _BRIDGED),
    _Pool(IPv4Network("10.211.55.0/24"), 24, "guest", "Parallels", _BRIDGED),
    _Pool(IPv4Network("192.168.64.0/24"), 24, "guest", "macOS", _BRIDGED),
    _Pool(IPv4Network("192.168.65.0/24"), 24, "guest", "Docker Desktop", "Run DaisyChain outside of Docker Desktop"),
    _Pool(IPv4Network("192.168.5.15/32"), 24, "guest", "Lima", "Give the virtual machine a shared or bridged network"),
    _Pool(IPv4Network("172.16.0.0/12"), 20, "guest", "Hyper-V's default switch",
          "Give the virtual machine an external virtual switch", ("Hyper-V",)),
)  # fmt: skip

_HOST_ONLY = _Pool(IPv4Network("192.168.56.0/24"), 24, "guest", "VirtualBox", _BRIDGED, ("VirtualBox",))


def _fits(pool: _Pool, nic: Nic, ip: IPv4Address) -> bool:
    net = network(nic)
    inside = nic.kind == "veth" and not nic.name.startswith("venet")  # OpenVZ gives a /32 of the real network
    place = "container" if inside else "guest" if nic.emulated else ""
    return (
        ip in pool.pool
        and net is not None
        and net.prefixlen == pool.prefix
        and pool.on in ("any", place)
        and (not pool.only or nic.emulated in pool.only)
    )


def warn_nat(nic: Nic, ip: IPv4Address) -> Verdict | None:
    """A warning when its first address `ip` is one of these."""
    pool = next((pool for pool in _POOLS if _fits(pool, nic, ip)), None)
    if pool is not None:
        reason = f"{nic.name} has {ip}, as {pool.whose} gives behind address translation: others may not reach it"
        return verdict("warn", reason, pool.remedy)
    if _fits(_HOST_ONLY, nic, ip):
        reason = f"{nic.name} has {ip}, as VirtualBox gives in a host-only network: only its host and guests reach it"
        return verdict("warn", reason, _HOST_ONLY.remedy)
    return None


def depth(nic: Nic) -> int:
    """0: not behind translation, 1: reachable from the same host, 2: from nowhere."""
    ip = first(nic)
    if ip is None or warn_nat(nic, ip) is None:
        return 0
    return 1 if nic.kind == "veth" or _fits(_HOST_ONLY, nic, ip) else 2
