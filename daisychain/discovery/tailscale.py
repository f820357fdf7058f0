"""Tailscale: who else is in this machine's tailnet, which has no multicast, and whether the way there is relayed.

`tailscale status --json` knows both. Nothing here raises: without Tailscale there is nobody.
"""

import asyncio
import contextlib
import ipaddress
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from daisychain.discovery.roster import clean_name

log = logging.getLogger(__name__)
ADDRESSES = ipaddress.IPv4Network("100.64.0.0/10")
MAX_PEERS = 64
STATUS_S = 3.0
CONNECT_S = 2.0
MAC_APP = Path("/Applications/Tailscale.app/Contents/MacOS/Tailscale")
"""Where the program is that the App Store's version keeps to itself."""


class TailPeer(msgspec.Struct, frozen=True):
    """Another machine of the tailnet that is online. A candidate: what runs there is for TLS to prove."""

    name: str
    address: str
    relay: str = ""
    """What its packets go through now, a DERP region or another peer; empty: they go directly, or none go."""


class _Peer(msgspec.Struct):
    """As Tailscale writes it; what is left out takes its default."""

    HostName: str = ""
    TailscaleIPs: list[str] | None = None
    Online: bool = False
    Active: bool = False
    CurAddr: str = ""
    Relay: str = ""
    PeerRelay: str = ""


class _Status(msgspec.Struct):
    BackendState: str = ""
    Peer: dict[str, _Peer] | None = None


def parse(status: bytes) -> tuple[TailPeer, ...]:
    """The peers that are online and have an IPv4 address, by name; at most MAX_PEERS. None for any other text."""
    try:
        found = msgspec.json.decode(status, type=_Status)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return ()
    if found.BackendState != "Running":
        return ()
    peers = [_peer(one, address) for one in (found.Peer or {}).values() if one.Online and (address := _address(one))]
    return tuple(sorted(peers, key=lambda peer: (peer.name, peer.address)))[:MAX_PEERS]


def _peer(one: _Peer, address: str) -> TailPeer:
    # it names the region of a peer also while packets go directly, or none go
    relay = (one.PeerRelay or one.Relay) if one.Active and not one.CurAddr else ""
    return TailPeer(clean_name(one.HostName), address, clean_name(relay) if relay else "")


def _address(one: _Peer) -> str:
    for text in one.TailscaleIPs or ():
        with contextlib.suppress(ValueError):
            if ipaddress.IPv4Address(text) in ADDRESSES:
                return text
    return ""


def program() -> str:
    """The path of Tailscale's command; empty where there is none."""
    return shutil.which("tailscale") or (str(MAC_APP) if MAC_APP.exists() else "")


async def read_peers(command: str) -> tuple[TailPeer, ...]:
    """Who is online now; nobody where the command fails or takes over STATUS_S."""
    try:
        process = await asyncio.create_subprocess_exec(
            command, "status", "--json", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        log.info("%s: %s", command, error)
        return ()
    try:
        said, _ = await asyncio.wait_for(process.communicate(), STATUS_S)
        return parse(said)
    except (asyncio.TimeoutError, TimeoutError):
        log.info("%s said nothing within %g s", command, STATUS_S)
        return ()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def listening(peers: Sequence[TailPeer], port: int) -> tuple[TailPeer, ...]:
    """Those of them that take a connection to this port, all tried at once; CONNECT_S at most."""
    answers = await asyncio.gather(*(_listens(peer.address, port) for peer in peers))
    return tuple(peer for peer, answer in zip(peers, answers, strict=True) if answer)


async def _listens(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
    except (OSError, asyncio.TimeoutError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)
    return True
