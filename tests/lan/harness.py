"""A pretend LAN for the tests: hosts with their own name, NIC, home and CPU speed on one Linux machine.

A host is a network namespace with one cable to a bridge, which lies in a namespace of its own, so that
multicast works between hosts and nothing reaches the real network. Needs root, iproute2 and util-linux.

    with Lan([Spec("head", cpu=80), Spec("old", cpu=20, nic="enp3s0")]) as lan:
        lan["old"].run("daisychain", "join", "head", "--token", token)

Names of namespaces and control groups begin with the process id, so that test runs side by side don't collide.
"""

import contextlib
import itertools
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
CPU_PERIOD_US = 20_000  # short, so that a throttled host is evenly slow instead of stuttering
NETWORK = "10.78.0"
_number = itertools.count()

# Joins the control groups while /sys still shows them, enters the namespace, takes the host's name, and becomes
# the command.
ENTER = """
for group in $GROUPS_OF_HOST; do echo $$ > "$group/cgroup.procs"; done
unset GROUPS_OF_HOST
exec ip netns exec "$0" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$@"
"""


@dataclass(frozen=True)
class Spec:
    """What a host is to be like.

    cpu: per cent of one core, None for no limit. rate: of its cable as tc writes it ("100mbit"), "" for no limit.
    loopname: its own name resolves to 127.0.1.1, as Debian sets it up.
    """

    name: str
    cpu: float | None = None
    nic: str = "eth0"
    rate: str = ""
    loopname: bool = False


class Process(subprocess.Popen[str]):
    """A command in the background; its output goes to files, so that it never waits for a reader."""

    out: Path
    err: Path


class LanError(RuntimeError):
    """The LAN can't be built or changed; the text is what the failing command said."""


def missing() -> str:
    """Why no LAN can be made here, or an empty string."""
    if platform.system() != "Linux":
        return f"network namespaces are Linux's, this is {platform.system()}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (packages iproute2 and util-linux)"
    return ""


