"""Which NIC to use: the best there is, or the one that a person named."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from daisychain.facts import Nic, NicKind, Verdict
from daisychain.machine.nics import nat
from daisychain.machine.nics.addresses import first, usable
from daisychain.machine.nics.verdicts import DEAD_END, PHYSICAL, WIRED, judge, refuse
from daisychain.machine.nics.wanted import refuse_wanted
from daisychain.machine.nics.words import USE_ANOTHER, verdict

_ORDER: tuple[NicKind, ...] = (
    "ethernet", "bond", "bridge", "vlan", "macvlan", "wifi", "tether", "unknown", "veth", "wsl",
    "wireguard", "tailscale", "tun", "hypervisor", "container", "loopback",
)  # fmt: skip
"""Best first, where nothing else decides."""


def asked(setting: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """(the name that a person gave, where): the flag, DAISYCHAIN_NIC or config.toml before gloo's own variable.

    setting: what the first three come to. Both are empty when nobody gave any.
    """
    if setting.strip():
        return setting.strip(), "--nic, DAISYCHAIN_NIC or config.toml"
    name = environ.get("GLOO_SOCKET_IFNAME", "").strip()
    return name, "GLOO_SOCKET_IFNAME" if name else ""


def choose(
    nics: Sequence[Nic], wanted: str = "", answered: Collection[str] = (), source: str = ""
) -> tuple[Nic | None, Verdict]:
    """The NIC to use and why; the NIC is None exactly when the verdict refuses. Never raises.

    wanted: the name that a person gave; empty: the best there is. source: where it was given, named in a refusal.
    answered: as for judge().
    """
    wanted = wanted.strip()
    nic = next((nic for nic in nics if nic.name == wanted), None) if wanted else _best(nics, answered)
    if nic is None:
        return None, _of(source, refuse_wanted(nics, wanted, order)) if wanted else _refuse_all(nics)
    found = judge(nic, nics, answered)
    if found.level == "refuse":
        return None, _of(source, found)
    if not wanted and nic.kind == "loopback":
        why = "; ".join(_excuses(nics)) or "there is no other NIC"
        return nic, msgspec.structs.replace(found, reason=f"{found.reason}, and {why}", remedy=USE_ANOTHER)
    return nic, found


def _of(source: str, found: Verdict) -> Verdict:
    return msgspec.structs.replace(found, reason=f"{found.reason} (from {source})") if source else found


def _best(nics: Sequence[Nic], answered: Collection[str]) -> Nic | None:
    """The best NIC that isn't refused: private address, else link-local, else loopback."""
    fit = [nic for nic in nics if refuse(nic, nics, answered) is None]
    return min(fit, key=lambda nic: (nic.name not in answered, *_rank(nic, nics)), default=None)


def _rank(nic: Nic, nics: Sequence[Nic]) -> tuple[bool | int, ...]:
    """Smaller is better; the operating system's order decides between equals."""
    # A bridge that isn't the way out and of which no member is known is more likely one of containers.
    inner = nic.kind == "bridge" and not nic.default_route and not nic.over
    member = any(other.name == nic.master and nic.name in other.over and usable(other) for other in nics)
    medium = 0 if nic.kind in WIRED and not inner else 1 if nic.kind == "wifi" else 2
    ip = first(nic)
    return (
        nic.kind == "loopback",
        nic.kind == "loopback" and not (ip is not None and ip.is_loopback),
        nic.kind in DEAD_END,
        not usable(nic),
        member,
        nat.depth(nic),
        medium,
        inner or nic.kind not in PHYSICAL,
        not nic.default_route,
        _ORDER.index(nic.kind),
        -(nic.speed_mbps or 0),
    )


def order(nics: Sequence[Nic]) -> list[Nic]:
    """Best first, those that are down last."""
    return sorted(nics, key=lambda nic: (not nic.up, *_rank(nic, nics)))


def _excuses(nics: Sequence[Nic]) -> list[str]:
    """Why each NIC but loopback can't be used; those without any address are no news unless hardware."""
    return [
        found.reason
        for nic in nics
        if nic.kind != "loopback"
        and (nic.kind in PHYSICAL or (first(nic) is not None and nic.up))
        and (found := judge(nic, nics)).level == "refuse"
    ][:4]


def _refuse_all(nics: Sequence[Nic]) -> Verdict:
    reason = "; ".join(_excuses(nics)) or "this machine has no network interface that is up"
    return verdict("refuse", f"no usable NIC: {reason}", "Connect this machine to a network with private addresses")
