"""What must hold on every node before anything starts: tables of nodes."""

from typing import Any

import msgspec
import pytest

from daisychain.agent.preflight import check, judge_paths, pick
from daisychain.errors import NoNodeError
from daisychain.facts import Device, Nic, Node, Verdict, Versions

OK = Verdict(level="ok", check="nic", reason="wired")
VERSIONS = Versions(daisychain="0.1", python="3.11", torch="2.9.0+cpu", os="Debian 12", os_family="linux")


def node(name: str, *, state: str = "ready", nic: Verdict = OK, **versions: Any) -> Node:
    return Node(
        id=name, name=name, role="worker", state=state, address=f"10.0.0.{1 + sum(name.encode()) % 250}",
        port=1, nic="eth0", nic_verdict=nic,  # type: ignore[arg-type]
        device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
        versions=msgspec.structs.replace(VERSIONS, **versions),
    )  # fmt: skip


@pytest.mark.parametrize(
    "versions",
    [{}, {"torch": "2.9.1"}, {"torch": "2.9.0+cu126"}, {"python": "3.11.9"}, {"os": "Ubuntu 24.04"}],
)
def test_what_does_no_harm_is_not_mentioned(versions: dict[str, Any]) -> None:
    assert check([node("head"), node("old", **versions)]) == ()


MAC: dict[str, Any] = {"os": "macOS 15.1", "os_family": "macos"}
WINDOWS: dict[str, Any] = {"os": "Windows 11", "os_family": "windows"}
NO_NIC = Verdict(level="refuse", check="nic", reason="there is no usable NIC", remedy="Plug in a cable")


@pytest.mark.parametrize(
    ("old", "what", "reason", "remedy"),
    [
        (node("old", torch="2.4.1"), "torch", "head has torch 2.9.0+cpu and old 2.4.1", "'torch==2.9.0'"),
        (node("old", torch="2.10.0"), "torch", "old 2.10.0", "Run on old"),
        (node("old", torch="1.9.0"), "torch", "old 1.9.0", "Run on old"),
        (node("old", torch=None), "torch", "torch is not installed", "pip install torch"),
        (node("old", **MAC), "os", "head runs Debian 12 and old macOS 15.1", "only Macs"),
        (node("old", daisychain="0.2"), "daisychain", "old 0.2", "Install daisychain 0.1 on old"),
        (node("old", nic=NO_NIC), "nic", "there is no usable NIC", "Plug in a cable"),
    ],
)
def test_a_refusal_names_the_node_the_reason_and_the_remedy(old: Node, what: str, reason: str, remedy: str) -> None:
    (verdict,) = check([node("head"), old, node("new")])
    assert (verdict.level, verdict.check, verdict.node) == ("refuse", what, "old")
    assert reason in verdict.reason
    assert remedy in verdict.remedy


def test_another_python_is_a_warning() -> None:
    (verdict,) = check([node("head"), node("old", python="3.9.2")])
    assert (verdict.level, verdict.check, verdict.node) == ("warn", "python", "old")
    assert "head has Python 3.11 and old 3.9.2" in verdict.reason
    assert "Use Python 3.11" in verdict.remedy


def test_windows_trains_alone_but_in_no_chain() -> None:
    assert check([node("pc", **WINDOWS)]) == ()
    verdicts = check([node("pc", **WINDOWS), node("pc2", **WINDOWS)])
    assert [(v.node, v.check) for v in verdicts] == [("pc", "os"), ("pc2", "os")]
    assert all("WSL" in v.remedy for v in verdicts)


def test_a_lone_node_without_torch_is_refused() -> None:
    assert [v.check for v in check([node("head", torch=None)])] == ["torch"]


def test_the_second_decimal_of_a_version_is_a_number_not_a_digit() -> None:
    assert check([node("a", torch="2.1.0"), node("b", torch="2.10.0")])
    assert not check([node("a", torch="2.10.0"), node("b", torch="2.10.2")])


NODES = (node("head"), node("old"), node("gone", state="lost"))


@pytest.mark.parametrize(
    ("wanted", "names"), [((), ["head", "old"]), (("old",), ["old"]), (("old", "head"), ["head", "old"])]
)
def test_the_chosen_nodes_are_in_the_chains_order(wanted: tuple[str, ...], names: list[str]) -> None:
    assert [n.name for n in pick(NODES, wanted)] == names


@pytest.mark.parametrize(
    ("wanted", "what"), [(("olf",), "no node is called 'olf'"), (("head", "gone"), "gone can't be reached")]
)
def test_who_is_missing_is_named(wanted: tuple[str, ...], what: str) -> None:
    with pytest.raises(NoNodeError) as caught:
        pick(NODES, wanted)
    assert what in caught.value.what
    assert caught.value.remedy


def test_with_all_lost_there_is_no_node() -> None:
    with pytest.raises(NoNodeError, match="no node is ready"):
        pick([node("gone", state="lost")], ())


@pytest.mark.parametrize(
    ("versions", "why", "remedy"),
    [
        ({}, "no answer", "sudo ufw allow from"),
        (MAC, "No route to host", "Privacy, Local Network"),
        ({}, "small packets pass, large ones don't", "ip link set eth0 mtu 1500"),
    ],
)
def test_a_closed_path_names_both_ends_and_what_opens_it(versions: dict[str, Any], why: str, remedy: str) -> None:
    head, old = node("head", **versions), node("old", **versions)
    (verdict,) = judge_paths([head, old], {(1, 0): why})
    assert (verdict.level, verdict.check, verdict.node) == ("refuse", "path", "head")
    assert verdict.reason.startswith(f"old ({old.address}) can't reach head ({head.address})")
    assert why in verdict.reason
    assert remedy in verdict.remedy
    assert "head" in verdict.remedy


def test_a_mac_that_dials_is_told_of_its_own_switch_too() -> None:
    head, old = node("head"), node("old", **MAC)
    (verdict,) = judge_paths([head, old], {(1, 0): "No route to host"})
    assert "on old allow it and the terminal in System Settings, Privacy, Local Network" in verdict.remedy


def test_a_closed_path_into_wsl_names_mirrored_networking() -> None:
    head = msgspec.structs.replace(node("head"), interface=Nic(name="eth0", kind="wsl"))
    (verdict,) = judge_paths([head, node("old")], {(1, 0): "no answer"})
    assert "networkingMode=mirrored" in verdict.remedy
    assert "head" in verdict.remedy
