"""A run: its phase, how far it is, how fast."""

from collections.abc import Sequence

from daisychain.facts import ENDED, Phase, RunState
from daisychain.tui.text import UNKNOWN, ColourRole, Line, bar, clean, duration, milliseconds, number

PREFLIGHT = 4
"""Exit code of a run that was refused before its first step."""
PHASE: dict[Phase, tuple[str, ColourRole]] = {
    "preparing": ("◌", "accent"),
    "shipping": ("◌", "accent"),
    "starting": ("◌", "accent"),
    "running": ("▶", "ok"),
    "finishing": ("◌", "accent"),
    "finished": ("✓", "ok"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "warn"),
}


def phase_text(run: RunState) -> Line:
    """Sign and word, such as '▶ running'."""
    if run.paused and run.phase not in ENDED:
        return (("‖ paused", "warn"),)
    sign, role = PHASE[run.phase]
    return ((f"{sign} {run.phase}", role),)


def run_title(run: RunState) -> Line:
    return ((clean(run.name) or clean(run.id), "bold"), ("   ", ""), *phase_text(run))


def fraction(run: RunState) -> float | None:
    """How much of the run is done, 0 to 1; None while its length is unknown."""
    if run.phase == "finished":
        return 1.0
    if run.steps:
        return min(1.0, run.step / run.steps)
    return min(1.0, run.epoch / run.epochs) if run.epochs else None


def progress_line(run: RunState, cells: int) -> Line:
    """The progress bar with its per cent, exactly `cells` wide; an empty bar while unknown."""
    done = fraction(run)
    label = f"{UNKNOWN:>5}" if done is None else f"{done:5.0%}"
    space = max(1, cells - 6)
    full = bar(done or 0.0, space)
    filled = full.rstrip(" ")
    role: ColourRole = {"failed": "bad", "stopped": "warn"}.get(run.phase, "accent")  # type: ignore[assignment]
    return ((filled, role), ("─" * (space - len(filled)), "dim"), (" ", ""), (label, "bold"))


def counters_line(run: RunState) -> Line:
    """Step, epoch, time and what is left."""
    step = f"{run.step}" + (f" of {run.steps}" if run.steps else "")
    pieces: list[tuple[str, ColourRole]] = [("step ", "dim"), (step, "")]
    if run.epochs or run.epoch:
        pieces += [("   epoch ", "dim"), (f"{run.epoch}" + (f" of {run.epochs}" if run.epochs else ""), "")]
    pieces += [("   elapsed ", "dim"), (duration(run.elapsed_s), "")]
    if run.phase not in ENDED:
        pieces += [("   left ", "dim"), (duration(run.eta_s), "")]
    return tuple(pieces)


def rates_line(run: RunState) -> Line:
    """Throughput, step time, global batch, loss."""
    pieces: list[tuple[str, ColourRole]] = [
        (number(run.samples_per_second), "bold"), (" samples/s   ", "dim"),
        ("step ", "dim"), (milliseconds(run.step_ms), ""), (" ms   ", "dim"),
        ("batch ", "dim"), (UNKNOWN if run.batch is None else str(run.batch), ""),
        ("   loss ", "dim"), (number(run.loss), ""),
    ]  # fmt: skip
    return tuple(pieces)


def forecast_lines(run: RunState) -> tuple[Line, ...]:
    """What was foretold before the first step, to stand below what is measured; none while that is unknown."""
    told = run.foretold
    if told is None:
        return ()
    gain = "" if told.speedup is None else f"   {told.speedup:.2f} times the fastest node alone"
    lines: list[Line] = [(
        ("forecast ", "dim"), (number(told.samples_per_second), ""), (" samples/s   step ", "dim"),
        (milliseconds(told.step_ms), ""), (" ms", "dim"), (gain, ""),
    )]  # fmt: skip
    if run.left_out:
        lines.append(
            (("left out ", "dim"), (", ".join(clean(name) for name in run.left_out), ""), (", it is faster so", "dim"))
        )
    return tuple(lines)


def lost_beforehand(run: RunState) -> bool:
    """Whether the run was refused for its forecast, and may be launched all the same."""
    return run.phase == "failed" and run.exit == PREFLIGHT and run.foretold is not None and not run.spec.anyway


def new_log_lines(old: Sequence[str], new: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """(start over, lines to add) that turn a log showing `old` into one ending as `new`."""
    for start in range(len(old) + 1):
        if list(old[start:]) == list(new[: len(old) - start]) and start < len(old):
            return False, new[len(old) - start :]
    return bool(old), new
