"""Real rank processes over gloo on loopback: exactness, the same script everywhere, and how ranks end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()

def build(kind):
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).to(kind)

narrow, wide = build(torch.float32), build(torch.float64)
generator = torch.Generator().manual_seed(5)
x = torch.randn(43, 5, generator=generator, dtype=torch.float64)
y = x.sum(1, keepdim=True).sin()
loader = DataLoader(TensorDataset(x, y, torch.arange(43)), batch_size=10, shuffle=True)
optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in (narrow, wide)]
narrow, wide, loader = chain.prepare(narrow, wide, loader)
seen = []
assert len(loader) == 5
for epoch in chain.epochs(10):
    for x, y, rows in loader:
        seen.append(rows.tolist())
        for model, optimizer in zip((narrow, wide), optimizers):
            kind = chain.unwrap(model)[0].weight.dtype
            loss = nn.functional.mse_loss(model(x.to(kind)), y.to(kind))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        chain.log(loss=loss, twice=2 * loss)
chain.save(narrow, "narrow.pt")
chain.save(wide, "wide.pt")
chain.report_scores({"loss": float(loss.detach())})
import json
from pathlib import Path
Path(f"{sys.argv[1]}-{chain.rank}.json").write_text(json.dumps(seen))
"""
SPEEDS = [[0.0, 1 / 7], [0.0, 1 / 2], [0.0, 1.0]]
"""Give shares 7/2/1 of a batch of 10."""


class Rank:
    """A rank process with its pipes, started as the agent does."""

    def __init__(self, folder: Path, store: socket.socket | None, **task: object) -> None:
        fd = -1
        if store is not None:
            fd = store.fileno()
            store.set_inheritable(True)
        self.log = folder / f"rank-{task.get('rank', 0)}.log"
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "daisychain.train.rank"],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
                pass_fds=() if store is None else (fd,),
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
            )
        order = {"store_fd": fd, "timeout_s": 30, "threads": 1, "output": str(folder / "output"), **task}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def next(self, kind: str) -> dict:
        """The next report of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report = json.loads(line)
            if report["kind"] == kind:
                return report
        raise AssertionError(f"no {kind} report; log: {self.log.read_text()}")

    def finish(self) -> tuple[int, list[dict]]:
        """Exit code and all (further) reports."""
        assert self.process.stdout is not None
        reports = [json.loads(line) for line in self.process.stdout]
        return self.process.wait(60), reports

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


@pytest.fixture
def start(tmp_path):
    """Start ranks of a script: start(text, world_size, **task)."""
    ranks: list[Rank] = []
    (tmp_path / "output").mkdir()

    def begin(
        text: str, world_size: int = 1, *, name="script.py", slowdowns=(1.0, 1.0, 1.0), **task: object
    ) -> list[Rank]:
        (tmp_path / name).write_text(textwrap.dedent(text))
        store = socket.create_server(("127.0.0.1", 0))
        order = {
            "script": name,
            "world_size": world_size,
            "master_address": "127.0.0.1",
            "master_port": store.getsockname()[1],
            "names": ["head", "mid", "old"][:world_size],
            "speeds": SPEEDS[:world_size],
            **task,
        }
        for rank in range(world_size):
            serving = store if rank == 0 and world_size > 1 else None
            ranks.append(Rank(tmp_path, serving, rank=rank, slowdown=slowdowns[rank], **order))
        store.close()
        return ranks[-world_size:]

    yield begin
    for rank in ranks:
        rank.close()


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def run(command, folder, environment) -> tuple[int, str]:
    """Exit code and output; nothing of it is left running."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=90)
        return process.returncode, said.decode()
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for child in children:
            child.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kinds(reports):
    return [report["kind"] for report in reports]


def reference(batches):
    """Plain torch, no DaisyChain: parameters after SGD over these batches of rows."""
    import torch
    from torch import nn

    torch.manual_seed(3)

    def build(kind):
        return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).to(kind)

    models = {"narrow": build(torch.float32), "wide": build(torch.float64)}
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(43, 5, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True).sin()
    for model in models.values():
        kind = next(model.parameters()).dtype
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for rows in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows].to(kind)), y[rows].to(kind)).backward()
            optimizer.step()
    return {name: model.state_dict() for name, model in models.items()}


