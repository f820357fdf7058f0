"""Networks as they are: names at 127.0.1.1, docker0, a taken port, firewalls, an MTU hole; as doctor tells them."""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.lan, pytest.mark.torch, pytest.mark.timeout(120)]
TAKE = "import socket, time; s = socket.create_server(('', 29500)); print('taken', flush=True); time.sleep(600)"
firewall = pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")


def ip(host: Any, *words: str) -> None:
    subprocess.run(["ip", "-n", host.space, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """Two joined hosts whose names stand for 127.0.1.1, with docker0 everywhere; `odd` is alone."""
    made = make_chain("head:loopname=1", "old:nic=enp3s0:loopname=1", "odd:loopname=1")
    for host in made.lan:
        ip(host, "link", "add", "docker0", "type", "bridge")
        ip(host, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        ip(host, "link", "set", "docker0", "up")
    said = made.on("old", "join", made.lan["head"].address, "--token", made.invite(), "--headless")
    assert said.exit == 0, said.err
    made.wait_for("ready", "head", "old", within_s=60)
    return made


def doctor(chain: Any, host: str, *words: str, exit: int = 0) -> dict[str, Any]:
    said = chain.on(host, "doctor", *words, "--json")
    assert said.exit == exit, said
    return dict(said.last)


def unwell(event: dict[str, Any], *without: str) -> list[dict[str, Any]]:
    # how busy the machine that plays all hosts is says nothing of them
    return [v for v in event["verdicts"] if v["level"] != "ok" and v["check"] not in ("load", "memory", *without)]


def test_names_at_127_0_1_1_and_docker0_lead_nobody_astray(chain: Any) -> None:
    event = doctor(chain, "head")
    assert unwell(event) == []
    assert {(n["name"], n["nic"], n["address"]) for n in event["nodes"]} == {
        ("head", "eth0", chain.lan["head"].address), ("old", "enp3s0", chain.lan["old"].address)
    }  # fmt: skip
    assert {(p["from"], p["to"], p["reason"]) for p in event["paths"]} == {("head", "old", ""), ("old", "head", "")}
    verdicts = {nic["name"]: nic["verdict"]["level"] for nic in event["nics"]}
    assert verdicts["docker0"] != "ok"


def test_a_run_takes_no_fixed_port(chain: Any) -> None:
    holder = chain.lan["head"].start(sys.executable, "-c", TAKE)
    try:
        chain.until(lambda: "taken" in holder.out.read_text(), 10, holder.err.read_text)
        said = chain.on("head", "run", chain.script(), "--anyway", "--headless", "--json", "--", "1", "0", timeout=60)
        assert said.exit == 0, said.err
        assert said.last["steps"] == 11
    finally:
        holder.kill()
        holder.wait()


@contextlib.contextmanager
def closed(host: Any) -> Iterator[None]:
    host.let_in(47632)
    try:
        yield
    finally:
        host.open_up()


@firewall
def test_a_way_that_closes_before_gloo_connects_ends_the_run_within_30_s_naming_the_pair(chain: Any) -> None:
    head, old = chain.lan["head"], chain.lan["old"]
    run = chain.start("head", "run", chain.script(), "--anyway", "--headless", "--", "50", "0.1")
    said = run.out.read_text
    chain.until(lambda: "ranks load torch" in said() or run.poll() is not None, 30, said)
    with closed(head):
        shut_s = time.monotonic()
        assert run.wait(60) == 1
        assert time.monotonic() - shut_s < 30
    pair = f"old (enp3s0, {old.address}) can't reach head (eth0, {head.address}): no answer"
    assert f"gloo can't connect the ranks: {pair}" in run.err.read_text()
    assert "On head let old in: sudo ufw" in run.err.read_text()


@firewall
def test_a_firewall_on_either_side_is_seen_and_refused_only_where_gloo_needs_the_way(chain: Any) -> None:
    with closed(chain.lan["old"]):
        event = doctor(chain, "head")
        assert {"from": "head", "to": "old", "reason": "no answer"} in event["paths"]
        assert unwell(event) == []
    with closed(chain.lan["head"]):
        (verdict,) = unwell(doctor(chain, "head", exit=4))
        assert f"old ({chain.lan['old'].address}) can't reach head" in verdict["reason"]
        assert f"On head let old in: sudo ufw allow from {chain.lan['old'].address}" in verdict["remedy"]


def test_a_hole_for_large_packets_is_named_with_what_closes_it(chain: Any) -> None:
    nics = [(chain.lan["head"], "eth0"), (chain.lan["old"], "enp3s0")]
    for host, nic in nics:
        # the switch stays at 1500; one segment at a time, for it lets large bundles of them pass
        ip(host, "link", "set", nic, "mtu", "9000", "gso_max_segs", "1")
    try:
        verdicts = unwell(doctor(chain, "head", exit=4))
        assert {v["check"] for v in verdicts} == {"path"}
        assert all("small packets pass, large ones don't" in v["reason"] for v in verdicts)
        assert any("On head" in v["remedy"] or "on head" in v["remedy"] for v in verdicts)
        assert all("mtu 1500" in v["remedy"] for v in verdicts)
    finally:
        for host, nic in nics:
            ip(host, "link", "set", nic, "mtu", "1500", "gso_max_segs", "65535")


def test_the_way_to_a_machine_that_is_not_in_the_chain(chain: Any) -> None:
    address = chain.lan["head"].address
    (well,) = [v for v in doctor(chain, "odd", "--peer", address)["verdicts"] if v["check"] == "peer"]
    assert f"odd reaches an agent on {address}, port 47632" in well["reason"]
    (itself,) = unwell(doctor(chain, "odd", "--peer", "odd", exit=4))
    assert "the name odd stands for 127.0.1.1" in itself["reason"]
    (wrong,) = unwell(doctor(chain, "odd", "--peer", f"{address}:9", exit=4))
    assert "nothing listens on its port 9" in wrong["reason"]
    assert chain.on("odd", "agent", "stop").exit == 0


@pytest.mark.parametrize(
    ("addresses", "code", "reason"),
    [
        (("2001:db8::5/64",), 4, "eth0 has no IPv4 address"),
        (("169.254.7.7/16", "10.78.0.3/24"), 0, "169.254.7.7"),
    ],
    ids=["IPv6 only", "a link-local address first"],
)
def test_an_address_that_gloo_can_not_use_is_named_at_once(
    chain: Any, addresses: tuple[str, ...], code: int, reason: str
) -> None:
    odd = chain.lan["odd"]
    ip(odd, "addr", "flush", "dev", "eth0")
    for address in addresses:
        ip(odd, "addr", "add", address, "dev", "eth0")
    said = chain.on("odd", "doctor", "--nic", "eth0", "--json")
    try:
        assert said.exit == code, said
        (told,) = said.last["verdicts"] if code else unwell(said.last)
        assert reason in told["reason"]
        assert (told["node"], told["check"]) == ("odd", "nic")
        assert "eth0" in f"{told}"
        assert told["remedy"]
        if code:
            # nobody named a NIC: alone it can train, but it reaches no head, and that is why
            joining = chain.on("odd", "join", chain.lan["head"].address, "--token", chain.invite(), "--headless")
            assert joining.exit == code, joining
            assert joining.reason.startswith("daisychain: refuse: odd: lo reaches this machine only")
    finally:
        chain.on("odd", "agent", "stop")


@pytest.mark.parametrize(
    "nic", ["enp9s9", "10.78.0.3", "eth*", "eth0,lo", "off0", "v6only"],
    ids=["not there", "an address", "a pattern", "several", "down", "without IPv4"],
)  # fmt: skip
def test_a_nic_that_can_not_be_used_is_refused_within_a_second_and_nothing_is_started(chain: Any, nic: str) -> None:
    odd = chain.lan["odd"]
    for name in ("off0", "v6only"):
        ip(odd, "link", "add", name, "type", "bridge")
    ip(odd, "link", "set", "v6only", "up")
    ip(odd, "addr", "add", "2001:db8::7/64", "dev", "v6only")
    try:
        took_s = []
        for _ in range(3):  # the fastest: a busy test machine may start a program late
            begun_s = time.monotonic()
            said = chain.on("odd", "doctor", "--nic", nic)
            took_s.append(time.monotonic() - begun_s)
            assert said.exit in (2, 4), said
            assert nic in said.reason
            assert "--nic" in said.reason or "ip link" in said.reason, said.reason
            assert not odd.commands()
        assert min(took_s) < 1
    finally:
        for name in ("off0", "v6only"):
            ip(odd, "link", "del", name)
