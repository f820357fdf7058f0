"""Plain text of known width: cleaning what strangers sent, cutting, padding, numbers for people. Pure."""

import unicodedata
from typing import Literal

ColourRole = Literal["", "bold", "dim", "accent", "ok", "warn", "bad", "compute", "sync", "wait"]
"""What a colour stands for; the theme says which one it is. It never carries meaning alone."""

Piece = tuple[str, ColourRole]
Line = tuple[Piece, ...]
"""One row of a screen: text with the role of its colour. Never parsed as markup."""

UNKNOWN = "–"  # noqa: RUF001


def clean(text: str, limit: int = 200) -> str:
    """Text from elsewhere, harmless: no control, formatting or surrogate characters, at most `limit` characters.

    One combining mark a character is kept, so that a name can't paint over its neighbours.
    """
    kept: list[str] = []
    for character in text[: 4 * limit]:
        category = unicodedata.category(character)
        if category[0] == "C" or category in ("Zl", "Zp"):
            kept.append(" " if character in "\t\n\r" else "")
        elif category in ("Mn", "Me"):
            stacked = not kept or not kept[-1] or unicodedata.category(kept[-1][-1]) in ("Mn", "Me")
            kept.append("" if stacked else character)
        else:
            kept.append(character)
    return "".join(kept)[:limit]


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def width(text: str) -> int:
    """Terminal cells that `text` takes."""
    return len(text) if text.isascii() else sum(_cells(character) for character in text)


def cut(text: str, cells: int) -> str:
    """`text` in at most `cells` cells, with an ellipsis where something was left out."""
    if cells <= 0:
        return ""
    if width(text) <= cells:
        return text
    taken, used = [], 1
    for character in text:
        used += _cells(character)
        if used > cells:
            break
        taken.append(character)
    return "".join(taken) + "…"


def fit(text: str, cells: int, right: bool = False) -> str:
    """`text` cut or padded to exactly `cells` cells."""
    short = cut(text, cells)
    space = " " * (cells - width(short))
    return space + short if right else short + space


def line_width(line: Line) -> int:
    return sum(width(text) for text, _ in line)


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def duration(seconds: float | None) -> str:
    """'7 s', '4 min 12 s', '3 h 05 min', '2 d 4 h'."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(seconds))
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {left:02} s" if minutes else f"{left} s"


def size(count: int | None) -> str:
    """Bytes in decimal units: '812 B', '27 MB', '1.5 GB'."""
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.1f} {unit}" if unit != "B" and value < 9.95 else f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB" if value < 9.95 else f"{value:.0f} TB"


def memory(count: int) -> str:
    """Memory the way it is sold: '8 GB' for 8 GiB."""
    return f"{max(1, round(count / 2**30))} GB"


def number(value: float | None) -> str:
    """Three significant digits at least, thousands apart: '21 700', '94.3', '0.0123'."""
    if value is None:
        return UNKNOWN
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", "\u202f")
    if abs(value) >= 1 or value == 0:
        return f"{value:.3g}"
    return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.4f}".rstrip("0")


def milliseconds(value: float | None) -> str:
    """'0.8', '61', '1 240': milliseconds without the unit."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 9.95 else number(float(f"{value:.0f}")) if value >= 100 else f"{value:.0f}"


def bar(part: float, cells: int) -> str:
    """A bar of exactly `cells` cells, filled to `part` (0 to 1) in halves of a cell; more than nothing is visible."""
    halves = round(min(1.0, max(0.0, part)) * cells * 2)
    full, rest = divmod(max(halves, 1) if part > 0 else 0, 2)
    return fit("━" * full + "╸" * rest, cells)


def apportion(parts: tuple[float, ...], cells: int) -> tuple[int, ...]:
    """Whole cells for each part, adding up to `cells` exactly (largest remainder); all 0 when the parts are."""
    total = sum(parts)
    if total <= 0 or cells <= 0:
        return tuple(0 for _ in parts)
    exact = [part / total * cells for part in parts]
    whole = [int(part) for part in exact]
    for index in sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])[: cells - sum(whole)]:
        whole[index] += 1
    return tuple(whole)
