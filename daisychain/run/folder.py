"""The run folder: run.toml, metrics, events, ledger.jsonl, rank-N.log, checkpoints/, report.json, report.md."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from daisychain.config import write_atomically
from daisychain.errors import UsageError
from daisychain.facts import RunSpec, RunState, Verdict
from daisychain.run.ledger import Ledger, check, read
from daisychain.run.report import as_json, as_markdown

LEDGER = "ledger.jsonl"
KNOBS: Mapping[str, Callable[[Any], Any]] = {
    "threads": int, "fused": bool, "plain_ms": float, "fused_ms": float, "bucket_bytes": int,
}  # fmt: skip
OWN_FILES = ("run.toml", "metrics.jsonl", "events.jsonl", "report.json", "report.md", "ledger.jsonl")


class RunFolder:
    """Writes a run's folder; lines are flushed as they come, so that a killed agent loses at most one."""

    def __init__(self, path: Path, *, again: bool = False) -> None:
        """again: go on in the folder of a run that ended early."""
        self.path = path
        path.mkdir(parents=True, exist_ok=again)
        (path / "checkpoints").mkdir(exist_ok=again)
        self._launched = ""
        self._knobs: dict[str, Mapping[str, Any]] = {}
        self._metrics = self._open("metrics.jsonl")
        self._events = self._open("events.jsonl")
        self.ledger = Ledger(path / LEDGER)

    def _open(self, name: str) -> IO[str]:
        return (self.path / name).open("a", encoding="utf-8", buffering=1)

    def launch(self, spec: RunSpec, facts: Mapping[str, Any]) -> None:
        """Write run.toml: what was asked for, and with what it was launched."""
        lines = ["# What was launched; written by DaisyChain.", ""]
        lines += [f"{key} = {_toml(value)}" for key, value in {**facts, **msgspec.to_builtins(spec)}.items()]
        self._launched = "\n".join(lines) + "\n"
        write_atomically(self.path / "run.toml", self._launched)

    def knobs(self, node: str, chosen: Mapping[str, Any]) -> None:
        """Add to run.toml what a node chose by measurement; its newest choice counts.

        chosen: as train/reports.knobs makes it. Raises KeyError, TypeError or ValueError where it isn't such.
        """
        self._knobs[node] = {name: kind(chosen[name]) for name, kind in KNOBS.items()}
        tables = (_table(f"knobs.{_toml(name)}", values) for name, values in sorted(self._knobs.items()))
        write_atomically(self.path / "run.toml", self._launched + "".join(tables))

    def metric(self, line: Mapping[str, Any]) -> None:
        """A step's line of the tracker: its times into metrics.jsonl, what it proves into the ledger."""
        shown = {name: value for name, value in line.items() if name != "order"}
        self._metrics.write(json.dumps(shown, allow_nan=False) + "\n")
        if "order" in line:
            place = {name: line[name] for name in ("step", "batch", "generation")}
            shares = {node: int(part["share"]) for node, part in line["nodes"].items()}
            self.ledger.applied(**place, **line["order"], shares=shares)

    def proof(self, samples: int, drop_last: bool, batch: int) -> Verdict:
        """Whether the ledger shows every sample of every epoch once."""
        return check(read(self.path / LEDGER), samples, drop_last, batch)

    def event(self, time_s: float, event: str, **facts: Any) -> None:
        """One thing that happened, `time_s` seconds after the launch."""
        self._events.write(json.dumps({"v": 1, "time": round(time_s, 3), "event": event, **facts}) + "\n")

    def finish(self, state: RunState, speeds: Mapping[str, float], added: Mapping[str, float]) -> None:
        """Write report.json and report.md and close the files."""
        write_atomically(self.path / "report.json", json.dumps(as_json(state, speeds, added), indent=2) + "\n")
        write_atomically(self.path / "report.md", as_markdown(state, speeds, added))
        self.close()

    def close(self) -> None:
        self._metrics.close()
        self.ledger.close()
        self._events.close()


def read_spec(runs: Path, run: str) -> RunSpec:
    """What a run was launched with, from its run.toml. Raises UsageError when there is no such run here."""
    file = runs / run / "run.toml"
    try:
        facts = tomllib.loads(file.read_text(encoding="utf-8"))
        given = {name: facts[name] for name in RunSpec.__struct_fields__ if facts.get(name, "") != ""}
        return msgspec.convert(given, RunSpec)
    except FileNotFoundError:
        known = sorted((folder.name for folder in runs.glob("*") if (folder / "run.toml").exists()), reverse=True)
        newest = f"The newest is {known[0]}" if known else "No run was launched here yet"
        raise UsageError(f"there is no run {run!r} on this machine", newest) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read: {error}", "Launch the training anew") from error


def _table(name: str, values: Mapping[str, Any]) -> str:
    return "\n".join(["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML: strings, numbers, booleans and arrays of them; None as an empty string."""
    if value is None:
        return '""'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON's escapes are TOML's, but for surrogates (none are made, lone ones are spelled out) and DEL
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
