"""The facts about interfaces: this machine's, and those of folders that stand in for /proc and /sys."""

import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from msgspec.structs import replace

from daisychain.facts import Address
from daisychain.machine import interfaces, netlink, probe
from daisychain.machine.netlink import Link
from daisychain.machine.nics import choose
from daisychain.machine.nics.raw import Interface

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's files")
Raw = namedtuple("Raw", "family address netmask")


def write(root: Path, **files: str) -> Path:
    """Files below root; __ in a name stands for /, so that names can be keywords."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
*\t00000000\t00000000\t0200\t0\t0\t9\t00000000\t0\t0\t0
torn
odd\t00000000\tx\tzz\t0\t0\t0\t00000000\t0\t0\t0
"""


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A laptop with a wired NIC, Wi-Fi, docker0, a container's cable, a tunnel and an alias."""
    net = tmp_path / "sys/class/net"
    for index, name in enumerate(["lo", "eth0", "wlan0", "docker0", "veth7", "tun0"], start=1):
        write(net / name, ifindex=f"{index}\n", iflink=f"{index}\n", type="1\n", uevent=f"INTERFACE={name}\n")
    write(net / "lo", type="772\n")
    for name, driver in (("eth0", "e1000e"), ("wlan0", "iwlwifi")):
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (net / name / "device").mkdir()
        (net / name / "device/driver").symlink_to(tmp_path / "drivers" / driver)
    write(net / "wlan0", uevent="DEVTYPE=wlan\nINTERFACE=wlan0\n")
    (net / "wlan0/wireless").mkdir()
    (net / "docker0/bridge").mkdir()
    write(net / "docker0", uevent="DEVTYPE=bridge\n")
    write(net / "veth7", iflink="42\n")
    (net / "veth7/master").symlink_to(net / "docker0")
    (net / "docker0/lower_veth7").symlink_to(net / "veth7")
    write(tmp_path / "sys/class/dmi/id", sys_vendor="LENOVO\n", product_name="20L5\n")
    write(net / "tun0", tun_flags="0x1001\n", type="65534\n")
    write(tmp_path, proc__net__route=ROUTES)
    v4, v6 = socket.AF_INET, socket.AF_INET6
    addresses = {
        "docker0": [Raw(v4, "172.17.0.1", "255.255.0.0")],
        "eth0": [
            Raw(v6, "fe80::1%eth0", "ffff:ffff:ffff:ffff::"),
            Raw(v4, "192.168.2.7", "255.255.255.0"),
            Raw(v4, "10.0.0.7", "255.0.0.0"),
            Raw(psutil.AF_LINK, "00-11-22-33-44-AA", None),
        ],
        "eth0:1": [Raw(v4, "192.168.2.8", "255.255.255.0")],
        "wlan0": [Raw(v4, "not an address", "255.255.255.0")],
        "tun0": [Raw(v4, "10.8.0.6", None)],
        "lo": [Raw(v4, "127.0.0.1", "255.0.0.0")],
    }

    def stat(speed: int, up: bool = True) -> SimpleNamespace:
        return SimpleNamespace(isup=up, speed=speed, mtu=1500)

    stats = {
        "lo": stat(0), "eth0": stat(1000), "wlan0": stat(65535, up=False),
        "docker0": stat(0), "veth7": stat(10000), "tun0": stat(10),
    }  # fmt: skip
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    names = [(1, "lo"), (2, "eth0"), (3, "wlan0"), (4, "docker0"), (5, "veth7"), (6, "tun0")]
    monkeypatch.setattr(socket, "if_nameindex", lambda: names)
    return tmp_path


@linux
def test_a_laptop_s_interfaces(laptop: Path) -> None:
    nics = {nic.name: nic for nic in probe.read_nics(laptop)}
    assert [(nic.name, nic.kind) for nic in nics.values()] == [
        ("lo", "loopback"), ("eth0", "ethernet"), ("wlan0", "wifi"), ("docker0", "container"),
        ("veth7", "veth"), ("tun0", "tun"), ("eth0:1", "ethernet"),
    ]  # fmt: skip
    assert nics["eth0"].addresses == (
        Address(ip="192.168.2.7", prefix=24),
        Address(ip="10.0.0.7", prefix=8),
        Address(ip="fe80::1", prefix=64),
    )
    assert [name for name, nic in nics.items() if nic.default_route] == ["eth0", "eth0:1"]
    assert (nics["eth0"].speed_mbps, nics["eth0"].mtu) == (1000, 1500)
    assert nics["tun0"].addresses == (Address(ip="10.8.0.6", prefix=32),)
    assert [nics[name].speed_mbps for name in ("wlan0", "veth7", "tun0")] == [None, None, None]
    assert not nics["wlan0"].up
    assert choose(tuple(nics.values()))[0] == nics["eth0"]


