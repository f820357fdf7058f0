"""mDNS: on the loopback interface for real, and every failure as a Verdict."""

import asyncio
import errno
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import zeroconf
import zeroconf.asyncio

from daisychain.discovery import mdns
from daisychain.discovery.mdns import Mdns
from daisychain.discovery.roster import Found, Gone, Roster
from daisychain.facts import Verdict

A, B = "a" * 64, "b" * 64
HOME = "127.0.0.1"


class Engine:
    senders = ("a socket",)


class FakeZeroconf:
    """Stands for AsyncZeroconf: raises what it is told to, when it is told to."""

    at: ClassVar[dict[str, Exception]] = {}
    closed = 0
    engine = Engine()

    def __init__(self, **_: Any) -> None:
        self.zeroconf = self
        self._raise("open")

    def _raise(self, when: str) -> None:
        if when in type(self).at:
            raise type(self).at[when]

    async def async_wait_for_start(self) -> None:
        self._raise("start")

    async def async_register_service(self, info: Any, **_: Any) -> Any:
        self._raise("register")
        return asyncio.ensure_future(self._later())

    async def _later(self) -> None:
        self._raise("broadcast")

    async def async_unregister_service(self, info: Any) -> Any:
        self._raise("unregister")
        return asyncio.ensure_future(self._later())

    async def async_close(self) -> None:
        type(self).closed += 1
        self._raise("close")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeZeroconf]:
    class Fake(FakeZeroconf):
        at: ClassVar[dict[str, Exception]] = {}
        closed = 0

    monkeypatch.setattr(zeroconf.asyncio, "AsyncZeroconf", Fake)
    monkeypatch.setattr(mdns, "_probe", lambda address: None)
    return Fake


def warned(verdict: Verdict) -> str:
    assert (verdict.level, verdict.check) == ("warn", "discovery")
    assert "daisychain join HOST" in verdict.remedy
    return verdict.reason


FAILURES = [
    (OSError(errno.EADDRINUSE, "x"), "5353"),
    (OSError(errno.ENOBUFS, "x"), "105"),
    (OSError(errno.ENODEV, "x"), "19"),
    (OSError(errno.EADDRNOTAVAIL, "x"), "no network interface has this address"),
    (OSError(errno.EPERM, "Operation not permitted"), "not permitted"),
    (OSError("no number"), "no number"),
    (RuntimeError("No adapter found"), "No adapter found"),
    (zeroconf.NonUniqueNameException(), "same name"),
    (zeroconf.NotRunningException(), "NotRunningException"),
    (zeroconf.BadTypeInNameException("bad"), "bad"),
    (asyncio.TimeoutError(), "5 s"),
    (ImportError("zeroconf"), "not installed"),
    (ValueError("value"), "value"),
]


@pytest.mark.parametrize("when", ["open", "start"])
@pytest.mark.parametrize(("error", "words"), FAILURES)
async def test_a_failed_start_is_a_verdict(fake: type[FakeZeroconf], when: str, error: Exception, words: str) -> None:
    fake.at = {when: error, "close": error}
    multicast = Mdns()
    reason = warned(await multicast.start("10.0.0.1"))
    assert words in reason
    assert "10.0.0.1" in reason
    # everything after it says the same and does nothing
    assert warned(await multicast.announce(A, "big", "10.0.0.1", 1)) == reason
    assert warned(await multicast.browse(lambda event: None)) == reason
    await multicast.withdraw()
    await multicast.close()
    assert fake.closed == (when == "start")


@pytest.mark.parametrize("when", ["register", "broadcast"])
@pytest.mark.parametrize(("error", "words"), FAILURES)
async def test_a_failed_announcement_is_a_verdict(
    fake: type[FakeZeroconf], when: str, error: Exception, words: str
) -> None:
    multicast = Mdns()
    assert (await multicast.start("10.0.0.1")).level == "ok"
    fake.at = {when: error, "unregister": error, "close": error}
    assert words in warned(await multicast.announce(A, "big", "10.0.0.1", 1))
    await multicast.close()
    await multicast.close()


