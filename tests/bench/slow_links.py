"""What --sync exact, bf16 and local make of slow links: seconds and validation score against the head alone.

    python tests/bench/slow_links.py --csv flights.csv --target late --out slow_links.json
    python tests/bench/slow_links.py --csv flights.csv --target late --links 20mbit --modes alone,local,alone,local

Builds a pretend LAN (root, Linux) with hosts of 80, 40 and 20 per cent of a core, all cables of one speed or all
hosts on one Wi-Fi, and trains the tabular job on it once a cell; with --hidden 512,384,256, flights_mlp.py with a
network of these layers. `seconds` are those between the chain being formed and its last step; an exact cell of another
number of epochs (--exact-epochs) is scaled to the whole, and says so.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from throughput import lines_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lan.harness import Lan, Spec, _do, missing  # noqa: E402

CPU = {"head": 80, "mid": 40, "old": 20}
LINKS = ("20mbit", "100mbit", "1000mbit", "wifi")
MODES = ("alone", "exact", "bf16", "local")
AIR = "40mbit"
"""Of the Wi-Fi, both ways of all hosts together."""
SCRIPT = Path(__file__).with_name("flights_mlp.py")
DAISYCHAIN = (sys.executable, "-m", "daisychain")
READY_S, RUN_S = 120.0, 1800.0


def main() -> int:
    options = _options()
    if reason := missing():
        sys.exit(reason)
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="flights-") as options.prepared:
        if options.hidden:
            prepare(options)
        for link in options.links.split(","):
            with chain(link) as lan:
                for mode in options.modes.split(","):
                    cells.append(measure(lan, link, mode, options))
                    if alone := last_alone(cells):
                        cells[-1]["of_alone"] = round(cells[-1]["seconds"] / alone["seconds"], 3)
                    print(row(cells[-1]), flush=True)
                    if options.out:
                        Path(options.out).write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
    show_medians(cells)
    return 0


def last_alone(cells: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The run of head alone nearest before the newest cell: machines aren't equally fast for hours."""
    *before, newest = cells
    return next((cell for cell in reversed(before) if (cell["mode"], cell["link"]) == ("alone", newest["link"])), None)


def prepare(options: argparse.Namespace) -> None:
    """The table as arrays, as the tabular job prepares it."""
    request = {"csv": options.csv, "target": options.target, "drop": options.drop, "out": options.prepared}
    words = (sys.executable, "-m", "daisychain.jobs.tabular.prepare")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        print(json.dumps(request), file=child.stdin, flush=True)
        last = {"kind": "nothing"}
        for line in child.stdout:
            last = json.loads(line)
    if last["kind"] != "done":
        sys.exit(f"{options.csv} can't be prepared: {last}")


def show_medians(cells: list[dict[str, Any]]) -> None:
    """Of the modes that were measured several times; and of each one's ratio to the last run alone before it."""
    for link, mode in dict.fromkeys((cell["link"], cell["mode"]) for cell in cells):
        of_mode = [cell for cell in cells if (cell["link"], cell["mode"]) == (link, mode)]
        ratios = [cell["of_alone"] for cell in of_mode if cell.get("of_alone")]
        if len(of_mode) > 1:
            about = f", {median(ratios):.2f} of alone" if ratios else ""
            print(f"{link:>9} {mode:6} median {median(cell['seconds'] for cell in of_mode):8.1f} s{about}")


@contextmanager
def chain(link: str) -> Iterator[Lan]:
    """Three hosts on such a link, joined and measured."""
    rate = "" if link == "wifi" else link
    with Lan([Spec(name, cpu=cpu, rate=rate) for name, cpu in CPU.items()]) as lan:
        if lan.without:
            sys.exit(lan.without)
        if link == "wifi":
            put_on_air(lan)
        token = call(lan, "head", "invite", "--json", "--uses", "2")[-1]["token"]
        for worker in ("mid", "old"):
            call(lan, worker, "join", "head", "--token", token, "--headless")
        until = time.monotonic() + READY_S
        while {node["state"] for node in call(lan, "head", "nodes", "--json")[-1]["nodes"]} != {"ready"}:
            if time.monotonic() > until:
                sys.exit(f"not ready within {READY_S:.0f} s")
            time.sleep(0.5)
        yield lan


def put_on_air(lan: Lan) -> None:
    """Every host's traffic, both ways, passes one shaper in the switch: a byte from one to another crosses it twice."""
    space = ("ip", "netns", "exec", lan.switch)
    _do(*space, "ip", "link", "add", "ifb0", "type", "ifb")
    _do(*space, "ip", "link", "set", "ifb0", "up")
    _do(*space, "tc", "qdisc", "add", "dev", "ifb0", "root", "tbf", "rate", AIR, "burst", "32kbit", "latency", "50ms")
    everything = ("protocol", "all", "u32", "match", "u32", "0", "0")
    redirect = (*everything, "action", "mirred", "egress", "redirect", "dev", "ifb0")
    for host in lan:
        end = ("dev", host._port)
        _do(*space, "tc", "qdisc", "add", *end, "ingress")
        _do(*space, "tc", "filter", "add", *end, "parent", "ffff:", *redirect)
        _do(*space, "tc", "qdisc", "add", *end, "root", "handle", "1:", "htb")
        _do(*space, "tc", "filter", "add", *end, "parent", "1:", *redirect)