@linux
def test_all_facts_of_a_laptop_are_gathered(laptop: Path) -> None:
    write(laptop, proc__sys__kernel__osrelease="6.1.0-18-amd64\n")
    machine = interfaces.read_machine(laptop)
    assert (machine.os, machine.kernel, machine.vendor) == ("linux", "6.1.0-18-amd64", "LENOVO 20L5")
    facts = {one.name: one for one in machine.interfaces}
    eth0 = facts["eth0"]
    assert (eth0.mac, eth0.gateway, eth0.driver, eth0.device) == ("00:11:22:33:44:aa", "192.168.2.1", "e1000e", True)
    assert facts["lo"].arp_type == 772
    assert (facts["wlan0"].wireless, facts["wlan0"].devtype) == (True, "wlan")
    assert (facts["docker0"].bridge, facts["docker0"].lower) == (True, ("veth7",))
    assert (facts["veth7"].linked, facts["veth7"].master) == (True, "docker0")
    assert facts["tun0"].tun
    assert replace(facts["eth0:1"], name="", addresses=()) == replace(eth0, name="", addresses=())


@linux
def test_netlink_adds_what_sysfs_does_not_say(laptop: Path) -> None:
    links = {"eth0": Link(), "veth7": Link(kind="veth", master="docker0"), "wlan0": Link(kind="vlan", parent="eth0")}
    facts = {one.name: one for one in interfaces.read_machine(laptop, links).interfaces}
    assert (facts["veth7"].link_kind, facts["veth7"].master) == ("veth", "docker0")
    assert facts["wlan0"].lower == ("eth0",)
    bare = {one.name: one for one in interfaces.read_machine(laptop / "nothing", links).interfaces}
    assert bare["veth7"] == Interface(name="veth7", mtu=1500, speed_mbps=10000, link_kind="veth", master="docker0")
    assert not bare["docker0"].known


@linux
@pytest.mark.parametrize(
    ("digits", "router"), [("0102A8C0", "192.168.2.1"), ("00000000", ""), ("zz", ""), ("FFFFFFFFFF", "")]
)
def test_a_router_is_read_in_this_machine_s_byte_order(digits: str, router: str) -> None:
    if sys.byteorder == "big":
        digits = "".join(reversed([digits[at : at + 2] for at in range(0, len(digits), 2)]))
    assert interfaces._router(digits) == router


@pytest.mark.parametrize("family", [None, 16])
def test_a_system_without_netlink_says_nothing(monkeypatch: pytest.MonkeyPatch, family: int | None) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    if family is None:
        monkeypatch.delattr(socket, "AF_NETLINK", raising=False)
    else:
        monkeypatch.setattr(socket, "AF_NETLINK", family, raising=False)
        monkeypatch.setattr(socket, "socket", refuse)
    assert netlink.links() == {}


@linux
def test_an_interface_that_vanishes_meanwhile_is_no_error(laptop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(psutil, "net_if_stats", gone)
    monkeypatch.setattr(socket, "if_nameindex", gone)
    assert {nic.name for nic in probe.read_nics(laptop)} == {"lo", "eth0", "eth0:1", "wlan0", "docker0", "tun0"}


LISTING = """
Hardware Port: Ethernet Adapter (en4)
Device: en4
Ethernet Address: aa:bb:cc:dd:ee:ff

Hardware Port: Wi-Fi
Device: en0
Ethernet Address: aa:bb:cc:dd:ee:00

VLAN Configurations
===================
"""


def test_macos_ports_are_named() -> None:
    assert interfaces.ports_in(LISTING) == {"en4": "Ethernet Adapter (en4)", "en0": "Wi-Fi"}


def test_a_mac_s_facts_are_gathered(laptop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def networksetup(words: list[str], **_: object) -> SimpleNamespace:
        assert words[1] == "-listallhardwareports"
        return SimpleNamespace(stdout=LISTING.replace("en0", "eth0").encode())

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", networksetup)
    monkeypatch.setattr(interfaces, "ROOT", laptop / "nothing")
    monkeypatch.setattr(interfaces, "source_address", lambda: "192.168.2.7")
    machine = interfaces.read_machine(laptop / "nothing")
    facts = {one.name: one for one in machine.interfaces}
    assert machine.os == "macos"
    assert (facts["eth0"].port, facts["eth0"].default_route) == ("Wi-Fi", True)
    assert [one.name for one in machine.interfaces if one.default_route] == ["eth0"]


def test_networksetup_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", gone)
    assert interfaces._hardware_ports() == {}


def test_windows_names_come_from_psutil(laptop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    machine = interfaces.read_machine(laptop / "nothing")
    assert machine.os == "windows"
    assert [one.name for one in machine.interfaces] == list(psutil.net_if_addrs())


def test_the_source_address_is_one_of_this_machine_or_unknown() -> None:
    mine = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert interfaces.source_address() in mine | {""}
