"""How good is the forecast? What was foretold before the first step beside what came, over a grid of chains.

    sudo python tests/bench/forecast.py --out forecast.json
    sudo python tests/bench/forecast.py --hosts three --links 100mbit,wifi

On pretend LANs of two to four hosts of different speeds, on cables of 20 to 1000 Mbit/s and on one Wi-Fi for all, a
dense, a convolutional and a transformer model train with two batch sizes, two of these six jobs on each network in
turn: on the fastest host alone, with the second, the third ..., and with all. From every run with several hosts: the
step that was foretold and the one measured; whether it helps, foretold and measured; and of the set that was foretold
to be the fastest, how much slower it was than the fastest one measured (regret).
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from slow_links import AIR, put_on_air
from throughput import lines_of

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.chain.conftest import Chain
from tests.lan.harness import Lan, Spec

HOSTS = {
    "two": {"head": 80, "mid": 40},
    "three": {"head": 80, "mid": 40, "old": 20},
    "four": {"head": 60, "mid": 40, "old": 20, "nuc": 20},
}
LINKS = ("20mbit", "100mbit", "1000mbit", "wifi")
JOBS = (("mlp", 512), ("cnn", 64), ("transformer", 16), ("mlp", 2048), ("cnn", 256), ("transformer", 64))
GRADIENT_MB = {"mlp": 2.6, "cnn": 0.1, "transformer": 0.45}
SAMPLE_MS = {"mlp": 0.02, "cnn": 0.9, "transformer": 2.0}
"""About, on a whole core: only for how many steps a run is to have."""
SCRIPT = Path(__file__).with_name("kinds.py")
SETTLED = 8
"""Steps left out of what is measured."""
LONG_S = 8.0
FEWEST, MOST = 12, 60
CLEAR = 0.05
"""From which difference on it counts whether the advice was right."""


def main() -> int:
    options = _options()
    jobs = itertools.cycle(JOBS)
    cells: list[dict[str, Any]] = []
    for hosts in options.hosts.split(","):
        alone: dict[tuple[str, int], float] = {}
        for link in options.links.split(","):
            two = [next(jobs) for _ in range(options.jobs)]
            with chain(HOSTS[hosts], link) as lan:
                for job in two:
                    cells.append(cell(lan, hosts, link, job, alone))
                    print(row(cells[-1]), flush=True)
                    if options.out:
                        Path(options.out).write_text(json.dumps(result(cells), indent=1) + "\n", encoding="utf-8")
    print(verdict(result(cells)))
    return 0


@contextmanager
def chain(hosts: dict[str, int], link: str) -> Iterator[Chain]:
    """Such hosts on such a network, joined and measured."""
    rate = "" if link == "wifi" else link
    with Lan([Spec(name, cpu=cpu, rate=rate) for name, cpu in hosts.items()]) as lan:
        if link == "wifi":
            put_on_air(lan)
        made = Chain(lan)
        made.join_all()
        yield made


def cell(
    lan: Chain, hosts: str, link: str, job: tuple[str, int], alone: dict[tuple[str, int], float]
) -> dict[str, Any]:
    """One job on one network: with the fastest host alone, the two fastest, and so on."""
    names = list(HOSTS[hosts])
    if job not in alone:
        alone[job] = train(lan, names[:1], link, job)["measured_ms"]
    runs = {1: {"measured_ms": alone[job]}}
    for count in range(2, len(names) + 1):
        runs[count] = train(lan, names[:count], link, job)
    return {"hosts": hosts, "link": link, "job": f"{job[0]} {job[1]}", "runs": runs}


def steps_of(names: list[str], link: str, job: tuple[str, int]) -> int:
    """As many as take about LONG_S."""
    kind, batch = job
    rate = int((AIR if link == "wifi" else link).removesuffix("mbit")) / 8
    exchanged = 2 * (len(names) - 1) * GRADIENT_MB[kind] / rate / (1 if link == "wifi" else len(names))
    step_s = exchanged + SAMPLE_MS[kind] * batch / 1000
    return SETTLED + max(FEWEST, min(MOST, round(LONG_S / step_s)))


def train(lan: Chain, names: list[str], link: str, job: tuple[str, int]) -> dict[str, Any]:
    """What was foretold and what was measured of one run."""
    kind, batch = job
    steps = steps_of(names, link, job)
    words = ("run", str(SCRIPT), "--nodes", ",".join(names), "--anyway", "--json", "--headless")
    said = lan.on(lan.head, *words, "--", kind, str(batch), str(steps), timeout=600)
    if said.exit:
        sys.exit(f"{words}: {said.err}")
    folder = Path(said.last["folder"])
    lines = lines_of(folder / "metrics.jsonl")
    rest = lines[SETTLED:steps]
    found: dict[str, Any] = {"measured_ms": (rest[-1]["time"] - rest[0]["time"]) / (len(rest) - 1) * 1000}
    for event in lines_of(folder / "events.jsonl"):
        if event["event"] in ("forecast", "trial"):
            found[event["event"]] = {k: v for k, v in event.items() if k not in ("v", "time", "event")}
    found["nodes"] = rest[-1]["nodes"]
    return found


def result(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The cells, and over all their runs with several hosts: errors, right advice, regret."""
    errors, right, clear, regrets = [], 0, 0, []
    for one in cells:
        runs = one["runs"]
        first = runs[1]["measured_ms"]
        for count, run in runs.items():
            if count == 1 or "forecast" not in run:
                continue
            errors.append(abs(run["forecast"]["step_ms"] / run["measured_ms"] - 1))
            truth = first / run["measured_ms"]
            if abs(truth - 1) > CLEAR:
                clear += 1
                right += (run["forecast"]["speedup"] > 1) == (truth > 1)
        whole = runs[max(runs)]
        if "forecast" in whole:
            names = list(HOSTS[one["hosts"]])
            best = set(whole["forecast"]["best"])
            taken = next((n for n in runs if set(names[:n]) == best), None)
            if taken is not None:
                regrets.append(runs[taken]["measured_ms"] / min(run["measured_ms"] for run in runs.values()) - 1)
    ordered = sorted(errors)
    return {
        "runs": len(errors),
        "median_error": median(ordered) if ordered else None,
        "p90_error": ordered[int(0.9 * (len(ordered) - 1))] if ordered else None,
        "advice_right": right,
        "advice_clear": clear,
        "regrets": regrets,
        "cells": cells,
    }