def call(lan: Lan, host: str, *words: str, timeout: float = READY_S) -> list[dict[str, Any]]:
    """The events of one command; ends this script with the command's own words when it fails."""
    done = lan[host].run(*DAISYCHAIN, *words, timeout=timeout)
    if done.returncode:
        sys.exit(
            f"{host}: daisychain {' '.join(words)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr}"
        )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measure(lan: Lan, link: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train once; what came of it."""
    epochs = options.exact_epochs if mode in ("exact", "bf16") and options.exact_epochs else options.epochs
    words = ["--epochs", str(epochs), "--json", "--headless"]
    if options.batch:
        words += ["--batch", str(options.batch)]
    if mode == "alone":
        words += ["--nodes", "head"]
    else:
        words += ["--sync", mode, "--anyway"]
    if options.hidden:
        words = ["run", str(SCRIPT), "--data", options.prepared, *words, "--", *options.hidden.split(",")]
    else:
        dropped = [word for column in options.drop for word in ("--drop", column)]
        words = ["run", "tabular", options.csv, "--target", options.target, *dropped, *words]
    finished = call(lan, "head", *words, timeout=RUN_S)[-1]
    folder = Path(finished["folder"])
    steps = lines_of(folder / "metrics.jsonl")
    seconds = trained_s(steps, lines_of(folder / "events.jsonl"))
    whole = seconds * options.epochs / epochs
    return {
        "link": link,
        "mode": mode,
        "epochs": epochs,
        "steps": len(steps),
        "seconds": round(whole, 2),
        "estimated": epochs != options.epochs,
        "step_ms": round(seconds / len(steps) * 1000, 1),
        "log_loss": finished["scores"].get("log_loss") if epochs == options.epochs else None,
        "shares": [[node["share"] for node in line["nodes"].values()] for line in (steps[0], steps[-1])],
        "sync_s": round(sum(min_of(line, "sync_ms") for line in steps) / 1000, 2),
        "wait_s": {name: round(sum(line["nodes"][name]["wait_ms"] or 0 for line in steps) / 1000, 2)
                   for name in steps[-1]["nodes"]},
        "compute_ms": {name: round(mean(line["nodes"][name]["compute_ms"] or 0 for line in steps[len(steps) // 2 :]), 1)
                       for name in steps[-1]["nodes"]},
        "log": [event for event in lines_of(folder / "events.jsonl") if event.get("event") in ("note", "shares")],
    }  # fmt: skip


def trained_s(steps: list[dict[str, Any]], events: list[dict[str, Any]]) -> float:
    """From the chain being formed to the last step: the last step's arrival, less that of the first with its own time.

    Steps of one round of local ones arrive together: then the round's own times count.
    """
    first = [line for line in steps if line["time"] - steps[0]["time"] < 0.05]
    return float(steps[-1]["time"] - steps[0]["time"]) + sum(line["step_ms"] for line in first) / 1000


def min_of(line: dict[str, Any], name: str) -> float:
    return min(node[name] or 0.0 for node in line["nodes"].values())


def row(cell: dict[str, Any]) -> str:
    ratio = f"{cell['of_alone']:6.2f} of alone" if "of_alone" in cell else ""
    loss = "        " if cell["log_loss"] is None else f"{cell['log_loss']:8.4f}"
    about = "~" if cell["estimated"] else " "
    return (
        f"{cell['link']:>9} {cell['mode']:6} {about}{cell['seconds']:8.1f} s {cell['step_ms']:8.1f} ms a step"
        f"  log loss {loss} {ratio}  shares {cell['shares'][0]} -> {cell['shares'][1]}"
        f"  sync {cell['sync_s']} s, wait {cell['wait_s']}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True, type=lambda name: str(Path(name).resolve()))
    parser.add_argument("--target", default="late")
    parser.add_argument("--drop", action="append", default=[], help="a column to leave out")
    parser.add_argument("--links", default=",".join(LINKS))
    parser.add_argument("--modes", default=",".join(MODES), help="alone, exact, bf16, local, local:H; alone first")
    parser.add_argument("--hidden", default="", help="sizes of the network's hidden layers, with commas")
    parser.add_argument("--epochs", type=int, default=8, help="passes of the whole training")
    parser.add_argument("--exact-epochs", type=int, default=0, help="passes of exact and bf16; scaled to the whole")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--out", default="", help="file for the cells as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
