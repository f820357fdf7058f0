"""Whether every node has the modules that a script imports, asked before anything is shipped or started."""

import importlib
import importlib.util
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daisychain.agent.seats import Seat, ask
from daisychain.facts import Verdict
from daisychain.link.messages import FindModules, ModulesFound
from daisychain.plan.imports import Import, needed, package


def find(message: FindModules) -> ModulesFound:
    """On a node: which of them aren't there. Nothing is imported."""
    importlib.invalidate_caches()  # something may have been installed since the last refusal
    return ModulesFound(missing=tuple(name for name in message.names if not _is_there(name)))


def _is_there(name: str) -> bool:
    if not name.isidentifier():
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a module without a spec is one that is loaded
        return name in sys.modules


def read_needed(files: Mapping[str, Path], script: str) -> dict[str, Import]:
    """What the script needs; files: everything that is shipped, by relative path."""
    sources = {}
    for path, file in files.items():
        if path.endswith(".py"):
            try:
                sources[path] = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                sources[path] = ""  # shipping it says what is wrong
    return needed(sources, script)


async def look_for(
    wanted: Mapping[str, Import], seats: Sequence[Seat], together: Callable[[list[Any]], Awaitable[list[Any]]]
) -> tuple[Verdict, ...]:
    """A refusal for each module that a node lacks. seats: one of each node. together: awaits all."""
    if not wanted:
        return ()
    answers = await together([ask(seat, FindModules(names=tuple(wanted))) for seat in seats])
    return tuple(
        Verdict(
            level="refuse", check="modules", node=seat.node.name,
            reason=f"{wanted[name].file}:{wanted[name].line} imports {name}, which isn't installed there",
            remedy=f"Run on {seat.node.name}: python -m pip install {package(name)}",
        )
        for seat, answer in zip(seats, answers, strict=True)
        for name in answer.missing
        if name in wanted
    )  # fmt: skip