def _do(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if check and done.returncode:
        raise LanError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """One machine of the pretend LAN."""

    def __init__(self, lan: "Lan", spec: Spec, number: int) -> None:
        self.name, self.nic, self.spec = spec.name, spec.nic, spec
        self.address = f"{NETWORK}.{number}"
        self.space = f"{lan.prefix}-{spec.name}"
        self.home = lan.folder / spec.name
        self._switch = lan.switch
        self._port = f"port{number}"
        self._etc = Path("/etc/netns") / self.space
        self._groups: list[Path] = []
        self._files = itertools.count()
        self._started: list[Process] = []

    # --- what tests do with it ---------------------------------------------------------------------

    def run(
        self, *words: str, timeout: float = 60, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and give its exit code, stdout and stderr.

        Past `timeout` seconds it is killed and subprocess.TimeoutExpired raised, with what it said so far.
        """
        process = self.start(*words, env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise subprocess.TimeoutExpired(words, timeout, process.out.read_text(), process.err.read_text()) from None
        return subprocess.CompletedProcess(words, code, process.out.read_text(), process.err.read_text())

    def start(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        tty: int | None = None,
    ) -> Process:
        """Start a command; the process id is the command's own, so that a signal reaches it.

        tty: a terminal's descriptor that becomes its stdin, stdout, stderr and controlling terminal.
        """
        number = next(self._files)
        out, err = (self.home / f".{number}.{kind}" for kind in ("out", "err"))
        leader = ["setsid", "--ctty"] if tty is not None else []
        with out.open("w") as stdout, err.open("w") as stderr:
            process = Process(
                [*leader, "sh", "-c", ENTER, self.space, self.name, *words],
                stdin=subprocess.DEVNULL if tty is None else tty,
                stdout=stdout if tty is None else tty,
                stderr=stderr if tty is None else tty,
                text=True,
                env=self._environment(env or {}),
                cwd=cwd or self.home,
            )
        process.out, process.err = out, err
        self._started.append(process)
        return process

    def pids(self) -> list[int]:
        """Of every process that runs on this host."""
        return [int(word) for word in _do("ip", "netns", "pids", self.space, check=False).split()]

    def commands(self) -> dict[int, str]:
        """The command line of every process on this host that isn't a zombie."""
        found = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if words:
                    found[pid] = words
        return found

    def cut(self) -> None:
        """Pull the cable: the NIC stays up, nothing comes or goes."""
        _do("ip", "-n", self._switch, "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        """Put the cable back."""
        _do("ip", "-n", self._switch, "link", "set", self._port, "master", "br0")

    def set_rate(self, rate: str) -> None:
        """Limit the cable in both directions, "" for no limit."""
        for space, device in ((self._switch, self._port), (self.space, self.nic)):
            tc = ("ip", "netns", "exec", space, "tc", "qdisc")
            _do(*tc, "del", "dev", device, "root", check=False)
            if rate:
                _do(*tc, "add", "dev", device, "root", "tbf", "rate", rate, "burst", "32kbit", "latency", "50ms")

    def set_cpu(self, percent: float | None) -> None:
        """Limit all of the host's processes together to this many per cent of one core, None for no limit."""
        quota = None if percent is None else max(1000, int(CPU_PERIOD_US * percent / 100))
        for group in self._groups:
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{quota or 'max'} {CPU_PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota or -1))

    def let_in(self, *ports: int) -> None:
        """A firewall: from now on only new TCP connections to these ports come in. Needs iptables."""
        table = ("ip", "netns", "exec", self.space, "iptables")
        _do(*table, "-F", "INPUT")
        for port in ports:
            _do(*table, "-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "ACCEPT")
        _do(*table, "-A", "INPUT", "!", "-i", "lo", "-p", "tcp", "--syn", "-j", "DROP")

    def shut(self, port: int) -> None:
        """A firewall that doesn't even know connections: from now on only TCP to and from this port comes in."""
        table = ("ip", "netns", "exec", self.space, "iptables")
        _do(*table, "-F", "INPUT")
        for end in ("--dport", "--sport"):
            _do(*table, "-A", "INPUT", "-p", "tcp", end, str(port), "-j", "ACCEPT")
        _do(*table, "-A", "INPUT", "!", "-i", "lo", "-p", "tcp", "-j", "DROP")

    def open_up(self) -> None:
        """No firewall any more."""
        _do("ip", "netns", "exec", self.space, "iptables", "-F", "INPUT")

    # --- what the LAN does with it -----------------------------------------------------------------

    def build(self, table: Sequence[str]) -> None:
        self.home.mkdir()
        self._etc.mkdir(parents=True)
        own = [
            f"127.0.1.1 {self.name}" if self.spec.loopname and row.endswith(f" {self.name}") else row for row in table
        ]
        (self._etc / "hosts").write_text("\n".join(own) + "\n")
        (self._etc / "hostname").write_text(f"{self.name}\n")
        # a name server that refuses at once; with one that never answers every start of a rank takes six seconds longer
        (self._etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        _do("ip", "netns", "add", self.space)
        cable = ("type", "veth", "peer", "name", self._port, "netns", self._switch)
        _do("ip", "-n", self.space, "link", "add", self.nic, *cable)
        _do("ip", "-n", self._switch, "link", "set", self._port, "master", "br0", "up")
        _do("ip", "-n", self.space, "link", "set", "lo", "up")
        _do("ip", "-n", self.space, "addr", "add", f"{self.address}/24", "dev", self.nic)
        _do("ip", "-n", self.space, "link", "set", self.nic, "up")
        _do("ip", "-n", self.space, "route", "add", "default", "dev", self.nic)
        if self.spec.rate:
            self.set_rate(self.spec.rate)

    def limit(self) -> None:
        """Make the control group. Raises OSError where control groups can't be written."""
        if self.spec.cpu is None:
            return
        unified = (CGROUPS / "cgroup.controllers").exists()
        parent = CGROUPS if unified else CGROUPS / "cpu"
        if unified:
            (parent / "cgroup.subtree_control").write_text("+cpu")
        group = parent / self.space
        group.mkdir()
        self._groups.append(group)
        self.set_cpu(self.spec.cpu)

    def close(self) -> None:
        for process in self._started:
            process.wait(10)
        _do("ip", "netns", "del", self.space, check=False)
        shutil.rmtree(self._etc, ignore_errors=True)
        for group in self._groups:
            with contextlib.suppress(OSError):
                group.rmdir()

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "DAISYCHAIN_", "PYTEST_", "COV_"))}
        groups = {"GROUPS_OF_HOST": " ".join(map(str, self._groups))}
        return kept | {"HOME": str(self.home), "TERM": "xterm-256color"} | groups | dict(more)


class Lan:
    """Hosts on one switch. A context manager; `close` kills what runs on them and removes everything.

    without: what could not be had here (CPU limits), in words; empty when all is as asked.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.prefix = f"daisy{os.getpid()}x{next(_number)}"
        self.switch = f"{self.prefix}-switch"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.prefix}-"))
        self.without = ""
        self._hosts = {spec.name: Host(self, spec, number) for number, spec in enumerate(specs, start=1)}
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        _do("ip", "netns", "add", self.switch)
        _do("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        _do("ip", "-n", self.switch, "link", "set", "br0", "up")
        table = ["127.0.0.1 localhost", "::1 localhost", *(f"{host.address} {host.name}" for host in self)]
        for host in self:
            host.build(table)
            try:
                host.limit()
            except OSError as error:
                self.without = f"no CPU limits: control groups can't be written here ({error.strerror})"

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def commands(self) -> dict[int, str]:
        """The command line of every process on every host."""
        return {pid: words for host in self for pid, words in host.commands().items()}

    def close(self) -> None:
        """Kill what runs on the hosts, first politely, then for good, and remove everything. May be called twice."""
        for how, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
            for pid in self.commands():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
            self._wait_until_empty(patience_s)
        for host in self:
            host.close()
        _do("ip", "netns", "del", self.switch, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()

    def _wait_until_empty(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        while self.commands() and time.monotonic() < until:
            for host in self:
                for process in host._started:
                    process.poll()  # a killed child stays a zombie until it is asked for
            time.sleep(0.05)

    def __enter__(self) -> "Lan":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
