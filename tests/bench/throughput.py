"""What a chain gains: each node alone, all by weighted shares, and all by equal shares, on the same hosts.

Run it on the head, with all workers joined and nothing else running:

    python tests/bench/throughput.py --out throughput.json

Throughput is taken from metrics.jsonl after the first steps, in which shares are still being corrected. Prints a table,
writes it as JSON with both ratios: to the sum of what the nodes do alone, and to equal shares.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SETTLED = 12
"""Steps left out at the beginning of every run."""


def main() -> int:
    options = _options()
    nodes = options.nodes.split(",") if options.nodes else ready_nodes()
    epochs = [options.script, "--epochs", str(options.epochs)]
    rows = {f"{node} alone": throughput([*epochs, "--nodes", node]) for node in nodes}
    everyone = [*epochs, "--nodes", ",".join(nodes)]
    together = throughput(everyone)
    equal = throughput([*everyone, "--equal"])
    alone = sum(row["samples_per_second"] for row in rows.values())
    result = {
        "alone": rows,
        "weighted": together,
        "equal": equal,
        "sum_of_alone": alone,
        "weighted_over_sum_of_alone": together["samples_per_second"] / alone,
        "weighted_over_equal": together["samples_per_second"] / equal["samples_per_second"],
    }
    for name, row in [*rows.items(), ("all, weighted shares", together), ("all, equal shares", equal)]:
        print(f"{name:24} {row['samples_per_second']:8.1f} samples/s {row['step_ms']:8.0f} ms a step  {row['shares']}")
    print(f"weighted / sum of alone: {result['weighted_over_sum_of_alone']:.2f}")
    print(f"weighted / equal shares: {result['weighted_over_equal']:.2f}")
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def ready_nodes() -> list[str]:
    """Names of the chain's nodes that can train."""
    (line,) = daisychain("nodes", "--json")
    return [node["name"] for node in line["nodes"] if node["state"] == "ready"]


def throughput(flags: list[str]) -> dict[str, Any]:
    """Run a script with these flags, and measure it once its shares have settled."""
    events = daisychain("run", *flags, "--json", "--headless")
    folder = Path(next(event["folder"] for event in reversed(events) if event["event"] == "finished"))
    lines = lines_of(folder / "metrics.jsonl")
    return over(lines[min(SETTLED, len(lines) // 2) :])


def lines_of(file: Path) -> list[dict[str, Any]]:
    """A file's JSON lines, without one that is still being written; none where there is no file."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def over(settled: list[dict[str, Any]]) -> dict[str, Any]:
    """Throughput over these lines of metrics.jsonl; the first one only says when the others began."""
    seconds = settled[-1]["time"] - settled[0]["time"]
    samples = sum(line["batch"] for line in settled[1:])
    return {
        "samples_per_second": samples / seconds,
        "step_ms": seconds / (len(settled) - 1) * 1000,
        "steps": len(settled) - 1,
        "shares": {name: node["share"] for name, node in settled[-1]["nodes"].items()},
    }


def daisychain(*command: str) -> list[dict[str, Any]]:
    """The events of one command; ends this script with the command's own words when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "daisychain", *command], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"daisychain {' '.join(command)} ended with exit code {done.returncode}: {done.stdout[-1000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", default=str(Path(__file__).with_name("compute_bound.py")))
    parser.add_argument("--nodes", default="", help="names, separated by commas; default: every ready node")
    parser.add_argument("--epochs", type=int, default=5, help="passes of 8 steps each")
    parser.add_argument("--out", default="", help="file for the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
