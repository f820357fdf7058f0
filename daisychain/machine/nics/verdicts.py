"""Whether a NIC can carry a chain: ok, warn or refuse, with the reason and the remedy."""

import ipaddress
from collections.abc import Collection, Sequence

from daisychain.facts import Nic, NicKind, Verdict
from daisychain.machine.nics.addresses import first, fours, is_public, network, parse, private, usable
from daisychain.machine.nics.nat import warn_nat
from daisychain.machine.nics.words import USE_ANOTHER, named, use, verdict

WIRED: tuple[NicKind, ...] = ("ethernet", "bond", "bridge", "vlan", "macvlan")
PHYSICAL: tuple[NicKind, ...] = ("ethernet", "wifi", "bond", "bridge", "vlan", "macvlan", "tether", "unknown")
DEAD_END: tuple[NicKind, ...] = ("container", "hypervisor")

_ONLY_INSIDE: dict[NicKind, str] = {
    "container": "is the inside of a container network on this machine, which no other machine reaches",
    "hypervisor": "leads to virtual machines on this machine only",
}

_VIRTUAL: dict[NicKind, tuple[str, str]] = {
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
    "tether": ("goes through a phone or modem, which other machines rarely reach", USE_ANOTHER),
    "unknown": ("is of a kind that DaisyChain doesn't know", "If no node gets through, name another NIC with --nic"),
}


def judge(nic: Nic, nics: Sequence[Nic], answered: Collection[str] = ()) -> Verdict:
    """Whether this NIC can carry a chain, given all NICs of the machine. Never raises.

    answered: names of NICs through which another node has answered; what looks as if it led nowhere is then accepted
    with a warning.
    """
    return refuse(nic, nics, answered) or _warn(nic, nics) or verdict("ok", _reason(nic, nics))


def _reason(nic: Nic, nics: Sequence[Nic]) -> str:
    others = twins(nic, nics)
    if not others:
        return named(nic)
    return f"{named(nic)}, preferred to {', '.join(map(named, others))} in the same subnet {network(nic)}"


def twins(nic: Nic, nics: Sequence[Nic]) -> list[Nic]:
    """Other usable hardware NICs in the same subnet."""
    net = network(nic)
    return [
        other
        for other in nics
        if other.name != nic.name
        and other.kind in PHYSICAL
        and usable(other)
        and (theirs := network(other)) is not None
        and net is not None
        and net.overlaps(theirs)
        and max(net.prefixlen, theirs.prefixlen) < 32
    ]


# --- refusals ------------------------------------------------------------------------------------


def refuse(nic: Nic, nics: Sequence[Nic], answered: Collection[str] = ()) -> Verdict | None:
    """The verdict when it can't carry a chain at all."""
    if not nic.up:
        return verdict("refuse", f"{nic.name} is down", "Plug in its cable, connect it, or name another NIC")
    ip = first(nic)
    if ip is None or ip.is_unspecified:
        return _refuse_bare(nic, nics)
    if is_public(str(ip)):
        return _refuse_public(nic, ip)
    if ip.is_loopback and nic.kind != "loopback":
        reason = f"{nic.name}'s first address {ip} reaches this machine only, and gloo uses the first"
        return verdict("refuse", reason, f"Remove {ip} from {nic.name}, or name another NIC")
    if leads_nowhere(nic) and nic.name not in answered:
        return verdict("refuse", f"{nic.name} {_ONLY_INSIDE[nic.kind]}", USE_ANOTHER)
    return None


def leads_nowhere(nic: Nic) -> bool:
    """Of a kind that only this machine is on, and not the way out."""
    return nic.kind in DEAD_END and not nic.default_route


def _refuse_bare(nic: Nic, nics: Sequence[Nic]) -> Verdict:
    carrier = _carrier(nic, nics)
    if carrier is not None:
        return verdict("refuse", f"{nic.name} has no IPv4 address, {named(carrier)} has", use(carrier.name))
    remedy = "Give it one (DHCP or by hand) or name another NIC"
    return verdict("refuse", f"{nic.name} has no IPv4 address{_as_member(nic)}", remedy)


def _as_member(nic: Nic) -> str:
    return f": it is a member of {nic.master}" if nic.master else ""


def _carrier(nic: Nic, nics: Sequence[Nic]) -> Nic | None:
    """Who has the address in its place: the bridge or bond that it is in, or a VLAN on top of it."""
    fit = [other for other in nics if other.name != nic.name and usable(other) and not leads_nowhere(other)]
    above = [other for other in fit if other.name == nic.master or nic.name in other.over]
    if not above and nic.kind in ("ethernet", "wifi", "veth"):
        # a system that doesn't tell who is a member of what
        above = [other for other in fit if other.kind in ("bridge", "bond") and not other.over]
    return next(iter(above), None)


