"""Do shares make the most of unequal machines, and follow when one slows down?

    sudo python tests/bench/balance.py --out balance.json

On a pretend LAN with hosts of 80, 40 and 20 per cent of a core: each alone, all together (the median of several
runs) as a part of the sum of the three, and how much of a step the nodes wait for each other. Then one long run, in
which `mid` falls to 15 per cent: throughput against the new sum, by the number of steps since, and every later change
of the shares.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from compute_bound import SAMPLES
from throughput import SETTLED, lines_of, over

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.chain.conftest import Chain
from tests.lan.harness import Lan, Spec

HOSTS = (Spec("head", cpu=80), Spec("mid", cpu=40), Spec("old", cpu=20))
SCRIPT = Path(__file__).with_name("compute_bound.py")
SLOWED, TO = "mid", 15.0
RUN_S = 900.0
SLOW_AFTER = 40
"""Steps of the long run."""
WINDOW = 20
"""Steps over which the throughput after the change is taken."""


def main() -> int:
    options = _options()
    with Lan(HOSTS) as lan:
        chain = Chain(lan)
        chain.join_all()
        alone = {name: over(train(chain, 8, options.batch, name)[2:]) for name in (chain.head, *chain.workers)}
        together = [settled(train(chain, SETTLED + 24, options.batch)) for _ in range(options.runs)]
        rates = {name: row["samples_per_second"] for name, row in alone.items()}
        result: dict[str, Any] = {
            "alone": alone,
            "together": together,
            "over_sum_of_alone": median(row["samples_per_second"] for row in together) / sum(rates.values()),
            "wait": {name: median(row["wait"][name] for row in together) for name in rates},
        }
        show(result)
        result["slowed"] = slow_down(chain, alone, options.batch)
    show_slowed(result["slowed"])
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def command(steps: int, batch: int) -> tuple[str, ...]:
    epochs = steps * batch // SAMPLES
    return "run", str(SCRIPT), "--epochs", str(epochs), "--batch", str(batch), "--json", "--headless"


def train(chain: Chain, steps: int, batch: int, *nodes: str) -> list[dict[str, Any]]:
    """The metrics of a run over so many steps."""
    words = ("--nodes", ",".join(nodes)) if nodes else ()
    said = chain.on(chain.head, *command(steps, batch), *words, timeout=RUN_S)
    assert said.exit == 0, said.err
    return lines_of(Path(said.last["folder"]) / "metrics.jsonl")


def settled(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Throughput and waiting after the first steps, in which the shares are still being corrected."""
    rest = lines[SETTLED:]
    return {**over(rest), "wait": {name: waiting(rest, name) for name in rest[-1]["nodes"]}}


def waiting(lines: Sequence[dict[str, Any]], name: str) -> float:
    """The part of these steps for which a node waited for others."""
    return mean(line["nodes"][name]["wait_ms"] or 0.0 for line in lines) / mean(line["step_ms"] for line in lines)


def slow_down(chain: Chain, alone: dict[str, dict[str, Any]], batch: int) -> dict[str, Any]:
    """A run during which a node loses speed."""
    process = chain.start(chain.head, *command(SLOW_AFTER + 80, batch))
    chain.until(lambda: process.out.read_text().strip() != "", 30, process.err.read_text)
    metrics = Path(json.loads(process.out.read_text().splitlines()[0])["folder"]) / "metrics.jsonl"
    chain.until(lambda: len(lines_of(metrics)) >= SLOW_AFTER, RUN_S)
    chain.lan[SLOWED].set_cpu(TO)
    at = len(lines_of(metrics))
    assert process.wait(RUN_S) == 0, process.err.read_text()
    lines = lines_of(metrics)
    factor = TO / next(spec.cpu for spec in HOSTS if spec.name == SLOWED)
    best = sum(row["samples_per_second"] * (factor if name == SLOWED else 1) for name, row in alone.items())
    after = lines[at:]
    starts = range(0, len(after) - WINDOW, 5)
    shares = [tuple(node["share"] for node in line["nodes"].values()) for line in after]
    changes = [
        {"steps_since": number, "shares": now, "of_a_share": most(before, now)}
        for number, (before, now) in enumerate(itertools.pairwise(shares), 1)
        if now != before and sum(now) == sum(before)
    ]
    over_best = {start: over(after[start : start + WINDOW + 1])["samples_per_second"] / best for start in starts}
    return {"at_step": at, "over_new_sum": over_best, "shares": [shares[0], shares[-1]], "changes": changes}


def most(before: Sequence[int], now: Sequence[int]) -> float:
    """The largest change of a share, as a part of it."""
    return max(abs(new - old) / max(old, 1) for old, new in zip(before, now, strict=True))


def show(result: dict[str, Any]) -> None:
    for name, row in result["alone"].items():
        print(f"{name:10} alone {row['samples_per_second']:8.1f} samples/s {row['step_ms']:8.0f} ms a step")
    for row in result["together"]:
        rate, step_ms, shares = row["samples_per_second"], row["step_ms"], list(row["shares"].values())
        print(f"together         {rate:8.1f} samples/s {step_ms:8.0f} ms a step  {shares}")
    print(f"median over the sum of alone: {result['over_sum_of_alone']:.3f}")
    print("waiting: " + ", ".join(f"{name} {part:.1%}" for name, part in result["wait"].items()), flush=True)


def show_slowed(slowed: dict[str, Any]) -> None:
    print(f"{SLOWED} falls to {TO:.0f} % after step {slowed['at_step']}: shares {slowed['shares']}")
    for start, part in slowed["over_new_sum"].items():
        print(f"  steps {start:3} to {start + WINDOW:3} after it: {part:.3f} of the new sum")
    for change in slowed["changes"]:
        since, part = change["steps_since"], change["of_a_share"]
        print(f"  {since:3} steps after it {change['shares']}, a change of {part:.1%} of a share")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of all together")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--out", default="", help="file for the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
