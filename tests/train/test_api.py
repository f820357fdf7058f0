"""The training API in one process, alone: it changes nothing but the order of batches, and reports each step."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from daisychain.errors import ConfigError, ScriptError, UsageError
from daisychain.train import api
from daisychain.train.task import Task, current

pytestmark = pytest.mark.torch


@pytest.fixture
def chain_of(tmp_path):
    """A chain of one with these settings, and what it reports."""
    reports: list[dict] = []

    def make(**task):
        task = {"output": str(tmp_path), "threads": 1, "launcher": "alone", **task}
        return api.Chain(Task(**task), reports.append), reports

    return make


def loader_of(samples=10, batch=4):
    return DataLoader(TensorDataset(torch.arange(samples).float().unsqueeze(1)), batch_size=batch)


def test_init_is_the_same_chain_every_time(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "_chain", None)
    monkeypatch.setenv("DAISYCHAIN_SEED", "9")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    chain = api.init()
    first = torch.rand(3)
    assert api.init() is chain
    assert (chain.rank, chain.world_size, chain.is_main, chain.seed, chain.folder) == (0, 1, True, 9, tmp_path)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(3), first)


def test_alone_the_model_is_the_scripts_own_and_every_step_is_reported(chain_of):
    chain, reports = chain_of()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    same, also, loader = chain.prepare(model, optimizer, loader_of())
    assert same is model
    assert also is optimizer
    assert chain.unwrap(model) is model
    for _epoch in chain.epochs(2):
        for (x,) in loader:
            chain.log(loss=model(x).mean(), rate=0.1)
    assert reports[0] == {"kind": "plan", "epochs": 2, "steps": 6, "batch": 4, "shares": [4]}
    steps = reports[1:]
    assert [(r["step"], r["epoch"], r["batch"], r["share"], r["shares"]) for r in steps] == [
        (1, 0, 4, 4, [4]),
        (2, 0, 4, 4, [4]),
        (3, 0, 2, 2, [2]),
        (4, 1, 4, 4, [4]),
        (5, 1, 4, 4, [4]),
        (6, 1, 2, 2, [2]),
    ]
    assert all(isinstance(r["loss"], float) and r["logged"] == {"rate": 0.1} for r in steps)


def test_the_runs_settings_go_before_the_scripts(chain_of):
    chain, reports = chain_of(settings={"batch": 5, "epochs": 1, "lr": None})
    loader = chain.prepare(loader_of())
    assert len(loader) == 2
    for _epoch in chain.epochs(50):
        list(loader)
    assert reports[0] == {"kind": "plan", "epochs": 1, "steps": 2, "batch": 5, "shares": [5]}
    assert chain.option("lr", 0.5) == 0.5


def test_a_loss_that_is_no_number_is_unknown_and_said_once(chain_of):
    chain, reports = chain_of()
    loader = chain.prepare(loader_of())
    for _ in loader:
        chain.log(loss=float("nan"))
    assert [r["loss"] for r in reports if r["kind"] == "step"] == [None] * 3
    assert [r["text"] for r in reports if r["kind"] == "note"] == [
        "the loss is nan at step 1: the training has diverged"
    ]


def test_a_second_loader_is_not_reported(chain_of):
    chain, reports = chain_of()
    main, other = chain.prepare(loader_of(), loader_of(6, 3))
    assert [x.flatten().tolist() for (x,) in other] == [[0, 1, 2], [3, 4, 5]]
    assert reports == []
    list(main)
    assert [r["kind"] for r in reports] == ["plan", "step", "step", "step"]


def test_scores_and_models_come_from_rank_0(chain_of, tmp_path):
    chain, reports = chain_of()
    model = nn.Linear(2, 1)
    chain.save(model, "deep/model.pt")
    chain.report_scores({"accuracy": 0.5})
    assert torch.load(tmp_path / "deep/model.pt", weights_only=True).keys() == {"weight", "bias"}
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["model.pt"]
    assert reports == [{"kind": "scores", "scores": {"accuracy": 0.5}}]


def test_what_prepare_cannot_use_is_refused(chain_of):
    chain, _ = chain_of()
    with pytest.raises(ScriptError, match="a list"):
        chain.prepare([1, 2])
    chain, _ = chain_of(settings={"batch": 0})
    with pytest.raises(UsageError, match="batch is 0"):
        chain.prepare(loader_of())


def test_the_environment_makes_the_task():
    assert current({}) == Task(launcher="alone")
    assert current({"DAISYCHAIN_BATCH": "64"}).settings == {"batch": 64}
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert current(torchrun) == Task(rank=1, world_size=2, launcher="torchrun")
    with pytest.raises(ConfigError, match="DAISYCHAIN_SEED is 'x'"):
        current({"DAISYCHAIN_SEED": "x"})
