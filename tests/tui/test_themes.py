from pathlib import Path

import pytest
from textual.color import Color

from daisychain.errors import ConfigError
from daisychain.tui import themes

SHIPPED, PROBLEMS = themes.load([themes.shipped_folder()])


def test_the_shipped_themes_are_there_and_right() -> None:
    assert PROBLEMS == []
    assert {"dark", "light", "colour-safe"} <= set(SHIPPED)
    assert SHIPPED["dark"] == themes.BUILT_IN


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [part / 255 for part in Color.parse(colour).rgb]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_everything_written_can_be_read_on_its_background(name: str) -> None:
    colours = SHIPPED[name].colours
    for ground in (colours.background, colours.surface, colours.panel):
        for key in ("foreground", "accent", "ok", "warn", "bad", "dim"):
            assert _contrast(getattr(colours, key), ground) >= 4.5, (name, key, ground)
    for key in ("compute", "sync", "wait"):
        assert _contrast(getattr(colours, key), colours.background) >= 3, (name, key)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("#6cb6ff", "blue"), "accent"),
        (('accent = "#6cb6ff"', ""), "accent"),
        (('accent = "#6cb6ff"', 'accent = "#6cb6ff"\nacent = "#6cb6ff"'), "acent"),
        (('name = "dark"', 'name = "[red]"'), "name"),
        (("[colours]", "[colours"), "theme.toml"),
        (("dark = true", 'dark = "yes"'), "dark"),
    ],
)
def test_a_bad_theme_names_its_file_and_key(change: tuple[str, str], named: str) -> None:
    good = (themes.shipped_folder() / "dark.toml").read_text()
    with pytest.raises(ConfigError) as caught:
        themes.parse(good.replace(*change), "theme.toml")
    assert "theme.toml" in caught.value.what
    assert named in caught.value.what


def test_a_theme_of_the_user_wins_and_a_bad_one_is_only_reported(tmp_path: Path) -> None:
    good = (themes.shipped_folder() / "dark.toml").read_text()
    (tmp_path / "mine.toml").write_text(good.replace("#6cb6ff", "#ffffff"))
    (tmp_path / "bad.toml").write_text("name = 1")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    found, problems = themes.load([themes.shipped_folder(), tmp_path, tmp_path / "none"])
    assert found["dark"].colours.accent == "#ffffff"
    assert len(problems) == 2
    assert themes.load([])[0] == {"dark": themes.BUILT_IN}


def test_cycling_comes_round() -> None:
    names = ["a", "b", "c"]
    assert [themes.after(names, name) for name in [*names, "gone"]] == ["b", "c", "a", "a"]


def test_every_variable_of_the_style_sheet_is_defined() -> None:
    import re

    sheet = (Path(themes.__file__).parent / "app.tcss").read_text()
    ours = set(themes.variables(themes.BUILT_IN.colours))
    textual = {"background", "foreground", "surface", "panel", "accent", "error", "success", "warning"}
    assert set(re.findall(r"\$([a-z-]+)", sheet)) <= ours | textual
