"""Multicast DNS: announce this head, hear of others. The only file of this folder that touches the network.

Nothing here raises for what the network does or lacks: DaisyChain works without mDNS, and a Verdict says so.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from daisychain.discovery.roster import Found, Gone, clean_name
from daisychain.facts import Verdict

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

log = logging.getLogger(__name__)

SERVICE = "_daisychain._tcp.local."
GROUP, PORT = "224.0.0.251", 5353
VERSION = "1"
ID_DIGITS = 16
START_S = 5.0
LOOK_UP_MS = 3000
MAX_LOOK_UPS = 64
REMEDY = "Type the head's address instead: daisychain join HOST"

Callback = Callable[[Found | Gone], None]


class Mdns:
    """mDNS on one address. Every method returns what came of it as a Verdict (check "discovery") and never raises."""

    def __init__(self) -> None:
        self._zeroconf: AsyncZeroconf | None = None
        self._info: AsyncServiceInfo | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._callback: Callback | None = None
        self._look_ups: dict[str, asyncio.Task[None]] = {}
        self._verdict = _warn("multicast DNS was not started")

    async def start(self, address: str) -> Verdict:
        """Open mDNS on the NIC with this IPv4 address, and on no other; what was open before is closed."""
        await self.close()
        try:
            self._zeroconf = await _open(address)
        except Exception as error:  # zeroconf's own kinds, OSError, and whatever an old or broken installation raises
            log.info("no mDNS on %s: %r", address, error)
            self._verdict = _warn(f"multicast DNS doesn't work on {address}: {_why(error)}")
        else:
            self._verdict = Verdict(level="ok", check="discovery", reason=f"multicast DNS works on {address}")
        return self._verdict

    async def announce(self, id: str, name: str, address: str, port: int) -> Verdict:
        """Tell the network of this head, in place of what was told before. Takes about a second."""
        await self.withdraw()
        if self._zeroconf is None:
            return self._verdict
        try:
            info = _service_info(id, name, address, port)
            # a name that is taken gets a number: the id in the record is what counts
            sent = await self._zeroconf.async_register_service(info, allow_name_change=True)
            self._info = info
            await sent
        except Exception as error:
            log.info("mDNS announcement failed: %r", error)
            return _warn(f"this head can't be announced on {address}: {_why(error)}")
        return Verdict(level="ok", check="discovery", reason=f"announced on {address}")

    async def withdraw(self) -> None:
        """Take the announcement back, so that others drop this head at once; nothing happens when there is none."""
        info, self._info = self._info, None
        if info is None or self._zeroconf is None:
            return
        with contextlib.suppress(Exception):
            await (await self._zeroconf.async_unregister_service(info))

    async def browse(self, callback: Callback) -> Verdict:
        """From now on call `callback`, on the event loop, for every head that comes, changes or goes."""
        if self._zeroconf is None:
            return self._verdict
        await self._stop_browsing()
        self._callback = callback
        try:
            from zeroconf.asyncio import AsyncServiceBrowser

            self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._changed])
        except Exception as error:
            log.info("mDNS browsing failed: %r", error)
            return _warn(f"can't look for heads with multicast DNS: {_why(error)}")
        return self._verdict

    async def close(self) -> None:
        """Withdraw, stop browsing, close the sockets. May be called again."""
        await self._stop_browsing()
        await self.withdraw()
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is not None:
            with contextlib.suppress(Exception):
                await zeroconf.async_close()
        self._verdict = _warn("multicast DNS was closed")

    async def _stop_browsing(self) -> None:
        browser, self._browser = self._browser, None
        self._callback = None
        if browser is not None:
            with contextlib.suppress(Exception):
                await browser.async_cancel()
        tasks = list(self._look_ups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._look_ups.clear()

    def _changed(self, *, zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        """The browser's handler; it runs on the event loop and must not wait."""
        # what is being looked up is older than this change
        if (task := self._look_ups.pop(name, None)) is not None:
            task.cancel()
        if state_change.name == "Removed":
            self._tell(Gone(instance=name))
        elif len(self._look_ups) < MAX_LOOK_UPS:
            self._look_ups[name] = asyncio.ensure_future(self._look_up(zeroconf, service_type, name))

    async def _look_up(self, zeroconf: Any, service_type: str, name: str) -> None:
        try:
            from zeroconf.asyncio import AsyncServiceInfo

            info = AsyncServiceInfo(service_type, name)
            if await info.async_request(zeroconf, LOOK_UP_MS):
                for event in _events(name, info):
                    self._tell(event)
        except Exception as error:  # a stranger's records may be anything
            log.debug("mDNS record of %r is unusable: %r", name, error)
        finally:
            if self._look_ups.get(name) is asyncio.current_task():
                del self._look_ups[name]

    def _tell(self, event: Found | Gone) -> None:
        if self._callback is not None:
            self._callback(event)


