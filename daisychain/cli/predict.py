"""`daisychain predict`: apply a tabular run's model to a new CSV file. torch is loaded in a child only."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from daisychain.cli.surface import Surface
from daisychain.errors import BY_EXIT_CODE, DaisyError, DataError


async def command(words: argparse.Namespace, surface: Surface) -> int:
    model, source = Path(words.model), Path(words.file)
    if not (model / "model.pt").is_file():
        raise DataError(f"{model} has no model.pt", "Give the folder of a finished `daisychain run tabular`")
    if not source.is_file():
        raise DataError(f"{source}: no such file", "Check the path")
    target = Path(words.output) if words.output else source.with_name(f"{source.stem}-predicted.csv")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "daisychain.jobs.tabular.apply", "--model", str(model), "--csv", str(source), "--out",
        str(target), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, words_of_child = await child.communicate()
    last: dict[str, Any] = {}
    for line in out.decode(errors="replace").splitlines():
        last = json.loads(line) if line.startswith("{") else last
    if child.returncode != 0:
        if last.get("kind") == "error":
            kind = BY_EXIT_CODE.get(int(last.get("exit", 1)), DaisyError)
            raise kind(str(last["what"]), str(last.get("remedy", "")))
        said = words_of_child.decode(errors="replace").strip().splitlines()
        raise DaisyError(f"predicting failed: {said[-1] if said else f'exit code {child.returncode}'}")
    surface.event("predicted", rows=last.get("rows"), output=str(target))
    surface.say(f"{target}: {last.get('rows', 'all')} rows")
    return 0
