"""What the text of a cell means."""

import pytest

from daisychain.jobs.tabular import values


@pytest.mark.parametrize("text", ["", " ", "NA", "nan", "NaN", "null", "None", "?", "-", " n/a "])
def test_missing(text):
    assert values.is_missing(text)


@pytest.mark.parametrize("text", ["0", "false", "no", "--", "nano"])
def test_not_missing(text):
    assert not values.is_missing(text)


@pytest.mark.parametrize(
    ("text", "comma", "number"),
    [
        ("12", False, 12.0),
        (" -1.5e3 ", False, -1500.0),
        ("1,234,567.5", False, 1234567.5),
        ("1,5", False, None),
        ("1,5", True, 1.5),
        ("1.234,5", True, 1234.5),
        ("1.5", True, 1.5),
        ("1_000", False, None),
        ("inf", False, None),
        ("nan", False, None),
        ("1e400", False, None),
        ("0x10", False, None),
        ("12 kg", False, None),
    ],
)
def test_numbers(text, comma, number):
    assert values.parse_number(text, comma) == number


@pytest.mark.parametrize(
    ("text", "day_first", "parts"),
    [
        ("2013-01-05", False, (2013, 1, 5, 5, 5, 0.0)),
        ("2013-01-01T05:30:00Z", False, (2013, 1, 1, 1, 1, 5.5)),
        ("2013/12/31 23:15", False, (2013, 12, 31, 1, 365, 23.25)),
        ("1969-12-31 12:00", False, (1969, 12, 31, 2, 365, 12.0)),
        ("03/04/2013", False, (2013, 3, 4, 0, 63, 0.0)),
        ("03/04/2013", True, (2013, 4, 3, 2, 93, 0.0)),
        ("3.4.2013 1:30 PM", True, (2013, 4, 3, 2, 93, 13.5)),
    ],
)
def test_dates(text, day_first, parts):
    seconds = values.parse_date(text, day_first)
    assert seconds is not None
    assert values.date_parts(seconds) == parts


@pytest.mark.parametrize("text", ["2013-13-01", "2013-02-30", "20130101", "2013-01/02", "soon", "2013-01-01 25:00"])
def test_no_dates(text):
    assert values.parse_date(text) is None


def test_day_first_is_known_only_from_evidence():
    assert values.is_day_first(["03/04/2013", "13/04/2013"]) is True
    assert values.is_day_first(["03/04/2013", "03/14/2013"]) is False
    assert values.is_day_first(["03.04.2013"]) is True
    assert values.is_day_first(["03/04/2013"]) is None
