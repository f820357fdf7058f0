"""What the chain costs: against a plain loop, and of a step of 50 ms. Nothing else should run meanwhile.

    python tests/bench/overhead.py --out overhead.json

alone: the same loop in one process, step by step in turn, plain and prepared by a chain that nobody else is in.
one node: the same inside a rank as an agent starts it, a chain of one. Both as a ratio of medians.
two nodes: processor time of our own code in a step of two ranks on loopback: by counters around everything that a
script's loop calls; what the head's agent does with the reports is measured apart. Optimizers stay as they are.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

STEP_S = 0.05
WARM = 10
MODELS = {
    "small": (20, 64, False), "middle": (128, 512, False), "noisy": (128, 512, True), "large": (256, 1024, False)
}  # fmt: skip
"""Features, width, and whether there are layers whose results depend on the whole batch or on random numbers."""


def main() -> int:
    options = _options()
    if options.inside:
        INSIDE[options.inside](options)
        return 0
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in MODELS:
            flags = ["--size", size, "--steps", str(options.steps)]
            result[f"alone, {size}"] = alone(Path(folder), flags)
            result[f"one node, {size}"] = ranks(Path(folder), 1, "compare", flags)[0]
        result["two nodes"] = ranks(Path(folder), 2, "count", ["--steps", str(options.steps // 3)])[0]
    result["head's agent"] = {"us": agent_us(nodes=4)}
    show(result)
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def show(result: dict[str, Any]) -> None:
    for name, row in result.items():
        if "ratio" in row:
            print(
                f"{name:22} plain {row['plain_ms']:8.3f} ms  chain {row['chain_ms']:8.3f} ms  {row['ratio'] - 1:+7.1%}"
            )
    print("processor time of a step, two ranks:")
    rows = {**result["two nodes"]["us"], "head's agent, four nodes": result["head's agent"]["us"]}
    for name, us in sorted(rows.items(), key=lambda row: -row[1]):
        print(f"  {name:30} {us:8.1f} us")
    own_us = result["own_us"] = sum(rows.values())
    print(f"  {'all':30} {own_us:8.1f} us, {own_us / 1e6 / STEP_S:.2%} of {STEP_S * 1000:.0f} ms")
    for name, us in result["two nodes"]["copies_us"].items():
        print(f"  beside it: {name:25} {us:8.1f} us")


# --- processes --------------------------------------------------------------------------------------------


def alone(folder: Path, flags: Sequence[str]) -> dict[str, Any]:
    out = folder / "alone.json"
    command = [sys.executable, __file__, "--inside", "compare", "--out", str(out), *flags]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return dict(json.loads(out.read_text(encoding="utf-8")))


def ranks(folder: Path, size: int, inside: str, flags: Sequence[str]) -> list[dict[str, Any]]:
    """Run this file in ranks that are ordered about as an agent does it; what each has left behind."""
    work = Path(tempfile.mkdtemp(dir=folder))
    (work / "bench.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    names, ports = [f"n{rank}" for rank in range(size)], [0] * size
    processes, threads = [], []
    waiting = threading.Barrier(size)
    for rank in range(size):
        out = str(work / f"{rank}.json")
        task = {
            "rank": rank, "names": names, "script": "bench.py", "threads": 1, "output": str(work),
            "args": ["--inside", inside, "--out", out, *flags], "settings": {"tune": False, "rebalance": False},
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "daisychain.train.rank"], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        processes.append(process)
        order(process, task)
        threads.append(threading.Thread(target=conduct, args=(process, rank, names, ports, waiting)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return [json.loads((work / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]


def order(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def conduct(
    process: "subprocess.Popen[bytes]", rank: int, names: list[str], ports: list[int], waiting: threading.Barrier
) -> None:
    """Follow one rank; all form the only generation once each has said that it waits, and leave when all are done."""
    assert process.stdout is not None
    for line in process.stdout:
        report = json.loads(line)
        match report["kind"]:
            case "waiting":
                ports[rank] = report["port"]
                waiting.wait()
                formation = {"generation": 1, "rank": rank, "names": names, "address": "127.0.0.1", "port": ports[0]}
                order(process, {"kind": "form", "formation": formation})
            case "done":
                waiting.wait()
                order(process, {"kind": "leave"})
            case "error":
                print(report, file=sys.stderr)
                waiting.abort()
    process.wait()


# --- inside a rank or a plain process -----------------------------------------------------------------------


def training(size: str, samples: int, batch: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """A model with what a forward pass may change, its optimizer, and a loader that a chain takes as it is."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset[Any]):
        def __init__(self, x: Any, y: Any) -> None:
            self.x, self.y = x, y

        def __len__(self) -> int:
            return len(self.x)

        def __getitems__(self, rows: list[int]) -> Any:
            return self.x[rows], self.y[rows]

    features, width, noisy = MODELS[size]
    torch.manual_seed(seed)
    inner = [nn.BatchNorm1d(width), nn.Dropout(0.1)] if noisy else []
    model = nn.Sequential(
        nn.Linear(features, width), nn.ReLU(), *inner, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    x = torch.randn(samples, features)
    loader = DataLoader(Rows(x, x.sum(1, keepdim=True)), batch_size=batch, shuffle=True, collate_fn=_as_it_is)
    return model, torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), loader


