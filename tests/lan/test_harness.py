"""The pretend LAN itself: what the chain tests rely on."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lan, pytest.mark.timeout(60)]

LISTEN = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    connection, (address, _) = server.accept()
    connection.sendall(address.encode())
    connection.close()
"""
DIAL = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.5) as connection:
    print(connection.recv(99).decode())
"""


@pytest.fixture(scope="module")
def pair(lan: Callable[..., Any]) -> Any:
    return lan("head:cpu=80", "old:cpu=20:nic=enp3s0:loopname=1")


@pytest.fixture(scope="module")
def listener(pair: Any) -> Any:
    process = pair["head"].start(sys.executable, "-c", LISTEN, "47632")
    until = time.monotonic() + 20
    while "listening" not in process.out.read_text():
        assert time.monotonic() < until, process.err.read_text()
        time.sleep(0.05)
    return process


def dial(host: Any, where: str = "head", port: int = 47632) -> subprocess.CompletedProcess[str]:
    return host.run(sys.executable, "-c", DIAL, where, str(port))


def test_hosts_have_their_own_name_home_and_nic(pair: Any) -> None:
    said = pair["old"].run("sh", "-c", "hostname; echo $HOME; ls /sys/class/net; getent ahostsv4 old").stdout.split()
    assert said[:2] == ["old", str(pair["old"].home)]
    assert "enp3s0" in said
    assert "127.0.1.1" in said


def test_one_host_reaches_another_by_name(pair: Any, listener: Any) -> None:
    assert dial(pair["old"]).stdout.strip() == pair["old"].address


def test_a_cut_cable_carries_nothing_until_it_is_mended(pair: Any, listener: Any) -> None:
    pair["old"].cut()
    try:
        assert dial(pair["old"]).returncode != 0
    finally:
        pair["old"].mend()
    assert dial(pair["old"]).returncode == 0


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
def test_a_firewall_lets_only_its_ports_in(pair: Any, listener: Any) -> None:
    pair["head"].let_in(1)
    try:
        assert dial(pair["old"]).returncode != 0
    finally:
        pair["head"].let_in(47632)
    assert dial(pair["old"]).returncode == 0


def test_a_rate_slows_the_cable(pair: Any, listener: Any) -> None:
    pair["old"].set_rate("1mbit")
    assert "1Mbit" in pair["old"].run("tc", "qdisc", "show", "dev", "enp3s0").stdout
    pair["old"].set_rate("")
    assert "tbf" not in pair["old"].run("tc", "qdisc", "show", "dev", "enp3s0").stdout


def test_cpu_limits_hold(pair: Any) -> None:
    if pair.without:
        pytest.skip(pair.without)
    spin = "import time; e = time.monotonic() + 1.5\nwhile time.monotonic() < e: pass\nprint(time.process_time())"
    used = float(pair["old"].run(sys.executable, "-c", spin).stdout)
    # 20% of 1.5 s, and at most as much again for start-up and the scheduler's grain
    assert used < 0.6


def test_a_started_process_has_the_commands_own_pid(pair: Any) -> None:
    process = pair["old"].start("sleep", "60")
    until = time.monotonic() + 10
    while pair["old"].commands().get(process.pid) != "sleep 60":
        assert time.monotonic() < until, pair["old"].commands()
        time.sleep(0.05)
    process.terminate()
    assert process.wait(5) == -15


def test_closing_leaves_no_process_namespace_or_file(lan: Callable[..., Any]) -> None:
    one = lan("lone:cpu=50")
    stubborn = one["lone"].start("sh", "-c", "trap '' TERM; (sleep 77 &) ; while :; do sleep 0.1; done")
    until = time.monotonic() + 10
    while len(one["lone"].pids()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    started = time.monotonic()
    one.close()
    assert time.monotonic() - started < 9
    assert stubborn.poll() is not None
    assert one.prefix not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert not one.folder.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{one.prefix}*"))
    assert not list(Path("/etc").glob(f"netns/{one.prefix}*"))