async def test_an_interface_without_multicast_is_a_verdict(fake: type[FakeZeroconf]) -> None:
    fake.engine = type("Deaf", (Engine,), {"senders": ()})()
    assert "multicast" in warned(await Mdns().start("10.0.0.1"))
    assert fake.closed == 1


async def test_a_failed_look_is_a_verdict(fake: type[FakeZeroconf], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENODEV, "x")

    monkeypatch.setattr(zeroconf.asyncio, "AsyncServiceBrowser", fail)
    multicast = Mdns()
    await multicast.start("10.0.0.1")
    assert "19" in warned(await multicast.browse(lambda event: None))


async def test_nothing_works_before_the_start_and_nothing_raises() -> None:
    multicast = Mdns()
    warned(await multicast.announce(A, "big", HOME, 1))
    warned(await multicast.browse(lambda event: None))
    await multicast.close()


async def test_a_port_that_somebody_keeps_to_itself_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as selfish:
        selfish.bind(("", 0))
        monkeypatch.setattr(mdns, "PORT", selfish.getsockname()[1])
        assert "5353" in warned(await Mdns().start(HOME))


async def test_an_address_of_nobody_is_a_verdict() -> None:
    warned(await Mdns().start("192.0.2.1"))
    warned(await Mdns().start("not an address"))


@pytest.mark.parametrize("name", ["big", "語" * 200, "\x1b[2J[red]", ""])
def test_a_record_fits_whatever_the_name(name: str) -> None:
    info = mdns._service_info(A, name, "10.0.0.1", 47632)
    info.dns_text()
    assert info.name == f"daisychain-{'a' * 16}._daisychain._tcp.local."
    assert info.server == f"daisychain-{'a' * 16}.local."
    (event,) = mdns._events("i", info)
    assert (event.id, event.address, event.port) == (A, "10.0.0.1", 47632)
    assert len(event.name.encode()) <= 63


@pytest.mark.parametrize(
    "properties", [{}, {"v": "2", "id": A}, {"v": None}, {"v": "1"}, {"v": "1", "id": b"\xff\xfe", "name": b"\xff"}]
)
def test_a_strangers_record_never_gets_into_the_roster(properties: dict[str, Any]) -> None:
    info = zeroconf.asyncio.AsyncServiceInfo(
        mdns.SERVICE, f"x.{mdns.SERVICE}", port=1, parsed_addresses=["10.0.0.1"], properties=properties
    )
    roster = Roster(B)
    for event in mdns._events("x", info):
        roster = roster.heard(event)
    assert roster.heads == ()


@pytest.fixture
async def listening() -> AsyncIterator[tuple[Mdns, "asyncio.Queue[Found | Gone]"]]:
    heard: asyncio.Queue[Found | Gone] = asyncio.Queue()
    listener = Mdns()
    verdict = await listener.start(HOME)
    if verdict.level != "ok":
        pytest.skip(f"no multicast on this machine's loopback: {verdict.reason}")
    assert (await listener.browse(heard.put_nowait)).level == "ok"
    yield listener, heard
    await listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="multicast on loopback")
async def test_a_head_is_found_moves_and_is_gone(listening: tuple[Mdns, "asyncio.Queue[Found | Gone]"]) -> None:
    _, heard = listening
    head = Mdns()
    try:
        await head.start(HOME)
        assert (await head.announce(A, "Küche", HOME, 47632)).level == "ok"
        event = await asyncio.wait_for(heard.get(), 10)
        assert isinstance(event, Found)
        assert (event.id, event.name, event.address, event.port) == (A, "Küche", HOME, 47632)

        assert (await head.announce(A, "Küche", HOME, 5)).level == "ok"
        while not (isinstance(event, Found) and event.port == 5):
            event = await asyncio.wait_for(heard.get(), 10)
    finally:
        await head.close()
    while not isinstance(event, Gone):
        event = await asyncio.wait_for(heard.get(), 10)
    assert Roster(B).heard(event).heads == ()
