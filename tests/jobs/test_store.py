"""Columns with few and with many different texts."""

import math

from daisychain.jobs.tabular.store import Store, pick


def filled(texts, limit=10):
    store = Store(limit)
    for start in range(0, len(texts), 7):
        store.extend(texts[start : start + 7])
    return store


def test_few_texts_are_kept_once():
    store = filled(["a", "b", "a", ""] * 5)
    assert store.texts == {"a": 0, "b": 1, "": 2}
    assert list(store.codes) == [0, 1, 0, 2] * 5
    assert store.wide is None


def test_many_numbers_become_doubles_in_order():
    store = filled([str(i / 2) for i in range(200)] + ["NA"])
    guess = store.guess_wide()
    assert (guess.kind, guess.note) == ("number", "under 1% missing")
    assert list(store.values[:200]) == [i / 2 for i in range(200)]
    assert math.isnan(store.values[200])
    assert pick(store.values, [3, 200]) == [1.5, None]
    assert not store.texts


def test_many_dates_become_seconds():
    store = filled([f"2013-01-01 00:{m:02}:{s:02}" for m in range(10) for s in range(60)])
    assert store.guess_wide().kind == "date"
    assert store.values[61] - store.values[0] == 61.0


def test_many_texts_are_not_kept():
    store = filled([f"guest {i}" for i in range(100)])
    assert store.guess_wide().kind == "dropped"
    assert len(store.values) == len(store.codes) == 0


def test_numbers_that_turn_out_to_be_texts_later_are_dropped():
    store = filled([str(i) for i in range(50)] + [f"x{i}" for i in range(50)])
    guess = store.guess_wide()
    assert guess.kind == "dropped"
    assert "50 of 100 are no number" in guess.note
