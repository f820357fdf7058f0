"""Whether the nodes of a chain are in one network: tables of nodes."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.facts import Address, Device, Nic, NicKind, Node, Verdict, Versions
from daisychain.plan.networks import judge_networks

OK = Verdict(level="ok", check="nic", reason="wired")
DEVICE = Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1)
VERSIONS = Versions(daisychain="0.1", python="3.11", torch="2.9.0", os="Debian 12", os_family="linux")


def node(name: str, *ips: str, kind: NicKind | None = "ethernet", nic: str = "eth0", port: int = 47632) -> Node:
    """`ips` as 'IP/PREFIX', the first is the node's address; kind None: an agent that doesn't tell of its NIC."""
    pairs = [ip.partition("/") for ip in ips]
    addresses = tuple(Address(ip=ip, prefix=int(prefix or 24)) for ip, _, prefix in pairs)
    interface = Nic(name=nic, kind=kind, addresses=addresses) if kind else None
    return Node(
        id=f"id-{name}", name=name, role="worker", state="ready", address=pairs[0][0], port=port, nic=nic,
        nic_verdict=OK, interface=interface, device=DEVICE, versions=VERSIONS,
    )  # fmt: skip


HEAD = node("head", "192.168.1.10/24")
OLD = node("old", "192.168.1.20/24", nic="wlp2s0", kind="wifi")
TAIL = node("far", "100.101.1.2/32", kind="tailscale", nic="tailscale0")
TAIL2 = node("head", "100.101.1.1/32", kind="tailscale", nic="utun4")

FINE: dict[str, tuple[Node, ...]] = {
    "nobody": (),
    "one alone": (HEAD,),
    "two in one LAN, each with its own name for its NIC": (HEAD, OLD),
    "all on Tailscale, each a /32": (TAIL2, TAIL),
    "all on WireGuard": (
        node("head", "10.2.0.1/24", kind="wireguard"),
        node("old", "10.2.0.2/32", kind="wireguard"),
    ),
    "a direct cable without DHCP": (node("head", "169.254.1.1/16"), node("old", "169.254.9.9/16")),
    "a demo on one machine": tuple(
        node(name, "127.0.0.1/8", kind="loopback", nic="lo") for name in ("head", "mid", "old")
    ),
    "two agents of one machine": (HEAD, node("mid", "192.168.1.10/24", port=47633)),
    "prefixes that differ": (node("head", "10.0.0.1/8"), node("old", "10.1.0.2/24")),
    "agents that tell nothing of their NICs": (
        node("head", "10.0.0.1", kind=None),
        node("old", "10.1.0.2", kind=None),
        node("new", "10.2.0.2/24"),
    ),
    "a /32 behind a router": (HEAD, node("pod", "10.244.1.5/32", kind="veth")),
    "a LAN with carrier-grade addresses": (node("head", "100.70.1.2/24"), node("old", "100.70.1.3/24")),
    "an address that can't be read": (HEAD, node("odd", "somewhere", kind=None)),
    "a prefix that makes no sense": (HEAD, node("odd", "10.9.0.2/77")),
    "the same node twice": (HEAD, HEAD),
}


@pytest.mark.parametrize("case", FINE)
def test_nodes_that_fit_are_not_mentioned(case: str) -> None:
    assert judge_networks(FINE[case]) == ()


Wrong = tuple[tuple[Node, ...], str, str, str, str]
WRONG: dict[str, Wrong] = {
    "a different network": (
        (HEAD, node("old", "10.9.0.2/24")),
        "old", "warn", "old uses eth0 (10.9.0.2), which isn't in the network of head's eth0 (192.168.1.10)", "a router",
    ),
    "the head in a different network than the others": (
        (node("head", "10.9.0.2/24"), OLD, node("new", "192.168.1.30/24")),
        "head", "warn", "head uses eth0 (10.9.0.2), which isn't in the network of old's", "NIC of head",
    ),
    "Tailscale on the worker only": (
        (HEAD, OLD, TAIL), "far", "refuse", "Tailscale is on one side only", "put head in Tailscale as well",
    ),
    "Tailscale on the head only": (
        (TAIL2, OLD), "old", "refuse", "Tailscale is on one side only", "put old in Tailscale as well",
    ),
    "Tailscale on the head, two in a LAN": (
        (TAIL2, OLD, node("new", "192.168.1.30/24")), "head", "refuse", "one side only", "NIC of head",
    ),
    "Tailscale on a worker that tells nothing of its NIC": (
        (HEAD, node("far", "100.101.1.2", kind=None, nic="")), "far", "refuse", "a NIC (100.101.1.2)", "--nic NAME",
    ),
    "WireGuard on one side": (
        (HEAD, node("old", "10.2.0.2/24", kind="wireguard", nic="wg0")), "old", "refuse", "WireGuard is on one", "NIC",
    ),
    "a VPN on one side": (
        (HEAD, node("old", "192.168.1.77/24", kind="tun", nic="tun0")), "old", "refuse", "a VPN is on one", "--nic",
    ),
    "two different overlays": (
        (TAIL2, node("old", "10.2.0.2/24", kind="wireguard", nic="wg0")),
        "old", "refuse", "old uses wg0 (10.2.0.2), WireGuard, and head utun4 (100.101.1.1), Tailscale", "same network",
    ),
    "loopback on one side": (
        (HEAD, node("old", "127.0.0.1/8", kind="loopback", nic="lo")),
        "old", "refuse", "lo (127.0.0.1) reaches old only", "NIC of old",
    ),
    "loopback on the head": (
        (node("head", "127.0.0.1/8", kind="loopback", nic="lo"), OLD, node("new", "192.168.1.30/24")),
        "head", "refuse", "lo (127.0.0.1) reaches head only", "NIC of head",
    ),
    "no DHCP on one side": (
        (HEAD, node("old", "169.254.9.9/16")), "old", "refuse", "gave itself", "router (DHCP) of old",
    ),
    "no DHCP on the head": (
        (node("head", "169.254.9.9/16"), OLD), "old", "refuse", "eth0 (169.254.9.9) of head", "router (DHCP) of head",
    ),
    "the wrong first address": (
        (HEAD, node("old", "10.9.0.2/24", "192.168.1.20/24")),
        "old", "refuse", "old's eth0 has 192.168.1.20 as well, but gloo uses the first address, 10.9.0.2", "On old",
    ),
    "the wrong first address on the head": (
        (node("head", "10.9.0.2/24", "192.168.1.10/24"), OLD), "old", "refuse", "head's eth0 has", "On head make",
    ),
    "two guests behind the same translation": (
        (node("head", "10.0.2.15/24"), node("old", "10.0.2.15/24")),
        "old", "refuse", "head and old have the same address 10.0.2.15", "bridged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_who_does_not_fit_is_named_with_the_reason_and_the_remedy(case: str) -> None:
    nodes, name, level, reason, remedy = WRONG[case]
    (verdict,) = judge_networks(nodes)
    assert (verdict.node, verdict.level, verdict.check) == (name, level, "network")
    assert reason in verdict.reason
    assert remedy in verdict.remedy


@pytest.mark.parametrize("case", [c for c, wrong in WRONG.items() if "loopback" not in c and "translation" not in c])
def test_nodes_that_answer_each_other_are_accepted_with_a_warning(case: str) -> None:
    nodes = WRONG[case][0]
    every = {(a, b) for a in range(len(nodes)) for b in range(len(nodes))}
    assert [v.level for v in judge_networks(nodes, every)] == ["warn"]
    one_way = {(a, b) for a, b in every if a < b}
    assert judge_networks(nodes, one_way) == judge_networks(nodes)


@pytest.mark.parametrize("case", [c for c in WRONG if "loopback" in c or "translation" in c])
def test_what_can_not_be_is_refused_whoever_seems_to_answer(case: str) -> None:
    nodes = WRONG[case][0]
    every = {(a, b) for a in range(len(nodes)) for b in range(len(nodes))}
    assert [v.level for v in judge_networks(nodes, every)] == ["refuse"]


IPS = st.one_of(
    st.ip_addresses().map(str), st.sampled_from(["10.0.0.1", "10.0.0.2", "127.0.0.1", "169.254.1.1", "100.64.0.1", ""])
)
ADDRESSES = st.lists(st.builds(Address, ip=IPS, prefix=st.integers(-1, 129)), max_size=3).map(tuple)
NICS = st.builds(Nic, name=st.text(max_size=5), kind=st.sampled_from(get_args(NicKind)), addresses=ADDRESSES)
NODES = st.builds(
    Node, id=st.text(max_size=3), name=st.text(max_size=5), role=st.just("worker"), state=st.just("ready"), address=IPS,
    port=st.integers(0, 3), nic=st.text(max_size=5), nic_verdict=st.just(OK), interface=st.one_of(st.none(), NICS),
    device=st.just(DEVICE), versions=st.just(VERSIONS),
)  # fmt: skip
PATHS = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)))


@given(st.lists(NODES, max_size=5), PATHS)
def test_any_nodes_get_an_answer(nodes: list[Node], reached: set[tuple[int, int]]) -> None:
    verdicts = judge_networks(nodes, reached)
    assert all(v.level in ("warn", "refuse") and v.remedy and v.check == "network" for v in verdicts)
    assert {v.node for v in verdicts} <= {n.name for n in nodes}
    assert len(verdicts) < max(1, len(nodes))