def difference(path, state):
    """Largest difference of a saved model from a state, relative to the largest parameter of each tensor."""
    import torch

    saved = torch.load(path, weights_only=True)
    assert list(saved) == list(state)
    return max(float((saved[k] - state[k]).abs().max() / state[k].abs().max()) for k in state)


def test_unequal_shares_alone_and_torchrun_all_train_the_same_model(start, tmp_path):
    """Acceptance 5 and 7: 7/2/1 and a ragged last batch, 50 steps; and the same script started in three ways."""
    ranks = start(SCRIPT, 3, args=["chain"], settings={"seed": 3, "rebalance": False, "batch": None})
    ended = [rank.finish() for rank in ranks]
    assert [code for code, _ in ended] == [0, 0, 0], ranks[0].log.read_text()
    head = ended[0][1]
    assert kinds(head) == ["started", "joined", "plan", *["step"] * 50, "scores", "done"]
    assert kinds(ended[1][1]) == ["started", "joined", "plan", *["step"] * 50, "done"]
    assert head[2] == {"kind": "plan", "epochs": 10, "steps": 50, "batch": 10, "shares": [7, 2, 1]}

    steps = [[report for report in reports if report["kind"] == "step"] for _, reports in ended]
    assert [step["step"] for step in steps[0]] == list(range(1, 51))
    assert steps[0][4]["shares"] == [2, 1, 0]
    for of_one_step in zip(*steps, strict=True):
        assert sum(step["share"] for step in of_one_step) == of_one_step[0]["batch"]
        assert [step["share"] for step in of_one_step] == of_one_step[0]["shares"]
        for step in of_one_step:
            assert step["compute_ms"] > 0
            assert step["exposed_ms"] >= 0
            assert step["compute_ms"] + step["exposed_ms"] <= step["step_ms"] + 1
            assert step["logged"]["twice"] == pytest.approx(2 * step["loss"])

    seen = [json.loads((tmp_path / f"chain-{rank}.json").read_text()) for rank in range(3)]
    batches = []
    for index in range(50):
        counted = [seen[rank][index][: steps[rank][index]["share"]] for rank in range(3)]
        assert all(rows for rows in (seen[rank][index] for rank in range(3)))
        batches.append([row for rows in counted for row in rows])
    for epoch in range(10):
        rows = [row for batch in batches[5 * epoch : 5 * epoch + 5] for row in batch]
        assert sorted(rows) == list(range(43))
    assert batches[:5] != batches[5:10]

    wanted = reference(batches)
    assert difference(tmp_path / "output/narrow.pt", wanted["narrow"]) <= 1e-5
    assert difference(tmp_path / "output/wide.pt", wanted["wide"]) <= 1e-12

    environment = {**os.environ, "DAISYCHAIN_SEED": "3", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for name, command in {
        "alone": [sys.executable, "../script.py"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr",
                     "127.0.0.1", "--master-port", free_port(), "../script.py"],
    }.items():  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        code, said = run([*command, name], folder, environment)
        assert code == 0, said
        assert difference(folder / "narrow.pt", wanted["narrow"]) <= 1e-5
        assert difference(folder / "wide.pt", wanted["wide"]) <= 1e-12
    assert json.loads((tmp_path / "alone/alone-0.json").read_text()) == batches


FOLLOWING = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import daisychain

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, row):
        assert type(row) is int
        time.sleep(0.002)
        return torch.full((3,), float(row))

chain = daisychain.init()
model, loader = nn.Linear(3, 1), DataLoader(Slow(), batch_size=20)
optimizer = torch.optim.SGD(model.parameters(), 1e-7)
model, optimizer, loader = chain.prepare(model, optimizer, loader)
for epoch in range(2):
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        chain.log(loss=loss)
"""


def test_shares_follow_the_measured_speeds_on_all_ranks_at_the_same_step(start):
    """Equal by the reference, but one node is three times slower."""
    pair = start(FOLLOWING, 2, speeds=[[0, 1], [0, 1]], slowdowns=(1.0, 3.0))
    (code, head), (_, other) = (rank.finish() for rank in pair)
    assert code == 0, pair[0].log.read_text()
    changes = [report for report in head if report["kind"] == "shares"]
    assert [report for report in other if report["kind"] == "shares"] == changes
    assert changes[0]["step"] == 11
    assert changes[0]["reason"].endswith("samples")
    steps = [[report for report in reports if report["kind"] == "step"] for reports in (head, other)]
    assert steps[0][9]["shares"] == [10, 10]
    assert steps[0][10]["shares"] == changes[0]["shares"]
    assert 13 <= steps[0][-1]["shares"][0] <= 17
    for mine, theirs in zip(*steps, strict=True):
        assert mine["share"] + theirs["share"] == mine["batch"] == 20


PEERS = """
import sys, time
import torch, daisychain
from torch.utils.data import DataLoader, TensorDataset

