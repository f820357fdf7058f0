"""Whole chains of real processes, driven only by the command line."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DAISYCHAIN = (sys.executable, "-m", "daisychain")
# what may stay on a host between two tests: its agent, and the child with which that measures the machine's speed
MAY_STAY = ("-m daisychain.agent", "-m daisychain.train.bench")

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
inputs = torch.randn(1000, 20, generator=torch.Generator().manual_seed(1))
targets = inputs @ torch.linspace(-1, 1, 20)[:, None]
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(chain.device)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=96, shuffle=True)
model, optimizer, loader = chain.prepare(model, optimizer, loader)
for epoch in chain.epochs(int(sys.argv[1])):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x.to(chain.device)), y.to(chain.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        chain.log(loss=loss)
        time.sleep(float(sys.argv[2]))
"""

STEADY = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(1000, 20, generator=generator)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(
    nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.1), nn.BatchNorm1d(64), nn.Linear(64, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.7)
loader = DataLoader(TensorDataset(x, y), batch_size=96, shuffle=True)
model, optimizer, loader, scheduler = chain.prepare(model, optimizer, loader, scheduler)
for epoch in chain.epochs(int(sys.argv[1])):
    for x, y in loader:
        if not os.path.exists(sys.argv[3]):
            time.sleep(float(sys.argv[2]))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        chain.log(loss=loss)
chain.save(model)
"""
"""Trains the same way on any chain; takes epochs, a pause before each step in seconds, and the path of a file
with which the pauses end; leaves model.pt."""


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    exit: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """stdout as JSON lines; fails on a line that isn't one with v 1 and an event."""
        found = [json.loads(line) for line in self.out.splitlines()]
        assert all(event["v"] == 1 and event["event"] for event in found), self.out
        return found

    @property
    def last(self) -> dict[str, Any]:
        assert self.out, f"nothing on stdout; stderr: {self.err}"
        return self.events[-1]

    @property
    def reason(self) -> str:
        """The one line on stderr; fails on none, more than one, or a traceback."""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


class Chain:
    """A pretend LAN with daisychain on its hosts; the first host is the head."""

    def __init__(self, lan: Any) -> None:
        self.lan = lan
        self.head, *self.workers = [host.name for host in lan]

    def on(self, host: str, *words: str, timeout: float = 60) -> Said:
        """Run `daisychain WORDS` on a host to its end."""
        try:
            done = self.lan[host].run(*DAISYCHAIN, *words, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            pytest.fail(f"{host}: daisychain {' '.join(words)} took over {timeout} s\n{error.output}\n{error.stderr}")
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, host: str, *words: str, tty: int | None = None) -> Any:
        """Start `daisychain WORDS` on a host; the process's `out` and `err` are files."""
        return self.lan[host].start(*DAISYCHAIN, *words, tty=tty)

    def invite(self, *words: str) -> str:
        """A token."""
        said = self.on(self.head, "invite", "--json", *words)
        assert said.exit == 0, said.err
        return str(said.last["token"])

    def join_all(self) -> None:
        """Every worker joins, and every node is ready."""
        token = self.invite("--uses", str(len(self.workers)))
        for name in self.workers:
            said = self.on(name, "join", self.head, "--token", token, "--headless")
            assert said.exit == 0, said.err
        self.wait_for("ready", within_s=100)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The head's nodes by name."""
        said = self.on(self.head, "nodes", "--json")
        assert said.exit == 0, said.err
        assert len(said.events) == 1
        assert said.last["event"] == "nodes"
        return {node["name"]: node for node in said.last["nodes"]}

    def wait_for(self, state: str, *names: str, within_s: float) -> None:
        """Until the head sees these nodes (all, if none is named) in this state; fails otherwise."""
        wanted = names or (self.head, *self.workers)
        self.until(lambda: all(self.nodes().get(n, {}).get("state") == state for n in wanted), within_s, self.nodes)

    def agent_pid(self, host: str) -> int:
        return int(self.on(host, "status", "--json").last["pid"])

    def write(self, name: str, text: str | bytes, host: str = "") -> str:
        """A file in a host's home; its path."""
        file = self.lan[host or self.head].home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(file)

    def script(self) -> str:
        """A small training script in a folder of its own; takes epochs and a pause after each step in seconds."""
        return self.write("training/train.py", SCRIPT)

    def steps_of(self, run: Any) -> int:
        """Steps so far of a run that was started with --json."""
        lines = run.out.read_text().splitlines()
        return max((json.loads(line).get("step") or 0 for line in lines if line.endswith("}")), default=0)

    def until(self, true: Callable[[], bool], within_s: float, facts: Callable[[], Any] = lambda: "") -> None:
        """Wait for something; fails with `facts` after `within_s` seconds."""
        end = time.monotonic() + within_s
        while not true():
            if time.monotonic() > end:
                pytest.fail(f"not within {within_s} s: {facts()}")
            time.sleep(0.1)

    def ranks(self, host: str = "") -> dict[int, str]:
        """Everything of daisychain's that is more than an agent, on one host or on all."""
        found = (self.lan[host] if host else self.lan).commands()
        return {pid: words for pid, words in found.items() if not any(kind in words for kind in MAY_STAY)}


