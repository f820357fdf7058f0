"""Theme files: a plain set of named colours in TOML -> Textual themes. A bad file is reported, never fatal."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from textual.theme import Theme

from daisychain.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FALLBACK = "dark"
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,31}")


class Colours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every colour of a theme, each `#rrggbb`."""

    background: str
    """Behind everything."""
    surface: str
    """Inputs and dialogs."""
    panel: str
    """The selected row and the line of keys."""
    line: str
    """Borders."""
    foreground: str
    """Text."""
    dim: str
    """Labels and hints."""
    accent: str
    """Keys, and what to look at."""
    ok: str
    warn: str
    bad: str
    compute: str
    """The parts of a step, in bars and charts."""
    sync: str
    wait: str


class ThemeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    dark: bool
    colours: Colours


BUILT_IN = ThemeFile(
    name=FALLBACK,
    dark=True,
    colours=Colours(
        background="#12151a", surface="#191d24", panel="#232933", line="#3a4350", foreground="#d8dee6", dim="#8b96a5",
        accent="#6cb6ff", ok="#6bc58b", warn="#e0b45c", bad="#f0807a", compute="#6bc58b", sync="#6cb6ff",
        wait="#a3adba",
    ),
)  # fmt: skip
"""What is used where no theme file can be read at all."""


def parse(text: str, where: str) -> ThemeFile:
    """One theme file's content. Raises ConfigError naming the file and the key."""
    try:
        theme = msgspec.convert(tomllib.loads(text), ThemeFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{where}: {error}", "Compare it with themes/dark.toml") from error
    if not _NAME.fullmatch(theme.name):
        raise ConfigError(f"{where}: name is {theme.name[:40]!r}", "Use letters, digits, spaces, - and _")
    for key in Colours.__struct_fields__:
        if not _COLOUR.fullmatch(colour := getattr(theme.colours, key)):
            raise ConfigError(f"{where}: {key} is {colour[:40]!r}", "Give a colour as #rrggbb")
    return theme


def variables(colours: Colours) -> dict[str, str]:
    """The style sheet's variables beyond Textual's own."""
    return {
        "dim": colours.dim,
        "line": colours.line,
        "compute": colours.compute,
        "sync": colours.sync,
        "wait": colours.wait,
        "border": colours.accent,
        "border-blurred": colours.line,
        "footer-background": colours.panel,
        "footer-foreground": colours.foreground,
        "footer-key-foreground": colours.accent,
        "footer-description-foreground": colours.foreground,
        "block-cursor-background": colours.panel,
        "block-cursor-foreground": colours.foreground,
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": colours.surface,
        "block-cursor-blurred-foreground": colours.foreground,
        "block-cursor-blurred-text-style": "none",
        "block-hover-background": colours.surface,
        "input-selection-background": f"{colours.accent} 35%",
        "scrollbar": colours.line,
        "scrollbar-hover": colours.dim,
        "scrollbar-active": colours.accent,
        "scrollbar-background": colours.background,
        "scrollbar-background-hover": colours.background,
        "scrollbar-background-active": colours.background,
        "scrollbar-corner-color": colours.background,
    }


def to_textual(theme: ThemeFile) -> Theme:
    colours = theme.colours
    return Theme(
        name=theme.name,
        primary=colours.accent,
        secondary=colours.sync,
        accent=colours.accent,
        foreground=colours.foreground,
        background=colours.background,
        surface=colours.surface,
        panel=colours.panel,
        success=colours.ok,
        warning=colours.warn,
        error=colours.bad,
        dark=theme.dark,
        text_alpha=1.0,
        variables=variables(colours),
    )


def shipped_folder() -> Path:
    """The themes that come with DaisyChain: in the installed package, or at the top of the repository."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "themes"
    return inside if inside.is_dir() else package.parent / "themes"


def load(folders: Sequence[Path]) -> tuple[dict[str, ThemeFile], list[ConfigError]]:
    """Every theme below `folders` by name, later folders winning, and what is wrong with the files left out.

    There is always the theme named FALLBACK.
    """
    themes = {FALLBACK: BUILT_IN}
    problems = []
    for folder in folders:
        for file in sorted(folder.glob("*.toml")):
            try:
                theme = parse(file.read_text(encoding="utf-8"), str(file))
            except ConfigError as error:
                problems.append(error)
            except (OSError, UnicodeDecodeError) as error:
                problems.append(ConfigError(f"{file}: {error}", "Correct the file or move it away"))
            else:
                themes[theme.name] = theme
    return themes, problems


def after(names: Sequence[str], current: str) -> str:
    """The theme that follows `current` when cycling."""
    return names[(names.index(current) + 1) % len(names)] if current in names else names[0]