def _refuse_public(nic: Nic, ip: ipaddress.IPv4Address) -> Verdict:
    reason = f"{nic.name}'s first address {ip} is public: DaisyChain never listens on a public address"
    other = next((ip for ip, _ in fours(nic) if private(ip)), None)
    if other is not None:
        return verdict("refuse", f"{reason}, and gloo uses the first", f"Make {other} its first IPv4 address")
    remedy = "Name a NIC with a private address, or put both machines in one WireGuard or Tailscale network"
    return verdict("refuse", reason, remedy)


# --- warnings ------------------------------------------------------------------------------------


def _warn(nic: Nic, nics: Sequence[Nic]) -> Verdict | None:
    ip = first(nic)
    if ip is None or nic.kind == "loopback":
        return verdict("warn", f"{nic.name} reaches this machine only", "Name another NIC to chain other machines")
    return (
        _warn_first(nic, ip)
        or _warn_virtual(nic, nics)
        or _warn_member(nic, nics)
        or warn_nat(nic, ip)
        or _warn_end(nic)
        or _warn_twin(nic, nics)
    )


def _warn_first(nic: Nic, ip: ipaddress.IPv4Address) -> Verdict | None:
    """gloo uses the first address, whichever of them leads to the other machines."""
    better = next((other for other, _ in fours(nic)[1:] if private(other)), None)
    if ip.is_link_local and better is None:
        return verdict(
            "warn",
            f"{nic.name} has only the address {ip} that it gave itself: no DHCP server answered",
            "Fine for one direct cable; otherwise check the cable and the router",
        )
    if ip.is_link_local:
        reason = f"{nic.name}'s first address {ip} is one that it gave itself, and gloo uses the first, not {better}"
        return verdict("warn", reason, f"Remove {ip} from {nic.name}, or name another NIC")
    gateway, net = parse(nic.gateway), network(nic)
    if gateway is None or net is None or gateway in net:
        return None
    better = next((other for other, theirs in fours(nic)[1:] if theirs is not None and gateway in theirs), None)
    if better is None:
        return None
    reason = f"{nic.name}'s first address {ip} isn't in the router's network, {better} is, and gloo uses the first"
    return verdict("warn", reason, f"Make {better} its first IPv4 address if the other machines are in that network")


def _warn_virtual(nic: Nic, nics: Sequence[Nic]) -> Verdict | None:
    if nic.kind in DEAD_END:
        why = "the default route goes there" if nic.default_route else "another node answered there"
        looks = f"{nic.name} looks as if it {_ONLY_INSIDE[nic.kind].replace('is ', 'were ').replace('leads', 'led')}"
        return verdict("warn", f"{looks}, but {why}", "If no node gets through, name another NIC with --nic")
    if nic.kind == "wsl":
        return _warn_wsl(nic, nics)
    if nic.kind in _VIRTUAL:
        reason, remedy = _VIRTUAL[nic.kind]
        return verdict("warn", f"{nic.name} {reason}", remedy)
    return None


def _warn_wsl(nic: Nic, nics: Sequence[Nic]) -> Verdict:
    # WSL adds an interface named loopback0 in mirrored mode, and only then.
    if any(other.name == "loopback0" for other in nics):
        return verdict(
            "warn",
            f"{nic.name} is WSL's mirrored network: Windows' firewall decides who gets in",
            "If no node gets through, allow incoming connections in the Hyper-V firewall, or use native Linux",
        )
    return verdict(
        "warn",
        f"{nic.name} is WSL's own network behind address translation: other machines can't connect to it",
        "Set networkingMode=mirrored in .wslconfig and restart WSL, or use native Linux",
    )


def _warn_member(nic: Nic, nics: Sequence[Nic]) -> Verdict | None:
    """An address left on a member: its packets go through the bridge or bond."""
    master = next((other for other in nics if other.name == nic.master and nic.name in other.over), None)
    if master is None or master.kind == "loopback":  # a VRF takes nothing away
        return None
    reason = f"{nic.name} is a member of {named(master)}, which takes its packets"
    return verdict("warn", reason, use(master.name) if usable(master) else f"Move its address to {master.name}")


def _warn_end(nic: Nic) -> Verdict | None:
    if nic.kind == "veth" and nic.name.startswith("veth"):
        return verdict("warn", f"{nic.name} is the outer end of a container's virtual cable", USE_ANOTHER)
    return None


def _warn_twin(nic: Nic, nics: Sequence[Nic]) -> Verdict | None:
    better = next((twin for twin in twins(nic, nics) if twin.kind in WIRED), None)
    if nic.kind in WIRED or better is None:
        return None
    reason = f"{named(nic)} and {named(better)} are in the same subnet; the wired one is faster and steadier"
    return verdict("warn", reason, use(better.name))