def _as_it_is(batch: Any) -> Any:
    return batch


def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    import torch

    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def timed(loader: Any, model: Any, optimizer: Any, log: Callable[..., object] | None, epochs: Any) -> Iterator[float]:
    """Seconds of each step, measured from the end of the last to its own."""
    for _ in epochs:
        batches = iter(loader)
        while True:
            begun = time.process_time()
            batch = next(batches, None)
            if batch is None:
                break
            loss = step(model, optimizer, *batch)
            if log is not None:
                log(loss=loss)
            yield time.process_time() - begun


def compare(options: argparse.Namespace) -> None:
    """Plain and chained steps in turn."""
    import torch

    import daisychain

    chain = daisychain.init()
    torch.set_num_threads(1)
    steps = options.steps
    batch = 256
    plain, optimizer, loader = training(options.size, batch * 50, batch)
    one = timed(loader, plain, optimizer, None, range(1_000_000))
    other_model, other_optimizer, other_loader = chain.prepare(*training(options.size, batch * 50, batch))
    other = timed(other_loader, other_model, other_optimizer, chain.log, chain.epochs(1_000_000))
    pairs = [(next(one), next(other)) if at % 2 else (next(other), next(one))[::-1] for at in range(steps + WARM)]
    plain_s, chain_s = (median(times) for times in zip(*pairs[WARM:], strict=True))
    row = {"plain_ms": plain_s * 1000, "chain_ms": chain_s * 1000, "ratio": chain_s / plain_s, "steps": steps}
    Path(options.out).write_text(json.dumps(row), encoding="utf-8")
    other.close()


