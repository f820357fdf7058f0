"""What is wrong with the name of a NIC that isn't there."""

import difflib
import ipaddress
import re
from collections.abc import Callable, Sequence

from daisychain.facts import Nic, Verdict
from daisychain.machine.nics.words import named, use, verdict

Order = Callable[[Sequence[Nic]], list[Nic]]


def refuse_wanted(nics: Sequence[Nic], wanted: str, order: Order) -> Verdict:
    """The refusal of a name that no NIC has; `order` puts the NICs to offer in order, best first. Never raises."""
    shown = repr(wanted if len(wanted) <= 40 else wanted[:39] + "…")
    there = _list(order(nics))
    words = wanted.split()
    if "," in wanted or ";" in wanted or (len(words) > 1 and set(words) <= {nic.name for nic in nics}):
        several = f"NIC {shown} is several names, and a chain uses one NIC a node"
        return verdict("refuse", several, f"Give one of {there}")
    if (address := _as_address(wanted)) is not None:
        owner = next((nic for nic in nics if any(a.ip == address for a in nic.addresses)), None)
        remedy = use(owner.name) if owner else f"Give one of {there}"
        return verdict("refuse", f"NIC {shown} is an address, not the name of a NIC", remedy)
    if re.search(r"[*?^$=!\[\]|]", wanted):
        return verdict("refuse", f"NIC {shown} is a pattern, not the name of a NIC", f"Give one of {there}")
    names = {nic.name.lower(): nic.name for nic in nics}
    close = difflib.get_close_matches(wanted.lower(), names, n=1)
    hint = f"Did you mean {names[close[0]]}? " if close else ""
    return verdict("refuse", f"there is no NIC {shown} on this machine", f"{hint}Give one of {there}")


def _as_address(text: str) -> str | None:
    """The address in 'IP', 'IP%SCOPE', 'IP/PREFIX' or 'IP:PORT'; None when it isn't any of them."""
    for candidate in (text.split("/")[0].split("%")[0], text.rsplit(":", 1)[0]):
        try:
            return str(ipaddress.ip_address(candidate))
        except ValueError:
            continue
    return None


def _list(nics: Sequence[Nic]) -> str:
    """Their names, at most ten."""
    more = f" and {len(nics) - 10} more" if len(nics) > 10 else ""
    return (", ".join(named(nic) for nic in nics[:10]) or "none: this machine has no NIC") + more
