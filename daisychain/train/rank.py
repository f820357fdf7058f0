"""One rank's process: `python -m daisychain.train.rank`, started by the agent in the run's work folder.

stdin: the task as one JSON line, then orders; at its end the agent is gone and this process and all its children die.
stdout: reports, JSON lines. stderr, and everything the script prints: the rank's log.
"""

import atexit
import contextlib
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

from daisychain.errors import ScriptError
from daisychain.train import blame, reports
from daisychain.train.orders import Orders
from daisychain.train.task import Task

JOB = "job:"
NICENESS = 5
BEAT_S = 1.0


def main() -> NoReturn:
    """Do what the first line of stdin says; never returns."""
    own_group()
    give_way()
    lines, tell = take_pipes()
    try:
        task = msgspec.json.decode(lines.readline(), type=Task)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        tell(reports.error("chain", type(error).__name__, f"the rank got no proper task: {error}"))
        end(1)
    orders = Orders()
    threading.Thread(target=orders.obey, args=(lines, die), name="orders", daemon=True).start()
    threading.Thread(target=beat, args=(tell,), name="beat", daemon=True).start()
    end(work(task, orders, tell, Path.cwd()))


def beat(tell: reports.Writer) -> None:
    """Say that this process isn't stopped, for ever; and let no report of a step wait for long."""
    while True:
        tell(reports.beat())
        for _ in range(round(BEAT_S / reports.GATHER_S)):
            time.sleep(reports.GATHER_S)
            tell.flush()


def own_group() -> None:
    """Be the leader of a process group, so that killing the group kills exactly this rank and its children."""
    if hasattr(os, "setpgid") and os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def give_way() -> None:
    """Let everything else on this machine go first: its owner's work, the agent's heartbeats, the screens."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)


def take_pipes() -> tuple[BinaryIO, reports.Writer]:
    """Keep the agent's two pipes for ourselves: the script reads nothing and prints to the log."""
    orders = os.fdopen(os.dup(0), "rb")
    reporting = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, errors="backslashreplace")
    return orders, reports.Writer(reporting)


def die() -> None:
    """End this process and all its children, at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            stream.flush()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def work(task: Task, orders: Orders, tell: reports.Tell, folder: Path) -> int:
    """Run the task's script to its end; the exit code. Nothing is raised: what ends the script is reported."""
    try:
        from daisychain.train import api

        api.adopt(task, orders, tell)
        run = script_of(task, folder)
        tell(reports.started())
        try:
            run()
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        api.leave()
    except BaseException as error:
        traceback.print_exception(error)
        report = blame.describe(error, folder)
        tell(report or reports.error("chain", "SystemExit", "the rank ended early"))
        return 1
    return 0


def script_of(task: Task, folder: Path) -> Callable[[], object]:
    """What to run as __main__. Raises ScriptError when the script isn't a file below the folder."""
    sys.argv = [task.script, *task.args]
    # The agent keeps the folder off the path while torch is loaded; from now on it comes first, as under plain python.
    os.environ.pop("PYTHONSAFEPATH", None)
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry not in ("", str(folder)))]
    if task.script.startswith(JOB):
        name = task.script[len(JOB) :]
        if not name.isidentifier():
            raise ScriptError(f"{name!r} is no job's name")
        return lambda: runpy.run_module(f"daisychain.jobs.{name}.train", run_name="__main__", alter_sys=True)
    script = (folder / task.script).resolve()
    if not script.is_relative_to(folder.resolve()) or not script.is_file():
        raise ScriptError(f"there is no script {task.script!r} in the run's folder", "Launch the run again")
    if script.parent != folder.resolve():
        sys.path.insert(0, str(script.parent))
    return lambda: runpy.run_path(str(script), run_name="__main__")


def end(code: int) -> NoReturn:
    """Leave without waiting for threads that torch or the script may have left behind."""
    if code == 0:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
