"""What may be typed."""

import argparse
from collections.abc import Callable

from daisychain import __version__
from daisychain.config import DEFAULT_PORT
from daisychain.errors import UsageError
from daisychain.plan.sync import parse as parse_sync

COMMANDS = {
    "join": "join",
    "invite": "look",
    "run": "run",
    "demo": "demo",
    "predict": "predict",
    "nodes": "look",
    "status": "look",
    "doctor": "doctor",
    "bench": "look",
    "paths": "look",
    "stop": "look",
    "pause": "hold",
    "resume": "hold",
    "forget": "look",
    "agent": "look",
    "": "screen",
}
"""Which module of this folder has a command; each has a coroutine function `command(words, surface) -> int`."""


def parse(words: list[str]) -> argparse.Namespace:
    """The command as a namespace. Ends the process with exit code 2 and a usage line on a mistake."""
    script_args: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, script_args = words[:cut], words[cut + 1 :]
    parsed = _parser().parse_args(words)
    parsed.args = script_args
    parsed.command = parsed.command or ""
    return parsed


def _sync(text: str) -> str:
    try:
        parse_sync(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


Add = Callable[..., argparse.ArgumentParser]
"""Adds a command: its name, what it does, and parsers whose options it has too."""


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="JSON lines on stdout and nothing else")
    # suppressed: a command's own default must not undo what was typed before the command
    machine = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    machine.add_argument("--nic", help="network interface to use, by its name on this machine")
    machine.add_argument("--port", type=int, help=f"control port (default {DEFAULT_PORT})")

    top = argparse.ArgumentParser(
        prog="daisychain",
        description="Chain spare machines on one network to train small PyTorch models faster. "
        "Without a command: the screens.",
        parents=[machine],
    )
    top.add_argument("-V", "--version", action="version", version=f"daisychain {__version__}", help="print the version")
    top.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    top.set_defaults(json=False)
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common, *parents])

    _joining(add, machine)
    _running(add, machine)
    _jobs(add)
    _looking(add, machine)
    return top


def _joining(add: Add, machine: argparse.ArgumentParser) -> None:
    join = add("join", "be a worker: lend this machine to a head", machine)
    join.add_argument("host", nargs="?", default="", metavar="HOST[:PORT]", help="the head; without it: look for heads")
    join.add_argument("--token", default="", help="a token that `daisychain invite` printed on the head")
    join.add_argument("--headless", action="store_true", help="no screen; return once joined")
    join.add_argument("--no-mouse", action="store_true")

    invite = add("invite", "make a token with which machines can join this one", machine)
    invite.add_argument("--uses", type=int, default=1, metavar="N", help="how many machines may use it (default 1)")
    invite.add_argument("--minutes", type=float, default=60.0, metavar="M", help="how long it is good for (default 60)")


def _running(add: Add, machine: argparse.ArgumentParser) -> None:
    run = add("run", "train over the chain, follow, report", machine)
    run.add_argument(
        "what", nargs="?", default="", metavar="SCRIPT.py|JOB", help="a script, or a job that needs none: tabular, demo"
    )
    run.add_argument("file", nargs="?", default="", metavar="FILE", help="the CSV file of the tabular job")
    run.add_argument("--target", default="", metavar="COLUMN", help="tabular: the column to predict")
    run.add_argument("--drop", action="append", default=[], metavar="COLUMN", help="tabular: a column to leave out")
    run.add_argument("--data", action="append", default=[], metavar="PATH", help="a file or folder the script needs")
    run.add_argument(
        "--nodes", default="all", metavar="A,B|auto",
        help="which nodes take part (default: all ready); auto: those with which it is forecast to be fastest",
    )  # fmt: skip
    run.add_argument("--batch", type=int, metavar="N", help="global batch, over all nodes together")
    run.add_argument(
        "--micro-batch", type=int, metavar="N", dest="micro",
        help="the most samples a node computes at once; more are done part by part, with the same result",
    )  # fmt: skip
    run.add_argument("--epochs", type=int, metavar="N")
    run.add_argument("--seed", type=int, default=0, metavar="N")
    run.add_argument(
        "--sync", type=_sync, default="exact", metavar="exact|bf16|local[:H]",
        help="bf16 and local are approximate, for slow links: 16 bits a gradient; averages after H local steps",
    )  # fmt: skip
    run.add_argument("--equal", action="store_true", help="equal shares whatever the speeds: for comparing only")
    run.add_argument("--ranks", type=int, default=0, metavar="N", help="CPU ranks on every node (default: as set)")
    run.add_argument(
        "--resume", default="", metavar="RUN", help="go on with a run that ended early, by its folder's name"
    )
    run.add_argument("--headless", action="store_true", help="no screen")
    run.add_argument(
        "--anyway", action="store_true", help="launch also what is forecast to be slower than one node alone"
    )
    run.add_argument("--no-mouse", action="store_true")


def _jobs(add: Add) -> None:
    demo = add("demo", "a whole chain on this one machine, training for real")
    demo.add_argument("--speeds", default="4,2,1", help="relative speeds of head and workers (default 4,2,1)")
    demo.add_argument("--epochs", type=int, metavar="N")
    demo.add_argument("--headless", action="store_true", help="no screen")
    demo.add_argument("--no-mouse", action="store_true")

    predict = add("predict", "apply a tabular run's model to a new CSV file")
    predict.add_argument("model", metavar="FOLDER", help="the folder of a finished tabular run")
    predict.add_argument("file", metavar="FILE.csv")
    predict.add_argument("-o", "--output", default="", metavar="OUT.csv", help="where to (default: FILE-predicted.csv)")


def _looking(add: Add, machine: argparse.ArgumentParser) -> None:
    add("nodes", "who is in the chain", machine)
    add("status", "this machine's agent and its run")
    doctor = add("doctor", "check this machine and the chain it leads, without a run", machine)
    doctor.add_argument("--peer", default="", metavar="HOST[:PORT]", help="a machine to reach, besides the chain's own")
    doctor.add_argument("--bundle", default="", metavar="FILE", help="write a bug report, without addresses and names")
    add("bench", "how fast this machine is", machine)
    add("paths", "where everything lies")
    add("stop", "end the run on every node")
    here = "this machine alone, also on a head: its owner uses it, or gives it back"
    pause = add("pause", "pause the run; on a worker: take this machine back from it")
    pause.add_argument("--here", action="store_true", help=here)
    resume = add("resume", "let the run go on; on a worker: give this machine back to it")
    resume.add_argument("--here", action="store_true", help=here)
    add("forget", "never let a node back without a new invitation").add_argument("node", metavar="NODE")
    add("agent", "the background process").add_argument("verb", choices=["stop"])