class Run:
    """A run of STEADY that goes on, and what its folder says of it."""

    STEPS = 11
    """Of one epoch of STEADY."""

    def __init__(self, chain: Any, epochs: int, *words: str, pause: float = 0.1) -> None:
        self.chain = chain
        script = chain.write("steady/train.py", STEADY)
        # all hosts have this machine's files
        self._hurry = chain.lan[chain.head].home / f"hurry-{next(_number)}"
        arguments = ("--anyway", "--headless", "--json", "--", str(epochs), str(pause), str(self._hurry))
        self.process = chain.start(chain.head, "run", script, *words, *arguments)
        chain.until(lambda: self.process.out.read_text().strip() != "", 30, self.process.err.read_text)
        self.folder = Path(json.loads(self.process.out.read_text().splitlines()[0])["folder"])

    def lines(self, name: str) -> list[dict[str, Any]]:
        text = (self.folder / name).read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def steps(self) -> int:
        return len(self.lines("metrics.jsonl"))

    def reach(self, step: int, within_s: float = 60) -> None:
        self.chain.until(lambda: self.steps >= step, within_s, self.said)

    def said(self) -> str:
        return self.process.err.read_text() + "\n".join(map(str, self.lines("events.jsonl")[-8:]))

    def next_step_after(self, do: Callable[[], Any]) -> float:
        """Seconds from the end of `do` until the next step that needs no lost node is applied."""
        do()
        begun, generation = time.monotonic(), self.generation
        self.chain.until(lambda: self.generation > generation, 20, self.said)
        seen = self.steps
        while self.steps == seen:
            assert time.monotonic() < begun + 20, self.said()
            time.sleep(0.01)
        return time.monotonic() - begun

    @property
    def generation(self) -> int:
        return max((line["number"] for line in self.lines("events.jsonl") if line["event"] == "generation"), default=0)

    @property
    def members(self) -> list[str]:
        return [line["nodes"] for line in self.lines("events.jsonl") if line["event"] == "generation"][-1]

    def wait_for_members(self, *names: str, within_s: float = 60) -> None:
        self.chain.until(lambda: sorted(self.members) == sorted(names), within_s, self.said)

    def hurry(self) -> None:
        """No more pauses: what was to be seen was seen."""
        self._hurry.touch()

    def finish(self, epochs: int, wanted: dict[str, Any]) -> None:
        """It ends well, has every step once, and the model is the undisturbed one."""
        self.hurry()
        assert self.process.wait(120) == 0, self.said()
        assert [line["step"] for line in self.lines("metrics.jsonl")] == list(range(1, epochs * self.STEPS + 1))
        self.check(epochs, wanted)

    def check(self, epochs: int, wanted: dict[str, Any]) -> None:
        """The ledger shows each sample once, and the model is the undisturbed one."""
        ledger = json.loads((self.folder / "report.json").read_text())["ledger"]
        assert ledger == f"{epochs} epochs of 1000 samples, each applied exactly once"
        assert self.difference(wanted) <= 1e-5

    def difference(self, wanted: dict[str, Any]) -> float:
        """Largest difference of the saved tensors from those wanted, relative to the largest of each tensor."""
        import torch

        saved = torch.load(self.folder / "model.pt", weights_only=True)
        assert set(saved) == set(wanted)
        floats = [name for name in wanted if wanted[name].is_floating_point()]
        return max(float((saved[k] - wanted[k]).abs().max() / wanted[k].abs().max()) for k in floats)


_open: list[Chain] = []
_number = itertools.count()


@pytest.fixture(scope="module")
def make_chain(lan: Callable[..., Any]) -> Iterator[Callable[..., Chain]]:
    """`make_chain("head:cpu=80", "old:cpu=20")`: hosts with nothing started on them, for the length of a module."""

    def make(*hosts: str) -> Chain:
        _open.append(Chain(lan(*hosts)))
        return _open[-1]

    yield make
    _open.clear()


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[None]:
    """After each test nothing is left on any host but agents."""
    yield
    for chain in _open:
        try:
            chain.until(lambda chain=chain: not chain.ranks(), 10, chain.ranks)
        finally:
            # one test's leftovers are not to fail the next one too
            for pid in chain.ranks():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def metrics() -> Callable[[str], list[dict[str, Any]]]:
    """Reads the metrics.jsonl of a run's folder."""

    def read(folder: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]

    return read


@pytest.fixture
def undisturbed(tmp_path: Path) -> Callable[[int], dict[str, Any]]:
    """The parameters after STEADY alone, under plain python, over so many epochs."""

    def train(epochs: int) -> dict[str, Any]:
        import torch

        (tmp_path / "train.py").write_text(STEADY)
        command = [sys.executable, "train.py", str(epochs), "0", "none"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return dict(torch.load(tmp_path / "model.pt", weights_only=True))

    return train


@pytest.fixture
def begin() -> Callable[..., Run]:
    """`begin(chain, 40)`: STEADY over 40 epochs, with a pause before each step."""
    return Run
