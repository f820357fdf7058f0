"""What the screens say about the world: pure functions from facts to lines of text.

A state is a sign and a word and a colour; a name from elsewhere is cleaned here, once, before it goes anywhere.
"""

from collections.abc import Sequence

from daisychain.facts import (
    ENDED,
    Device,
    FoundHead,
    JoinRequest,
    Level,
    Node,
    NodeStep,
    Phase,
    RunState,
    Snapshot,
    Verdict,
)
from daisychain.tui.text import (
    UNKNOWN,
    ColourRole,
    Line,
    apportion,
    bar,
    clean,
    cut,
    duration,
    fit,
    memory,
    milliseconds,
    number,
    plain,
    width,
)

LEVEL: dict[Level, tuple[str, ColourRole]] = {"ok": ("✓", "ok"), "warn": ("!", "warn"), "refuse": ("✗", "bad")}
NODE_STATE: dict[str, tuple[str, ColourRole]] = {
    "measuring": ("◌", "accent"),
    "ready": ("●", "ok"),
    "running": ("▶", "ok"),
    "lost": ("✗", "bad"),
}
PHASE: dict[Phase, tuple[str, ColourRole]] = {
    "preparing": ("◌", "accent"),
    "shipping": ("◌", "accent"),
    "starting": ("◌", "accent"),
    "running": ("▶", "ok"),
    "finishing": ("◌", "accent"),
    "finished": ("✓", "ok"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "warn"),
}
HEAD_STATE: dict[str, tuple[str, str, ColourRole]] = {
    "contacting": ("◌", "contacting", "accent"),
    "ready": ("●", "ready", "ok"),
    "confirmed": ("◌", "waiting for the head", "accent"),
    "joined": ("✓", "joined", "ok"),
    "refused": ("✗", "refused", "bad"),
}


# --- verdicts and nodes --------------------------------------------------------------------------


def verdict_lines(verdict: Verdict) -> tuple[Line, ...]:
    """The sign, whose it is and why; below it what to do."""
    sign, role = LEVEL[verdict.level]
    whose = f"{clean(verdict.node)}: " if verdict.node else ""
    lines: list[Line] = [((f"{sign} ", role), (f"{whose}{clean(verdict.reason, 400)}", ""))]
    if verdict.remedy:
        lines.append((("  → ", "dim"), (clean(verdict.remedy, 400), "dim")))
    return tuple(lines)


def node_state(node: Node) -> Line:
    """Sign and word, such as '● ready'."""
    if node.lent and node.state != "lost":
        return (("‖ in use", "warn"),)
    if node.hot and node.state != "lost":
        return (("▲ hot", "warn"),)
    sign, role = NODE_STATE[node.state]
    return ((f"{sign} {node.state}", role),)


def device_text(device: Device) -> str:
    """'8 cores, 16 GB', or the first usable GPU with its memory."""
    for gpu in device.gpus:
        if gpu.verdict.level == "ok":
            return f"{clean(gpu.name)}" + (f", {memory(gpu.memory_bytes)}" if gpu.memory_bytes else "")
    cores = device.cores_physical or device.cores_logical
    return f"{cores} core{'' if cores == 1 else 's'}, {memory(device.memory_bytes)}"


def capacity_text(node: Node) -> str:
    """Samples a second alone at the reference model, 'measuring', or unknown."""
    if node.capacity is not None:
        return number(node.capacity.samples_per_second())
    return "measuring" if node.state == "measuring" else UNKNOWN


def nic_text(node: Node) -> Line:
    """The chosen NIC with the sign of its verdict."""
    sign, role = LEVEL[node.nic_verdict.level]
    return ((f"{sign} ", role), (clean(node.nic) or UNKNOWN, ""))


def shares_total(snapshot: Snapshot) -> int:
    return sum(node.share or 0 for node in snapshot.nodes)


