"""The process group: how ranks find each other, and how they part without hurting who is still at work."""

import atexit
import contextlib
import sys
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from daisychain.train.task import Task

LONG = timedelta(days=7)
"""How long a rank that has finished waits for the others: as long as they work. Agents notice who is gone."""
PARTING = timedelta(seconds=5)


class Group:
    """The group of one generation of a run; this process's only one."""

    def __init__(self, task: Task, store: TCPStore) -> None:
        self._task, self._store = task, store

    def leave(self) -> None:
        """Wait until every rank has got here, then part. Rank 0 serves the store, so it goes last.

        Raises DistError when another rank ended before it got here.
        """
        ranks, generation = range(self._task.world_size), self._task.generation
        self._store.set(f"finished/{generation}/{self._task.rank}", "")
        self._store.wait([f"finished/{generation}/{rank}" for rank in ranks], LONG)
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        with contextlib.suppress(RuntimeError):
            if self._task.rank == 0:
                self._store.wait([f"left/{generation}/{rank}" for rank in ranks if rank], PARTING)
            else:
                self._store.set(f"left/{generation}/{self._task.rank}", "")


def join(task: Task) -> Group:
    """Form the group of an agent's task. Raises RuntimeError (DistError, or gloo's own) when it doesn't come about."""
    timeout = timedelta(seconds=task.timeout_s)
    store = TCPStore(
        task.master_address,
        task.master_port,
        task.world_size,
        task.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        # torch would listen on every address; the agent's socket is bound to one.
        master_listen_fd=task.store_fd if task.rank == 0 and task.store_fd >= 0 else None,
    )
    dist.init_process_group(
        "gloo",
        store=PrefixStore(f"g{task.generation}", store),
        rank=task.rank,
        world_size=task.world_size,
        timeout=timeout,
    )
    return Group(task, store)


def join_by_environment() -> None:
    """Form torchrun's group, and part at the interpreter's end unless the script failed."""
    dist.init_process_group("gloo")
    failed = _remember_failure()

    def part() -> None:
        with contextlib.suppress(RuntimeError):
            if not failed():
                dist.barrier()
            dist.destroy_process_group()

    atexit.register(part)


def _remember_failure() -> Callable[[], bool]:
    """Whether an exception has ended the script; asked at exit, when it is too late to see it."""
    before, seen = sys.excepthook, []

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen.append(kind)
        before(kind, error, trace)

    sys.excepthook = hook
    return lambda: bool(seen)
