"""How NICs and verdicts about them are worded."""

from daisychain.facts import Level, Nic, NicKind, Verdict
from daisychain.machine.nics.addresses import first

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

USE_ANOTHER = "Connect this machine to the network that the other machines are on, or name another NIC with --nic"


def verdict(level: Level, reason: str, remedy: str = "") -> Verdict:
    return Verdict(level=level, check="nic", reason=reason, remedy=remedy)


def named(nic: Nic) -> str:
    """'eth0 (wired, 192.168.1.20)'."""
    return f"{nic.name} ({_WORDS.get(nic.kind, nic.kind)}, {first(nic) or 'no IPv4'})"


def use(name: str) -> str:
    """The remedy that names a NIC."""
    return f"Use --nic {name}" if " " not in name else f'Use --nic "{name}"'
