"""Twenty random faults in a run of five minutes on the pretend LAN: does it finish, with every sample applied once?

    sudo python tests/bench/faults.py --seed 1 --out faults.json

Kills ranks and agents, freezes ranks, pulls cables, changes CPU speeds, now and then two at once;
never the head's agent.
Prints each fault with the seconds until the next step, and at the end the ledger's verdict and the largest difference
of the parameters from those of an undisturbed run on one machine.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.chain.conftest import STEADY, Chain, Run
from tests.lan.harness import Lan, Spec

HOSTS = (Spec("head", cpu=80), Spec("mid", cpu=40, nic="enp3s0"), Spec("old", cpu=30))
FIRST_FAULT_STEP = 20
PAUSE_S = 0.1


def main() -> int:
    options = _options()
    epochs = max(1, round(options.minutes * 60 / PAUSE_S / Run.STEPS))
    with Lan(HOSTS) as lan:
        chain = Chain(lan)
        chain.join_all()
        run = Run(chain, epochs, pause=PAUSE_S)
        run.reach(FIRST_FAULT_STEP)
        faults = disturb(run, random.Random(options.seed), options.faults, options.minutes * 60 * 0.9)
        code = run.process.wait(options.minutes * 60 + 300)
        report = json.loads((run.folder / "report.json").read_text())
        wanted = undisturbed(epochs)
        found = run.difference(wanted) if code == 0 else None
        result = {
            "seed": options.seed, "exit": code, "steps": len(run.lines("metrics.jsonl")), "epochs": epochs,
            "generations": run.generation, "ledger": report["ledger"], "difference": found, "faults": faults,
            "events": [line for line in run.lines("events.jsonl") if line["event"] in ("generation", "waiting")],
        }  # fmt: skip
    print(f"exit {code} after {result['steps']} steps and {result['generations']} generations")
    print(f"ledger: {report['ledger']}")
    print(f"largest relative difference from an undisturbed run: {found}")
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if code == 0 and found is not None and found <= 1e-5 else 1


def disturb(run: Run, chance: random.Random, count: int, seconds: float) -> list[dict[str, Any]]:
    """So many faults, spread evenly over so many seconds; what was done when, and what it cost."""
    begun, told = time.monotonic(), []
    for number in range(count):
        until = begun + seconds * (number + chance.random()) / count
        time.sleep(max(0.0, until - time.monotonic()))
        name, do, heal = fault(run.chain, chance)
        at_s = time.monotonic() - begun
        do()
        cost_s = until_next_step(run)
        time.sleep(chance.uniform(0, 3))
        heal()
        told.append({"at_s": round(at_s, 1), "fault": name, "next_step_s": round(cost_s, 2)})
        print(f"{at_s:6.1f} s  {name:32} next step after {cost_s:5.2f} s", flush=True)
    return told


def until_next_step(run: Run) -> float:
    """Seconds until a step later than the one that may just have been under way is applied."""
    begun, seen = time.monotonic(), run.steps
    while run.steps < seen + 2 and run.process.poll() is None and time.monotonic() < begun + 60:
        time.sleep(0.02)
    return time.monotonic() - begun


def fault(chain: Chain, chance: random.Random) -> tuple[str, Callable[[], None], Callable[[], None]]:
    """A name, what to do, and how to make it good again."""
    kind = chance.choice(
        ["kill rank", "kill rank", "kill agent", "freeze rank", "cut cable", "change speed", "two ranks"]
    )
    host = chance.choice([chain.head, *chain.workers] if "rank" in kind else chain.workers)
    worker = chain.lan[host]

    def send(what: signal.Signals, *hosts: str) -> None:
        for name in hosts:
            with contextlib.suppress(StopIteration, ProcessLookupError):
                os.kill(rank_of(chain, name), what)

    def nothing() -> None:
        pass

    match kind:
        case "kill rank":
            return f"kill the rank on {host}", lambda: send(signal.SIGKILL, host), nothing
        case "two ranks":
            two = chance.sample([chain.head, *chain.workers], 2)
            return f"kill the ranks on {two[0]}, {two[1]}", lambda: send(signal.SIGKILL, *two), nothing
        case "kill agent":
            return (
                f"kill the agent on {host}",
                lambda: os.kill(chain.agent_pid(host), signal.SIGKILL),
                lambda: chain.on(host, "join", "--headless") and None,
            )
        case "freeze rank":
            return f"freeze the rank on {host}", lambda: send(signal.SIGSTOP, host), lambda: send(signal.SIGCONT, host)
        case "cut cable":
            return f"cut the cable of {host}", worker.cut, worker.mend
        case _:
            percent = chance.choice([15, 30, 60])
            return f"{host} at {percent} % of a core", lambda: worker.set_cpu(percent), nothing


def rank_of(chain: Chain, host: str) -> int:
    """The process of a host's rank."""
    return next(pid for pid, words in chain.lan[host].commands().items() if "train.rank" in words)


def undisturbed(epochs: int) -> dict[str, torch.Tensor]:
    """The parameters after the script alone, under plain python."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(STEADY)
        command = [sys.executable, "train.py", str(epochs), "0", "none"]
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return dict(torch.load(Path(folder) / "model.pt", weights_only=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", default="", help="file for the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
