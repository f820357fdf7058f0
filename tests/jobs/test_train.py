"""The tabular training, alone: learns, scores, saves; its pure parts."""

import shutil

import pytest

from daisychain.errors import DataError
from daisychain.jobs.folders import find_folder
from daisychain.jobs.tabular import prepare
from daisychain.jobs.tabular.predict import default_out, predict

torch = pytest.importorskip("torch")
from daisychain.jobs.tabular import apply, train  # noqa: E402


@pytest.fixture
def prepared(tmp_path, guests):
    def make(target, drop):
        path = tmp_path / "guests.csv"
        path.write_text("\n".join(guests) + "\n")
        out = tmp_path / "data"
        prepare.prepare(prepare.Request(csv=str(path), target=target, out=str(out), drop=drop))
        return out

    return make


def test_binary_beats_the_baseline_and_predicts_a_new_file(prepared, lone_chain, tmp_path, guests):
    folder = prepared("paid", ("price",))
    train.main([str(folder)])
    scores = lone_chain.scores
    assert set(scores) == {"log_loss", "accuracy", "auc", "baseline"}
    assert scores["log_loss"] < 0.3 < 0.6 < scores["baseline"]["log_loss"]
    assert scores["auc"] > 0.95
    header = guests[0].split(",")
    new = tmp_path / "new.csv"
    kept = [header.index(name) for name in ("when", "size", "colour")]
    lines = [[line.split(",")[i] for i in kept] for line in guests[1:6]]
    lines += [["", "", "violet"], ["rubbish", "x", ""]]
    new.write_text("\n".join(",".join(line) for line in [["when", "size", "colour"], *lines]))
    out = default_out(new)
    assert apply.apply(lone_chain.folder, new, out) == 7
    written = [line.split(",") for line in out.read_text().splitlines()]
    assert written[0] == ["when", "size", "colour", "paid_predicted", "paid_probability"]
    assert [row[:3] for row in written[1:]] == lines
    for row in written[1:]:
        assert 0 <= float(row[4]) <= 1
        assert row[3] == str(float(row[4]) > 0.5)
    assert not list(tmp_path.glob(".*.tmp"))


def test_validation_scores_follow_from_predicting_the_file_itself(prepared, lone_chain, tmp_path):
    """The scores reported after training are those of the predictions that a user gets."""
    folder = prepared("price", ("paid",))
    train.main([str(folder)])
    assert lone_chain.scores["r2"] > 0.95
    assert lone_chain.scores["baseline"]["r2"] <= 0
    out = tmp_path / "out.csv"
    apply.apply(lone_chain.folder, tmp_path / "guests.csv", out)
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    _, valid = prepare.split([0.0] * len(rows), 0)
    errors = [(float(rows[i][-1]) - float(rows[i][-2])) ** 2 for i in valid]
    assert (sum(errors) / len(errors)) ** 0.5 == pytest.approx(lone_chain.scores["rmse"], rel=1e-3)


def test_many_classes(prepared, lone_chain, tmp_path):
    folder = prepared("colour", ())
    train.main([str(folder)])
    assert set(lone_chain.scores) == {"log_loss", "accuracy", "baseline"}
    apply.apply(lone_chain.folder, tmp_path / "guests.csv", tmp_path / "out.csv")
    row = (tmp_path / "out.csv").read_text().splitlines()[1].split(",")
    assert row[-2] in {"red", "green", "blue"}
    assert 1 / 3 <= float(row[-1]) <= 1


def test_same_seed_same_scores(prepared, lone_chain):
    folder = prepared("paid", ("price",))
    lone_chain.options = {"epochs": 2, "batch": 64}
    train.main([str(folder)])
    first, steps = lone_chain.scores, len(lone_chain.losses)
    train.main([str(folder)])
    assert lone_chain.scores == first
    assert steps == 2 * 5


