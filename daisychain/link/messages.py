"""Every message on the control channel, as one tagged union.

A frame is the JSON object {"m": message, "id": number, "re": number}: a request carries `id`, its
answer the same number as `re`, a notice neither. A message's `type` is its class name. Blob content
travels as binary frames (see session.py) and nowhere else.
"""

from typing import Any

import msgspec

from daisychain.facts import Condition, Nic, Node, RunSpec, RunState, Snapshot, Verdict

PROTOCOL = 6
DOCTOR = ".doctor"
"""What the name begins with that stands for a run where paths are tried without one; no run is called so."""
MAX_FRAME_BYTES = 4 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """What all messages share."""


# --- answers -----------------------------------------------------------------------------------


class Done(Message, frozen=True, kw_only=True):
    """Yes, done."""


class Refused(Message, frozen=True, kw_only=True):
    """No, and why; `exit` is the exit code of the error it stands for (errors.BY_EXIT_CODE)."""

    reason: str
    remedy: str = ""
    exit: int = 1
    verdicts: tuple[Verdict, ...] = ()


# --- from the TUI or the CLI to the local agent --------------------------------------------------


class Watch(Message, frozen=True, kw_only=True):
    """From now on send a Snapshot notice whenever the world changes, at most every `interval_s` seconds."""

    interval_s: float = 1.0


class World(Message, frozen=True, kw_only=True):
    """The notice that answers Watch, and the answer to Look."""

    snapshot: Snapshot


class Look(Message, frozen=True, kw_only=True):
    """One snapshot, now. Answered by World."""


class Ping(Message, frozen=True, kw_only=True):
    """Who is there. Answered by Pong."""


class Pong(Message, frozen=True, kw_only=True):
    pid: int
    version: str
    role: str


class MakeInvite(Message, frozen=True, kw_only=True):
    """A token for joining this head. Answered by Invitation or Refused."""

    uses: int = 1
    minutes: float = 60.0


class Invitation(Message, frozen=True, kw_only=True):
    token: str
    address: str
    """HOST:PORT of the head."""
    uses: int
    minutes: float


class BeWorker(Message, frozen=True, kw_only=True):
    """Become a worker.

    With host and token: join that head by its token. With host alone: contact it for pairing (or rejoin it when
    it is known). With neither: rejoin the known head, or look for heads by mDNS. Answered by Done or Refused.
    """

    host: str = ""
    port: int = 0
    token: str = ""


class ConfirmHead(Message, frozen=True, kw_only=True):
    """`j` on the join screen: yes to this head, whose digits are the same."""

    id: str


class AcceptWorker(Message, frozen=True, kw_only=True):
    """`a` on the cluster screen: yes to this waiting worker."""

    id: str


class DeclineWorker(Message, frozen=True, kw_only=True):
    id: str


class Forget(Message, frozen=True, kw_only=True):
    """Never let this node back without a new invitation. By name or id."""

    node: str


class Launch(Message, frozen=True, kw_only=True):
    """Start a run. Answered by Launched or Refused; everything later is in snapshots."""

    spec: RunSpec


class Launched(Message, frozen=True, kw_only=True):
    run: str
    folder: str


class FollowRun(Message, frozen=True, kw_only=True):
    """The newest state of a run of this agent, also after its end. Answered by RunNews or Refused."""

    run: str


class RunNews(Message, frozen=True, kw_only=True):
    state: RunState


class StopRun(Message, frozen=True, kw_only=True):
    """End the current run on every node. Answered by Done or Refused."""


class PauseRun(Message, frozen=True, kw_only=True):
    """Pause the current run between two steps, or let it go on. Answered by Done or Refused."""

    paused: bool


class Lend(Message, frozen=True, kw_only=True):
    """This machine's owner takes it out of runs, or gives it back; its head learns it from the node's record."""

    lent: bool


class ListNics(Message, frozen=True, kw_only=True):
    """Answered by Nics."""


class Nics(Message, frozen=True, kw_only=True):
    nics: tuple[Nic, ...]
    verdicts: tuple[Verdict, ...]
    """One for each NIC, in the same order."""
    chosen: str


