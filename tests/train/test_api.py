"""The training API in one process, alone: it changes nothing but the order of batches, and reports each step."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from daisychain.errors import ConfigError, ScriptError, UsageError
from daisychain.train import api
from daisychain.train.orders import Orders
from daisychain.train.task import Task, from_environment

pytestmark = pytest.mark.torch


@pytest.fixture
def chain_of(tmp_path):
    """A chain of one with these settings, and what it reports."""
    reports: list[dict] = []

    def make(**task):
        task = {"output": str(tmp_path), "threads": 1, "launcher": "alone", **task}
        return api.Chain(Task(**task), Orders(), reports.append), reports

    return make


def of_kind(reports, kind):
    return [report for report in reports if report["kind"] == kind]


def loader_of(samples=10, batch=4):
    return DataLoader(TensorDataset(torch.arange(samples).float().unsqueeze(1)), batch_size=batch)


def test_init_is_the_same_chain_every_time(monkeypatch, tmp_path):
    monkeypatch.setattr(api.Process, "chain", None)
    monkeypatch.setattr(api.Process, "task", None)
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
    (plan,) = of_kind(reports, "plan")
    assert {name: plan[name] for name in ("epochs", "steps", "batch", "shares")} == {
        "epochs": 2, "steps": 6, "batch": 4, "shares": [4]
    }  # fmt: skip
    steps = of_kind(reports, "step")
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
    (plan,) = of_kind(reports, "plan")
    assert (plan["epochs"], plan["steps"], plan["batch"], plan["shares"]) == (1, 2, 5, [5])
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
    assert not of_kind(reports, "step")
    list(main)
    assert [len(of_kind(reports, kind)) for kind in ("plan", "step")] == [1, 3]


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
    assert from_environment({}) == Task(launcher="alone")
    assert from_environment({"DAISYCHAIN_BATCH": "64"}).settings == {"batch": 64}
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert from_environment(torchrun) == Task(rank=1, names=("rank 0", "rank 1"), launcher="torchrun")
    with pytest.raises(ConfigError, match="DAISYCHAIN_SEED is 'x'"):
        from_environment({"DAISYCHAIN_SEED": "x"})


def test_a_chain_of_an_agent_is_the_adopted_task(monkeypatch, tmp_path):
    monkeypatch.setattr(api.Process, "chain", None)
    monkeypatch.setattr(api.Process, "task", None)
    reports = []
    api.adopt(
        Task(rank=2, names=("a", "b", "c"), output=str(tmp_path), threads=1, settings={"seed": 4}),
        Orders(),
        reports.append,
    )
    chain = api.init()
    assert (chain.rank, chain.world_size, chain.is_main, chain.seed) == (2, 3, False, 4)
    chain.save(nn.Linear(1, 1))
    chain.report_scores({"x": 1})
    assert list(tmp_path.iterdir()) == []
    assert reports == []
    # it never trained, so nobody needs its help
    api.leave()
    assert reports == [{"kind": "done"}]


def test_a_script_that_leaves_its_loop_goes_on_counting_epochs(chain_of):
    chain, reports = chain_of()
    loader = chain.prepare(loader_of())
    for _epoch in chain.epochs(3):
        for _ in loader:
            break
    assert [(r["step"], r["epoch"], r["index"]) for r in of_kind(reports, "step")] == [(1, 0, 0), (2, 1, 0), (3, 2, 0)]


# --- optimizers and schedulers in a dropped step ------------------------------------------------------------------


@pytest.mark.parametrize("live", [True, False])
def test_an_optimizer_acts_only_in_a_live_step(live):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model.weight.detach().clone()
    api._guard_optimizer(optimizer, lambda closure: live)
    model(torch.ones(1)).backward()
    closure_ran = []
    optimizer.step(lambda: closure_ran.append(1))
    assert torch.equal(model.weight, before) is not live
    assert bool(closure_ran) is live


def test_a_guarded_optimizer_still_suits_schedulers_hooks_and_state_dicts():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    api._guard_optimizer(optimizer, lambda closure: True)
    ran = []
    optimizer.register_step_post_hook(lambda *_: ran.append(1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(1)).backward()
    optimizer.step()
    scheduler.step()
    assert ran == [1]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    other = torch.optim.AdamW(nn.Linear(1, 1).parameters(), 0.1)
    other.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("kind", [torch.optim.lr_scheduler.StepLR, torch.optim.lr_scheduler.CosineAnnealingLR])
@pytest.mark.parametrize("live", [True, False])
def test_a_scheduler_acts_only_in_a_live_step_and_its_state_is_as_before(kind, live):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    plain, guarded = (kind(optimizer, 1) for _ in range(2))
    api._guard_scheduler(guarded, lambda: live)
    assert isinstance(guarded, kind)
    assert guarded.state_dict().keys() == plain.state_dict().keys()
    optimizer.step()
    before = guarded.last_epoch
    guarded.step()
    assert guarded.last_epoch == before + live
    plain.load_state_dict(guarded.state_dict())


def test_alone_optimizers_are_the_scripts_own(chain_of):
    chain, _ = chain_of()
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    own = optimizer.step
    chain.prepare(optimizer)
    assert optimizer.step == own
