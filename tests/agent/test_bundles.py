"""Files of a run: .gitignore rules as tables, storage and laying out on a real disk."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daisychain.agent import bundles
from daisychain.agent.bundles import BlobStore, bundle, describe, explain, ignored, lay_out, named_data, rules_of, walk
from daisychain.errors import DaisyError, DataError
from daisychain.link.messages import File


def put(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def file_of(content: bytes, path: str = "data.bin") -> File:
    return File(path, hashlib.sha256(content).hexdigest(), len(content))


# --- what is ignored ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "path", "is_folder", "expected"),
    [
        # a name without a slash matches at any depth
        ("data", "data", True, True),
        ("data", "a/b/data", False, True),
        ("data", "database", False, False),
        ("data", "my-data", False, False),
        ("*.csv", "a/b.csv", False, True),
        ("*.csv", "b.csv.gz", False, False),
        # a slash at the start or inside anchors
        ("/data", "data", True, True),
        ("/data", "a/data", True, False),
        ("a/data", "a/data", True, True),
        ("a/data", "b/a/data", True, False),
        ("a/*.py", "a/x.py", False, True),
        ("a/*.py", "a/b/x.py", False, False),
        # a slash at the end means folders only
        ("out/", "out", True, True),
        ("out/", "out", False, False),
        ("out/", "a/out", True, True),
        ("/out/", "a/out", True, False),
        # two stars
        ("**/logs", "logs", True, True),
        ("**/logs", "a/b/logs", True, True),
        ("logs/**", "logs/a/b", False, True),
        ("logs/**", "logs", True, False),
        ("a/**/z", "a/z", False, True),
        ("a/**/z", "a/b/c/z", False, True),
        ("a/**/z", "b/a/z", False, False),
        # one character, classes
        ("v?.pt", "v1.pt", False, True),
        ("v?.pt", "v12.pt", False, False),
        ("v?.pt", "v/.pt", False, False),
        ("[ab].py", "a.py", False, True),
        ("[ab].py", "c.py", False, False),
        ("[!ab].py", "c.py", False, True),
        ("[!ab].py", "a.py", False, False),
        # characters that mean something in a regular expression
        ("a.b", "axb", False, False),
        ("a+(b)", "a+(b)", False, True),
        # malformed ones match nothing, and crash nothing
        ("[z-a]", "z", False, False),
        ("[]", "[]", False, False),
        ("[a", "b", False, False),
        # not rules
        ("# data", "data", True, False),
        ("", "data", True, False),
        ("\\#data", "#data", False, True),
        ("\\!data", "!data", False, True),
        ("data   ", "data", True, True),
    ],
)
def test_one_rule(rule: str, path: str, is_folder: bool, expected: bool) -> None:
    assert ignored(path, is_folder, rules_of(rule)) is expected


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("*.csv\n!keep.csv", "keep.csv", False),
        ("*.csv\n!keep.csv", "other.csv", True),
        ("!keep.csv\n*.csv", "keep.csv", True),
        ("*.csv\n!/keep.csv", "a/keep.csv", True),
    ],
)
def test_the_last_rule_that_matches_decides(text: str, path: str, expected: bool) -> None:
    assert ignored(path, False, rules_of(text)) is expected


@pytest.mark.parametrize(
    ("rule", "path", "expected"),
    [
        ("*.csv", "a/b/c.csv", True),
        ("*.csv", "c.csv", False),
        ("/c.csv", "a/c.csv", True),
        ("/c.csv", "a/b/c.csv", False),
        ("c", "ab/c", False),
    ],
)
def test_rules_of_a_folder_below_hold_there_only(rule: str, path: str, expected: bool) -> None:
    assert ignored(path, False, rules_of(rule, "a")) is expected


def names(folder: Path) -> list[str]:
    return [name for name, _ in walk(folder)]


def test_what_is_shipped_of_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "train.py", "pkg/model.py", "pkg/data.csv", "pkg/keep.csv", "big.csv", "logs/a/b.txt", "logs.txt")
    put(tmp_path, ".git/config", ".env", "venv/lib/x.py", "__pycache__/x.pyc", "pkg/y.pyc", "node_modules/z.js")
    put(tmp_path, ".gitignore", text="/big.csv\nlogs/\n")
    put(tmp_path, "pkg/.gitignore", text="*.csv\n!keep.csv\n")
    assert names(tmp_path) == ["logs.txt", "pkg/keep.csv", "pkg/model.py", "train.py"]


def test_a_gitignore_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "train.py")
    (tmp_path / ".gitignore").write_bytes(b"\xff\xfe*\n")
    assert names(tmp_path) == ["train.py"]


def test_links_are_followed_to_files_only(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere/secret.txt", "top/train.py")
    top = tmp_path / "top"
    (top / "folder").symlink_to(tmp_path / "elsewhere")
    (top / "loop").symlink_to(top)
    (top / "dangling").symlink_to(tmp_path / "nowhere")
    (top / "file.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    assert names(top) == ["file.txt", "train.py"]


def test_too_large_a_folder_names_its_largest_file(tmp_path: Path) -> None:
    put(tmp_path, "a.bin", text="x" * 2_500_000)
    put(tmp_path, "b.bin", "train.py", text="x" * 600_000)
    with pytest.raises(DataError) as caught:
        bundle(tmp_path, 3_000_000)
    assert "more than 3 MB" in caught.value.what
    assert "a.bin (2.5 MB)" in caught.value.what
    assert "--data" in caught.value.remedy
    assert sorted(bundle(tmp_path, 4_000_000)) == ["a.bin", "b.bin", "train.py"]


def test_named_data_keeps_its_place_below_the_script_or_takes_its_name(tmp_path: Path) -> None:
    put(tmp_path, "job/train.py", "job/in/x.csv", "job/sub/dir/y.csv", "far/z.csv", "far/more/w.csv")
    given = [str(tmp_path / name) for name in ("job/in/x.csv", "job/sub", "far/z.csv", "far/more")]
    found = named_data(given, tmp_path / "job")
    assert sorted(found) == ["in/x.csv", "more/w.csv", "sub/dir/y.csv", "z.csv"]
    assert found["z.csv"] == tmp_path / "far" / "z.csv"


def test_named_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.csv: no such file") as caught:
        named_data([str(tmp_path / "gone.csv")], tmp_path)
    assert "--data" in caught.value.remedy


def test_a_description_has_hash_and_size(tmp_path: Path) -> None:
    put(tmp_path, "b", text="bee")
    put(tmp_path, "a", text="")
    listed = describe({"b": tmp_path / "b", "a": tmp_path / "a"})
    assert listed == (file_of(b"", "a"), file_of(b"bee", "b"))


# --- content-addressed storage -------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    made = BlobStore(tmp_path / "blobs")
    made.make_room(0)
    return made


def test_a_blob_that_comes_in_pieces_is_gone_on_with(store: BlobStore, tmp_path: Path) -> None:
    file = file_of(b"hello world")
    assert (store.has(file), store.offset(file)) == (False, 0)
    store.append(file, b"hello ")
    again = BlobStore(tmp_path / "blobs")
    assert (again.has(file), again.offset(file)) == (False, 6)
    again.append(file, b"world")
    again.accept(file)
    assert again.has(file)
    assert again.path(file.sha256).read_bytes() == b"hello world"
    assert again.offset(file) == 0


def test_an_empty_file_needs_no_piece(store: BlobStore) -> None:
    store.accept(file_of(b""))
    assert store.has(file_of(b""))


@pytest.mark.parametrize("content", [b"hello", b"hello worlds", b"jello world"])
def test_a_damaged_part_is_refused_and_dropped(store: BlobStore, content: bytes) -> None:
    file = file_of(b"hello world")
    store.append(file, content)
    with pytest.raises(DataError, match=r"data\.bin arrived damaged"):
        store.accept(file)
    assert (store.has(file), store.offset(file)) == (False, 0)


@pytest.mark.parametrize("name", ["../x", "", "a" * 63, "A" * 64, "/etc/passwd", "a" * 64 + "\n", "g" * 64])
def test_a_name_that_is_no_hash_leads_nowhere(store: BlobStore, name: str) -> None:
    with pytest.raises(DataError, match="not a SHA-256"):
        store.path(name)


def test_a_full_disk_is_said_before_anything_is_fetched(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    usage: Any = SimpleNamespace(free=100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    store.make_room(1_000_000)
    with pytest.raises(DaisyError, match=r"the disk is full: .* 100\.0 MB .* 100\.0 MB are free") as caught:
        store.make_room(50_000_000)
    assert caught.value.exit_code == 4


def test_room_is_made_by_dropping_the_oldest_but_nothing_of_this_run(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "KEPT_BLOBS_BYTES", 25)
    files = [file_of(letter * 10) for letter in (b"a", b"b", b"c")]
    for age, file in enumerate(files):
        store.path(file.sha256).write_bytes(b"x" * file.size)
        os.utime(store.path(file.sha256), (1000 + age, 1000 + age))
    store.make_room(5, keep=[files[0].sha256])
    assert [store.has(file) for file in files] == [True, False, True]


@pytest.mark.parametrize(
    ("number", "word"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EACCES, "denied")]
)
def test_an_os_error_says_which_folder(number: int, word: str) -> None:
    error = explain(OSError(number, os.strerror(number)), Path("/disk/blobs"))
    assert word in error.what
    assert "/disk/blobs" in error.what
    assert error.remedy
    # it is met before a run starts, wherever that is
    assert error.exit_code == 4


# --- laying out ------------------------------------------------------------------------------------------


def as_file(name: str, content: bytes = b"one") -> File:
    return File(name, hashlib.sha256(content).hexdigest(), len(content))


def test_files_are_laid_out_as_copies(tmp_path: Path) -> None:
    put(tmp_path, "source", text="one")
    target = tmp_path / "run"
    lay_out([(as_file("train.py"), tmp_path / "source"), (as_file("pkg/deep/m.py"), tmp_path / "source")], target)
    (target / "train.py").write_text("changed", encoding="utf-8")
    assert (tmp_path / "source").read_text(encoding="utf-8") == "one"
    assert (target / "pkg" / "deep" / "m.py").read_text(encoding="utf-8") == "one"


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "a/b/../../../x", "..", "/tmp/daisychain-x", "..\\x", "a\\..\\..\\x", "//x"]
)
def test_no_path_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    put(tmp_path, "outer/source")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=r"leads out of the run's folder"):
        lay_out([(as_file(name), tmp_path / "outer" / "source")], tmp_path / "outer" / "run")
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/daisychain-x").exists()


def test_data_that_changed_since_the_launch_is_named_and_left_alone(tmp_path: Path) -> None:
    put(tmp_path, "x.csv", text="two")
    with pytest.raises(DataError, match=r"data/x\.csv has changed since the launch") as caught:
        lay_out([(as_file("data/x.csv"), tmp_path / "x.csv")], tmp_path / "run", tmp_path / "blobs")
    assert caught.value.remedy
    assert (tmp_path / "x.csv").exists()


def test_kept_data_that_was_damaged_is_named_and_dropped_so_that_it_comes_anew(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    file = as_file("data/x.csv")
    put(tmp_path, f"blobs/{file.sha256}", text="onE")
    assert store.has(file)  # of the right size
    with pytest.raises(DataError, match=r"data/x\.csv as kept here isn't what the head has"):
        lay_out([(file, store.path(file.sha256))], tmp_path / "run", tmp_path / "blobs")
    assert not store.has(file)
