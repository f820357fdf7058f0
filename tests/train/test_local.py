"""Local steps in rounds, with real ranks on loopback: averaged, and whole rounds done again when a rank is lost."""

import time

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(400, 5, generator=generator)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(5, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model, optimizer, loader, scheduler = chain.prepare(model, optimizer, loader, scheduler)
steps, most = 0, int(sys.argv[4]) if len(sys.argv) > 4 else 10**9
for epoch in chain.epochs(int(sys.argv[1])):
    model.train()
    for a, b in loader:
        if not os.path.exists("hurry"):
            time.sleep(float(sys.argv[2]))
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        chain.log(loss=loss)
        steps += 1
        if steps == most:
            break
    if steps == most:
        break
model.eval()
torch.save({"loss": nn.functional.mse_loss(model(x), y).detach(), "rate": torch.tensor(scheduler.get_last_lr()),
            **model.state_dict()}, f"{sys.argv[3]}-{chain.rank}.pt")
chain.report_scores({"done": 1})
"""
EPOCH = 40
GUESSED = 0.51
"""The loss of a model that says the mean."""


def begin(start, sync="local:8", epochs=4, pause=0.0, size=3, most=(), **more):
    settings = {"seed": 3, "sync": sync, "rebalance": False, **more.pop("settings", {})}
    return start(SCRIPT, size, args=[str(epochs), str(pause), "end", *most], settings=settings, **more)


def ends(tmp_path, ranks):
    return [torch.load(tmp_path / f"end-{rank}.pt", weights_only=True) for rank in range(ranks)]


def assert_equal(states):
    for state in states[1:]:
        for name, value in states[0].items():
            assert torch.equal(value, state[name]), name


def finish(crew, seats):
    ended = {seat: crew[seat].finish() for seat in seats}
    assert [code for code, _ in ended.values()] == [0] * len(seats), crew[seats[0]].log.read_text()


def steps_of(crew, seat):
    return [report["step"] for report in crew[seat].of_kind("step")]


@pytest.mark.parametrize("sync", ["local:8", "local"])
def test_ranks_end_equal_and_have_learned(start, tmp_path, sync):
    crew = begin(start, sync, epochs=12)
    finish(crew, [0, 1, 2])
    states = ends(tmp_path, 3)
    assert_equal(states)
    assert states[0]["loss"] < 0.5 * GUESSED
    for seat in range(3):
        assert steps_of(crew, seat) == list(range(1, 12 * EPOCH + 1))
    for report in crew[0].of_kind("step"):
        assert report["shares"] == [7, 2, 1]
    notes = [report["text"] for report in crew[0].of_kind("note")]
    assert any("--sync" in text and "approximate" in text for text in notes)
    assert not [text for text in notes if "differ" in text]


def test_one_step_a_round_of_plain_gradient_descent_is_the_step_of_a_single_machine(start, tmp_path):
    """The weighted mean of what the ranks' steps change is the step with the weighted mean of their gradients."""
    text = SCRIPT.replace("nn.BatchNorm1d(32), ", "").replace("AdamW", "SGD")
    crew = start(text, 3, args=["2", "0", "end"], settings={"seed": 3, "sync": "local:1", "rebalance": False})
    finish(crew, [0, 1, 2])
    from daisychain.train.batches import order

    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(400, 5, generator=generator)
    y = x.sum(1, keepdim=True).sin()
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for epoch in range(2):
        for rows in order(400, 3, epoch, shuffle=True).split(10):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
            scheduler.step()
    (state, *_) = ends(tmp_path, 3)
    for name, value in model.state_dict().items():
        change = (value - before[name]).abs().max()
        assert (value - state[name]).abs().max() < 0.01 * change, name


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_in_a_round_takes_the_others_back_to_its_start(start, tmp_path, victim):
    crew = begin(start, pause=0.02, epochs=3)
    crew[victim].wait_for("step", 16)
    others = [seat for seat in range(3) if seat != victim]
    crew[victim].kill()
    finish(crew, others)
    assert_equal(ends(tmp_path, 2))
    for seat in others:
        assert steps_of(crew, seat) == list(range(1, 3 * EPOCH + 1))
    resumed = crew[others[0]].of_kind("joined")[-1]["completed"]
    assert resumed % 8 == 0
    after = [report for report in crew[others[0]].of_kind("step") if len(report["shares"]) == 2]
    assert after[0]["step"] == resumed + 1
    assert (after[0]["epoch"], after[0]["index"]) == (resumed // EPOCH, resumed % EPOCH)
    rate = ends(tmp_path, 1)[0]["rate"].item()
    parameters = [nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD(parameters, 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for _ in range(3 * EPOCH):
        optimizer.step()
        scheduler.step()
    assert rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-6)


def changed(*changes):
    """SCRIPT, each pair's first text replaced by its second."""
    text = SCRIPT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_a_rank_lost_while_the_average_of_a_pass_is_on_its_way_takes_the_others_back_into_it(start, tmp_path):
    stepped, passed = "        steps += 1\n", "    if steps == most:\n        break\nmodel"
    text = changed(
        (stepped, f"{stepped}        if chain.rank == 2 and steps == 75:\n            time.sleep(0.5); os._exit(1)\n"),
        ("steps, most", "per_pass = chain.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))\nsteps, most"),
        (passed, "    per_pass.step()\n    group['weight_decay'] = 0.01 * epoch\nmodel"),
        ("steps, most", "(group,) = optimizer.param_groups\nsteps, most"),
        ('{"loss"', '{"steps": torch.tensor(steps), "decay": torch.tensor(group["weight_decay"]), "loss"'),
        ("        scheduler.step()\n", ""),
        ('"rate": torch.tensor(scheduler', '"rate": torch.tensor(per_pass'),
    )
    crew = start(text, 3, args=["4", "0.01", "end"], settings={"seed": 3, "sync": "local:40", "rebalance": False})
    crew[0].wait_for("joined", 2)
    (tmp_path / "hurry").touch()
    finish(crew, [0, 1])
    states = ends(tmp_path, 2)
    # nobody had waited for it: the pass, and a part of the next one, were done again
    assert all(state.pop("steps") > 5 * EPOCH for state in states)
    assert_equal(states)
    for seat in (0, 1):
        assert crew[seat].of_kind("joined")[-1]["completed"] == EPOCH
        places = [(report["step"], report["epoch"], report["index"]) for report in crew[seat].of_kind("step")]
        assert places == [(at + 1, at // EPOCH, at % EPOCH) for at in range(4 * EPOCH)]
    # what the script did between the passes is as it was
    assert states[0]["rate"] == pytest.approx(0.01 * 0.5**4)
    assert states[0]["decay"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    "look",
    [
        "model(x)",
        "model[0](x)",
        "model.state_dict()['3.weight'].clone()",
        "chain.unwrap(model)[3].weight.detach().clone()",
    ],
)
def test_who_looks_between_two_passes_sees_the_average(start, tmp_path, look):
    stepped = "        steps += 1\n"
    text = changed(
        ("    if steps == most:\n        break\nmodel", f"    model.eval()\n    seen.append(({look}).detach())\nmodel"),
        ("steps, most", "seen = []\nsteps, most"),
        ('{"loss"', '{"seen": torch.stack(seen), "loss"'),
        # rank 1 is late at each pass's end
        (stepped, f"{stepped}        time.sleep(0.3 * (chain.rank == 1 and steps % 40 == 39))\n"),
    )
    crew = start(text, 2, args=["3", "0", "end"], settings={"seed": 3, "sync": "local", "rebalance": False})
    finish(crew, [0, 1])
    assert_equal(ends(tmp_path, 2))
    assert steps_of(crew, 0) == list(range(1, 3 * EPOCH + 1))


def test_a_rank_that_comes_back_gets_the_state_between_two_rounds(start, tmp_path):
    crew = begin(start, pause=0.03, epochs=60, restarts=True)
    old = crew[1]
    old.wait_for("step", 8)
    old.kill()
    while crew[1] is old:
        time.sleep(0.02)
    crew[1].wait_for("step", 8)
    (tmp_path / "hurry").touch()
    first = crew[1].of_kind("step")[0]
    assert first["step"] % 8 == 1
    assert len(first["shares"]) == 3
    finish(crew, [0, 1, 2])
    assert_equal(ends(tmp_path, 3))


def test_the_last_one_goes_on_alone(start, tmp_path):
    crew = begin(start, pause=0.01, size=2)
    crew[0].wait_for("step", 24)
    crew[1].kill()
    finish(crew, [0])
    assert steps_of(crew, 0) == list(range(1, 4 * EPOCH + 1))
    assert crew[0].of_kind("step")[-1]["shares"] == [10]


def test_a_saved_run_goes_on_where_its_last_round_ended(start, tmp_path):
    crew = begin(start, pause=0.02, sync="local:20", size=2, checkpoints=str(tmp_path / "saved"))
    crew[0].wait_for("step", 40)
    crew.order((0, 1), {"kind": "boundary", "generation": 1})
    crew.order((0, 1), {"kind": "save"})
    finish(crew, [0, 1])
    reached = max(steps_of(crew, 0))
    assert reached % 20 == 0
    assert reached < 4 * EPOCH
    later = begin(start, sync="local:20", size=2, checkpoints=str(tmp_path / "saved"), resume=True)
    finish(later, [0, 1])
    assert steps_of(later, 0) == list(range(reached + 1, 4 * EPOCH + 1))
    assert_equal(ends(tmp_path, 2))


def test_a_script_that_leaves_its_loop_early_has_the_average(start, tmp_path):
    crew = begin(start, sync="local:30", most=["53"])
    finish(crew, [0, 1, 2])
    assert_equal(ends(tmp_path, 3))
    assert steps_of(crew, 0) == list(range(1, 54))


def test_shares_follow_the_measured_speeds_between_rounds(start):
    crew = begin(
        start, "local", epochs=4, size=2, speeds=[(0.0, 1.0), (0.0, 1.0)], slowdowns=(1.0, 4.0, 1.0, 1.0),
        settings={"rebalance": True},
    )  # fmt: skip
    finish(crew, [0, 1])
    steps = crew[0].of_kind("step")
    assert steps[0]["shares"] == [5, 5]
    assert steps[-1]["shares"][0] > 5
    assert crew[0].of_kind("shares")


def test_shares_follow_what_a_rank_does_between_its_steps(start):
    """Rank 1 takes 20 ms for it, which is no part of any step."""
    slow = """
chain = daisychain.init()
if chain.rank == 1:
    from daisychain.train.local import LocalSteps
    report = LocalSteps._step_report
    LocalSteps._step_report = lambda *args: (time.sleep(0.02), report(*args))[1]
"""
    text = SCRIPT.replace("\nchain = daisychain.init()\n", slow)
    settings = {"seed": 3, "sync": "local:8", "rebalance": True}
    crew = start(text, 2, args=["6", "0.01", "end"], settings=settings, speeds=[(0.0, 1.0), (0.0, 1.0)])
    finish(crew, [0, 1])
    steps = crew[0].of_kind("step")
    assert steps[0]["shares"] == [5, 5]
    assert steps[-1]["shares"][0] >= 7


def test_a_script_without_a_prepared_loader_is_told_what_to_do(start):
    text = """
    import torch
    import daisychain
    chain = daisychain.init()
    model = chain.prepare(torch.nn.Linear(2, 1))
    model(torch.zeros(1, 2))
    """
    crew = start(text, 1, settings={"sync": "local"})
    code, _ = crew[0].finish()
    assert code != 0
    assert "DataLoader" in crew[0].of_kind("error")[0]["message"]
