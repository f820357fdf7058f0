"""Network interfaces: which there are, what each is worth, and what choosing one means."""

from daisychain.facts import Nic, Verdict
from daisychain.link.messages import Nics
from daisychain.tui.presentation.verdicts import LEVEL, verdict_lines
from daisychain.tui.text import UNKNOWN, Line, clean, cut, fit


def nic_lines(nic: Nic, verdict: Verdict, chosen: bool) -> list[Line]:
    """All that is known of one; the chosen one has a star."""
    sign, role = LEVEL[verdict.level]
    addresses = ", ".join(f"{address.ip}/{address.prefix}" for address in nic.addresses)
    facts = (
        "" if nic.up else "down", f"MTU {nic.mtu}" if nic.mtu else "",
        f"{nic.speed_mbps} Mbit/s" if nic.speed_mbps else "", "default route" if nic.default_route else "",
        f"gateway {nic.gateway}" if nic.gateway else "", nic.evidence, f"part of {nic.master}" if nic.master else "",
        f"over {', '.join(nic.over)}" if nic.over else "", f"shown by {nic.emulated}" if nic.emulated else "",
    )  # fmt: skip
    return [
        (
            ("  * " if chosen else "    ", "accent"), (f"{sign} {verdict.level} ", role),
            (f"{clean(nic.name)} ", "bold"), (f"{nic.kind}  ", "dim"), (clean(addresses) or "no address", ""),
        ),
        ((f"      {clean(verdict.reason, 400)}", ""),),
        ((f"      {clean(' · '.join(fact for fact in facts if fact), 400) or UNKNOWN}", "dim"),),
    ]  # fmt: skip


def nic_rows(nics: Nics, cells: int) -> list[tuple[str, Line]]:
    """(name, row) of every one in at most `cells` cells."""
    rows: list[tuple[str, Line]] = []
    for nic, verdict in zip(nics.nics, nics.verdicts, strict=True):
        sign, role = LEVEL[verdict.level]
        where = nic.addresses[0].ip if nic.addresses else "no address"
        rows.append((
            nic.name,
            (
                ("* " if nic.name == nics.chosen else "  ", "accent"), (fit(f"{sign} {verdict.level}", 9), role),
                (fit(clean(nic.name), 16), "bold"), (fit(nic.kind, 11), "dim"),
                (cut(clean(where), max(0, cells - 2 - 9 - 16 - 11)), ""),
            ),
        ))  # fmt: skip
    return rows


def unusable(nics: Nics) -> set[str]:
    """Names of those that can't carry a chain."""
    return {nic.name for nic, verdict in zip(nics.nics, nics.verdicts, strict=True) if verdict.level == "refuse"}


def about_nic(nics: Nics, name: str | None) -> tuple[Line, ...]:
    """What the selected one is worth; and what choosing it means."""
    verdict = next((v for nic, v in zip(nics.nics, nics.verdicts, strict=True) if nic.name == name), None)
    if verdict is None or name is None:
        return ((("Choose one with the arrow keys; those with ✗ can't carry a chain.", "dim"),),)
    if name == nics.chosen:
        return (*verdict_lines(verdict), (("It is the one in use.", "dim"),))
    return (
        *verdict_lines(verdict),
        (
            ("Enter writes it into config.toml, for the next start of this machine's agent. ", ""),
            ("A flag --nic and DAISYCHAIN_NIC count more. Workers find a head by its old address: ", "dim"),
            ("after that start, join them again with daisychain join and the new one.", "dim"),
        ),
    )


def nic_saved(name: str) -> str:
    """After choosing: from when it counts."""
    return f"{name} is used once this machine's agent starts again: daisychain agent stop, then daisychain"
