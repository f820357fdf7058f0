"""From what was asked for to what is shipped: blocking checks and lists of files; run in a thread."""

import asyncio
import re
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from daisychain.agent.bundles import bundle, named_data
from daisychain.agent.ranks import run_child
from daisychain.config import MAX_RANKS, Settings
from daisychain.errors import DataError, ScriptError, UsageError
from daisychain.facts import RunSpec, Verdict
from daisychain.plan.script import judge
from daisychain.plan.sync import parse

JOBS = ("tabular", "demo")


class Cargo(msgspec.Struct, frozen=True):
    """What every node of a run gets."""

    files: dict[str, Path]
    """Sources on the head by relative path in the work folder."""
    script: str
    """What the rank runs: a relative path, or job:NAME."""


def check_spec(spec: RunSpec, node: str) -> None:
    """What can be said at once about what was asked for. Raises UsageError or ScriptError."""
    for flag, number in (("--batch", spec.batch), ("--micro-batch", spec.micro)):
        if number is not None and number < 1:
            raise UsageError(f"{flag} is {number}", "Give a number of 1 or more")
    if spec.epochs is not None and spec.epochs < 1:
        raise UsageError(f"--epochs is {spec.epochs}", "Give a number of 1 or more")
    if not 0 <= spec.ranks <= MAX_RANKS:
        raise UsageError(f"--ranks is {spec.ranks}", f"Give a number from 0 to {MAX_RANKS}")
    parse(spec.sync)
    if spec.job == "demo":
        return
    path = Path(spec.path)
    if not spec.path or not path.exists():
        raise DataError(f"{node}: {spec.path or 'no file given'}: no such file", "Check the path")
    if not path.is_file():
        raise DataError(f"{node}: {spec.path} is not a file", "Name the script or the CSV file itself")
    if spec.job == "tabular" and not spec.target:
        raise UsageError("the tabular job needs --target COLUMN", "Name the column to predict")
    if spec.job == "script":
        _check_syntax(path, node)


def _check_syntax(path: Path, node: str) -> None:
    try:
        compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ScriptError(f"{node}: {path.name}:{error.lineno or 1}: SyntaxError: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{node}: {path}: {error}", "Name a Python script") from error


def judge_script(spec: RunSpec) -> tuple[Verdict, ...]:
    """What can be told from a script's text before it runs: warnings, and refusals for what can't run in a chain.

    Nothing for other jobs, nor for what `check_spec` refuses.
    """
    if spec.job != "script":
        return ()
    try:
        with tokenize.open(spec.path) as stream:
            text = stream.read()
    except (OSError, ValueError, SyntaxError):
        return ()
    return judge(text, Path(spec.path).name)


def run_name(spec: RunSpec) -> str:
    """What people call this run."""
    return spec.job if spec.job == "demo" else Path(spec.path).name


def folder_name(spec: RunSpec, stamp: str) -> str:
    """The run's id, also its folder's name: when, and what."""
    word = re.sub(r"[^A-Za-z0-9]+", "-", Path(run_name(spec)).stem)[:24].strip("-").lower() or "run"
    return f"{stamp}-{word}"


def pack_script(spec: RunSpec, settings: Settings) -> Cargo:
    """The script's folder and the named data. Raises DataError when they are too much or not there."""
    script = Path(spec.path).resolve()
    files = bundle(script.parent, settings.max_bundle_mb * 1_000_000)
    files[script.name] = script
    return Cargo(files | named_data(spec.data, script.parent), script.name)


async def pack_job(spec: RunSpec, scratch: Path, tell: Callable[[dict[str, Any]], None]) -> Cargo:
    """Prepare a job's arrays in a child and list them. `tell` gets its progress lines."""
    await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True)
    order: dict[str, Any] = {"seed": spec.seed, "out": str(scratch)}
    if spec.job == "tabular":
        order |= {"csv": spec.path, "target": spec.target, "drop": list(spec.drop)}
    done = await run_child(f"daisychain.jobs.{spec.job}.prepare", order, tell)
    return Cargo({f"data/{name}": scratch / name for name in done["files"]}, f"job:{spec.job}")
