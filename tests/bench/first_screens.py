"""What a new user sees after `l` and enter when something is wrong: twelve faults, one screen each.

    sudo python tests/bench/first_screens.py --out first_screens.json

Builds a pretend LAN (root, Linux, tmux) with hosts of 80, 40 and 20 per cent of a core, sets a fault up, starts
`daisychain` on the head in a terminal of 80x24, fills in the launch form by keys and waits for a screen that says both
the cause and what to do. Prints that screen, or the last one where none did, and how long it took.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.chain.conftest import Chain
from tests.chain.test_screens import Terminal
from tests.lan.harness import Lan, Spec

HOSTS = (Spec("head", cpu=80), Spec("mid", cpu=40, nic="enp3s0"), Spec("old", cpu=20))
COMPUTE_BOUND = Path(__file__).with_name("compute_bound.py")
JOBS = ("demo", "script", "tabular")
WITHIN_S = 120.0

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
import daisychain
{imports}

chain = daisychain.init()
data = TensorDataset(torch.randn({samples}, {width}), torch.randn({samples}, 1))
model = nn.Sequential(
    nn.Linear({width}, {hidden}), nn.ReLU(), nn.Linear({hidden}, {hidden}), nn.ReLU(), nn.Linear({hidden}, 1)
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader({dataset}, batch_size={batch})
model, optimizer, loader = chain.prepare(model, optimizer, loader)
for epoch in chain.epochs(50):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        chain.log(loss=loss)
"""
USUAL = {
    "imports": "", "samples": 4096, "width": 512, "hidden": 512, "dataset": "data", "batch": 1024,
}  # fmt: skip
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        yield from data
"""
RAISES = COMPUTE_BOUND.read_text(encoding="utf-8").replace(
    "            steps += 1\n", "            steps += 1\n            if steps == 3: raise ValueError('no number 3')\n"
)
TABLE = "age,height,late\n" + "".join(f"{age},{150 + age % 40},{age % 2}\n" for age in range(20, 420))


class Fault(NamedTuple):
    name: str
    tells: tuple[str, ...]
    """Expressions that the screen must match, its lines joined: cause and remedy."""
    fields: dict[str, str]
    """Of the launch form: the job, and what is typed."""
    set_up: Callable[[Chain], contextlib.AbstractContextManager[Any]] = lambda chain: contextlib.nullcontext()
    then: Callable[[Chain], None] = lambda chain: None
    """What happens once the form is filled in."""


def main() -> int:
    options = _options()
    rows: list[dict[str, Any]] = []
    with Lan(HOSTS) as lan:
        if lan.without:
            sys.exit(lan.without)
        chain = Chain(lan)
        chain.join_all()
        for fault in faults(chain):
            if re.search(options.only, fault.name):
                rows.append(see(chain, fault))
                print(f"\n--- {fault.name}: {'told' if rows[-1]['told'] else 'NOT TOLD'} after {rows[-1]['seconds']} s")
                print(rows[-1]["screen"], flush=True)
    print(f"\n{sum(row['told'] for row in rows)} of {len(rows)} faults were told with cause and remedy")
    if options.out:
        Path(options.out).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def faults(chain: Chain) -> list[Fault]:
    def script(name: str, **changes: Any) -> dict[str, str]:
        return {"job": "script", "path": chain.write(f"{name}/train.py", TRAIN.format_map(USUAL | changes))}

    table = chain.write("table.csv", TABLE)
    usual = script("usual")
    large = {"hidden": 3900, "width": 64, "batch": 64}  # 64 MB
    return [
        Fault("a firewall on the head", ("can't reach head", "ufw allow"), usual, lambda c: closed(c, "head")),
        Fault("a firewall on a worker", ("can't reach mid", "ufw allow"), usual, lambda c: closed(c, "mid")),
        Fault("a hole for large packets", ("large ones", "mtu 1500"), usual, large_packets_stuck),
        Fault("another torch on a worker", ("mid", "torch==?"), usual, lambda c: other_torch(c, "mid")),
        Fault(
            "a module that isn't there",
            ("nosuchmodule", "pip install"),
            script("module", imports="import nosuchmodule"),
        ),
        Fault(
            "a dataset without length",
            ("IterableDataset|Stream", "train.py"),
            script("stream", dataset="Stream()", imports=STREAM),
        ),
        Fault(
            "a script that raises",
            ("no number 3", r"raises\.py:\d+", "Correct the script"),
            {"job": "script", "path": chain.write("raises.py", RAISES)},
        ),
        Fault("data that isn't there", ("weather.csv", "Check the path"), {**usual, "data": "weather.csv"}),
        Fault(
            "a column that isn't there",
            ("'lat'", "age, height, late"),
            {"job": "tabular", "path": table, "target": "lat"},
        ),
        Fault(
            "a large model on a slow link",
            ("slower than head alone", "--nodes head|--sync local"),
            script("large", **large),
            lambda c: links(c, "20mbit"),
        ),
        Fault(
            "a worker that was switched off",
            ("mid can't be reached", "Start daisychain there"),
            {**usual, "nodes": "head, mid"},
            lambda c: killed(c, "mid"),
        ),
        Fault(
            "a cable pulled before enter",
            ("old", "cable"),
            usual,
            lambda c: mended(c, "old"),
            lambda c: c.lan["old"].cut(),
        ),
    ]


def see(chain: Chain, fault: Fault) -> dict[str, Any]:
    """The first screen that tells the fault, or the last one."""
    with fault.set_up(chain):
        terminal = Terminal(chain.lan["head"])
        try:
            fill_in(terminal, fault.fields)
            fault.then(chain)
            terminal.press("Enter")
            began_s = time.monotonic()
            while True:
                screen = terminal.shows()
                told = all(re.search(wanted, joined(screen)) for wanted in fault.tells)
                if told or time.monotonic() - began_s > WITHIN_S:
                    break
                time.sleep(0.2)
        finally:
            terminal.hang_up()
        run = chain.on("head", "status", "--json").last["run"] or {}
        if run and run["phase"] not in ("finished", "failed", "stopped"):
            chain.on("head", "stop")
    seconds = round(time.monotonic() - began_s, 1)
    return {"fault": fault.name, "told": told, "seconds": seconds, "screen": screen.rstrip()}


def joined(screen: str) -> str:
    """A screen's text as one line, without the frames around it."""
    return re.sub(r"\s+", " ", re.sub(r"[─-╿▀-▟]", " ", screen))


