"""How a run ended: its result beside what it is measured by, or its error."""

from daisychain.facts import ENDED, RunState
from daisychain.tui.text import Line, clean, duration, fit, number


def ending(run: RunState) -> tuple[Line, ...]:
    """The result or the error of a run that has ended; nothing before."""
    if run.phase not in ENDED:
        return ()
    if run.phase == "failed":
        lines: list[Line] = [(("✗ ", "bad"), (clean(run.error, 400) or "The run failed; its log says why", "bold"))]
        if run.log_path:
            lines.append((("  log     ", "dim"), (clean(run.log_path, 400), "accent")))
    else:
        word, sign, role = ("finished", "✓", "ok") if run.phase == "finished" else ("stopped", "■", "warn")
        lines = [((f"{sign} {word}", role), (f" after {duration(run.elapsed_s)} and {run.step} steps", ""))]  # type: ignore[list-item]
        lines.append(speedup_line(run))
        lines.extend(score_lines(run))
    lines.append((("  folder  ", "dim"), (clean(run.folder, 400), "accent")))
    return tuple(lines)


def speedup_line(run: RunState) -> Line:
    """What the chain gained over its fastest node alone, good or bad news alike."""
    rate = f"  {number(run.samples_per_second)} samples/s"
    gain = run.speedup_vs_fastest_node
    if gain is None:
        return ((rate, ""), (", speed-up over the fastest node alone: not measured", "dim"))
    if gain < 1:
        return ((rate, ""), (f"  ! {gain:.2f} times the fastest node alone: the chain was slower", "warn"))
    return ((rate, ""), (f"  ✓ {gain:.2f} times the fastest node alone", "ok"))


def score_lines(run: RunState) -> tuple[Line, ...]:
    """Every score beside its baseline."""
    baseline = run.scores.get("baseline")
    beside = baseline if isinstance(baseline, dict) else {}
    lines: list[Line] = []
    for name, value in run.scores.items():
        if isinstance(value, dict):
            continue
        lines.append((
            (f"  {fit(clean(name), 10)}", "dim"), (fit(number(value), 8, True), "bold"),
            (f"   baseline {number(beside[name])}" if name in beside else "", "dim"),
        ))  # fmt: skip
    return tuple(lines)


def copy_text(run: RunState) -> str:
    """What `c` copies on the run screen: the error and its log, or the folder."""
    if run.error or run.log_path:
        return "\n".join(part for part in (clean(run.error, 400), clean(run.log_path, 400)) if part)
    return clean(run.folder, 400)
