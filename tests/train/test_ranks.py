"""Real rank processes over gloo on loopback: exactness, the same script everywhere, and how ranks end."""

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

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


NORMED = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
data = TensorDataset(torch.randn(512, 64), torch.randn(512, 1))
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
model, optimizer, loader = chain.prepare(model, optimizer, DataLoader(data, batch_size=64))
for epoch in chain.epochs(4):
    for x, y in loader:
        time.sleep(0.02 * chain.rank)
        loss = nn.functional.mse_loss(model(x), y)
        chain.count(len(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_waiting_for_the_others_in_a_layer_that_looks_at_the_whole_batch_is_not_computing(start):
    fast, slow = start(NORMED, 2, settings={"equal": True})
    computed = []
    for rank in (fast, slow):
        code, said = rank.finish()
        assert code == 0, said[-3:]
        times = [report["compute_ms"] for report in said if report["kind"] == "step"]
        computed.append(statistics.median(times[4:]))
    assert computed[1] > 2 * computed[0]


def test_unequal_shares_alone_and_torchrun_all_train_the_same_model(start, tmp_path):
    """Acceptance 5 and 7: 7/2/1 and a ragged last batch, 50 steps; and the same script started in three ways."""
    ranks = start(SCRIPT, 3, afresh=True, args=["chain"], settings={"seed": 3, "rebalance": False, "batch": None})
    ended = [rank.finish() for rank in ranks]
    assert [code for code, _ in ended] == [0, 0, 0], ranks[0].log.read_text()
    head = ended[0][1]
    assert kinds(head) == ["started", "waiting", "joined", "knobs", "plan", *["step"] * 50, "scores", "done"]
    assert kinds(ended[1][1]) == ["started", "waiting", "joined", "knobs", "plan", *["step"] * 50, "done"]
    plan = {"epochs": 10, "steps": 50, "batch": 10, "shares": [7, 2, 1], "samples": 43, "drop_last": False}
    assert head[4] == {"kind": "plan", **plan}

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
    assert changes[0]["step"] == 12
    assert changes[0]["reason"].endswith("samples")
    steps = [[report for report in reports if report["kind"] == "step"] for reports in (head, other)]
    assert steps[0][10]["shares"] == [10, 10]
    assert steps[0][11]["shares"] == changes[0]["shares"]
    assert 13 <= steps[0][-1]["shares"][0] <= 17
    for mine, theirs in zip(*steps, strict=True):
        assert mine["share"] + theirs["share"] == mine["batch"] == 20


DIFFERENT = """
import torch, daisychain
chain = daisychain.init()
model = chain.prepare(torch.nn.Linear(2, 1 + chain.rank))
model(torch.ones(1, 2))
"""


def test_ranks_that_build_different_models_say_so_before_the_first_step(start):
    for rank in start(DIFFERENT, 2):
        code, reports = rank.finish()
        assert code == 1
        assert (reports[-1]["origin"], reports[-1]["line"]) == ("script", 5)
        assert reports[-1]["message"] == "the model on mid differs from head's"
        assert reports[-1]["remedy"]


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
        afresh=True,
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
        """,
        afresh=order is None,
    )
    rank.wait_for("started")
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
