"""What this process is to do: given by the agent, by torchrun's environment, or nothing at all (alone)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from daisychain.errors import ConfigError
from daisychain.train import reports


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's orders, as the agent writes them to its stdin."""

    rank: int = 0
    world_size: int = 1
    master_address: str = ""
    master_port: int = 0
    store_fd: int = -1
    """A listening socket to serve the store from; rank 0 only, -1: none."""
    generation: int = 0
    names: tuple[str, ...] = ()
    """Node name of every rank."""
    speeds: tuple[tuple[float, float], ...] = ()
    """(fixed_s, per_sample_s) of every rank's reference step; empty: equal shares, never changed."""
    script: str = ""
    """Path below the working directory, or job:NAME."""
    args: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    """seed, batch, epochs, equal (equal shares, never changed), rebalance (False: the first shares stay)."""
    slowdown: float = 1.0
    threads: int = 0
    """CPU threads; 0: every core this process may use."""
    timeout_s: float = 1800.0
    output: str = ""
    """Folder for results; empty: the working directory."""
    launcher: Literal["alone", "torchrun", "agent"] = "agent"

    @property
    def name(self) -> str:
        """This rank's node, for people."""
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """A rank's node name, or 'rank N' where there is none."""
        return self.names[rank] if rank < len(self.names) else f"rank {rank}"

    @property
    def folder(self) -> Path:
        return Path(self.output) if self.output else Path.cwd()


class Orders:
    """The task of this process and who hears its reports. One per process."""

    task: Task | None = None
    tell: reports.Tell = staticmethod(reports.silent)


def adopt(task: Task, tell: reports.Tell) -> None:
    """Make this the task of the process; before the script's first `daisychain.init()`."""
    Orders.task = task
    Orders.tell = staticmethod(tell)


def current(environment: Mapping[str, str] = os.environ) -> Task:
    """The adopted task, else what the environment says.

    Raises ConfigError naming the variable when one isn't a number.
    """
    if Orders.task is not None:
        return Orders.task
    settings = {
        name: _number(environment, variable)
        for name in ("seed", "batch", "epochs")
        if (variable := f"DAISYCHAIN_{name.upper()}") in environment
    }
    if all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return Task(
            rank=_number(environment, "RANK"),
            world_size=_number(environment, "WORLD_SIZE"),
            settings=settings,
            launcher="torchrun",
        )
    return Task(settings=settings, launcher="alone")


def _number(environment: Mapping[str, str], variable: str) -> int:
    try:
        return int(environment[variable])
    except ValueError:
        raise ConfigError(
            f"{variable} is {environment[variable]!r} in the environment", "Give a whole number"
        ) from None
