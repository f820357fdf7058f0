"""Which heads were heard of: what mDNS told, cleaned and bounded. Pure.

An announcement is a stranger's claim. It names an address to try and a name to show; who is there is proven by TLS
alone. It says nothing of liveness either: a killed machine stays announced for more than an hour.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from daisychain.facts import FoundHead

MAX_HEADS = 64
NAME_BYTES = 63

_ID = re.compile(r"[0-9a-f]{64}")
# CSI sequences (colours, cursor), OSC sequences (titles, links), other two-character escapes
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?", re.DOTALL)
# what starts markup on a screen becomes what doesn't
_MARKUP = str.maketrans({"[": "(", "]": ")", "\\": "/"})


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A head was announced, or announced again with something changed; every field is as the stranger sent it."""

    instance: str
    """The announcement's own name; a later one with the same name replaces this one."""
    id: str
    name: str
    address: str
    port: int


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """An announcement was taken back."""

    instance: str


class Roster(msgspec.Struct, frozen=True):
    """The heads heard of, other than this node."""

    self_id: str
    by_instance: Mapping[str, FoundHead] = MappingProxyType({})
    """In the order in which they were first heard."""

    def heard(self, event: Found | Gone) -> "Roster":
        """The roster after this event.

        An announcement that can't be right, of this node itself, or one too many (MAX_HEADS) is left out; what the same
        instance said before is gone either way.
        """
        known = dict(self.by_instance)
        head = _judged(event, self.self_id) if isinstance(event, Found) else None
        if head is None:
            known.pop(event.instance, None)
        elif event.instance in known or len(known) < MAX_HEADS:
            known[event.instance] = head
        return Roster(self.self_id, known)

    @property
    def heads(self) -> tuple[FoundHead, ...]:
        """One entry an id, by name. Of several that claim an id, the one heard first: a later liar displaces nobody."""
        first: dict[str, FoundHead] = {}
        for head in self.by_instance.values():
            first.setdefault(head.id, head)
        return tuple(sorted(first.values(), key=lambda head: (head.name, head.id)))


def clean_name(text: str, limit: int = NAME_BYTES) -> str:
    """A name from elsewhere as any screen, log and TXT record can hold it: at most `limit` UTF-8 bytes, one line.

    No control or invisible characters, no terminal sequences, no square brackets or backslashes (markup); 'unnamed'
    when nothing is left.
    """
    text = _ESCAPES.sub("", text).translate(_MARKUP)
    kept = (" " if c.isspace() else c for c in text if c.isspace() or c.isprintable())
    text = unicodedata.normalize("NFC", " ".join("".join(kept).split()))
    # errors="ignore" drops the character that the limit cuts in half
    cut = text.encode("utf-8", "ignore")[:limit].decode("utf-8", "ignore").strip()
    return cut or "unnamed"


def _judged(event: Found, self_id: str) -> FoundHead | None:
    if event.id == self_id or not _ID.fullmatch(event.id):
        return None
    if not 0 < event.port < 65536 or not _is_dialable(event.address):
        return None
    return FoundHead(id=event.id, name=clean_name(event.name), address=event.address, port=event.port)


def _is_dialable(address: str) -> bool:
    """An IPv4 address that may be a neighbour's; no announcement makes this machine dial out into the internet."""
    try:
        ip = ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return not (ip.is_global or ip.is_multicast or ip.is_unspecified or ip.is_reserved)