def row(one: dict[str, Any]) -> str:
    """A line of the table."""
    runs = one["runs"]
    parts = [f"{one['hosts']:6} {one['link']:9} {one['job']:15} alone {runs[1]['measured_ms']:7.1f} ms"]
    for count, run in runs.items():
        if count > 1:
            told = run.get("forecast")
            foretold = f"{told['step_ms']:.1f}" if told else "unknown"
            off = f" {told['step_ms'] / run['measured_ms'] - 1:+.0%}" if told else ""
            gain = runs[1]["measured_ms"] / run["measured_ms"]
            said = f", {told['speedup']:.2f}x of {gain:.2f}x" if told else ""
            parts.append(f"{count}: {foretold} of {run['measured_ms']:.1f} ms{off}{said}")
    return " | ".join(parts)


def verdict(found: dict[str, Any]) -> str:
    regrets = found["regrets"] or [0.0]
    return (
        f"{found['runs']} runs: error of the step time {found['median_error']:.1%} (median), {found['p90_error']:.1%} "
        f"(90th percentile); right whether it helps: {found['advice_right']} of {found['advice_clear']} that differ by "
        f"over {CLEAR:.0%}; regret {mean(regrets):.1%} (mean), {max(regrets):.1%} (most)"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default=",".join(HOSTS))
    parser.add_argument("--links", default=",".join(LINKS))
    parser.add_argument("--jobs", type=int, default=2, help="jobs on each network")
    parser.add_argument("--out", default="", help="file for the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
