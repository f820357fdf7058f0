"""The vocabulary: frozen records that travel between folders, processes and machines.

Nothing here does anything; nothing here imports anything of ours. Every record is a msgspec
struct, so the same object is what a rule judges, what the link carries and what a screen shows.
Units are in the names: `_s` seconds, `_ms` milliseconds, `_bytes` bytes, `_mbps` megabit per second.
`None` means unknown, and unknown is never guessed.
"""

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "refuse"]
Role = Literal["head", "worker"]
NodeState = Literal["measuring", "ready", "running", "lost"]
Phase = Literal["preparing", "shipping", "starting", "running", "finishing", "finished", "failed", "stopped"]
ENDED: tuple[Phase, ...] = ("finished", "failed", "stopped")
NicKind = Literal[
    "ethernet", "wifi", "bridge", "bond", "vlan", "veth", "macvlan", "tun", "wireguard", "tailscale",
    "container", "hypervisor", "wsl", "tether", "loopback", "unknown",
]  # fmt: skip


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What all records share: frozen, keyword-only, compared by value."""


class Verdict(Record, frozen=True, kw_only=True):
    """A judgement with its reason and its remedy."""

    level: Level
    check: str
    """What was judged, one word: nic, torch, os, disk, data, script ..."""
    reason: str
    """Why, one sentence without a final full stop."""
    remedy: str = ""
    """What to do, one sentence, empty when the level is ok."""
    node: str = ""
    """The node's name; empty for this machine."""


class Address(Record, frozen=True, kw_only=True):
    ip: str
    prefix: int


class Nic(Record, frozen=True, kw_only=True):
    """One network interface as the operating system describes it."""

    name: str
    kind: NicKind
    addresses: tuple[Address, ...] = ()
    """IPv4 first in the operating system's order; gloo uses the first one."""
    up: bool = True
    mtu: int | None = None
    speed_mbps: int | None = None
    default_route: bool = False
    gateway: str = ""
    """The router of its IPv4 default route; empty when there is none or it is unknown."""
    evidence: str = ""
    """What its kind was told by: 'hardware, driver e1000e', 'a bridge over eth0'."""
    master: str = ""
    """The bridge or bond that it is a member of."""
    over: tuple[str, ...] = ()
    """Interfaces of this machine that it lies on: a bridge's members, a VLAN's parent."""
    emulated: str = ""
    """Whose hypervisor shows it as hardware; empty for real hardware and where unknown."""


class Gpu(Record, frozen=True, kw_only=True):
    name: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    driver: str = ""
    verdict: Verdict
    capacity: "Capacity | None" = None
    """Measured as a node's own is; None where it can't be used or its speed is unknown."""


class Device(Record, frozen=True, kw_only=True):
    """What computes on this machine."""

    cpu: str
    cores_physical: int | None
    cores_logical: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    cpu_lacks: tuple[str, ...] = ()
    """Instructions that torch's wheels may use and this processor hasn't ('avx2'); empty where that is unknown."""


class Versions(Record, frozen=True, kw_only=True):
    daisychain: str
    python: str
    torch: str | None
    """Read from the installed package's metadata; None when torch is not installed."""
    os: str
    """For people: 'Debian GNU/Linux 12', 'macOS 15.1'."""
    os_family: Literal["linux", "macos", "windows"]
    machine: str = ""
    """The processor's architecture as Python names it: 'x86_64', 'aarch64'; empty where unknown."""
    glibc: tuple[int, int] | None = None
    """None for another C library and where unknown."""


class Capacity(Record, frozen=True, kw_only=True):
    """Measured time of one training step over n samples of the reference model: t(n) = fixed_s + per_sample_s * n."""

    fixed_s: float
    per_sample_s: float
    threads: int
    torch: str

    def step_s(self, samples: int) -> float:
        """Seconds that a step over `samples` takes."""
        return self.fixed_s + self.per_sample_s * samples

    def samples_per_second(self, samples: int = 256) -> float:
        """Throughput alone at a batch of `samples`."""
        return samples / self.step_s(samples)


