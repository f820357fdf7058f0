"""The choice of a network interface, on recorded machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.facts import Address, Nic, NicKind
from daisychain.machine.nics import NicHints, choose, classify, is_public, judge


def nic(name: str, kind: NicKind, *ips: str, up: bool = True, route: bool = False) -> Nic:
    """`ips` as 'IP/PREFIX'."""
    addresses = tuple(Address(ip=ip.split("/")[0], prefix=int(ip.split("/")[1])) for ip in ips)
    return Nic(name=name, kind=kind, addresses=addresses, up=up, default_route=route)


LO = nic("lo", "loopback", "127.0.0.1/8", "::1/128")
ETH = nic("eth0", "ethernet", "192.168.1.20/24", "fe80::1/64", route=True)
WIFI = nic("wlan0", "wifi", "192.168.1.21/24", route=True)
DOCKER = nic("docker0", "container", "172.17.0.1/16")
TAILSCALE = nic("tailscale0", "tailscale", "100.101.1.2/32")
BRIDGE = nic("br0", "bridge", "192.168.1.5/24", route=True)
PUBLIC_NIC = nic("ens3", "ethernet", "8.8.4.4/24", route=True)
GUEST = nic("enp0s3", "ethernet", "10.0.2.15/24", route=True)
CABLE = nic("eth0", "ethernet", "169.254.8.9/16")

MACHINES: dict[str, tuple[tuple[Nic, ...], str | None, str, str]] = {
    "a desktop": ((LO, ETH), "eth0", "ok", "wired, 192.168.1.20"),
    "docker0 comes first": ((LO, DOCKER, nic("br-0a1b2c3d4e5f", "container", "172.18.0.1/16"), ETH), "eth0", "ok", ""),
    "two NICs in one subnet": ((LO, WIFI, ETH), "eth0", "ok", "preferred to wlan0 (Wi-Fi, 192.168.1.21) in the same"),
    "a laptop whose cable is out": ((LO, nic("eth0", "ethernet", up=False), WIFI), "wlan0", "ok", "Wi-Fi"),
    "a direct cable besides Wi-Fi": ((LO, WIFI, nic("eth1", "ethernet", "10.0.0.2/24")), "eth1", "ok", "wired"),
    "two cables, one leads out": ((LO, nic("eth1", "ethernet", "10.9.0.2/24"), ETH), "eth0", "ok", ""),
    "WSL": ((LO, nic("eth0", "wsl", "172.29.4.5/20", route=True), DOCKER), "eth0", "warn", "can't connect to it"),
    "Tailscale beside a LAN": ((LO, TAILSCALE, WIFI), "wlan0", "ok", ""),
    "Tailscale only": ((LO, TAILSCALE, DOCKER), "tailscale0", "warn", "Tailscale"),
    "a full-tunnel VPN": ((LO, nic("tun0", "tun", "10.8.0.6/24", route=True), WIFI), "wlan0", "ok", ""),
    "only lo": ((LO,), "lo", "warn", "this machine only, and there is no other NIC"),
    "lo and a cable without DHCP": ((LO, CABLE, DOCKER), "eth0", "warn", "gave itself"),
    "a bridge has eth0's address": ((LO, nic("eth0", "ethernet"), BRIDGE), "br0", "ok", "bridge"),
    "a home-made container bridge": ((LO, nic("inner", "bridge", "10.5.0.1/24"), WIFI), "wlan0", "ok", ""),
    "a bridge without a router": ((LO, nic("br0", "bridge", "10.5.0.1/24")), "br0", "ok", ""),
    "a network namespace": ((LO, nic("eth0", "veth", "10.77.0.3/24")), "eth0", "ok", ""),
    "a network namespace with a decoy": ((LO, DOCKER, nic("eth0", "veth", "10.77.0.3/24")), "eth0", "ok", ""),
    "a Docker container": ((LO, nic("eth0", "veth", "172.17.0.2/16", route=True)), "eth0", "warn", "--network host"),
    "a LAN in Docker's pool": ((LO, nic("eth0", "ethernet", "172.20.0.9/16", route=True)), "eth0", "ok", ""),
    "a virtual machine behind NAT": ((LO, GUEST), "enp0s3", "warn", "bridged"),
    "a host with virtual machines": ((LO, nic("virbr0", "hypervisor", "192.168.122.1/24"), WIFI), "wlan0", "ok", ""),
    "a cloud machine": ((LO, PUBLIC_NIC), "lo", "warn", "never listens on a public"),
    "a cloud machine with a private net": ((LO, PUBLIC_NIC, nic("ens4", "ethernet", "10.1.0.3/24")), "ens4", "ok", ""),
    "a public address before a private one": (
        (nic("ens3", "ethernet", "8.8.4.4/24", "10.1.0.3/24"),),
        None, "refuse", "first address 8.8.4.4 is public",
    ),
    "IPv6 only": ((nic("eth0", "ethernet", "2001:db8::1/64"),), None, "refuse", "no IPv4"),
    "nothing at all": ((), None, "refuse", "no network interface"),
    "all down": ((nic("eth0", "ethernet", "10.0.0.1/24", up=False),), None, "refuse", "eth0 is down"),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_the_best_nic_is_chosen_and_the_reason_told(machine: str) -> None:
    nics, name, level, says = MACHINES[machine]
    chosen, verdict = choose(nics)
    assert (chosen.name if chosen else None) == name
    assert verdict.level == level
    assert says in f"{verdict.reason}. {verdict.remedy}"
    assert verdict.check == "nic"
    assert bool(verdict.remedy) == (level != "ok")


PLENTY = (LO, ETH, WIFI, DOCKER, nic("eth1", "ethernet", up=False), nic("eth2", "ethernet"))
WANTED = {
    "eth0": ("eth0", "ok", "wired"),
    " eth0 ": ("eth0", "ok", "wired"),
    "": ("eth0", "ok", "wired"),
    "wlan0": ("wlan0", "warn", "the wired one is faster"),
    "lo": ("lo", "warn", "reaches this machine only"),
    "docker0": ("docker0", "warn", "container network"),
    "eth1": (None, "refuse", "eth1 is down"),
    "eth2": (None, "refuse", "eth2 has no IPv4 address"),
    "eth9": (None, "refuse", "Did you mean eth"),
    "ETH0": (None, "refuse", "Did you mean eth0?"),
    "nonsense": (None, "refuse", "Give one of eth0 (wired, 192.168.1.20), wlan0"),
    "eth0,wlan0": (None, "refuse", "several names"),
    "192.168.1.20": (None, "refuse", "an address, not the name of a NIC. Use --nic eth0"),
    "192.168.1.20/24": (None, "refuse", "Use --nic eth0"),
    "192.168.1.20:47632": (None, "refuse", "Use --nic eth0"),
    "fe80::1": (None, "refuse", "Use --nic eth0"),
    "10.9.9.9": (None, "refuse", "an address, not the name of a NIC. Give one of"),
    "eth*": (None, "refuse", "a pattern"),
    "^docker0": (None, "refuse", "a pattern"),
    "x" * 1000: (None, "refuse", "xxx…"),
    "\x1b[2J": (None, "refuse", "\\x1b"),
}


@pytest.mark.parametrize("wanted", WANTED)
def test_a_wanted_nic_is_judged(wanted: str) -> None:
    name, level, says = WANTED[wanted]
    chosen, verdict = choose(PLENTY, wanted)
    assert (chosen.name if chosen else None) == name
    assert verdict.level == level
    text = f"{verdict.reason}. {verdict.remedy}"
    assert says in text
    assert len(verdict.reason) < 200
    assert "\x1b" not in text


def test_a_port_of_a_bridge_points_to_the_bridge() -> None:
    nics = (nic("eth0", "ethernet"), nic("br0", "bridge", "192.168.1.5/24"))
    assert "br0 (bridge, 192.168.1.5) has" in judge(nics[0], nics).reason


def test_a_nic_whose_name_has_a_comma_can_be_wanted() -> None:
    odd = nic("Ethernet, left", "ethernet", "10.0.0.5/24")
    assert choose((odd,), "Ethernet, left")[0] == odd


def test_two_wired_nics_in_one_subnet_are_mentioned() -> None:
    other = nic("eth1", "ethernet", "192.168.1.22/24")
    _, verdict = choose((LO, ETH, other))
    assert (verdict.level, "eth1" in verdict.reason) == ("ok", True)


def test_mirrored_wsl_is_told_from_the_translated_one() -> None:
    eth = nic("eth0", "wsl", "192.168.1.20/24", route=True)
    mirrored = judge(eth, (eth, nic("loopback0", "unknown")))
    assert "mirrored network" in mirrored.reason
    assert "networkingMode=mirrored" in judge(eth, (eth,)).remedy


@pytest.mark.parametrize("kind", ["veth", "wsl", "unknown", "tun", "tether", "macvlan"])
def test_the_only_way_out_is_never_refused(kind: NicKind) -> None:
    chosen, verdict = choose((LO, nic("eth0", kind, "10.77.0.3/24", route=True)))
    assert chosen is not None
    assert chosen.name == "eth0"
    assert verdict.level in ("ok", "warn")


HINTED: list[tuple[str, NicHints, NicKind]] = [
    ("eth0", NicHints(known=True, device=True, driver="e1000e", arp_type=1), "ethernet"),
    ("enx00e04c", NicHints(known=True, device=True, driver="cdc_ncm"), "ethernet"),
    ("wlp2s0", NicHints(known=True, device=True, wireless=True, devtype="wlan"), "wifi"),
    ("eth1", NicHints(known=True, device=True, wireless=True), "wifi"),
    ("usb0", NicHints(known=True, device=True, driver="cdc_ether"), "tether"),
    ("enp0s20u1", NicHints(known=True, device=True, driver="rndis_host"), "tether"),
    ("wwan0", NicHints(known=True, device=True, devtype="wwan"), "tether"),
    ("lo", NicHints(known=True, arp_type=772), "loopback"),
    ("dummy0", NicHints(known=True, arp_type=1), "unknown"),
    ("br0", NicHints(known=True, bridge=True, devtype="bridge", lower=True), "bridge"),
    ("wlan0", NicHints(known=True, bridge=True, devtype="bridge"), "container"),
    ("docker0", NicHints(known=True, bridge=True, devtype="bridge", lower=True), "container"),
    ("br-0a1b2c3d4e5f", NicHints(known=True, bridge=True, lower=True), "container"),
    ("virbr0", NicHints(known=True, bridge=True, lower=True), "hypervisor"),
    ("vnet3", NicHints(known=True, tun=True), "hypervisor"),
    ("bond0", NicHints(known=True, bonding=True, lower=True), "bond"),
    ("eth0.5", NicHints(known=True, devtype="vlan", linked=True, lower=True), "vlan"),
    ("eth0", NicHints(known=True, linked=True), "veth"),
    ("mv0", NicHints(known=True, linked=True, lower=True), "macvlan"),
    ("office", NicHints(known=True, tun=True, arp_type=65534, address="10.8.0.6"), "tun"),
    ("office", NicHints(known=True, tun=True, arp_type=65534, address="100.99.0.6"), "tailscale"),
    ("mullvad", NicHints(known=True, devtype="wireguard", arp_type=65534), "wireguard"),
    ("ppp0", NicHints(known=True, arp_type=512), "tun"),
    ("eth0", NicHints(known=True, device=True, driver="hv_netvsc", wsl=True), "wsl"),
    ("tailscale0", NicHints(), "tailscale"),
    ("utun4", NicHints(address="100.64.1.1"), "tailscale"),
    ("utun4", NicHints(address="10.8.0.2"), "tun"),
    ("en0", NicHints(), "unknown"),
    ("en0", NicHints(port="Wi-Fi"), "wifi"),
    ("en0", NicHints(port="Ethernet"), "ethernet"),
    ("en5", NicHints(port="USB 10/100/1000 LAN"), "ethernet"),
    ("en7", NicHints(port="iPhone USB"), "tether"),
    ("bridge0", NicHints(port="Thunderbolt Bridge"), "bridge"),
    ("bridge100", NicHints(), "hypervisor"),
    ("lo0", NicHints(), "loopback"),
    ("Wi-Fi", NicHints(), "wifi"),
    ("Ethernet 2", NicHints(), "ethernet"),
    ("vEthernet (WSL)", NicHints(), "hypervisor"),
    ("Loopback Pseudo-Interface 1", NicHints(), "loopback"),
    ("", NicHints(), "unknown"),
]


@pytest.mark.parametrize(("name", "hints", "kind"), HINTED)
def test_kinds(name: str, hints: NicHints, kind: NicKind) -> None:
    assert classify(name, hints) == kind


PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "0.0.0.0", "::", "somewhere", ""]
PRIVATE = ["10.0.0.1", "192.168.1.1", "172.31.0.1", "100.64.0.1", "169.254.1.1", "127.0.0.1", "fe80::1%eth0", "fd00::1"]


@pytest.mark.parametrize(("ip", "public"), [*((ip, True) for ip in PUBLIC), *((ip, False) for ip in PRIVATE)])
def test_public_addresses(ip: str, public: bool) -> None:
    assert is_public(ip) is public


KINDS = st.sampled_from(NicKind.__args__)  # type: ignore[attr-defined]
IPS = st.one_of(st.ip_addresses().map(str), st.sampled_from(["10.0.0.1", "127.0.0.1", "169.254.0.1", "", "fe80::1%x"]))
ADDRESSES = st.lists(st.builds(Address, ip=IPS, prefix=st.integers(-1, 129)), max_size=3).map(tuple)
NAMES = st.one_of(st.text(max_size=20), st.sampled_from(["eth0", "lo", "docker0", "veth1"]))
ANY_NIC = st.builds(Nic, name=NAMES, kind=KINDS, addresses=ADDRESSES, up=st.booleans(), default_route=st.booleans())


@given(st.lists(ANY_NIC, max_size=6), st.one_of(st.just(""), NAMES, IPS))
def test_any_machine_gets_an_answer(nics: list[Nic], wanted: str) -> None:
    chosen, verdict = choose(nics, wanted)
    assert (chosen is None) == (verdict.level == "refuse")
    assert (verdict.remedy == "") == (verdict.level == "ok")
    if chosen is not None:
        first = next(a.ip for a in chosen.addresses if ":" not in a.ip and a.ip)
        assert chosen.up
        assert not is_public(first)
    if chosen is not None and chosen.kind == "loopback" and not wanted.strip():
        assert all(n.kind == "loopback" or judge(n, nics).level == "refuse" for n in nics)


@given(st.text(max_size=30), st.booleans(), st.text(max_size=10), st.text(max_size=20))
def test_any_name_has_a_kind(name: str, known: bool, devtype: str, address: str) -> None:
    assert classify(name, NicHints(known=known, devtype=devtype, address=address)) in NicKind.__args__  # type: ignore[attr-defined]
