"""How machines find each other where networks are as they are: multicast that is blocked on one side, a long name in
another script, docker0 and two NICs in one subnet on the head."""

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.lan,
    pytest.mark.torch,
    pytest.mark.timeout(90),
    pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed"),
]
NAME = "キッチンの古いコンピューター" * 4
"""168 bytes in UTF-8."""


def in_space(host: Any, *words: str) -> None:
    subprocess.run(["ip", "netns", "exec", host.space, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """A head with two NICs in one subnet beside docker0; `near` hears its multicast, `far` doesn't and has another
    firewall that lets nobody in."""
    made = make_chain("head", "near", "far")
    head, far = made.lan["head"], made.lan["far"]
    made.write(".config/daisychain/config.toml", f'name = "{NAME}"\n')
    ip = ("ip", "link", "add")
    try:
        in_space(head, *ip, "lan0", "link", "eth0", "type", "macvlan", "mode", "bridge")
    except subprocess.CalledProcessError:
        pytest.skip("this kernel has no macvlan")
    in_space(head, *ip, "lan1", "link", "eth0", "type", "macvlan", "mode", "bridge")
    in_space(head, *ip, "docker0", "type", "bridge")
    in_space(head, "ip", "addr", "flush", "dev", "eth0")
    nics = (("lan0", f"{head.address}/24"), ("lan1", "10.78.0.101/24"), ("docker0", "172.17.0.1/16"))
    for name, address in nics:
        in_space(head, "ip", "addr", "add", address, "dev", name)
        in_space(head, "ip", "link", "set", name, "up")
    in_space(head, "ip", "route", "add", "default", "dev", "lan0")
    far.let_in()
    for way in ("INPUT", "OUTPUT"):
        in_space(far, "iptables", "-A", way, "-p", "udp", "--dport", "5353", "-j", "DROP")
    return made


def status(chain: Any, host: str) -> dict[str, Any]:
    said = chain.on(host, "status", "--json")
    assert said.exit == 0, said
    return dict(said.last)


def heads(chain: Any, host: str) -> list[tuple[str, str]]:
    return [(head["name"], head["address"]) for head in status(chain, host)["heads"] if head["digits"]]


def test_of_two_nics_in_one_subnet_one_is_taken_and_why_is_said(chain: Any) -> None:
    event = chain.on("head", "doctor", "--json").last
    (nic,) = [v for v in event["verdicts"] if v["check"] == "nic"]
    assert event["nic"] == "lan0"
    assert "preferred to lan1" in nic["reason"]
    assert "in the same subnet 10.78.0.0/24" in nic["reason"]


def test_a_head_is_found_by_its_one_address_and_its_name_cut_at_a_character(chain: Any) -> None:
    # nothing more is needed to look for heads: no screen, no token
    assert chain.on("near", "join", "--headless").exit == 5
    name = NAME.encode()[:63].decode(errors="ignore")
    chain.until(lambda: heads(chain, "near") == [(name, chain.lan["head"].address)], 20, lambda: status(chain, "near"))


def test_without_multicast_it_is_explained_and_once_one_side_connects_both_list_each_other(chain: Any) -> None:
    assert chain.on("far", "join", "--headless").exit == 5
    chain.until(lambda: "carry no multicast" in status(chain, "far")["advice"], 20, lambda: status(chain, "far"))
    assert "daisychain join HOST" in status(chain, "far")["advice"]
    assert heads(chain, "far") == []
    assert chain.on("far", "join", "head", "--headless").exit == 5
    chain.until(lambda: len(heads(chain, "far")) == 1, 20, lambda: status(chain, "far"))
    (there,) = status(chain, "far")["heads"]
    here = {request["name"]: request["digits"] for request in status(chain, "head")["requests"]}
    assert here["far"] == there["digits"]
    assert set(here) == {"near", "far"}
