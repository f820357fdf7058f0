import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.tui import text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),  # noqa: RUF001
        (-3, "0 s"), (0.4, "0 s"), (59.6, "1 min 00 s"), (252, "4 min 12 s"), (3600, "1 h 00 min"),
        (3600 * 3 + 300, "3 h 05 min"), (3600 * 52, "2 d 4 h"),
    ],
)  # fmt: skip
def test_duration(seconds: float | None, words: str) -> None:
    assert text.duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (27_000_000, "27 MB"), (999_999, "1.0 MB"), (2 * 10**12, "2.0 TB")],
)
def test_size(count: int, words: str) -> None:
    assert text.size(count) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),  # noqa: RUF001
        (0, "0"), (21700.4, "21\u202f700"), (94.31, "94.3"), (0.2131, "0.2131"), (0.00001234, "1.23e-05"),
        (float("nan"), "nan"), (float("inf"), "inf"), (-1500, "-1\u202f500"),
    ],
)  # fmt: skip
def test_number(value: float | None, words: str) -> None:
    assert text.number(value) == words


def test_milliseconds_show_a_decimal_only_where_it_matters() -> None:
    assert [text.milliseconds(value) for value in (None, 0.64, 61.2, 1240.0)] == ["–", "0.6", "61", "1\u202f240"]  # noqa: RUF001


def test_clean_removes_what_a_terminal_would_act_on() -> None:
    assert text.clean("a\x1b[31mb\x07\u202ec\u200bd\ne\ud800") == "a[31mbcd e"


def test_clean_keeps_one_combining_mark_a_character() -> None:
    assert text.clean("e\u0301\u0301\u0301x\u0301") == "e\u0301x\u0301"
    assert text.clean("\u0301a") == "a"


@given(st.text(max_size=300))
def test_clean_text_has_no_control_characters_and_a_bounded_length(anything: str) -> None:
    cleaned = text.clean(anything, 50)
    assert len(cleaned) <= 50
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in cleaned)


@given(st.text(max_size=60), st.integers(0, 40), st.booleans())
def test_fit_is_exactly_as_wide_as_asked(anything: str, cells: int, right: bool) -> None:
    assert text.width(text.fit(text.clean(anything), cells, right)) == cells


def test_cut_counts_wide_characters_twice() -> None:
    assert text.cut("日本語", 5) == "日本…"
    assert text.width("日本語") == 6


@given(st.floats(-1, 2), st.integers(0, 50))
def test_a_bar_is_as_wide_as_asked(part: float, cells: int) -> None:
    drawn = text.bar(part, cells)
    assert len(drawn) == cells
    assert (drawn.strip() != "") == (part > 0 and cells > 0)


def test_bar_is_proportional() -> None:
    assert text.bar(0.5, 4) == "━━  "
    assert text.bar(0.6, 4) == "━━╸ "
    assert text.bar(1, 4) == "━━━━"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.integers(0, 100))
def test_apportion_adds_up(parts: list[float], cells: int) -> None:
    whole = text.apportion(tuple(parts), cells)
    assert sum(whole) == (cells if sum(parts) > 0 else 0)
    assert all(count >= 0 for count in whole)
