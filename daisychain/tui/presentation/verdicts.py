"""Judgements: a sign, whose it is, why, what to do."""

from daisychain.errors import DaisyError
from daisychain.facts import Level, Verdict
from daisychain.tui.text import ColourRole, Line, clean

LEVEL: dict[Level, tuple[str, ColourRole]] = {"ok": ("✓", "ok"), "warn": ("!", "warn"), "refuse": ("✗", "bad")}


def verdict_lines(verdict: Verdict) -> tuple[Line, ...]:
    """The sign, whose it is and why; below it what to do."""
    sign, role = LEVEL[verdict.level]
    whose = f"{clean(verdict.node)}: " if verdict.node else ""
    lines: list[Line] = [((f"{sign} ", role), (f"{whose}{clean(verdict.reason, 400)}", ""))]
    if verdict.remedy:
        lines.append((("  → ", "dim"), (clean(verdict.remedy, 400), "dim")))
    return tuple(lines)


def error_lines(error: DaisyError) -> list[Line]:
    """What happened, and below it what to try."""
    lines: list[Line] = [(("✗ ", "bad"), (clean(error.what, 400), ""))]
    return [*lines, (("  → ", "dim"), (clean(error.remedy, 400), "dim"))] if error.remedy else lines
