"""Whether every node has what a script imports."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from daisychain.agent import modules
from daisychain.facts import Verdict
from daisychain.link.messages import FindModules, Message, ModulesFound
from daisychain.plan.imports import Import


def test_modules_are_looked_for_without_being_imported(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "loud_module.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = modules.find(FindModules(names=("loud_module", "json", "__main__", "no_such_module", "../x", "")))
    assert answer.missing == ("no_such_module", "../x", "")
    assert "loud_module" not in sys.modules


def test_what_is_shipped_is_read_and_what_cant_be_is_left_to_shipping(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import numpy\nimport helpers, gone")
    files = {"train.py": tmp_path / "train.py", "gone.py": tmp_path / "gone.py", "data.csv": tmp_path / "no.csv"}
    assert modules.read_needed(files, "train.py") == {"numpy": Import("train.py", 1), "helpers": Import("train.py", 2)}


class Named:
    """A seat, as far as it is asked something."""

    def __init__(self, name: str, *missing: str) -> None:
        self.node, self.side, self.name, self._missing = self, self, name, missing
        self.asked: list[Message] = []

    async def ask(self, message: Message, timeout_s: float) -> ModulesFound:
        self.asked.append(message)
        return ModulesFound(missing=self._missing)


async def together(parts: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*parts))


async def test_each_missing_module_is_named_with_its_node_and_the_command() -> None:
    seats: Any = [Named("head"), Named("old", "sklearn", "never asked for")]
    found = await modules.look_for({"sklearn": Import("train.py", 3)}, seats, together)
    assert found == (
        Verdict(
            level="refuse", check="modules", node="old",
            reason="train.py:3 imports sklearn, which isn't installed there",
            remedy="Run on old: python -m pip install scikit-learn",
        ),
    )  # fmt: skip
    assert [seat.asked for seat in seats] == [[FindModules(names=("sklearn",))]] * 2


async def test_a_script_that_needs_nothing_asks_nobody() -> None:
    seats: Any = [Named("head")]
    assert await modules.look_for({}, seats, together) == ()
    assert not seats[0].asked
