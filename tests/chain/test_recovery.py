"""Losing nodes in the middle of a run: killed, frozen, cut off; and the head itself. Real processes, killed for real."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.lan, pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(1000, 20, generator=generator)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.7)
loader = DataLoader(TensorDataset(x, y), batch_size=96, shuffle=True)
model, optimizer, loader, scheduler = chain.prepare(model, optimizer, loader, scheduler)
for epoch in chain.epochs(int(sys.argv[1])):
    for x, y in loader:
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
STEPS = 11
"""Of one epoch."""


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """Three hosts, joined and measured."""
    made = make_chain("head:cpu=80", "mid:cpu=40:nic=enp3s0", "old:cpu=30")
    token = made.invite("--uses", "2")
    for name in made.workers:
        assert made.on(name, "join", made.head, "--token", token, "--headless").exit == 0
    made.wait_for("ready", within_s=100)
    return made


@pytest.fixture
def undisturbed(tmp_path: Path) -> Callable[[int], dict[str, torch.Tensor]]:
    """The parameters after the script alone, under plain python, over so many epochs."""

    def train(epochs: int) -> dict[str, torch.Tensor]:
        (tmp_path / "train.py").write_text(SCRIPT)
        command = [sys.executable, "train.py", str(epochs), "0"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return dict(torch.load(tmp_path / "model.pt", weights_only=True))

    return train


class Run:
    """A run that goes on, and what its folder says of it."""

    def __init__(self, chain: Any, *words: str) -> None:
        self.chain = chain
        self.process = chain.start(chain.head, "run", *words)
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

    def finish(self, epochs: int, wanted: dict[str, torch.Tensor]) -> None:
        """It ends well, has every step once, and the model is the undisturbed one."""
        assert self.process.wait(120) == 0, self.said()
        assert [line["step"] for line in self.lines("metrics.jsonl")] == list(range(1, epochs * STEPS + 1))
        assert json.loads((self.folder / "report.json").read_text())["ledger"] == (
            f"{epochs} epochs of 1000 samples, each applied exactly once"
        )
        assert difference(self.folder / "model.pt", wanted) <= 1e-5


def difference(file: Path, wanted: dict[str, torch.Tensor]) -> float:
    """Largest difference of saved tensors from those wanted, relative to the largest of each tensor."""
    saved = torch.load(file, weights_only=True)
    assert set(saved) == set(wanted)
    floats = [name for name in wanted if wanted[name].is_floating_point()]
    return max(float((saved[k] - wanted[k]).abs().max() / wanted[k].abs().max()) for k in floats)


def rank_of(chain: Any, host: str) -> int:
    return next(pid for pid, words in chain.lan[host].commands().items() if "train.rank" in words)


def begin(chain: Any, epochs: int, pause: float = 0.1) -> Run:
    script = chain.write("recovery/train.py", SCRIPT)
    return Run(chain, script, "--headless", "--json", "--", str(epochs), str(pause))


def test_a_killed_rank_costs_a_second_and_comes_back(chain: Any, undisturbed: Callable[..., Any]) -> None:
    run = begin(chain, 40)
    run.reach(10)
    pid = rank_of(chain, "mid")
    assert run.next_step_after(lambda: os.kill(pid, signal.SIGKILL)) < 1
    assert sorted(run.members) == ["head", "old"]
    run.wait_for_members("head", "mid", "old", within_s=30)
    pid = rank_of(chain, "head")
    assert run.next_step_after(lambda: os.kill(pid, signal.SIGKILL)) < 1
    run.finish(40, undisturbed(40))


def test_a_killed_agent_takes_its_rank_along_and_both_come_back(chain: Any, undisturbed: Callable[..., Any]) -> None:
    run = begin(chain, 60)
    run.reach(10)
    agent = chain.agent_pid("old")
    assert run.next_step_after(lambda: os.kill(agent, signal.SIGKILL)) < 1
    assert sorted(run.members) == ["head", "mid"]
    assert chain.on("old", "join", "--headless").exit == 0
    run.wait_for_members("head", "mid", "old", within_s=60)
    both = (chain.agent_pid("mid"), rank_of(chain, "mid"))
    assert run.next_step_after(lambda: [os.kill(pid, signal.SIGKILL) for pid in both]) < 1
    assert chain.on("mid", "join", "--headless").exit == 0
    run.finish(60, undisturbed(60))
    chain.wait_for("ready", within_s=100)


def test_a_frozen_rank_is_left_behind_and_goes_on_where_the_others_are(
    chain: Any, undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 30)
    run.reach(10)
    pid = rank_of(chain, "old")
    assert run.next_step_after(lambda: os.kill(pid, signal.SIGSTOP)) < 8
    assert sorted(run.members) == ["head", "mid"]
    os.kill(pid, signal.SIGCONT)
    run.wait_for_members("head", "mid", "old", within_s=5)
    run.finish(30, undisturbed(30))


def test_a_pulled_cable_is_noticed_and_the_node_is_in_again_once_it_is_back(
    chain: Any, undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 40)
    run.reach(10)
    assert run.next_step_after(chain.lan["mid"].cut) < 8
    assert sorted(run.members) == ["head", "old"]
    chain.lan["mid"].mend()
    run.wait_for_members("head", "mid", "old", within_s=5)
    run.finish(40, undisturbed(40))
    chain.wait_for("ready", within_s=20)


def test_when_the_head_is_killed_the_workers_stop_and_two_nodes_resume_at_the_very_sample(
    chain: Any, undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 20)
    run.reach(30)
    for pid in (chain.agent_pid("head"), rank_of(chain, "head")):
        os.kill(pid, signal.SIGKILL)
    chain.until(lambda: not chain.ranks("mid") and not chain.ranks("old"), 10, chain.ranks)
    assert run.process.wait(30) != 0
    reached = run.steps
    said = chain.on("head", "status")
    assert said.exit == 0, (chain.lan["head"].home / ".local/state/daisychain/agent.log").read_text()
    chain.wait_for("ready", within_s=30)
    chain.until(lambda: chain.nodes()["old"]["state"] == "ready", 20)
    said = chain.on("head", "run", "--resume", run.folder.name, "--nodes", "head,old", "--headless", "--json", timeout=90)
    assert said.exit == 0, said.err
    steps = [line["step"] for line in run.lines("metrics.jsonl")]
    assert steps[-1] == 20 * STEPS
    assert reached - 2 <= steps[reached] - 1 <= reached + 2
    assert difference(run.folder / "model.pt", undisturbed(20)) <= 1e-5
