"""What all tests share: the pretend LAN, and where ranks are forked."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str, file: Path) -> ModuleType:
    """A module by its path: under importlib mode nothing of tests/ can be imported by name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


harness = _load("daisychain_test_lan", Path(__file__).parent / "lan" / "harness.py")
nursery = _load("daisychain_test_nursery", Path(__file__).parent / "train" / "nursery.py")


@pytest.fixture(scope="module")
def lan() -> Iterator[Callable[..., Any]]:
    """Makes a pretend LAN that lives as long as the test module: `lan("head:cpu=80", "old:cpu=20:nic=enp3s0")`.

    Options as in harness.Spec: cpu, nic, rate, loopname. Skips where none can be made, but never for want of root or
    tools on a Linux machine that says CI=true: there it fails.
    """
    reason = harness.missing()
    if reason:
        if os.environ.get("CI") == "true" and sys.platform == "linux" and os.geteuid() == 0:
            pytest.fail(f"no pretend LAN in CI: {reason}")
        pytest.skip(f"no pretend LAN: {reason}")
    made: list[Any] = []

    def make(*hosts: str) -> Any:
        made.append(harness.Lan([_spec(words) for words in hosts]))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _spec(words: str) -> Any:
    name, *options = words.split(":")
    given = dict(option.split("=", 1) for option in options)
    return harness.Spec(
        name,
        cpu=float(given["cpu"]) if "cpu" in given else None,
        nic=given.get("nic", "eth0"),
        rate=given.get("rate", ""),
        loopname="loopname" in given,
    )