class Examine(Message, frozen=True, kw_only=True):
    """Check this machine and the chain it leads, without a run. Answered by Examined."""

    host: str = ""
    """A machine to reach besides; empty: none, or on a worker its head."""
    port: int = 0


class Examined(Message, frozen=True, kw_only=True):
    verdicts: tuple[Verdict, ...]
    """Of every level, by node."""
    nodes: tuple[Node, ...]
    conditions: tuple[Condition | None, ...]
    """Of the nodes, in their order; None for one that didn't answer."""
    paths: tuple[tuple[str, str, str], ...] = ()
    """(from, to, why not) of each pair of nodes that was tried; the last is empty where the path works."""


class Measure(Message, frozen=True, kw_only=True):
    """Measure a node's speed again, from now on; its record says when that is done. Answered by Done or Refused."""

    node: str = ""
    """By name or id; empty: the one that is asked."""


class QuitAgent(Message, frozen=True, kw_only=True):
    """End the agent, and with it any run."""


# --- a stranger at a head's door -----------------------------------------------------------------


class TokenHello(Message, frozen=True, kw_only=True):
    """A worker with a token: its certificate, which invitation, and a fresh nonce."""

    name: str
    certificate: str
    """PEM of the worker's self-signed certificate."""
    invite: str
    nonce: str
    protocol: int = PROTOCOL


class TokenChallenge(Message, frozen=True, kw_only=True):
    nonce: str


class TokenProof(Message, frozen=True, kw_only=True):
    mac: str


class Welcome(Message, frozen=True, kw_only=True):
    """The worker is in: its certificate signed by the head, and with a token the head's proof that it knows it too."""

    certificate: str
    head: str
    mac: str = ""


class PairHello(Message, frozen=True, kw_only=True):
    """A worker without a token: its certificate and a commitment to its nonce."""

    name: str
    certificate: str
    commitment: str
    device: str = ""
    protocol: int = PROTOCOL


class PairNonce(Message, frozen=True, kw_only=True):
    """The head's nonce, sent only after the worker's commitment."""

    nonce: str
    head: str
    """The head's name."""


class PairReveal(Message, frozen=True, kw_only=True):
    """The worker opens its commitment; both now know the six digits."""

    nonce: str


class PairConfirm(Message, frozen=True, kw_only=True):
    """The worker's user pressed `j`."""


# --- between a head and its workers --------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True):
    """The first message of a joined worker."""

    node: Node
    run: str = ""
    """The run whose ranks wait here for their head to be back; empty: none."""
    seats: tuple[int, ...] = ()
    """The seats of those ranks."""
    protocol: int = PROTOCOL


class HelloBack(Message, frozen=True, kw_only=True):
    node: Node


class Heartbeat(Message, frozen=True, kw_only=True):
    """Every second in both directions."""


class NodeNews(Message, frozen=True, kw_only=True):
    """A node's own record changed: capacity became known, another NIC."""

    node: Node


class File(msgspec.Struct, frozen=True):
    """One file of a run, by content."""

    path: str
    """Relative, with forward slashes; where it lies below the run's work folder."""
    sha256: str
    size: int


class PrepareRun(Message, frozen=True, kw_only=True):
    """Fetch what is missing of `files`, lay them out, and get ready to start a rank. Answered by Done or Refused."""

    run: str
    files: tuple[File, ...]


class Listen(Message, frozen=True, kw_only=True):
    """Listen for the run's other nodes on a random port of the chosen NIC. Answered by Listening."""

    run: str


class Listening(Message, frozen=True, kw_only=True):
    port: int


class Peer(msgspec.Struct, frozen=True):
    """Where a node of a run listens."""

    name: str
    address: str
    port: int


class TryPaths(Message, frozen=True, kw_only=True):
    """Try to reach these nodes, all at once. Answered by PathsTried."""

    run: str
    peers: tuple[Peer, ...]


class PathsTried(Message, frozen=True, kw_only=True):
    reasons: tuple[str, ...]
    """For each peer in order: empty when it was reached, else why not."""


class SendFlow(Message, frozen=True, kw_only=True):
    """Send this neighbour as much as gets through for a second, while all others send too. Answered by FlowSent."""

    run: str
    peer: Peer