class NodeColumns:
    """Widths of the node table's columns in `cells` cells; narrow terminals lose the bar, then the device."""

    def __init__(self, cells: int) -> None:
        self.state, self.nic, self.capacity, self.share, self.gap = 11, 11, 9, 5, 2
        left = cells - (self.state + self.nic + self.capacity + self.share + 4 * self.gap)
        self.bar = 16 if left >= 64 else 0
        left -= self.bar + self.gap if self.bar else 0
        self.device = min(30, left // 2 - 1) if left >= 30 else 0
        left -= self.device + self.gap if self.device else 0
        self.name = max(8, min(32, left))

    def lay(self, cells: Sequence[tuple[Line, int, bool]]) -> Line:
        """Pieces laid in columns: (line, width, right-aligned)."""
        out: list[tuple[str, ColourRole]] = []
        for line, space, right in cells:
            if not space:
                continue
            if out:
                out.append((" " * self.gap, ""))
            out.extend(_fit_line(line, space, right))
        return tuple(out)


def _fit_line(line: Line, cells: int, right: bool = False) -> Line:
    """A line padded or cut to `cells` cells, roles kept."""
    out: list[tuple[str, ColourRole]] = []
    left = cells
    for index, (text, role) in enumerate(line):
        piece = fit(text, left, right) if index == len(line) - 1 else cut(text, left)
        out.append((piece, role))
        left -= width(piece)
    return tuple(out)


def node_header(cells: int) -> Line:
    columns = NodeColumns(cells)
    titles = (
        ("node", columns.name, False), ("device", columns.device, False), ("samples/s", columns.capacity, True),
        ("share", columns.share, True), ("", columns.bar, False), ("nic", columns.nic, False),
        ("state", columns.state, False),
    )  # fmt: skip
    return columns.lay([(((text, "dim"),), space, right) for text, space, right in titles])


def node_row(node: Node, snapshot: Snapshot, cells: int) -> Line:
    """One row of the node table, exactly as wide as `node_header`."""
    columns = NodeColumns(cells)
    total = shares_total(snapshot)
    here: ColourRole = "bold" if node.id == snapshot.self_id else ""
    share = UNKNOWN if node.share is None else str(node.share)
    drawn = bar((node.share or 0) / total, columns.bar) if total else ""
    rank = " (head)" if node.role == "head" else ""
    name = cut(clean(node.name), columns.name - len(rank))
    capacity: ColourRole = "" if node.capacity else "dim"
    return columns.lay([
        (((name, here), (rank, "dim")), columns.name, False),
        (((device_text(node.device), "dim"),), columns.device, False),
        (((capacity_text(node), capacity),), columns.capacity, True),
        (((share, "" if node.share else "dim"),), columns.share, True),
        (((drawn, "compute"),), columns.bar, False),
        (nic_text(node), columns.nic, False),
        (node_state(node), columns.state, False),
    ])  # fmt: skip


def node_detail(node: Node) -> tuple[Line, ...]:
    """What is known of one node, for the panel below the table."""
    versions, device = node.versions, node.device
    torch = f"torch {versions.torch}" if versions.torch else "torch is not installed"
    lines: list[Line] = [
        (
            (f"{clean(node.address)}:{node.port}", "accent"),
            (f"  {clean(versions.os)} · Python {clean(versions.python)} · {clean(torch)}", ""),
        ),
        ((f"{clean(device.cpu)} · {device.cores_logical} threads · {memory(device.memory_bytes)}", "dim"),),
    ]
    if node.lent:
        lines.append((*node_state(node), (" · its owner uses it: runs go on without it until it is given back", "")))
    if node.detail:
        lines.append((*node_state(node), (f" · {clean(node.detail)}", "")))
    if node.slowdown > 1:
        lines.append(((f"slowed on purpose to 1/{number(node.slowdown)}", "warn"),))
    lines.extend(verdict_lines(node.nic_verdict))
    for gpu in device.gpus:
        if gpu.verdict.level != "ok":
            lines.extend(verdict_lines(gpu.verdict))
    return tuple(lines)


def chain_title(snapshot: Snapshot) -> Line:
    """The line on top of the cluster screen."""
    alive = [node for node in snapshot.nodes if node.state != "lost"]
    rates = [node.capacity.samples_per_second() for node in alive if node.capacity]
    count = f"{len(alive)} node{'' if len(alive) == 1 else 's'}"
    rate = f" · {number(sum(rates))} samples/s together" if len(rates) > 1 else ""
    return ((count, "bold"), (rate, "dim"))


def advice_line(snapshot: Snapshot) -> Line:
    """One line of advice, or nothing."""
    return (("→ ", "accent"), (clean(snapshot.advice, 400), "")) if snapshot.advice else ()


ALONE: tuple[Line, ...] = (
    (("This machine is alone in its chain. To add another one:", "bold"),),
    (),
    (("  1  ", "accent"), ("on the other machine, run  ", ""), ("daisychain join", "accent")),
    (("  2  ", "accent"), ("compare the six digits on both screens", "")),
    (("  3  ", "accent"), ("press j there and a here", "")),
    (),
    (("No screen there? ", "dim"), ("i", "accent"), (" makes a token to join with instead.", "dim")),
    (("Only trying it? ", "dim"), ("l", "accent"), (" trains the demo on this machine alone.", "dim")),
)


# --- joining -------------------------------------------------------------------------------------


def digits_text(digits: str) -> str:
    """'123 456', or dashes while the digits aren't known."""
    kept = clean(digits, 6)
    return f"{kept[:3]} {kept[3:]}" if kept else "––– –––"  # noqa: RUF001


def request_row(request: JoinRequest, cells: int) -> Line:
    """One waiting worker: name, digits, whether its user has pressed j."""
    said: Line = (("✓ pressed j there", "ok"),) if request.confirmed else (("◌ j not yet pressed there", "accent"),)
    name_cells = min(24, max(8, cells - 7 - 26 - 4 - 17))
    where_cells = max(0, cells - name_cells - 7 - 26 - 6)
    where = clean(request.address)
    if request.device and len(where) + 3 + len(clean(request.device)) <= where_cells:
        where += f" · {clean(request.device)}"
    return (
        (fit(clean(request.name), name_cells), "bold"), ("  ", ""), (digits_text(request.digits), "accent"), ("  ", ""),
        *_fit_line(said, 26), ("  ", ""), (fit(where, where_cells), "dim"),
    )  # fmt: skip


def head_row(head: FoundHead, cells: int) -> Line:
    """One head that was found: name, address, digits, state."""
    sign, word, role = HEAD_STATE[head.state]
    name_cells = min(24, max(8, cells - 7 - 22 - 23 - 6))
    return (
        (fit(clean(head.name), name_cells), "bold"), ("  ", ""), (fit(f"{clean(head.address)}:{head.port}", 22), "dim"),
        ("  ", ""), (digits_text(head.digits), "accent"), ("  ", ""), (fit(f"{sign} {word}", 23), role),
    )  # fmt: skip


def head_question(head: FoundHead | None, count: int) -> tuple[Line, ...]:
    """What the join screen asks of the person about the selected head."""
    if head is None:
        return ((("Choose a head with the arrow keys.", ""),),) if count else ()
    name = clean(head.name)
    if head.state == "contacting":
        return (((f"Contacting {name} …", "dim"),),)
    if head.state == "refused":
        return ((("✗ ", "bad"), (f"{name} said no: {clean(head.reason, 400) or 'no reason given'}", "")),)
    if head.state == "confirmed":
        return (
            ((f"You said yes. Now press a on {name}.", "bold"),),
            (("Nothing more to do on this machine.", "dim"),),
        )
    if head.state == "joined":
        return ((("✓ ", "ok"), (f"This machine belongs to {name}.", "")),)
    return (
        (("Does ", ""), (name, "bold"), (" show these digits too?", "")),
        (("j", "accent"), (f"  yes, join {name}", "")),
        (
            ("! ", "warn"),
            (f"{name} may then run programs on this machine. Join only a head whose owner you know; ", ""),
            ("if the digits differ, leave.", ""),
        ),
    )


def no_heads(discovery: Verdict | None, waited: bool) -> tuple[Line, ...]:
    """The join screen without a head: searching, and after a while why there may be none."""
    if discovery is not None and discovery.level != "ok":
        return (*verdict_lines(discovery), (), (("e", "accent"), ("  type the head's address", "")))
    if not waited:
        return (
            (("◌ ", "accent"), ("Looking for heads on this network …", "")),
            (("  On the head, run  ", "dim"), ("daisychain", "accent"), (" .", "dim")),
        )
    return (
        (("! ", "warn"), ("No head has been heard on this network.", "bold")),
        (),
        (("  · Is ", ""), ("daisychain", "accent"), (" open on the head?", "")),
        (("  · Many guest, office and mesh Wi-Fis block multicast, and", ""),),
        (("    VPNs and VLANs don't carry it. Then no head is ever heard.", ""),),
        (),
        (("e", "accent"), ("  type the head's address; it stands on the head's screen", "")),
    )


def membership(snapshot: Snapshot) -> tuple[Line, ...]:
    """What a worker that joined says of itself."""
    name = clean(snapshot.joined)
    if not snapshot.connected:
        return (
            (("Member of ", ""), (name, "bold"), ("   ", ""), ("✗ not connected", "bad")),
            ((f"Trying to reach {name} again; is it on, and in the same network?", "dim"),),
        )
    connected: Line = (("Member of ", ""), (name, "bold"), ("   ", ""), ("● connected", "ok"))
    if any(node.lent for node in snapshot.nodes if node.id == snapshot.self_id):
        return (
            connected,
            (("‖ in use", "warn"), (" by you: it takes no part in runs until you give it back.", "")),
        )
    return (
        connected,
        (("This machine computes when the head starts a run. Leave it on; closing this screen is fine.", "dim"),),
    )


# --- a run ---------------------------------------------------------------------------------------


def phase_text(run: RunState) -> Line:
    """Sign and word, such as '▶ running'."""
    if run.paused and run.phase not in ENDED:
        return (("‖ paused", "warn"),)
    sign, role = PHASE[run.phase]
    return ((f"{sign} {run.phase}", role),)


def run_title(run: RunState) -> Line:
    return ((clean(run.name) or clean(run.id), "bold"), ("   ", ""), *phase_text(run))


def fraction(run: RunState) -> float | None:
    """How much of the run is done, 0 to 1; None while its length is unknown."""
    if run.phase == "finished":
        return 1.0
    if run.steps:
        return min(1.0, run.step / run.steps)
    return min(1.0, run.epoch / run.epochs) if run.epochs else None


def progress_line(run: RunState, cells: int) -> Line:
    """The progress bar with its per cent, exactly `cells` wide; an empty bar while unknown."""
    done = fraction(run)
    label = f"{UNKNOWN:>5}" if done is None else f"{done:5.0%}"
    space = max(1, cells - 6)
    full = bar(done or 0.0, space)
    filled = full.rstrip(" ")
    role: ColourRole = {"failed": "bad", "stopped": "warn"}.get(run.phase, "accent")  # type: ignore[assignment]
    return ((filled, role), ("─" * (space - len(filled)), "dim"), (" ", ""), (label, "bold"))


def counters_line(run: RunState) -> Line:
    """Step, epoch, time and what is left."""
    step = f"{run.step}" + (f" of {run.steps}" if run.steps else "")
    pieces: list[tuple[str, ColourRole]] = [("step ", "dim"), (step, "")]
    if run.epochs or run.epoch:
        pieces += [("   epoch ", "dim"), (f"{run.epoch}" + (f" of {run.epochs}" if run.epochs else ""), "")]
    pieces += [("   elapsed ", "dim"), (duration(run.elapsed_s), "")]
    if run.phase not in ENDED:
        pieces += [("   left ", "dim"), (duration(run.eta_s), "")]
    return tuple(pieces)


def rates_line(run: RunState) -> Line:
    """Throughput, step time, global batch, loss."""
    pieces: list[tuple[str, ColourRole]] = [
        (number(run.samples_per_second), "bold"), (" samples/s   ", "dim"),
        ("step ", "dim"), (milliseconds(run.step_ms), ""), (" ms   ", "dim"),
        ("batch ", "dim"), (UNKNOWN if run.batch is None else str(run.batch), ""),
        ("   loss ", "dim"), (number(run.loss), ""),
    ]  # fmt: skip
    return tuple(pieces)


def slowest(nodes: Sequence[NodeStep]) -> NodeStep | None:
    """The node whose compute the others wait for."""
    known = [node for node in nodes if node.compute_ms is not None]
    return max(known, key=lambda node: node.compute_ms or 0.0) if known else None


def split_line(run: RunState) -> Line:
    """Where a step's time goes, on the node that sets the pace; nothing while unknown."""
    node = slowest(run.nodes)
    if node is None:
        return ()
    return (
        ("█ ", "compute"), ("compute ", "dim"), (milliseconds(node.compute_ms), ""), (" + ", "dim"),
        ("▓ ", "sync"), ("sync ", "dim"), (milliseconds(node.sync_ms), ""), (" + ", "dim"),
        ("░ ", "wait"), ("wait ", "dim"), (milliseconds(node.wait_ms), ""), (" ms", "dim"),
        (f"   on {clean(node.node, 20)}, the slowest" if len(run.nodes) > 1 else "", "dim"),
    )  # fmt: skip


def split_bar(node: NodeStep, longest_ms: float, cells: int) -> Line:
    """Compute, sync and wait of one node as a stacked bar on a scale of `longest_ms`; other glyphs, other colours."""
    parts = (node.compute_ms or 0.0, node.sync_ms or 0.0, node.wait_ms or 0.0)
    rest = max(0.0, longest_ms - sum(parts))
    compute, sync, wait, empty = apportion((*parts, rest), cells)
    if not any(parts):
        empty = cells
    return (("█" * compute, "compute"), ("▓" * sync, "sync"), ("░" * wait, "wait"), (" " * empty, ""))


class RankColumns:
    """Widths of the run screen's node table in `cells` cells."""

    def __init__(self, cells: int) -> None:
        self.number = 7
        bars = cells - 3 * self.number - 11 - 3
        self.name = min(24, max(8, bars // 3))
        left = bars - self.name - 2
        self.share_bar = max(0, min(24, left * 2 // 5))
        self.split_bar = max(0, left - self.share_bar)


def rank_header(cells: int) -> Line:
    columns = RankColumns(cells)
    return (
        (fit("node", columns.name), "dim"), (fit("share", 5, True), "dim"), (" " * 6, ""),
        (" " * columns.share_bar, ""), ("  ", ""), (fit("a step's time", columns.split_bar), "dim"),
        (fit("compute", 8, True), "dim"), (fit("sync", 8, True), "dim"), (fit("wait ms", 8, True), "dim"),
    )  # fmt: skip


def rank_rows(run: RunState, cells: int) -> list[Line]:
    """The table of a run's nodes: those that take part, then those that their owners use."""
    rows = [rank_row(node, run, cells) for node in run.nodes if node.node not in run.lent]
    name_cells = RankColumns(cells).name
    used: list[Line] = [
        ((fit(clean(name), name_cells), "bold"), (" ‖ in use", "warn"), (" by its owner", "dim")) for name in run.lent
    ]
    return [rank_header(cells), *rows, *used]


def rank_row(node: NodeStep, run: RunState, cells: int) -> Line:
    """One node's part of the run: its share of the batch, and where its time goes."""
    columns = RankColumns(cells)
    total = sum(each.share for each in run.nodes)
    part = node.share / total if total else 0.0
    longest = max((_step_ms(each) for each in run.nodes), default=0.0)
    return (
        (fit(clean(node.node), columns.name), "bold"), (fit(str(node.share), 5, True), ""),
        (f"{part:5.0%} ", "dim"), (bar(part, columns.share_bar), "accent"), ("  ", ""),
        *split_bar(node, longest, columns.split_bar),
        (fit(milliseconds(node.compute_ms), 8, True), ""), (fit(milliseconds(node.sync_ms), 8, True), ""),
        (fit(milliseconds(node.wait_ms), 8, True), ""),
    )  # fmt: skip


def _step_ms(node: NodeStep) -> float:
    return (node.compute_ms or 0.0) + (node.sync_ms or 0.0) + (node.wait_ms or 0.0)


def ending(run: RunState) -> tuple[Line, ...]:
    """The result or the error of a run that has ended; nothing before."""
    if run.phase not in ENDED:
        return ()
    if run.phase == "failed":
        lines: list[Line] = [(("✗ ", "bad"), (clean(run.error, 400) or "The run failed; its log says why", "bold"))]
        if run.log_path:
            lines.append((("  log     ", "dim"), (clean(run.log_path, 400), "accent")))
    else:
        word, sign, role = ("finished", "✓", "ok") if run.phase == "finished" else ("stopped", "■", "warn")
        lines = [((f"{sign} {word}", role), (f" after {duration(run.elapsed_s)} and {run.step} steps", ""))]  # type: ignore[list-item]
        lines.append(speedup_line(run))
        lines.extend(score_lines(run))
    lines.append((("  folder  ", "dim"), (clean(run.folder, 400), "accent")))
    return tuple(lines)


def speedup_line(run: RunState) -> Line:
    """What the chain gained over its fastest node alone, good or bad news alike."""
    rate = f"  {number(run.samples_per_second)} samples/s"
    gain = run.speedup_vs_fastest_node
    if gain is None:
        return ((rate, ""), (", speed-up over the fastest node alone: not measured", "dim"))
    if gain < 1:
        return ((rate, ""), (f"  ! {gain:.2f} times the fastest node alone: the chain was slower", "warn"))
    return ((rate, ""), (f"  ✓ {gain:.2f} times the fastest node alone", "ok"))


def score_lines(run: RunState) -> tuple[Line, ...]:
    """Every score beside its baseline."""
    baseline = run.scores.get("baseline")
    beside = baseline if isinstance(baseline, dict) else {}
    lines: list[Line] = []
    for name, value in run.scores.items():
        if isinstance(value, dict):
            continue
        lines.append((
            (f"  {fit(clean(name), 10)}", "dim"), (fit(number(value), 8, True), "bold"),
            (f"   baseline {number(beside[name])}" if name in beside else "", "dim"),
        ))  # fmt: skip
    return tuple(lines)


def copy_text(run: RunState) -> str:
    """What `c` copies on the run screen: the error and its log, or the folder."""
    if run.error or run.log_path:
        return "\n".join(part for part in (clean(run.error, 400), clean(run.log_path, 400)) if part)
    return clean(run.folder, 400)


def new_log_lines(old: Sequence[str], new: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """(start over, lines to add) that turn a log showing `old` into one ending as `new`."""
    for start in range(len(old) + 1):
        if list(old[start:]) == list(new[: len(old) - start]) and start < len(old):
            return False, new[len(old) - start :]
    return bool(old), new


def lines_text(lines: Sequence[Line]) -> str:
    """Lines without colours, for copying and for tests."""
    return "\n".join(plain(line) for line in lines)


def border_name(name: str) -> str:
    """A name for a border title, which Textual parses as markup: brackets escaped."""
    return clean(name, 60).replace("\\", "\\\\").replace("[", "\\[")


def request_question(request: JoinRequest | None, count: int) -> tuple[Line, ...]:
    """What the cluster screen asks about the selected request."""
    if request is None:
        return ((("Choose one with the arrow keys.", ""),),) if count else ()
    return (
        (("Does ", ""), (clean(request.name, 40), "bold"), (" show these digits too?", "")),
        (("a", "accent"), ("  yes, accept it      ", ""), ("x", "accent"), ("  no, decline it", "")),
        (("Other digits: somebody is in between; decline.", "dim"),),
    )


def own_run(snapshot: Snapshot, cells: int) -> tuple[Line, ...]:
    """A worker's view of the run: how far, and its own part."""
    run = snapshot.run
    if run is None:
        return ()
    own = next((node for node in snapshot.nodes if node.id == snapshot.self_id), None)
    lines: list[Line] = [run_title(run), progress_line(run, cells), counters_line(run), rates_line(run)]
    share = own.share if own else None
    if share is not None:
        of = f" of {run.batch}" if run.batch else ""
        lines.append((("this machine's share ", "dim"), (f"{share}{of}", "bold"), (" samples a step", "dim")))
    if run.detail and run.phase not in ENDED:
        lines.append(((clean(run.detail, 300), ""),))
    if run.error:
        lines.append((("✗ ", "bad"), (clean(run.error, 400), "")))
    return tuple(lines)
