"""The file of known nodes: remembers, forgets, names itself when it is damaged."""

from pathlib import Path

import pytest

from daisychain.errors import TrustError
from daisychain.trust.known import KnownHead, KnownNodes, KnownWorker

A, B = "a" * 64, "b" * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "nodes.json"


def test_nothing_is_known_at_first_and_reading_writes_nothing(file: Path) -> None:
    known = KnownNodes(file)
    assert (known.workers(), known.heads(), known.is_known(A)) == ((), (), False)
    assert not file.exists()


def test_what_is_added_is_known_to_the_next_process(file: Path) -> None:
    known = KnownNodes(file)
    known.add_worker(A, "äpfel")
    known.add_head(B, "big", "10.0.0.1", 47632)
    again = KnownNodes(file)
    assert again.workers() == (KnownWorker(id=A, name="äpfel"),)
    assert again.heads() == (KnownHead(id=B, name="big", address="10.0.0.1", port=47632),)
    assert again.is_known(A)
    assert again.is_known(B)


def test_adding_again_replaces_and_comes_last(file: Path) -> None:
    known = KnownNodes(file)
    known.add_head(A, "one", "10.0.0.1", 1)
    known.add_head(B, "two", "10.0.0.2", 2)
    known.add_head(A, "one", "10.0.0.9", 9)
    assert [(head.id, head.address) for head in known.heads()] == [(B, "10.0.0.2"), (A, "10.0.0.9")]


@pytest.mark.parametrize("by", ["old", A])
def test_a_forgotten_worker_is_remembered_as_such_until_let_in_again(file: Path, by: str) -> None:
    known = KnownNodes(file)
    known.add_worker(A, "old")
    assert known.forget(by) == A
    for reader in (known, KnownNodes(file)):
        assert not reader.is_known(A)
        assert reader.was_forgotten(A)
        assert reader.workers() == ()
    assert known.forget(by) == ""
    known.add_worker(A, "old")
    assert known.is_known(A)
    assert not known.was_forgotten(A)


def test_a_forgotten_head_is_gone(file: Path) -> None:
    known = KnownNodes(file)
    known.add_head(A, "big", "10.0.0.1", 1)
    assert known.forget("big") == A
    assert KnownNodes(file).heads() == ()
    assert not known.is_known(A)


def test_a_name_of_two_nodes_needs_an_id(file: Path) -> None:
    known = KnownNodes(file)
    known.add_worker(A, "laptop")
    known.add_worker(B, "laptop")
    with pytest.raises(TrustError, match="2 nodes") as caught:
        known.forget("laptop")
    assert A in caught.value.remedy
    assert known.is_known(A)
    assert known.forget("stranger") == ""


@pytest.mark.parametrize("content", [b"", b"[]", b'{"workers": 3}', b"\xff\xfe", b'{"v": 1, "workers": [{"id": 1}]}'])
def test_a_damaged_file_is_named_with_what_to_try(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(TrustError, match=r"nodes\.json is damaged") as caught:
        KnownNodes(file)
    assert "Move it away" in caught.value.remedy
    assert file.read_bytes() == content


def test_a_newer_file_is_not_overwritten(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"v": 2}')
    with pytest.raises(TrustError, match="version 2"):
        KnownNodes(file)


def test_a_file_that_cannot_be_written_is_named_and_changes_nothing(tmp_path: Path) -> None:
    known = KnownNodes(tmp_path / "file" / "nodes.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(TrustError, match=r"nodes\.json"):
        known.add_worker(A, "old")
    assert not known.is_known(A)