chain = daisychain.init()
model, loader = torch.nn.Linear(2, 1), DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4)
model, loader = chain.prepare(model, loader)
for epoch in chain.epochs(10_000):
    for (x,) in loader:
        model(x).sum().backward()
"""


def test_a_killed_peer_ends_the_others_within_seconds_and_is_named_as_the_cause(start):
    head, mid = start(PEERS, 2)
    head.next("step")
    begun = time.monotonic()
    mid.process.kill()
    code, reports = head.finish()
    assert time.monotonic() - begun < 10
    assert code == 1
    assert reports[-1]["kind"] == "error"
    assert reports[-1]["origin"] == "peer"
    assert "lost the connection to another node" in reports[-1]["message"]
    assert "Traceback" in head.log.read_text()


DIFFERENT = """
import torch, daisychain
chain = daisychain.init()
chain.prepare(torch.nn.Linear(2, 1 + chain.rank))
"""


def test_ranks_that_build_different_models_say_so_before_the_first_step(start):
    for rank in start(DIFFERENT, 2):
        code, reports = rank.finish()
        assert code == 1
        assert (reports[-1]["origin"], reports[-1]["line"]) == ("script", 4)
        assert reports[-1]["message"].startswith("the model on mid differs from head's. ")


def test_what_a_script_does_wrong_is_reported_with_file_and_line(start, tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\nif x\n    pass\n")
    (tmp_path / "helper.py").write_text("def fail():\n    raise ValueError('no such\\nthing')\n")
    cases = {
        "import broken": ("SyntaxError", "expected ':'", "broken.py", 2),
        "import helper\nhelper.fail()": ("ValueError", "no such", "helper.py", 2),
        "import sys\nsys.exit(3)": ("SystemExit", "the script ended with exit code 3", "c.py", 2),
        "raise SystemExit('no data')": ("SystemExit", "no data", "d.py", 1),
    }
    ranks = [start(text, name=f"{letter}.py")[0] for letter, text in zip("abcd", cases, strict=True)]
    for rank, wanted in zip(ranks, cases.values(), strict=True):
        code, reports = rank.finish()
        assert code == 1
        assert kinds(reports) == ["started", "error"]
        report = reports[-1]
        assert report["origin"] == "script"
        assert (report["type"], report["message"], report["file"], report["line"]) == wanted
    assert "Traceback" in ranks[1].log.read_text()


def test_a_script_without_the_api_prints_to_the_log_and_reads_nothing(start):
    (rank,) = start(
        """
        import os, sys
        print("hello", sys.argv, sys.path[0] == os.getcwd())
        os.system("echo from a child")
        try:
            input()
        except EOFError:
            print("nothing to read")
        sys.exit()
        """,
        args=["--fast"],
    )
    code, reports = rank.finish()
    assert (code, kinds(reports)) == (0, ["started", "done"])
    log = rank.log.read_text()
    assert "script.py', '--fast'] True" in log
    assert "from a child" in log
    assert "nothing to read" in log


def test_a_script_outside_the_folder_is_refused(start):
    (rank,) = start("", script="../elsewhere.py")
    code, reports = rank.finish()
    assert (code, kinds(reports)) == (1, ["error"])
    assert "no script '../elsewhere.py'" in reports[0]["message"]


@pytest.mark.parametrize("order", [None, b'{"kind": "stop"}\n'])
def test_a_rank_and_its_children_die_with_the_agent(start, order):
    (rank,) = start(
        """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        print("child", child.pid)
        time.sleep(300)
        """
    )
    rank.next("started")
    while "child" not in (log := rank.log.read_text()):
        time.sleep(0.05)
    child = int(log.split("child ")[1].split()[0])
    assert rank.process.stdin is not None
    if order is None:
        rank.process.stdin.close()
    else:
        rank.process.stdin.write(order)
        rank.process.stdin.flush()
    assert rank.process.wait(5) == -signal.SIGKILL
    until = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)
