"""Taking addresses and names out of what goes into a bug report: pure.

The same thing gets the same stand-in everywhere, and addresses of one network stay in one network, so that a report
still shows what is next to what.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any

_MAC = re.compile(r"\b[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}\b")
_V6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4})(?![\w:])")
_V4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_MAC_NAME = re.compile(r"\b(en|wl|ww)x[0-9a-f]{12}\b")
_IDENTITY = re.compile(r"\b[0-9a-fA-F]{12,}\b")
_HARMLESS = {"localhost", "root", "linux", "user", "home"}
_CARRIER_GRADE = ipaddress.ip_network("100.64.0.0/10")


def redact(value: Any, names: Iterable[str]) -> Any:
    """The same JSON value with stand-ins in its texts; its keys stay. names: of machines and people, '' for none."""
    return _walk(value, _Stand(names).text)


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _walk(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(inner, change) for inner in value]
    return value


class _Stand:
    """What stands for what."""

    def __init__(self, names: Iterable[str]) -> None:
        wanted = dict.fromkeys(name for name in names if len(name) > 1 and name.lower() not in _HARMLESS)
        self._names = {name.lower(): f"name-{number}" for number, name in enumerate(wanted, start=1)}
        longest = sorted(self._names, key=len, reverse=True)
        word = "|".join(re.escape(name) for name in longest)
        self._any_name = re.compile(rf"(?<!\w)(?:{word})(?!\w)", re.IGNORECASE) if word else None
        self._given: dict[tuple[str, str], str] = {}

    def text(self, text: str) -> str:
        text = _MAC.sub(lambda found: self._next("mac", found[0].lower().replace("-", ":")), text)
        text = _MAC_NAME.sub(lambda found: f"{found[1]}x-{self._next('mac', found[0])}", text)
        text = _IDENTITY.sub(lambda found: self._identity(found[0]), text)
        text = _V6.sub(lambda found: self._v6(found[0]), text)
        text = _V4.sub(lambda found: self._v4(found[0]), text)
        if self._any_name is not None:
            text = self._any_name.sub(lambda found: self._names.get(found[0].lower(), "name"), text)
        return text

    def _next(self, kind: str, what: str) -> str:
        """The stand-in of a thing; things of a kind are counted."""
        number = sum(1 for known, _ in self._given if known == kind) + 1
        return self._given.setdefault((kind, what), f"{kind}-{number}")

    def _identity(self, text: str) -> str:
        """Fingerprints are shown at different lengths; plain numbers, such as counts of bytes, stay."""
        return text if text.isdecimal() else self._next("id", text[:12].lower())

    def _v4(self, text: str) -> str:
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified or text.startswith("255."):
            return text
        network, _, host = text.rpartition(".")
        return f"{self._next(_kind(address), network)}.{self._next(f'host of {network}', host).rpartition('-')[2]}"

    def _v6(self, text: str) -> str:
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified:
            return text
        return self._next("link-local-v6" if address.is_link_local else "v6", str(address))


def _kind(address: ipaddress.IPv4Address) -> str:
    if address.is_link_local:
        return "link-local"
    if address in _CARRIER_GRADE:
        return "carrier-grade"
    return "private" if address.is_private else "public"
