"""The demo: text for all nodes, and a model that learns it."""

import math

import msgspec
import pytest

from daisychain.jobs.demo import prepare as p

torch = pytest.importorskip("torch")
from daisychain.jobs.demo import train  # noqa: E402


def test_encode_is_reversible_and_bytes():
    codes, vocabulary = p.encode("banana\nbandana")
    assert "".join(vocabulary.characters[code] for code in codes) == "banana\nbandana"
    assert vocabulary.train == 13


def test_topics_are_joined_in_order_and_in_ascii():
    assert p.joined({"b": " two… ", "a": "one\tx"}) == "one x\n\ntwo "


def test_prepare_ships_the_text(tmp_path, child):
    code, lines = child("demo.prepare", {"out": str(tmp_path), "seed": 1})
    assert code == 0
    assert lines[-1]["files"] == ["text.bin", "vocabulary.json"]
    codes, vocabulary = train.load(tmp_path)
    assert len(codes) == lines[-1]["rows_train"] + lines[-1]["rows_valid"] > p.FEWEST_CHARACTERS
    assert int(codes.max()) < len(vocabulary.characters)


def test_windows_span_the_text():
    codes = torch.arange(200, dtype=torch.uint8)
    seen = train.windows(codes, 5)
    assert seen.shape == (5, train.WINDOW)
    assert seen[0, 0] == 0
    assert seen[-1, -1] == 199


def test_each_character_is_foretold_from_those_before_it_alone():
    torch.manual_seed(0)
    model = train.NextCharacter(10)
    window = torch.randint(0, 10, (1, train.WINDOW))
    changed = window.clone()
    changed[0, train.CONTEXT + 2] += 1
    changed %= 10
    before, after = model(window[:, :-1]), model(changed[:, :-1])
    assert before.shape == (1, 10, train.FORETOLD)
    assert torch.equal(before[:, :, :3], after[:, :, :3])
    assert not torch.equal(before[:, :, 3], after[:, :, 3])


def test_unigram_bits():
    assert train.unigram_bits([0, 0, 0, 1, 1], [0, 1], 2) == pytest.approx(-(math.log2(4 / 7) + math.log2(3 / 7)) / 2)


def test_learns(tmp_path, lone_chain, capsys, monkeypatch):
    monkeypatch.setattr(train, "WINDOWS", 2048)
    monkeypatch.setattr(train, "VALIDATION_WINDOWS", 64)
    text = "the cat sat on the mat. the dog lay on the rug. " * 60
    codes, vocabulary = p.encode(text)
    (tmp_path / "text.bin").write_bytes(codes)
    (tmp_path / "vocabulary.json").write_bytes(msgspec.json.encode(vocabulary))
    lone_chain.options = {"epochs": 2, "batch": 64}
    train.main([str(tmp_path)])
    assert lone_chain.losses[-1] < lone_chain.losses[0] / 2
    scores = lone_chain.scores
    assert scores["loss_bits_per_character"] < scores["baseline"]["loss_bits_per_character"]
    assert "A sample" in capsys.readouterr().out
    assert (lone_chain.folder / "model.pt").is_file()


def test_most_letters_finds_prose():
    codes, vocabulary = p.encode("---- ab\n-cde-")
    contexts = torch.tensor([list(codes[:4]), list(codes[8:12])])
    assert torch.equal(train.most_letters(contexts, vocabulary), contexts[1])
