"""Every fault of a CSV file is named by file and line."""

import pytest

from daisychain.errors import DataError
from daisychain.jobs.tabular.reading import CsvFile


def read(tmp_path, data):
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with CsvFile(path) as file:
        return file.header, list(file)


@pytest.mark.parametrize(
    ("data", "header", "rows"),
    [
        (b"a,b\n1,2\n", ("a", "b"), [["1", "2"]]),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4", ("a", "b"), [["1", "2"], ["3", "4"]]),
        (b"a;b\n1,5;2\n", ("a", "b"), [["1,5", "2"]]),
        (b"a\tb\n1\t2\n", ("a", "b"), [["1", "2"]]),
        (b'a,b\n"x\ny","say ""hi"""\n', ("a", "b"), [["x\ny", 'say "hi"']]),
        (b",b\n1,2\n", ("column 1", "b"), [["1", "2"]]),
        (b"a,b\r1,2\r", ("a", "b"), [["1", "2"]]),
        ("größe,b\n1,é\n".encode(), ("größe", "b"), [["1", "é"]]),
    ],
)
def test_reads(tmp_path, data, header, rows):
    assert read(tmp_path, data) == (header, rows)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "t.csv is empty"),
        (b"\n\n", "t.csv is empty"),
        (b"a,a\n1,2\n", "t.csv line 1: two columns are named 'a'"),
        (b"a,b\n1,2\n3\n", "t.csv line 3: 1 fields, the header has 2"),
        (b"a,b\n1,2,3\n", "t.csv line 2: 3 fields, the header has 2"),
        (b'a,b\n"x\ny",2\n\n3\n', "t.csv line 5: 1 fields, the header has 2"),
        (b"a,b\n1,2\n3,\xff4\n", r"t.csv line 3: byte 3 of the line \(0xff\) is not UTF-8"),
        (b"\xff\xfea\0,\0b\0\n\0", "t.csv is UTF-16, not UTF-8"),
        (b"a,b\n1,2\n3,\x004\n", "t.csv line 3: a NUL byte"),
        (b'a,b\n1,2\n"3,4\n5,6\n', "t.csv line 3: a double quote is opened and never closed"),
        (b'a,b\n"3,' + b"x\n" * 100_000, "t.csv line 2: a double quote is opened and never closed"),
        (b'a,b\n1,2\n"3"x,4\n', "t.csv line 3: "),
        (b'"a,b\n', "t.csv line 1: a double quote is opened and never closed"),
    ],
)
def test_faults(tmp_path, data, what):
    with pytest.raises(DataError, match=what) as caught:
        read(tmp_path, data)
    assert caught.value.remedy


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        CsvFile(tmp_path / "no.csv")
    with pytest.raises(DataError, match="is a folder"):
        CsvFile(tmp_path)


def test_unknown_column_lists_the_columns_and_suggests(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("late,day\n1,2\n")
    with CsvFile(path) as file, pytest.raises(DataError, match="no column 'lates'") as caught:
        file.position("lates")
    assert "Did you mean 'late'?" in caught.value.remedy
    assert "late, day" in caught.value.remedy
