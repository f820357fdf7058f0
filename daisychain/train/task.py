"""What this process is to do: given by the agent, by torchrun's environment, or nothing at all (alone)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from daisychain.errors import ConfigError


class Formation(msgspec.Struct, frozen=True, kw_only=True):
    """Who trains together in one generation, and as which rank this process does."""

    generation: int = 0
    rank: int = 0
    names: tuple[str, ...] = ("",)
    """Node name of every rank."""
    speeds: tuple[tuple[float, float], ...] = ()
    """(fixed_s, per_sample_s) of every rank's reference step; empty: equal shares, never changed."""
    address: str = ""
    """Where rank 0 serves the store."""
    port: int = 0

    @property
    def world_size(self) -> int:
        return len(self.names)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's orders, as the agent writes them to its stdin; who trains with it comes later, as a Formation."""

    rank: int = 0
    """At launch; generations may number otherwise."""
    names: tuple[str, ...] = ("",)
    """Node name of every rank at launch."""
    address: str = "127.0.0.1"
    """This node's own address: where it would serve a store."""
    script: str = ""
    """Path below the working directory, or job:NAME."""
    args: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    """seed, batch, micro (the most samples at once), epochs, sync, equal (equal shares, never changed), rebalance
    (False: the first shares stay), tune (False: no knob is set by measurement)."""
    device: str = "cpu"
    """What it computes on, as torch names it: cpu, or cuda:0 where it sees a GPU of its own."""
    slowdown: float = 1.0
    threads: int = 0
    """CPU threads; 0: every core this process may use."""
    output: str = ""
    """Folder for results; empty: the working directory."""
    checkpoints: str = ""
    """Folder for checkpoints; empty: none are written."""
    resume: bool = False
    """Go on from the newest checkpoint there, if there is one."""
    launcher: Literal["alone", "torchrun", "agent"] = "agent"

    @property
    def folder(self) -> Path:
        return Path(self.output) if self.output else Path.cwd()


def from_environment(environment: Mapping[str, str] = os.environ) -> Task:
    """The task of a script that no agent started. Raises ConfigError naming the variable when one isn't a number."""
    settings = {
        name: _number(environment, variable)
        for name in ("seed", "batch", "epochs")
        if (variable := f"DAISYCHAIN_{name.upper()}") in environment
    }
    if all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        names = tuple(f"rank {rank}" for rank in range(_number(environment, "WORLD_SIZE")))
        return Task(rank=_number(environment, "RANK"), names=names, settings=settings, launcher="torchrun")
    return Task(settings=settings, launcher="alone")


def _number(environment: Mapping[str, str], variable: str) -> int:
    try:
        return int(environment[variable])
    except ValueError:
        raise ConfigError(
            f"{variable} is {environment[variable]!r} in the environment", "Give a whole number"
        ) from None