class Node(Record, frozen=True, kw_only=True):
    """A machine in the chain, as it describes itself and as the head sees it."""

    id: str
    """SHA-256 of the node's certificate, hex; the identity. Never the host name."""
    name: str
    role: Role
    state: NodeState
    address: str
    """The chosen NIC's IPv4 address."""
    port: int
    nic: str
    """The chosen NIC's name, GLOO_SOCKET_IFNAME of this node."""
    nic_verdict: Verdict
    interface: Nic | None = None
    """The chosen NIC as its node describes it; None where unknown."""
    device: Device
    versions: Versions
    capacity: Capacity | None = None
    share: int | None = None
    """Samples of each global batch in the current run; None outside a run."""
    slowdown: float = 1.0
    """Over 1 when this node is slowed on purpose (demo): each second of compute is stretched to this many."""
    ranks: int = 0
    """CPU ranks that it wants in a run; 0: one, and only where no GPU can be used."""
    lent: bool = False
    """Its owner uses it: it takes no part in a run until it is given back."""
    hot: bool = False
    """During a run: its processor is so hot that it slows down."""
    detail: str = ""
    """One short phrase for people: 'measuring speed', 'not heard of for 6 s'."""


class Condition(Record, frozen=True, kw_only=True):
    """What a node is like at one moment, looked at before a run. None is what its system doesn't tell."""

    clock_s: float
    """Seconds since 1970 by its own clock."""
    skew_s: float | None = None
    """How far its clock is ahead of the head's; filled in by the head."""
    disk_free_bytes: int | None = None
    """Where a run's files go."""
    memory_free_bytes: int | None = None
    """What programs can still get without swapping, within its memory limit."""
    busy: float | None = None
    """Part of all its cores that was in use over the last minute and still is, 0 to 1."""
    battery_percent: float | None = None
    """None also for a machine without one."""
    plugged: bool | None = None
    hot_c: float | None = None
    """The processor's sensor that is nearest to its limit."""
    limit_c: float | None = None
    """Where the hardware slows down by that sensor."""
    kept_awake: bool | None = None
    """Whether a run can keep it from falling asleep."""


class JoinRequest(Record, frozen=True, kw_only=True):
    """A worker that waits at this head."""

    id: str
    name: str
    address: str
    digits: str
    """Six digits, the same on both screens unless somebody sits between them."""
    confirmed: bool
    """True once the worker's user pressed join."""
    device: str = ""


class FoundHead(Record, frozen=True, kw_only=True):
    """A head that this machine found, seen from the join screen."""

    id: str
    name: str
    address: str
    port: int
    digits: str = ""
    state: Literal["contacting", "ready", "confirmed", "joined", "refused"] = "contacting"
    reason: str = ""


class Foretold(Record, frozen=True, kw_only=True):
    """What a run was forecast to be before its first step; its model and its network had been tried by then."""

    text: str
    """For people, one sentence without a final full stop."""
    nodes: tuple[str, ...]
    """Those that it is about."""
    step_ms: float
    sync_ms: float
    """Of a step: exchange that isn't hidden behind computing."""
    samples_per_second: float
    seconds: float | None = None
    """Of the whole run; None where its steps are unknown."""
    speedup: float | None = None
    """Over the fastest node alone; None where no node holds the batch alone."""
    alone_samples_per_second: float | None = None
    """Of the fastest node alone, as measured."""
    shares: dict[str, int] = {}
    added: dict[str, str] = {}
    """Whether each node helps, in words."""
    best: tuple[str, ...] = ()
    """The set of nodes that was forecast to be fastest."""
    best_speedup: float | None = None