class Counters:
    """Processor time of this thread inside functions, each without the ones that it calls of the same kind."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inside: list[float] = []

    def watch(self, owner: Any, name: str, label: str) -> None:
        setattr(owner, name, self._counted(getattr(owner, name), label))

    def less(self) -> dict[str, float]:
        """Seconds without what counting itself takes, measured on a function that does nothing."""
        empty = self._counted(lambda: None, "")
        calls = dict(self.calls)
        self.seconds[""] = 0.0
        for _ in range(2000):
            empty()
        inside_s = self.seconds.pop("") / 2000
        return {label: seconds - calls[label] * inside_s for label, seconds in self.seconds.items()}

    def _counted(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **more: Any) -> Any:
            self._inside.append(0.0)
            self.calls[label] += 1
            begun = time.thread_time()
            try:
                return function(*args, **more)
            finally:
                spent = time.thread_time() - begun
                self.seconds[label] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        return counted


def count(options: argparse.Namespace) -> None:
    """Steps of two ranks, each filled up to STEP_S by doing nothing."""
    import torch

    import daisychain

    counters = Counters()
    watch(counters)
    chain = daisychain.init()
    torch.set_num_threads(1)
    model, optimizer, loader = chain.prepare(*training("middle", 256 * 25, 256))
    steps = timed(loader, model, optimizer, chain.log, chain.epochs(1_000_000))
    for _ in range(WARM):
        next(steps)
    counters.seconds.clear()
    counters.calls.clear()
    for _ in range(options.steps):
        time.sleep(max(0.0, STEP_S - next(steps)))
    us = {name: seconds / options.steps * 1e6 for name, seconds in counters.less().items()}
    us["weighting"] = weighting_us(model)
    us["heartbeats"] = beat_us() * STEP_S
    copies = {name: us.pop(name) for name in COPIES}
    Path(options.out).write_text(json.dumps({"us": us, "copies_us": copies, "steps": options.steps}), encoding="utf-8")
    steps.close()


COPIES = ("gradients into buckets", "gradients out of buckets", "sums over all ranks")
"""Any data-parallel training has these; what weights add is apart."""


def watch(counters: Counters) -> None:
    from daisychain.train import api, batches, steps
    from daisychain.train.exchange import Exchange
    from daisychain.train.reducer import Bucket, Reducer

    for name in ("begin", "take", "end", "log", "ready", "reduced", "bulletin", "posted"):
        counters.watch(steps.Steps, name, f"steps.{name}")
    counters.watch(steps, "digest", "comparing parameters")
    counters.watch(batches, "piece", "cutting batches")
    counters.watch(batches, "order", "order of an epoch")
    counters.watch(Reducer, "lay_out", "reducer.lay_out")
    counters.watch(Reducer, "_ready", "reducer._ready")
    counters.watch(Bucket, "fill", COPIES[0])
    counters.watch(Bucket, "hand_out", COPIES[1])
    counters.watch(Exchange, "start", COPIES[2])
    counters.watch(Exchange, "finish", COPIES[2])
    counters.watch(api.Process, "tell", "reports")


def weighting_us(model: Any) -> float:
    """What filling a model's buckets with weighted gradients takes longer than filling them with plain ones."""
    import torch

    from daisychain.train.reducer import Bucket

    bucket = Bucket([p for p in model.parameters() if p.grad is not None], 0)

    def weighted() -> None:
        bucket.fill(0.3)

    def plain() -> None:
        torch._foreach_copy_(bucket.views, [p.grad for p in bucket.parameters])

    return max(0.0, fastest_us(weighted) - fastest_us(plain))


def fastest_us(function: Callable[[], object], rounds: int = 200) -> float:
    spent = []
    for _ in range(rounds):
        begun = time.thread_time()
        function()
        spent.append(time.thread_time() - begun)
    return median(spent) * 1e6


def beat_us() -> float:
    """A heartbeat's processor time; there is one a second."""
    from daisychain.train import reports

    read, write = os.pipe()
    tell = reports.Writer(write)
    us = fastest_us(lambda: tell(reports.beat()))
    os.close(read)
    os.close(write)
    return us


def agent_us(nodes: int) -> float:
    """Processor time of the head's agent for the reports of one step of all nodes: read, add up, write down."""
    from daisychain.facts import RunSpec
    from daisychain.run.folder import RunFolder
    from daisychain.run.lifecycle import Tracker
    from daisychain.train import reports

    names = [f"n{seat}" for seat in range(nodes)]
    spec = RunSpec(job="script", target="bench.py")
    shares = [64] * nodes

    def lines(number: int) -> list[str]:
        report = reports.step(
            number=number, generation=1, epoch=0, index=number - 1, first=256 * (number - 1), digest=2**60 + number,
            batch=64 * nodes, share=64, shares=shares, compute_ms=45.123, exposed_ms=3.21, step_ms=50.1, loss=0.123,
            logged={},
        )  # fmt: skip
        return [json.dumps(report)] * nodes

    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        tracker = Tracker(run="run", name="bench", folder=str(folder.path), spec=spec, now_s=0.0)
        tracker.seat(names)
        tracker.form(1, tuple(range(nodes)), 0)
        spent = []
        for number in range(1, 401):
            said = lines(number)
            begun = time.thread_time()
            for seat, text in enumerate(said):
                line = tracker.report(seat, json.loads(text), number * STEP_S)
                if line is not None:
                    folder.metric(line)
            spent.append(time.thread_time() - begun)
        folder.close()
    return median(spent) * 1e6


INSIDE = {"compare": compare, "count": count}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--size", choices=sorted(MODELS), default="middle")
    parser.add_argument("--inside", choices=sorted(INSIDE), help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help="file for the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
