"""The jobs under the real training API: alone, and as two ranks that must learn the same."""

import os
import socket
import subprocess
import sys

import pytest

from daisychain.jobs.tabular import prepare

torch = pytest.importorskip("torch")
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
pytestmark = pytest.mark.torch


def start(module, data, folder, **environment):
    """A rank of a job, its results in `folder`."""
    folder.mkdir(exist_ok=True)
    settings = {"DAISYCHAIN_EPOCHS": "1", "DAISYCHAIN_BATCH": "64", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"daisychain.jobs.{module}.train", str(data)]
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | settings | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process):
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output.decode()


def weights(folder):
    state = torch.load(folder / "model.pt", weights_only=True)
    return torch.cat([tensor.flatten() for tensor in state.values()])


@pytest.fixture
def table(tmp_path, guests):
    path = tmp_path / "guests.csv"
    path.write_text("\n".join(guests))
    prepare.prepare(prepare.Request(csv=str(path), target="paid", out=str(tmp_path / "data")))
    return tmp_path / "data"


def test_two_ranks_learn_what_one_learns(table, tmp_path):
    finish(start("tabular", table, tmp_path / "alone"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    chain = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": LOOPBACK}
    ranks = [start("tabular", table, tmp_path / f"rank{rank}", RANK=str(rank), **chain) for rank in (0, 1)]
    for rank in ranks:
        finish(rank)
    assert (tmp_path / "rank0" / "columns.json").read_bytes() == (table / "columns.json").read_bytes()
    assert not (tmp_path / "rank1" / "model.pt").exists()
    assert torch.allclose(weights(tmp_path / "alone"), weights(tmp_path / "rank0"), atol=1e-4)
