"""A run's report, for programs and for people: pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from daisychain.facts import RunState
from daisychain.run.contribution import advice

EXACT = "exact"


def as_json(state: RunState, speeds: Mapping[str, float], added: Mapping[str, float]) -> dict[str, Any]:
    """report.json; the same keys as the `finished` event where they mean the same.

    speeds: each rank's own samples a second. added: by how much each node made the run faster (contribution.py).
    """
    return {
        "v": 1,
        "run": state.id,
        "name": state.name,
        "phase": state.phase,
        "exit": state.exit,
        "error": state.error,
        "steps": state.step,
        "epochs": state.epochs,
        "batch": state.spec.batch or state.batch,
        "sync": state.spec.sync,
        "approximate": state.spec.sync != EXACT,
        "seconds": round(state.elapsed_s, 3),
        "samples_per_second": state.samples_per_second,
        "speedup_vs_fastest_node": state.speedup_vs_fastest_node,
        "forecast": None if state.foretold is None else msgspec.to_builtins(state.foretold),
        "left_out": list(state.left_out),
        "loss": state.loss,
        "scores": state.scores,
        "ledger": state.ledger,
        "nodes": {
            part.node: {
                "share": part.share,
                "samples_per_second_computing": speeds.get(part.node),
                "compute_ms": part.compute_ms,
                "sync_ms": part.sync_ms,
                "wait_ms": part.wait_ms,
                "added": added.get(part.node),
            }
            for part in state.nodes
        },
        "folder": state.folder,
    }


def as_markdown(state: RunState, speeds: Mapping[str, float], added: Mapping[str, float]) -> str:
    """report.md; the arguments of `as_json`."""
    lines = [f"# {state.name}", ""]
    if state.error:
        lines += [f"**{state.phase}**: {state.error}", "", f"Log: `{state.log_path}`", ""]
    lines += [
        f"- {state.phase} after {state.step} steps in {state.elapsed_s:.1f} s",
        f"- throughput: {_number(state.samples_per_second)} samples/s",
        f"- against the fastest node's own computing speed in this run: {_number(state.speedup_vs_fastest_node)} times",
        *_foretold(state),
        f"- sync: {state.spec.sync}{'' if state.spec.sync == EXACT else ' (approximate)'}",
        f"- last loss: {_number(state.loss)}",
        f"- ledger: {state.ledger or 'no step was applied'}",
        "",
        "| node | share | alone, samples/s | compute ms | sync ms | wait ms | added |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in state.nodes:
        times = " | ".join(_number(value) for value in (part.compute_ms, part.sync_ms, part.wait_ms))
        gain = f"{added[part.node]:+.0%}" if part.node in added else "unknown"
        lines.append(f"| {part.node} | {part.share} | {_number(speeds.get(part.node))} | {times} | {gain} |")
    if said := advice(added):
        lines += ["", said]
    if state.scores:
        baseline = state.scores.get("baseline")
        known = baseline if isinstance(baseline, dict) else {}
        lines += ["", "| score | this model | baseline |", "|---|---|---|"]
        lines += [
            f"| {name} | {_number(value)} | {_number(known.get(name))} |"
            for name, value in state.scores.items()
            if not isinstance(value, dict)
        ]
    return "\n".join(lines) + "\n"


def _foretold(state: RunState) -> list[str]:
    """The forecast beside what came of it."""
    told = state.foretold
    if told is None:
        return ["- forecast: none"]
    times = f"{_number(told.samples_per_second)} samples/s, {_number(told.speedup)} times the fastest node alone"
    out = [f"- left out: {', '.join(state.left_out)}"] if state.left_out else []
    return [f"- forecast: {times}, {told.step_ms:.0f} ms a step ({told.text})", *out]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
