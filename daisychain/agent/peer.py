"""Whether an agent on another machine can be reached from here: its name, its port, its certificate, step by step."""

import asyncio
import contextlib
import hashlib
import ipaddress
import socket
import ssl
from typing import Literal, NamedTuple

from daisychain.facts import Node, Verdict

CONNECT_S = 4.0
ANSWER_S = 4.0
Outcome = Literal["answers", "no name", "itself", "v6 only", "refused", "silent", "stuck", "stranger", "unreachable"]


class Reached(NamedTuple):
    """How far the way to host:port went."""

    outcome: Outcome
    address: str = ""
    """What the host name stands for here; empty when it stands for nothing."""
    fingerprint: str = ""
    """The identity of the agent that answers."""
    said: str = ""
    """The system's own words for a failure."""


async def reach(host: str, port: int, source: str) -> Reached:
    """Try it from the address `source`; takes CONNECT_S + ANSWER_S at most, and never raises."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Reached("no name", said=getattr(error, "strerror", None) or str(error))
    fours = [str(where[0]) for family, _, _, _, where in found if family == socket.AF_INET]
    if not fours:
        return Reached("v6 only", str(found[0][4][0]) if found else "")
    address = fours[0]
    if ipaddress.ip_address(address).is_loopback and not source.startswith("127."):
        return Reached("itself", address)
    return await _connect(address, port, source)


async def _connect(address: str, port: int, source: str) -> Reached:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port, local_addr=(source, 0)), CONNECT_S)
        writer.close()
    except (asyncio.TimeoutError, TimeoutError):
        return Reached("silent", address)
    except ConnectionRefusedError:
        return Reached("refused", address)
    except OSError as error:
        return Reached("unreachable", address, said=error.strerror or str(error))
    # who it is shows its certificate; whether to trust it is for joining to say
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(address, port, ssl=context, server_hostname="daisychain", local_addr=(source, 0)),
            ANSWER_S,
        )
    except (asyncio.TimeoutError, TimeoutError):
        return Reached("stuck", address)
    except (OSError, EOFError) as error:
        return Reached("stranger", address, said=getattr(error, "strerror", None) or str(error))
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) or b""
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)
    return Reached("answers", address, hashlib.sha256(certificate).hexdigest())


def judge_peer(own: Node, host: str, port: int, way: Reached) -> Verdict:
    """What came of it, with the cause and what to do."""
    where = f"{host} ({way.address})" if way.address not in ("", host) else host
    on = f"Type its address instead; on {host}, daisychain nodes shows it"
    match way.outcome:
        case "answers":
            return _verdict(
                own, "ok", f"{own.name} reaches an agent on {where}, port {port}, id {way.fingerprint[:12]}"
            )
        case "no name":
            return _verdict(own, "refuse", f"{own.name} finds no machine called {host}: {way.said}", on)
        case "itself":
            name = host if host == way.address else f"on {own.name} the name {host} stands for {way.address}, which"
            reason = f"{name} is {own.name} itself"
            return _verdict(own, "refuse", reason, on)
        case "v6 only":
            reason = f"{host} has only an IPv6 address here, and DaisyChain uses IPv4"
            return _verdict(own, "refuse", reason, f"Give {host} an IPv4 address, then type that")
        case "refused":
            reason = f"{where} answers {own.name}, but nothing listens on its port {port}"
            return _verdict(own, "refuse", reason, f"Start daisychain on {host}, or give its port: --peer {host}:PORT")
        case "silent":
            reason = f"{own.name} ({own.address}) gets no answer from {where}, port {port}: a firewall, or it is off"
            firewalls = (
                f"sudo ufw allow from {own.address}, or sudo firewall-cmd --zone=trusted --add-source={own.address}"
            )
            return _verdict(own, "refuse", reason, f"On {host} let {own.name} in: {firewalls}")
        case "unreachable":
            reason = f"{own.name} ({own.address}) has no way to {where}: {way.said}"
            remedy = (
                "Put both into one network; Wi-Fi guests are kept apart, and macOS asks under Privacy, Local Network"
            )
            return _verdict(own, "refuse", reason, remedy)
        case "stuck":
            reason = f"{where} takes {own.name}'s connections, but its larger packets don't arrive"
            return _verdict(own, "refuse", reason, f"Give all NICs the same MTU: on {host}, ip link set NIC mtu 1500")
        case "stranger":
            reason = f"what answers on {where}, port {port}, is no DaisyChain: {way.said}"
            return _verdict(own, "refuse", reason, f"Give the port of daisychain on {host}: --peer {host}:PORT")


def _verdict(own: Node, level: Literal["ok", "refuse"], reason: str, remedy: str = "") -> Verdict:
    return Verdict(level=level, check="peer", reason=reason, remedy=remedy, node=own.name)
