"""Column types, statistics and encoding on nasty tables."""

import math

import msgspec
import pytest

from daisychain.jobs.tabular import columns as c


def counted(*texts):
    return {text: texts.count(text) for text in texts}


@pytest.mark.parametrize(
    ("name", "counts", "kind", "note"),
    [
        ("x", counted("1", "2.5", "NA"), "number", "33% missing"),
        ("x", counted("1", "2", "3"), "number", ""),
        ("id", counted("1", "2", "3"), "dropped", "numbers the rows"),
        ("id", {"1": 5, "2": 5, "3": 5}, "number", ""),
        ("column 1", counted("7", "8", "9", "10"), "dropped", "numbers the rows"),
        ("x", counted("", "NA", "null"), "dropped", "empty"),
        ("x", {"2013": 9}, "dropped", "always 2013"),
        ("x", {"yes": 9, "": 1}, "category", "1 values, 10% missing"),
        ("x", {str(i): 1 for i in range(200)} | {"oops": 1}, "number", "1 no number, taken as missing"),
        ("x", {"1": 1, "2": 1, "red": 1}, "category", "3 values"),
        ("x", {"2013-01-01": 3, "2013-01-02": 2}, "date", ""),
        ("x", {"01/02/2013": 3, "02/02/2013": 2}, "date", "read as month/day"),
        ("x", {"13/02/2013": 3, "02/02/2013": 2}, "date", "read as day/month"),
        ("name", {f"guest {i}": 1 for i in range(50)}, "dropped", "text with 50 different values in 50 rows"),
        ("name", {f"guest {i}": 1 for i in range(5)}, "category", "5 values"),
    ],
)
def test_guess(name, counts, kind, note):
    guess = c.guess_column(name, counts)
    assert guess.kind == kind
    assert guess.note.startswith(note)
    assert note or not guess.note


def test_row_numbers_are_dropped_by_name_and_values_only():
    """A toy table's x = 0, 1, 2 ... is an input, whatever it looks like."""
    assert c.guess_column("x", {str(i): 1 for i in range(100)}).kind == "number"


@pytest.mark.parametrize(
    ("counts", "task", "classes"),
    [
        ({"True": 5, "False": 9}, "binary", ("False", "True")),
        ({"1": 5, "0": 9}, "binary", ("0", "1")),
        ({"yes": 5, "no": 9, "": 2}, "binary", ("no", "yes")),
        ({"late": 5, "early": 9}, "binary", ("early", "late")),
        ({"1": 50, "1.0": 50, "2": 50}, "binary", ("1", "2")),
        ({"1": 50, "2": 50, "3": 50}, "multiclass", ("1", "2", "3")),
        ({"a": 5, "b": 5, "c": 5}, "multiclass", ("a", "b", "c")),
        ({"1": 1, "2": 1, "3": 1, "4": 1}, "regression", ()),
        ({"1.5": 50, "2": 50, "3": 50}, "regression", ()),
        ({"1000001": 50, "1000002": 50}, "binary", ("1000001", "1000002")),
    ],
)
def test_target(counts, task, classes):
    found, index, labels, _ = c.guess_target("y", counts)
    assert (found, labels) == (task, classes)
    if index is not None:
        assert "" not in index
        assert set(index.values()) == set(range(len(classes)))


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"": 3, "NA": 2}, "is empty in every row"),
        ({"True": 3}, "is 'True' in every row"),
        ({"2013-01-01": 3, "2013-01-02": 3}, "holds dates"),
        ({f"n{i}": 1 for i in range(2000)}, "has 2,000 different texts"),
    ],
)
def test_target_that_can_not_be_learnt(counts, reason):
    with pytest.raises(ValueError, match=reason):
        c.guess_target("y", counts)


def test_measure_counts_each_value_as_often_as_it_occurs():
    scale = c.measure([(1.0, 3), (5.0, 1)])
    assert scale == c.Scale(2.0, math.sqrt(3.0), 1.0)
    assert c.measure([]) is None


def test_numbers_are_standardised_cut_and_flagged():
    column = c.number_column("x", "", [(0.0, 1), (2.0, 1), (None, 1)])
    assert isinstance(column, c.NumberColumn)
    assert c.features(column, 2.0) == (1.0, 0.0)
    assert c.features(column, None) == (-1.0, 1.0)
    assert c.features(column, 1e99) == (c.CLIP, 0.0)
    assert c.inputs(column) == 2


def test_a_number_that_never_varies_in_training_divides_by_one():
    column = c.number_column("x", "", [(3.0, 5)])
    assert isinstance(column, c.NumberColumn)
    assert c.features(column, 4.0) == (1.0,)


def test_dates_give_the_parts_that_vary():
    column = c.date_column("d", "", False, [(0.0, 1), (86400.0, 1)])
    assert isinstance(column, c.DateColumn)
    assert list(column.parts) == ["day", "weekday", "day of year"]
    assert c.features(column, 86400.0) == (1.0, 1.0, 1.0)
    assert isinstance(c.date_column("d", "", False, [(0.0, 9)]), c.DroppedColumn)


def test_vocabulary_is_by_frequency_and_capped():
    counts = {f"v{i}": 2 + i for i in range(600)} | {"once": 1, " v599 ": 5, "NA": 999}
    column = c.category_column("x", "", counts)
    assert isinstance(column, c.CategoryColumn)
    assert column.values[:2] == ("v599", "v598")
    assert len(column.values) == c.VOCABULARY
    assert column.slots == 512
    slots = c.slots_of(column)
    assert [c.slot(slots, text) for text in ("v599", " v599", "once", "new", "", "NA")] == [2, 2, 1, 1, 0, 0]


def test_encoder_takes_rows_in_the_order_of_the_used_columns():
    table = c.Table(
        columns=(
            c.DroppedColumn("gone", "constant"),
            c.CategoryColumn("colour", "", ("red", "blue")),
            c.NumberColumn("x", "", c.Scale(1.0, 2.0, 1.0), False),
        ),
        target=c.Target("y", "regression"),
        seed=0,
        rows_train=1,
        rows_valid=1,
        rows_left_out=0,
    )
    encoder = c.Encoder(table, decimal_comma=True)
    assert encoder.row(["blue", "2,5"]) == ([0.75], [3])
    assert encoder.row(["green", "rubbish"]) == ([0.0], [1])
    assert msgspec.json.decode(msgspec.json.encode(table), type=c.Table) == table
