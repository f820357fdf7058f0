"""The run folder: run.toml, metrics.jsonl, events.jsonl, rank-N.log, checkpoints/, report.json, report.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from daisychain.config import write_atomically
from daisychain.facts import RunSpec, RunState
from daisychain.run.report import as_json, as_markdown

OWN_FILES = ("run.toml", "metrics.jsonl", "events.jsonl", "report.json", "report.md")


class RunFolder:
    """Writes a run's folder; lines are flushed as they come, so that a killed agent loses at most one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=False)
        (path / "checkpoints").mkdir()
        self._metrics = self._open("metrics.jsonl")
        self._events = self._open("events.jsonl")

    def _open(self, name: str) -> IO[str]:
        return (self.path / name).open("a", encoding="utf-8", buffering=1)

    def launch(self, spec: RunSpec, facts: Mapping[str, Any]) -> None:
        """Write run.toml: what was asked for, and with what it was launched."""
        lines = ["# What was launched; written by DaisyChain.", ""]
        lines += [f"{key} = {_toml(value)}" for key, value in {**facts, **msgspec.to_builtins(spec)}.items()]
        write_atomically(self.path / "run.toml", "\n".join(lines) + "\n")

    def metric(self, line: Mapping[str, Any]) -> None:
        self._metrics.write(json.dumps(line, allow_nan=False) + "\n")

    def event(self, time_s: float, event: str, **facts: Any) -> None:
        """One thing that happened, `time_s` seconds after the launch."""
        self._events.write(json.dumps({"v": 1, "time": round(time_s, 3), "event": event, **facts}) + "\n")

    def finish(self, state: RunState, speeds: Mapping[str, float]) -> None:
        """Write report.json and report.md and close the files."""
        write_atomically(self.path / "report.json", json.dumps(as_json(state, speeds), indent=2) + "\n")
        write_atomically(self.path / "report.md", as_markdown(state, speeds))
        self.close()

    def close(self) -> None:
        self._metrics.close()
        self._events.close()


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