def test_the_model_file_holds_tensors_only(prepared, lone_chain):
    lone_chain.options = {"epochs": 1}
    train.main([str(prepared("paid", ()))])
    state = torch.load(lone_chain.folder / "model.pt", weights_only=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_predict_names_what_is_wrong(prepared, lone_chain, tmp_path):
    lone_chain.options = {"epochs": 1}
    train.main([str(prepared("paid", ("price",)))])
    new = tmp_path / "new.csv"
    new.write_text("size,colors\n1,red\n")
    with pytest.raises(DataError, match="lacks columns that the model was trained on: colour, when"):
        apply.apply(lone_chain.folder, new, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    with pytest.raises(DataError, match="is the file to read"):
        apply.apply(lone_chain.folder, new, new)
    with pytest.raises(DataError, match="nowhere is no folder"):
        apply.apply(lone_chain.folder, new, tmp_path / "nowhere" / "out.csv")
    (lone_chain.folder / "model.pt").write_bytes(b"rubbish")
    with pytest.raises(DataError, match="doesn't hold the model"):
        apply.apply(lone_chain.folder, new, tmp_path / "out.csv")
    (lone_chain.folder / "model.pt").unlink()
    with pytest.raises(DataError, match="does not exist"):
        apply.apply(lone_chain.folder, new, tmp_path / "out.csv")


def test_a_file_without_rows_stays_without(prepared, lone_chain, tmp_path):
    lone_chain.options = {"epochs": 1}
    train.main([str(prepared("paid", ("price",)))])
    new = tmp_path / "new.csv"
    new.write_text("size;colour;when\n")
    assert apply.apply(lone_chain.folder, new, tmp_path / "out.csv") == 0
    assert (tmp_path / "out.csv").read_text() == "size;colour;when;paid_predicted;paid_probability\n"


@pytest.mark.torch
def test_predict_in_a_child(prepared, lone_chain, tmp_path):
    lone_chain.options = {"epochs": 1}
    train.main([str(prepared("paid", ("price",)))])
    seen = []
    result = predict(lone_chain.folder, tmp_path / "guests.csv", tmp_path / "out.csv", seen.append)
    assert (result.rows, result.added) == (400, ("paid_predicted", "paid_probability"))
    assert seen == [400]
    from daisychain.errors import UsageError

    with pytest.raises(UsageError, match=r"no\.csv does not exist"):
        predict(lone_chain.folder, tmp_path / "no.csv")


def test_a_damaged_array_is_named(prepared):
    folder = prepared("paid", ())
    table = train.read_table(folder)
    (folder / "train.target.int16").write_bytes(b"abc")
    with pytest.raises(DataError, match=r"train\.target\.int16 has 3 bytes, not 640"):
        train.load(table, folder, "train")


def test_find_folder(tmp_path):
    with pytest.raises(DataError, match="0 folders"):
        find_folder([], tmp_path, "columns.json")
    below = tmp_path / "data" / "table"
    below.mkdir(parents=True)
    (below / "columns.json").write_text("{}")
    assert find_folder([], tmp_path, "columns.json") == below
    assert find_folder(["x"], tmp_path, "columns.json").name == "x"
    shutil.copytree(below, tmp_path / "other")
    with pytest.raises(DataError, match="2 folders"):
        find_folder([], tmp_path, "columns.json")


def test_rate_rises_then_falls():
    rates = [train.rate(step, 100) for step in range(100)]
    assert rates.index(max(rates)) in (9, 10)
    assert max(rates) == pytest.approx(train.PEAK_RATE)
    assert rates[99] < 0.02 * train.PEAK_RATE
    assert train.rate(500, 100) > 0
    assert train.rate(0, 1) > 0


def test_rate_follows_the_optimizers_own_count():
    model = torch.nn.Linear(2, 1)
    adam = train.make_optimizer(model.parameters())
    assert train.applied_steps(adam) == 0
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        adam.step()
    joined = train.make_optimizer(torch.nn.Linear(2, 1).parameters())
    joined.load_state_dict(adam.state_dict())
    assert train.applied_steps(joined) == 3


@pytest.mark.parametrize(("rows", "batch"), [(8, 32), (320, 32), (5_000, 64), (100_000, 2048), (10_000_000, 2048)])
def test_default_batch(rows, batch):
    assert train.default_batch(rows) == batch