def fill_in(terminal: Terminal, fields: dict[str, str]) -> None:
    def wait_for(text: str) -> None:
        until_s = time.monotonic() + 20
        while text not in terminal.shows():
            if time.monotonic() > until_s:
                sys.exit(f"the screen never showed {text!r}:\n{terminal.shows()}")
            time.sleep(0.1)

    job, *typed = fields
    wait_for("l launch")
    terminal.press("l")
    wait_for("tab: next field")
    for _ in range(JOBS.index(fields[job])):
        terminal.press("Right")
        time.sleep(0.4)
    order = {"script": ("path", "data", "args", "nodes"), "tabular": ("path", "target", "nodes")}[fields[job]]
    for name in order[: max(order.index(name) for name in typed) + 1]:
        terminal.press("Tab")
        time.sleep(0.4)
        if name in typed:
            terminal._tmux("send-keys", "-l", fields[name])
            time.sleep(0.4)


# --- faults ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def closed(chain: Chain, host: str) -> Iterator[None]:
    chain.lan[host].let_in(47632)
    try:
        yield
    finally:
        chain.lan[host].open_up()


@contextlib.contextmanager
def large_packets_stuck(chain: Chain) -> Iterator[None]:
    def ip(host: Any, *words: str) -> None:
        subprocess.run(["ip", "-n", host.space, "link", "set", host.nic, *words], check=True)

    for host in chain.lan:
        # the switch stays at 1500; one segment at a time, for it lets large bundles of them pass
        ip(host, "mtu", "9000", "gso_max_segs", "1")
    try:
        yield
    finally:
        for host in chain.lan:
            ip(host, "mtu", "1500", "gso_max_segs", "65535")


@contextlib.contextmanager
def links(chain: Chain, rate: str) -> Iterator[None]:
    for host in chain.lan:
        host.set_rate(rate)
    try:
        yield
    finally:
        for host in chain.lan:
            host.set_rate("")


@contextlib.contextmanager
def back_afterwards(chain: Chain, host: str) -> Iterator[None]:
    try:
        yield
    finally:
        said = chain.on(host, "join", chain.head, "--token", chain.invite(), "--headless")
        if said.exit:
            sys.exit(said.err)
        chain.wait_for("ready", within_s=60)


@contextlib.contextmanager
def other_torch(chain: Chain, host: str) -> Iterator[None]:
    file = Path(
        chain.write("older/torch-2.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0\n")
    )
    with back_afterwards(chain, host):
        os.environ["PYTHONPATH"] = str(file.parents[1])
        try:
            chain.on(host, "agent", "stop")
            chain.on(host, "join", chain.head, "--token", chain.invite(), "--headless")
            yield
        finally:
            del os.environ["PYTHONPATH"]
            chain.on(host, "agent", "stop")


@contextlib.contextmanager
def killed(chain: Chain, host: str) -> Iterator[None]:
    with back_afterwards(chain, host):
        os.kill(chain.agent_pid(host), signal.SIGKILL)
        time.sleep(1)
        yield


@contextlib.contextmanager
def mended(chain: Chain, host: str) -> Iterator[None]:
    try:
        yield
    finally:
        chain.lan[host].mend()
        chain.wait_for("ready", within_s=60)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="an expression for the names of the faults")
    parser.add_argument("--out", default="", help="file for the screens as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
