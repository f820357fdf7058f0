"""Rules about network interfaces that a whole recorded machine doesn't show; machines.toml has those."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daisychain.facts import Address, Nic, NicKind
from daisychain.machine.nics import Interface, Machine, asked, choose, classify, describe, is_public, judge


def nic(name: str, kind: NicKind, *ips: str, up: bool = True, route: bool = False, over: tuple[str, ...] = ()) -> Nic:
    """`ips` as 'IP/PREFIX'."""
    addresses = tuple(Address(ip=ip.split("/")[0], prefix=int(ip.split("/")[1])) for ip in ips)
    return Nic(name=name, kind=kind, addresses=addresses, up=up, default_route=route, over=over)


LO = nic("lo", "loopback", "127.0.0.1/8", "::1/128")
ETH = nic("eth0", "ethernet", "192.168.1.20/24", "fe80::1/64", route=True)
WIFI = nic("wlan0", "wifi", "192.168.1.21/24", route=True)
DOCKER = nic("docker0", "container", "172.17.0.1/16")
VIRBR = nic("virbr0", "hypervisor", "192.168.122.1/24")

PLENTY = (LO, ETH, WIFI, DOCKER, nic("eth1", "ethernet", up=False), nic("eth2", "ethernet"))
WANTED = {
    "eth0": ("eth0", "ok", "wired"),
    " eth0 ": ("eth0", "ok", "wired"),
    "": ("eth0", "ok", "wired"),
    "wlan0": ("wlan0", "warn", "the wired one is faster"),
    "lo": ("lo", "warn", "reaches this machine only"),
    "docker0": (None, "refuse", "container network"),
    "eth1": (None, "refuse", "eth1 is down"),
    "eth2": (None, "refuse", "eth2 has no IPv4 address"),
    "eth9": (None, "refuse", "Did you mean eth"),
    "ETH0": (None, "refuse", "Did you mean eth0?"),
    "nonsense": (None, "refuse", "Give one of eth0 (wired, 192.168.1.20), wlan0"),
    "eth0,wlan0": (None, "refuse", "several names"),
    "eth0;wlan0": (None, "refuse", "several names"),
    "eth0 wlan0": (None, "refuse", "several names"),
    "two words": (None, "refuse", "no NIC 'two words'"),
    "192.168.1.20": (None, "refuse", "an address, not the name of a NIC. Use --nic eth0"),
    "192.168.1.20/24": (None, "refuse", "Use --nic eth0"),
    "192.168.1.20:47632": (None, "refuse", "Use --nic eth0"),
    "fe80::1": (None, "refuse", "Use --nic eth0"),
    "10.9.9.9": (None, "refuse", "an address, not the name of a NIC. Give one of"),
    "eth*": (None, "refuse", "a pattern"),
    "^docker0": (None, "refuse", "a pattern"),
    "=eth0": (None, "refuse", "a pattern"),
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


def test_a_refusal_says_where_the_name_was_given() -> None:
    for wanted in ("eth9", "eth1"):
        _, verdict = choose(PLENTY, wanted, source="GLOO_SOCKET_IFNAME")
        assert verdict.reason.endswith(" (from GLOO_SOCKET_IFNAME)")


def test_more_than_ten_nics_are_cut_short() -> None:
    _, verdict = choose([nic(f"eth{n}", "ethernet", f"10.0.{n}.1/24") for n in range(12)], "nonsense")
    assert verdict.remedy.endswith("and 2 more")


@pytest.mark.parametrize(
    ("setting", "environ", "answer"),
    [
        ("", {}, ("", "")),
        ("eth0", {}, ("eth0", "--nic, DAISYCHAIN_NIC or config.toml")),
        (" eth0 ", {"GLOO_SOCKET_IFNAME": "eth1"}, ("eth0", "--nic, DAISYCHAIN_NIC or config.toml")),
        (" ", {"GLOO_SOCKET_IFNAME": " eth1 "}, ("eth1", "GLOO_SOCKET_IFNAME")),
        ("", {"GLOO_SOCKET_IFNAME": "  "}, ("", "")),
    ],
)
def test_a_setting_counts_more_than_gloo_s_own_variable(
    setting: str, environ: dict[str, str], answer: tuple[str, str]
) -> None:
    assert asked(setting, environ) == answer


@pytest.mark.parametrize("inner", [DOCKER, VIRBR])
def test_what_leads_nowhere_is_accepted_with_a_warning_once_a_peer_answered_there(inner: Nic) -> None:
    nics = (LO, inner, nic("wlan0", "wifi", up=False))
    assert judge(inner, nics).level == "refuse"
    chosen, verdict = choose(nics, inner.name, answered={inner.name})
    assert chosen == inner
    assert (verdict.level, "another node answered there" in verdict.reason) == ("warn", True)
    assert choose(nics)[0] == LO
    assert choose(nics, answered={inner.name})[0] == inner


def test_the_nic_through_which_a_peer_answered_is_preferred() -> None:
    assert choose((LO, ETH, WIFI), answered={"wlan0"})[0] == WIFI


def test_a_port_of_a_bridge_points_to_the_bridge_where_the_system_does_not_tell_its_members() -> None:
    nics = (nic("eth0", "ethernet"), nic("br0", "bridge", "192.168.1.5/24"))
    assert "br0 (bridge, 192.168.1.5) has" in judge(nics[0], nics).reason
    other = (nic("eth0", "ethernet"), nic("br0", "bridge", "192.168.1.5/24", over=("eth7",)))
    assert "br0" not in judge(other[0], other).reason


def test_a_bridge_of_which_nothing_is_known_comes_after_wi_fi() -> None:
    assert choose((LO, nic("inner", "bridge", "10.5.0.1/24"), WIFI))[0] == WIFI


def test_two_wired_nics_in_one_subnet_are_mentioned() -> None:
    other = nic("eth1", "ethernet", "192.168.1.22/24")
    _, verdict = choose((LO, ETH, other))
    assert (verdict.level, "eth1" in verdict.reason) == ("ok", True)


@pytest.mark.parametrize("kind", ["veth", "wsl", "unknown", "tun", "tether", "macvlan", "container", "hypervisor"])
def test_the_only_way_out_is_never_refused(kind: NicKind) -> None:
    chosen, verdict = choose((LO, nic("eth0", kind, "10.77.0.3/24", route=True)))
    assert chosen is not None
    assert chosen.name == "eth0"
    assert verdict.level in ("ok", "warn")


# --- kinds ---


def kind_of(interface: Interface, **machine: str) -> NicKind:
    return classify(interface, Machine(interfaces=(interface,), **machine))[0]  # type: ignore[arg-type]


def test_a_made_up_speed_is_unknown() -> None:
    def speed(number: int | None, **facts: bool) -> int | None:
        one = Interface(name="x", known=True, speed_mbps=number, **facts)
        return describe(Machine(interfaces=(one,)))[0].speed_mbps

    assert speed(1000, device=True) == 1000
    assert [speed(n, device=True) for n in (0, -1, 65535, 2**32 - 1, None)] == [None] * 5
    assert speed(10000, linked=True) is None


def test_a_circle_of_interfaces_ends() -> None:
    one = Interface(name="a", known=True, bridge=True, lower=("b",))
    two = Interface(name="b", known=True, bridge=True, lower=("a",))
    assert [n.kind for n in describe(Machine(interfaces=(one, two)))] == ["container", "container"]


def test_a_parent_that_is_not_listed_is_no_reason_to_doubt_a_vlan() -> None:
    assert kind_of(Interface(name="eth0.5", known=True, link_kind="vlan", lower=("eth0",))) == "vlan"


BY_NAME: dict[NicKind, str] = {
    "container": "docker1 podman0 cni-podman1 lxcbr0 lxdbr0 incusbr0 nerdctl0 cni0 flannel.1 weave lxc12ab_x",
    "hypervisor": "virbr0 virbr0-nic mpqemubr0 tap100i0 fwbr100i0 fwpr100p0 vmnet8 vboxnet0 vmenet0 bridge100",
    "tailscale": "tailscale0 Tailscale",
    "wireguard": "wg0 wg-home nordlynx",
    "tun": "utun3 ppp0 tun0 tap0 ipsec0 gif0 stf0 ham0 gpd0 cscotun0 zt7nnig26 zt5u4y6ejv feth77 CloudflareWARP",
    "loopback": "lo lo0",
    "veth": "veth1a2b venet0",
    "macvlan": "macvlan0 macvtap1 ipvlan2",
    "bridge": "br0 vmbr0 bridge0 br-lan",
    "bond": "bond0 team0",
    "vlan": "vlan5 eth0.5",
    "wifi": "wlan0 wlp2s0 wifi0 Wi-Fi ath0 ra0 awdl0",
    "tether": "wwan0 usb0 rndis0 rmnet0 ccmni0 bnep0",
    "ethernet": "eth0 enp3s0 eno1 ens5 enx0011 em1 end0 Ethernet",
    "unknown": "x foo0 en0 ethx",
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in BY_NAME.items() for name in names.split()])
def test_a_name_is_all_there_is_where_the_system_does_not_tell(kind: NicKind, name: str) -> None:
    assert kind_of(Interface(name=name)) == kind


WINDOWS: dict[str, NicKind] = {
    "Cisco AnyConnect Secure Mobility Client": "tun",
    "Hamachi": "tun",
    "Network Bridge": "bridge",
    "Wireless Network Connection 2": "wifi",
    "Connexion réseau sans fil": "wifi",
    "Conexión de red inalámbrica": "wifi",
    "Local Area Connection 2": "ethernet",
    "Mobilfunk": "tether",
    "Cellular": "tether",
    "이더넷": "ethernet",
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_names_its_connections(name: str) -> None:
    assert kind_of(Interface(name=name), os="windows") == WINDOWS[name]


BY_LINK: dict[NicKind, str] = {
    "macvlan": "macvlan macvtap ipvlan ipvtap",
    "veth": "veth netkit",
    "container": "vxlan geneve bridge",
    "tether": "wwan rmnet",
    "loopback": "dummy ifb nlmon vrf",
    "tun": "tun ppp gre gretap erspan ip6gre ip6gretap ipip sit ip6tnl vti vti6 xfrm ovpn",
    "bond": "bond team",
}


@pytest.mark.parametrize(("kind", "link"), [(kind, link) for kind, links in BY_LINK.items() for link in links.split()])
def test_netlink_s_word_decides(kind: NicKind, link: str) -> None:
    assert kind_of(Interface(name="x", known=True, link_kind=link)) == kind


@pytest.mark.parametrize("number", [512, 768, 769, 776, 778, 823])
def test_a_tunnel_is_told_by_its_type(number: int) -> None:
    assert kind_of(Interface(name="x", known=True, arp_type=number)) == "tun"


TETHERS = "rndis_host ipheth cdc_mbim qmi_wwan huawei_cdc_ncm sierra_net hso iosm mtk_t7xx"


@pytest.mark.parametrize("driver", TETHERS.split())
def test_a_phone_or_modem_is_told_by_its_driver(driver: str) -> None:
    assert kind_of(Interface(name="eth5", known=True, device=True, driver=driver)) == "tether"


@pytest.mark.parametrize("devtype", ["wwan", "bluetooth", "gadget"])
def test_a_phone_or_modem_is_told_by_its_type(devtype: str) -> None:
    assert kind_of(Interface(name="x", known=True, device=True, devtype=devtype)) == "tether"


@pytest.mark.parametrize(
    "member",
    [
        Interface(name="m", known=True, device=True),
        Interface(name="m", known=True, wireless=True),
        Interface(name="m", known=True, link_kind="bond"),
        Interface(name="m", known=True, link_kind="vlan"),
        Interface(name="m", known=True, link_kind="macvtap"),
        Interface(name="m", known=True, device=True, devtype="bluetooth"),
    ],
)
def test_a_bridge_over_what_leads_out_leads_out(member: Interface) -> None:
    bridge = Interface(name="docker0", known=True, bridge=True, lower=("m",))
    assert describe(Machine(interfaces=(bridge, member)))[0].kind == "bridge"


EMULATED = [
    ("e1000", "innotek GmbH VirtualBox", "VirtualBox"),
    ("pcnet32", "VMware, Inc. VMware Virtual Platform", "VMware"),
    ("virtio_net", "Parallels International GmbH. Parallels ARM Virtual Machine", "Parallels"),
    ("virtio_net", "Apple Inc. Apple Virtualization Generic Platform", "Apple"),
    ("virtio_net", "Google Google Compute Engine", "Google"),
    ("virtio_net", "", "KVM"),
    ("8139cp", "QEMU Standard PC (i440FX + PIIX, 1996)", "KVM"),
    ("hv_netvsc", "", "Hyper-V"),
    ("e1000e", "Microsoft Corporation Virtual Machine", "Hyper-V"),
    ("vif", "Xen HVM domU", "Xen"),
    ("ena", "Amazon EC2 m5.large", "Amazon"),
    ("gve", "", "Google"),
    ("vmxnet3", "", "VMware"),
    ("e1000e", "LENOVO 20L5", ""),
    ("r8169", "Microsoft Corporation Surface Pro", ""),
    ("mlx5_core", "QEMU", ""),
    ("", "QEMU", ""),
]


@pytest.mark.parametrize(("driver", "vendor", "whose"), EMULATED)
def test_emulated_hardware_is_told_from_real(driver: str, vendor: str, whose: str) -> None:
    one = Interface(name="eth0", known=True, device=True, driver=driver)
    assert describe(Machine(vendor=vendor, interfaces=(one,)))[0].emulated == whose


TRANSLATED = [
    ("veth", "", "172.17.0.2/16", "Docker"),
    ("veth", "", "192.168.16.2/20", "Docker"),
    ("veth", "", "10.88.0.2/16", "Podman"),
    ("veth", "", "10.89.3.2/24", "Podman"),
    ("veth", "", "10.244.1.5/32", "Kubernetes"),
    ("ethernet", "", "10.0.2.15/24", "VirtualBox or QEMU"),
    ("ethernet", "KVM", "10.0.2.16/24", "VirtualBox or QEMU"),
    ("ethernet", "KVM", "192.168.122.9/24", "libvirt"),
    ("ethernet", "Apple", "192.168.5.15/24", "Lima"),
    ("ethernet", "Hyper-V", "172.20.1.9/20", "Hyper-V's default switch"),
    ("ethernet", "VirtualBox", "192.168.56.10/24", "VirtualBox"),
    ("ethernet", "KVM", "172.20.1.9/20", ""),
    ("ethernet", "KVM", "192.168.56.10/24", ""),
    ("ethernet", "", "10.0.2.16/24", ""),
    ("ethernet", "", "192.168.122.9/24", ""),
    ("ethernet", "", "172.17.0.2/16", ""),
    ("ethernet", "", "10.1.2.3/32", ""),
    ("veth", "", "172.17.0.2/24", ""),
    ("veth", "", "10.77.0.3/24", ""),
    ("veth", "KVM", "192.168.122.9/24", ""),
]


@pytest.mark.parametrize(("kind", "emulated", "ip", "whose"), TRANSLATED)
def test_addresses_behind_translation_are_known_where_they_mean_it(
    kind: NicKind, emulated: str, ip: str, whose: str
) -> None:
    one = replace(nic("eth0", kind, ip), emulated=emulated)
    verdict = judge(one, (one,))
    assert verdict.level == ("warn" if whose else "ok")
    assert f"as {whose} gives" in verdict.reason or not whose


def test_netlink_s_word_counts_without_sysfs() -> None:
    assert kind_of(Interface(name="eth0", link_kind="wireguard")) == "wireguard"


def test_a_prefix_that_makes_no_sense_is_no_network() -> None:
    odd = nic("eth1", "ethernet", "192.168.1.30/77")
    assert judge(odd, (odd, ETH)).reason == "eth1 (wired, 192.168.1.30)"


def test_an_interface_without_a_name_is_unknown() -> None:
    assert kind_of(Interface(name="")) == "unknown"


PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "0.0.0.0", "::", "somewhere", ""]
PRIVATE = ["10.0.0.1", "192.168.1.1", "172.31.0.1", "100.64.0.1", "169.254.1.1", "127.0.0.1", "fe80::1%eth0", "fd00::1"]


@pytest.mark.parametrize(("ip", "public"), [*((ip, True) for ip in PUBLIC), *((ip, False) for ip in PRIVATE)])
def test_public_addresses(ip: str, public: bool) -> None:
    assert is_public(ip) is public


KINDS = st.sampled_from(get_args(NicKind))
IPS = st.one_of(st.ip_addresses().map(str), st.sampled_from(["10.0.0.1", "127.0.0.1", "169.254.0.1", "", "fe80::1%x"]))
ADDRESSES = st.lists(st.builds(Address, ip=IPS, prefix=st.integers(-1, 129)), max_size=3).map(tuple)
SOME = ["eth0", "lo", "docker0", "veth1", "br0", "vEthernet (X)", "wg0", "utun3", "loopback0", "usb0"]
NAMES = st.one_of(st.text(max_size=20), st.sampled_from(SOME))
OVER = st.lists(NAMES, max_size=3).map(tuple)
GUESTS = st.sampled_from(["", "VirtualBox", "Hyper-V", "KVM"])
ANY_NIC = st.builds(
    Nic, name=NAMES, kind=KINDS, addresses=ADDRESSES, up=st.booleans(), default_route=st.booleans(),
    gateway=st.one_of(st.just(""), IPS), master=NAMES, over=OVER, emulated=GUESTS,
)  # fmt: skip
LINK_KINDS = st.one_of(
    st.text(max_size=5), st.sampled_from(["bridge", "tun", "veth", "vlan", "macvlan", "openvswitch", "dummy", "bond"])
)
ANY_INTERFACE = st.builds(
    Interface, name=NAMES, addresses=ADDRESSES, up=st.booleans(), speed_mbps=st.one_of(st.none(), st.integers()),
    mac=st.text(max_size=17), default_route=st.booleans(), gateway=IPS, known=st.booleans(), devtype=LINK_KINDS,
    link_kind=st.one_of(st.just(""), LINK_KINDS), arp_type=st.sampled_from([None, 1, 32, 512, 772, 776]),
    wireless=st.booleans(), bridge=st.booleans(), bonding=st.booleans(), tun=st.booleans(), device=st.booleans(),
    driver=st.sampled_from(["", "e1000", "cdc_ncm", "rndis_host", "hv_netvsc"]), linked=st.booleans(),
    lower=OVER, master=st.one_of(NAMES, st.just("ovs-system")), port=st.one_of(st.just(""), st.text(max_size=12)),
)  # fmt: skip
ANY_MACHINE = st.builds(
    Machine, os=st.sampled_from(["linux", "macos", "windows"]), kernel=st.text(max_size=9), vendor=st.text(max_size=9),
    interfaces=st.lists(ANY_INTERFACE, max_size=6).map(tuple),
)  # fmt: skip
ANSWERED = st.lists(NAMES, max_size=2)


@given(st.lists(ANY_NIC, max_size=6), st.one_of(st.just(""), NAMES, IPS), ANSWERED)
def test_any_machine_gets_an_answer(nics: list[Nic], wanted: str, answered: list[str]) -> None:
    chosen, verdict = choose(nics, wanted, answered)
    assert (chosen is None) == (verdict.level == "refuse")
    assert (verdict.remedy == "") == (verdict.level == "ok")
    if chosen is not None:
        first = next(a.ip for a in chosen.addresses if ":" not in a.ip and a.ip)
        assert chosen.up
        assert not is_public(first)
    if chosen is not None and chosen.kind == "loopback" and not wanted.strip() and chosen.name not in answered:
        assert all(n.kind == "loopback" or judge(n, nics).level == "refuse" for n in nics)


@given(ANY_MACHINE, st.one_of(st.just(""), NAMES, IPS))
def test_any_facts_have_kinds_and_an_answer(machine: Machine, wanted: str) -> None:
    nics = describe(machine)
    assert [n.name for n in nics] == [i.name for i in machine.interfaces]
    assert all(n.kind in get_args(NicKind) and n.evidence for n in nics)
    chosen, verdict = choose(nics, wanted)
    assert (chosen is None) == (verdict.level == "refuse")