class NodeStep(Record, frozen=True, kw_only=True):
    """One node's part of a step; times are means over the last steps in a RunState, exact in metrics.jsonl.

    compute: forward, backward, optimizer. sync: exchanging gradients once all are there. wait: for slower nodes.
    """

    node: str
    share: int
    compute_ms: float | None = None
    sync_ms: float | None = None
    wait_ms: float | None = None


class RunSpec(Record, frozen=True, kw_only=True):
    """What was asked for: everything that `daisychain run` takes."""

    job: Literal["script", "tabular", "demo"]
    path: str = ""
    """Absolute path of the script, or of the CSV file; empty for the demo job."""
    target: str = ""
    drop: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    """Absolute paths of data files or folders that the script needs."""
    args: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """Names of the nodes to use; empty means every ready node."""
    batch: int | None = None
    micro: int | None = None
    """The most samples that a rank computes at once; None: no limit."""
    epochs: int | None = None
    seed: int = 0
    sync: str = "exact"
    """exact, bf16, local or local:H (plan.sync.parse)."""
    equal: bool = False
    """Equal shares, never changed: for comparison only."""
    ranks: int = 0
    """CPU ranks on every node, beside those on GPUs; 0: what each node wants."""
    anyway: bool = False
    """Launch it though it is forecast to be slower than the fastest node alone."""
    auto: bool = False
    """Of these nodes only the set that is forecast to be fastest."""
    resume: str = ""
    """A run of this head that ended early, to go on with; everything but the nodes is as it was launched."""


class RunState(Record, frozen=True, kw_only=True):
    """A run as the head's agent knows it: what a screen shows, what `run --json` prints."""

    id: str
    name: str
    phase: Phase
    paused: bool = False
    """No step is done until somebody resumes it; the ranks wait."""
    foretold: Foretold | None = None
    """None: not yet, or unknown."""
    left_out: tuple[str, ...] = ()
    """Names of nodes without which the run was forecast to be faster."""
    lent: tuple[str, ...] = ()
    """Names of its nodes that take no part for now, since their owners use them."""
    folder: str
    spec: RunSpec
    step: int = 0
    steps: int | None = None
    epoch: int = 0
    """Counted from 1; 0 before the first step."""
    epochs: int | None = None
    batch: int | None = None
    elapsed_s: float = 0.0
    eta_s: float | None = None
    samples_per_second: float | None = None
    step_ms: float | None = None
    loss: float | None = None
    loss_history: tuple[tuple[int, float], ...] = ()
    """(step, loss), thinned to at most 200 points."""
    step_ms_history: tuple[tuple[int, float], ...] = ()
    nodes: tuple[NodeStep, ...] = ()
    log: tuple[str, ...] = ()
    """The newest lines of events, at most 200."""
    detail: str = ""
    """Progress of a phase in words: 'old: 12 of 27 MB'."""
    error: str = ""
    """One line, of the first node that failed; empty otherwise."""
    log_path: str = ""
    """The file that has all of the failing rank's output."""
    exit: int | None = None
    """Exit code of the design once the run has ended."""
    speedup_vs_fastest_node: float | None = None
    scores: dict[str, float | dict[str, float]] = {}
    ledger: str = ""
    """Once it has ended: what the ledger proves, or what is wrong with it."""


class Snapshot(Record, frozen=True, kw_only=True):
    """The world as this machine's agent knows it; one replaceable message."""

    self_id: str
    role: Role
    nodes: tuple[Node, ...]
    """The head's view: itself first. On a worker: itself and the head it belongs to."""
    requests: tuple[JoinRequest, ...] = ()
    heads: tuple[FoundHead, ...] = ()
    joined: str = ""
    """Name of the head that this worker belongs to; empty when none."""
    connected: bool = False
    """On a worker: whether the link to that head is up."""
    discovery: Verdict | None = None
    """Whether mDNS works here; None while unknown."""
    run: RunState | None = None
    nics: tuple[Nic, ...] = ()
    advice: str = ""
    log_path: str = ""