def _probe(address: str) -> None:
    """Raises OSError when the mDNS port can't be shared or the NIC with this address can't join the group.

    zeroconf passes over some of these in silence and leaks its socket on others.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            with contextlib.suppress(OSError):  # known by name, not by every kernel
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        probe.bind(("", PORT))
        membership = socket.inet_aton(GROUP) + socket.inet_aton(address)
        probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)


async def _open(address: str) -> "AsyncZeroconf":
    from zeroconf import IPVersion
    from zeroconf.asyncio import AsyncZeroconf

    _probe(address)
    opened = AsyncZeroconf(interfaces=[address], ip_version=IPVersion.V4Only)
    try:
        await asyncio.wait_for(opened.zeroconf.async_wait_for_start(), START_S)
        # an address without multicast is skipped in silence
        if not opened.zeroconf.engine.senders:
            raise OSError(errno.ENODEV, "this network interface can't do multicast")
    except BaseException:
        with contextlib.suppress(Exception):
            await opened.async_close()
        raise
    return opened


def _service_info(id: str, name: str, address: str, port: int) -> "AsyncServiceInfo":
    from zeroconf.asyncio import AsyncServiceInfo

    host = f"daisychain-{id[:ID_DIGITS]}"  # not the host name: that one may be long, foreign or taken
    return AsyncServiceInfo(
        SERVICE,
        f"{host}.{SERVICE}",
        port=port,
        parsed_addresses=[address],
        server=f"{host}.local.",
        properties={"id": id, "name": clean_name(name), "v": VERSION},
    )


def _events(instance: str, info: "AsyncServiceInfo") -> list[Found]:
    """What a record says, as it says it; the roster judges. Only the first address: a head announces one."""
    from zeroconf import IPVersion

    texts = {key: _decoded(value) for key, value in info.properties.items()}
    addresses = info.parsed_addresses(IPVersion.V4Only)[:1]
    if texts.get(b"v") != VERSION:
        return []
    return [
        Found(
            instance=instance,
            id=texts.get(b"id", ""),
            name=texts.get(b"name", ""),
            address=address,
            port=info.port or 0,
        )
        for address in addresses
    ]


def _decoded(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _why(error: Exception) -> str:
    """In words, for the failures that people meet."""
    known = {
        errno.EADDRINUSE: "another program holds UDP port 5353",
        errno.ENOBUFS: "too many network interfaces joined multicast groups (errno 105)",
        errno.ENODEV: "the network interface is gone or can't do multicast (errno 19)",
        errno.EADDRNOTAVAIL: "no network interface has this address",
        errno.EINVAL: "the network interface can't do multicast",
        errno.ENETUNREACH: "the network interface has no route",
    }
    if isinstance(error, OSError) and error.errno is not None:
        return known.get(error.errno, error.strerror or str(error))
    if isinstance(error, ImportError):
        return "the zeroconf package is not installed"
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return f"it did not start within {START_S:g} s"
    # some of zeroconf's errors have no text at all
    words = {"NonUniqueNameException": "another machine announces the same name"}
    return words.get(type(error).__name__) or str(error) or type(error).__name__


def _warn(reason: str) -> Verdict:
    return Verdict(level="warn", check="discovery", reason=reason, remedy=REMEDY)