class FlowSent(Message, frozen=True, kw_only=True):
    bytes_per_s: float | None = None
    """What arrived; None: unknown."""
    latency_s: float | None = None
    """Of a message one way, before all were sending; None: unknown."""


class FindRelays(Message, frozen=True, kw_only=True):
    """Through which of Tailscale's relays do packets to these addresses go now? Answered by RelaysFound."""

    addresses: tuple[str, ...]


class RelaysFound(Message, frozen=True, kw_only=True):
    relays: tuple[str, ...]
    """For each address in order: the relay; empty: none, or unknown."""


class FindModules(Message, frozen=True, kw_only=True):
    """Look whether these modules are installed, without importing them. Answered by ModulesFound."""

    names: tuple[str, ...]
    """Top-level ones."""


class ModulesFound(Message, frozen=True, kw_only=True):
    missing: tuple[str, ...]


class Inspect(Message, frozen=True, kw_only=True):
    """What is this node like now: disk, memory, load, power, clock. Answered by Inspected."""


class Inspected(Message, frozen=True, kw_only=True):
    condition: Condition


class FetchBlob(Message, frozen=True, kw_only=True):
    """A worker asks for a file's content from `offset` on; binary frames follow, then Done or Refused as the answer."""

    run: str
    sha256: str
    offset: int


class ShipProgress(Message, frozen=True, kw_only=True):
    """How much of a run's files this worker has."""

    run: str
    have_bytes: int
    total_bytes: int


class StartRank(Message, frozen=True, kw_only=True):
    """Start a rank of this node, again if it has ended. Answered by Done once the process is started, or Refused."""

    run: str
    seat: int
    """The rank's fixed number in the run."""
    names: tuple[str, ...]
    """Name of every seat: of its node, or of the node and the device."""
    devices: tuple[str, ...] = ("cpu",)
    """What each of this node's ranks computes on, as torch names it."""
    place: int = 0
    """The rank's own, in `devices`."""
    script: str
    """Path below the work folder."""
    args: tuple[str, ...]
    settings: dict[str, Any]
    """seed, batch, epochs, sync, equal; what the training API reads."""
    resume: bool = False
    """Go on from the rank's newest checkpoint of the run, if it has one."""


class OrderRank(Message, frozen=True, kw_only=True):
    """Pass an order on to a rank of this node; see train/orders.py for the kinds."""

    run: str
    seat: int
    order: dict[str, Any]


class RankReport(Message, frozen=True, kw_only=True):
    """One line from a rank's pipe, or what its agent says of it; see train/reports.py for the kinds."""

    run: str
    seat: int
    report: dict[str, Any]


class EndRun(Message, frozen=True, kw_only=True):
    """End this run's ranks and clear its work folder. Answered by Done when nothing of it is left running."""

    run: str
    reason: str


AnyMessage = (
    Done | Refused | Watch | World | Look | Ping | Pong | MakeInvite | Invitation | BeWorker | ConfirmHead
    | AcceptWorker | DeclineWorker | Forget | Launch | Launched | FollowRun | RunNews | StopRun | PauseRun | Lend
    | ListNics | Nics | Examine | Examined | Measure | QuitAgent | TokenHello | TokenChallenge | TokenProof | Welcome
    | PairHello | PairNonce | PairReveal | PairConfirm | Hello | HelloBack | Heartbeat | NodeNews | PrepareRun
    | Listen | Listening | TryPaths | PathsTried | SendFlow | FlowSent | FindRelays | RelaysFound | FindModules
    | ModulesFound | Inspect | Inspected | FetchBlob | ShipProgress | StartRank | OrderRank | RankReport | EndRun
)  # fmt: skip
"""Every message there is, in the order above."""


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    m: AnyMessage
    id: int = 0
    re: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Frame)


def encode(frame: Frame) -> str:
    """One frame as JSON text."""
    return _encoder.encode(frame).decode()


def decode(text: str | bytes) -> Frame:
    """The frame in `text`; raises msgspec.ValidationError or msgspec.DecodeError on anything else."""
    return _decoder.decode(text)
