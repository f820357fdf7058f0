"""The child that turns a CSV file into arrays."""

import hashlib
import json
import os
import subprocess
import sys
from array import array

import msgspec
import pytest

from daisychain.errors import DataError
from daisychain.jobs.tabular import prepare as p
from daisychain.jobs.tabular.columns import CategoryColumn, Encoder, NumberColumn, Table


@pytest.fixture
def table_file(tmp_path, guests):
    path = tmp_path / "guests.csv"
    path.write_text("\n".join(guests) + "\n")
    return path


def request(path, target="paid", **changes):
    return p.Request(csv=str(path), target=target, out=str(path.parent / "out"), **changes)


def read(table, folder, name):
    found = table.arrays[name]
    values = array({"float32": "f", "int16": "h"}[found.type])
    values.frombytes((folder / found.file).read_bytes())
    if sys.byteorder == "big":
        values.byteswap()
    return values


def test_says_what_each_column_is(table_file, child):
    code, lines = child("tabular.prepare", msgspec.to_builtins(request(table_file, drop=("price",))))
    assert code == 0
    told = next(line for line in lines if line["kind"] == "columns")
    assert (told["task"], told["rows"]) == ("binary", 400)
    kinds = {column["name"]: (column["type"], column["note"]) for column in told["columns"]}
    assert kinds["paid"] == ("target", "False, True")
    assert kinds["id"] == ("dropped", "numbers the rows")
    assert kinds["always"] == ("dropped", "always x")
    assert kinds["price"] == ("dropped", "dropped as asked")
    assert kinds["name"][0] == "dropped"
    assert kinds["size"] == ("number", "2% missing")
    assert kinds["when"][0] == "date"
    done = lines[-1]
    assert done["kind"] == "done"
    assert (done["rows_train"], done["rows_valid"]) == (320, 80)
    assert all((table_file.parent / "out" / name).is_file() for name in done["files"])


def test_arrays_hold_what_the_encoder_makes_of_each_row(table_file, guests):
    """The columnwise path of prepare and the rowwise path of predict agree, cell by cell."""
    table = p.prepare(request(table_file))
    folder = table_file.parent / "out"
    assert msgspec.json.decode((folder / "columns.json").read_bytes(), type=Table) == table
    header = guests[0].split(",")
    rows = [line.split(",") for line in guests[1:]]
    paid = [row[header.index("paid")] == "True" for row in rows]
    train, _ = p.split(paid, 0)
    encoder = Encoder(table)
    encoded = [encoder.row([rows[i][header.index(column.name)] for column in table.used]) for i in train]
    expected = array("f", [value for numbers, _ in encoded for value in numbers])
    assert read(table, folder, "train.numbers") == expected
    assert list(read(table, folder, "train.categories")) == [index for _, indices in encoded for index in indices]
    assert list(read(table, folder, "train.target")) == [paid[i] for i in train]


def test_wide_columns_are_encoded_alike(table_file, monkeypatch):
    few = p.prepare(request(table_file, target="price"))
    numbers = read(few, table_file.parent / "out", "train.numbers")
    monkeypatch.setattr(p, "WIDEST", 100)
    many = p.prepare(request(table_file, target="price"))
    assert read(many, table_file.parent / "out", "train.numbers") == numbers
    assert many.target == few.target


def test_statistics_know_the_training_rows_only(tmp_path):
    """Changing every validation row changes no statistic."""
    labels = [i % 2 for i in range(100)]
    _, valid = p.split(labels, 0)
    tables = []
    for name, number, word in (("a", 5.0, "seen"), ("b", 1e6, "unseen")):
        path = tmp_path / name / "t.csv"
        path.parent.mkdir()
        rows = [
            f"{number + i % 3},{word}{i % 3},{y}" if i in valid else f"{i},w{i % 4},{y}" for i, y in enumerate(labels)
        ]
        path.write_text("\n".join(["x,w,y", *rows]))
        tables.append(p.prepare(request(path, target="y")))
    for a, b in zip(tables[0].columns, tables[1].columns, strict=True):
        assert msgspec.structs.replace(a, note="") == msgspec.structs.replace(b, note="")
    number, category = tables[0].columns
    assert isinstance(number, NumberColumn)
    assert isinstance(category, CategoryColumn)
    assert set(category.values) == {"w0", "w1", "w2", "w3"}


def test_same_file_and_seed_same_bytes_whatever_the_hash_seed(table_file):
    digests = []
    for hash_seed in ("1", "2"):
        out = table_file.parent / hash_seed
        line = json.dumps({"csv": str(table_file), "target": "paid", "out": str(out), "seed": 5}) + "\n"
        with subprocess.Popen(
            [sys.executable, "-m", "daisychain.jobs.tabular.prepare"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
        ) as process:
            process.stdin.write(line.encode())
            process.stdin.flush()
            process.stdout.read()
        digests.append({f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in out.iterdir()})
    assert digests[0] == digests[1]
    assert len(digests[0]) == 7


def test_split_trains_on_every_class_and_follows_the_seed():
    labels = [0] * 50 + [1] * 49 + [2]
    train, valid = p.split(labels, 3)
    assert sorted(train + valid) == list(range(100))
    assert len(valid) == 20
    assert {labels[i] for i in train} == {0, 1, 2}
    assert p.split(labels, 3) == (train, valid)
    assert p.split(labels, 4) != (train, valid)


def test_rows_without_a_target_are_left_out_and_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i},{'NA' if i % 4 == 0 else i % 2}\n" for i in range(40)))
    table = p.prepare(request(path, target="y"))
    assert (table.rows_left_out, table.rows_train + table.rows_valid) == (10, 30)


def test_regression_target_is_standardised(table_file):
    table = p.prepare(request(table_file, target="price", drop=("paid",)))
    values = read(table, table_file.parent / "out", "train.target")
    assert table.target.task == "regression"
    assert sum(values) / len(values) == pytest.approx(0, abs=1e-6)
    assert sum(v * v for v in values) / len(values) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "target", "drop", "what"),
    [
        ("x,y\n", "y", (), "t.csv has a header line and no rows"),
        ("x,y\n1,2\n", "z", (), "t.csv: there is no column 'z'"),
        ("x,y\n1,2\n", "y", ("q",), "t.csv: there is no column 'q'"),
        ("x,y\n1,2\n", "y", ("y",), "'y' is both the target and dropped"),
        ("x,y\n" + "1,\n" * 20, "y", (), "t.csv: the target 'y' is empty in every row"),
        ("x,y\n" + "1,5\n" * 20, "y", (), "t.csv: the target 'y' is '5' in every row"),
        ("x,y\n" + "1,5\n2,6\n", "y", (), "t.csv has 2 rows with a 'y', too few"),
        ("x,y\n" + "1,5\n1,6\n" * 20, "y", (), "t.csv: no column is left to learn 'y' from"),
        ("x,y\n1,2\n1,2,3\n", "y", (), "t.csv line 3: 3 fields"),
    ],
)
def test_refusals(tmp_path, text, target, drop, what):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=what) as caught:
        p.prepare(request(path, target=target, drop=drop))
    assert caught.value.remedy


def test_an_error_is_one_line_and_exit_2(tmp_path, child):
    code, lines = child("tabular.prepare", {"csv": str(tmp_path / "no.csv"), "target": "y", "out": str(tmp_path)})
    assert code == 2
    assert [line["kind"] for line in lines] == ["error"]
    assert "no.csv does not exist" in lines[0]["what"]
    assert lines[0]["exit"] == 2


def test_a_folder_that_can_not_be_written_is_an_error_line(table_file, child):
    blocked = table_file.parent / "file"
    blocked.write_text("")
    code, lines = child("tabular.prepare", {"csv": str(table_file), "target": "paid", "out": str(blocked / "out")})
    assert code == 1
    assert lines[-1]["kind"] == "error"
    assert "file" in lines[-1]["what"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk_is_an_error_line(table_file, child):
    out = table_file.parent / "out"
    out.mkdir()
    (out / "train.numbers.float32").symlink_to("/dev/full")
    code, lines = child("tabular.prepare", {"csv": str(table_file), "target": "paid", "out": str(out)})
    assert code == 1
    assert "No space left" in lines[-1]["what"]


def test_ends_when_its_parent_is_gone(table_file):
    """The end of stdin after the request ends the child, also while it waits for a pipe that never fills."""
    fifo = table_file.parent / "fifo.csv"
    os.mkfifo(fifo)
    with subprocess.Popen(
        [sys.executable, "-m", "daisychain.jobs.tabular.prepare"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        line = json.dumps({"csv": str(fifo), "target": "y", "out": str(table_file.parent)}) + "\n"
        process.stdin.write(line.encode())
        process.stdin.close()
        assert process.wait(20) == 1
