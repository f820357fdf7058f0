"""From what was typed into a form to messages: the launch form, an address. Pure but for `path_problem`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from daisychain.errors import DataError, UsageError
from daisychain.facts import RunSpec, Snapshot

AUTO = "auto"
"""In the place of nodes: those with which the run is forecast to be fastest."""
Job = Literal["demo", "script", "tabular"]
JOBS: tuple[Job, ...] = ("demo", "script", "tabular")
FIELDS: dict[Job, tuple[str, ...]] = {
    "demo": ("nodes", "batch", "epochs", "seed"),
    "script": ("path", "data", "args", "nodes", "batch", "epochs", "seed"),
    "tabular": ("path", "target", "nodes", "batch", "epochs", "seed"),
}
"""The fields that each job has, in the order of the form."""


@dataclass(frozen=True)
class LaunchForm:
    """The launch form as typed: text in every field."""

    job: Job = "demo"
    path: str = ""
    target: str = ""
    data: str = ""
    args: str = ""
    nodes: str = ""
    batch: str = ""
    epochs: str = ""
    seed: str = "0"


def spec_of(form: LaunchForm, folder: Path, snapshot: Snapshot | None = None) -> RunSpec:
    """What the form asks for, relative paths taken from `folder`.

    Raises UsageError naming the field. With a snapshot, every node named must be in it.
    """
    has = FIELDS[form.job]
    path = _absolute(form.path, folder) if "path" in has else ""
    if "path" in has and not path:
        raise UsageError("path is empty", f"Type the path of the {_file_kind(form.job)}")
    if "target" in has and not form.target.strip():
        raise UsageError("target is empty", "Type the name of the column to predict")
    return RunSpec(
        job=form.job,
        path=path,
        target=form.target.strip() if "target" in has else "",
        data=tuple(_absolute(word, folder) for word in _words("data", form.data)) if "data" in has else (),
        args=tuple(_words("args", form.args)) if "args" in has else (),
        nodes=_nodes(form.nodes, snapshot),
        batch=_whole("batch", form.batch, 1),
        epochs=_whole("epochs", form.epochs, 1),
        seed=_whole("seed", form.seed, 0) or 0,
        auto=form.nodes.strip() == AUTO,
    )


def _file_kind(job: Job) -> str:
    return "script" if job == "script" else "CSV file"


def _absolute(text: str, folder: Path) -> str:
    stripped = text.strip()
    if "\0" in stripped:
        raise UsageError("a path holds a null character", "Type it again")
    try:
        return str(folder / Path(stripped).expanduser()) if stripped else ""
    except RuntimeError as error:
        raise UsageError(f"{stripped[:60]}: there is no such user", "Type the whole path") from error


def _words(field: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{field} has a quotation mark that isn't closed", "Close it, or put a backslash before it"
        ) from error


def _whole(field: str, text: str, least: int) -> int | None:
    stripped = text.strip()
    if not stripped:
        return None
    if len(stripped) > 10 or not (stripped.isascii() and stripped.isdigit() and least <= int(stripped) < 2**31):
        raise UsageError(f"{field} is {stripped[:20]!r}", f"Type a whole number of {least} or more, or leave it empty")
    return int(stripped)


def _nodes(text: str, snapshot: Snapshot | None) -> tuple[str, ...]:
    if text.strip() == AUTO:
        return ()
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    known = [node.name for node in snapshot.nodes] if snapshot else list(names)
    for name in names:
        if name not in known:
            raise UsageError(f"no node is called {name[:40]!r}", f"Known: {', '.join(known)}; empty means every one")
    return names


def path_problem(spec: RunSpec) -> DataError | None:
    """What is wrong with the files that a spec names; touches the disk, so not for the event loop."""
    for path in filter(None, (spec.path, *spec.data)):
        try:
            missing = not Path(path).exists()
            if not missing and path == spec.path and not Path(path).is_file():
                return DataError(f"{path} is not a file", "Type the path of one file")
        except OSError as error:
            return DataError(f"{path}: {error.strerror or error}", "Check the path")
        if missing:
            return DataError(
                f"{path} doesn't exist", "Check the path; a relative one starts where daisychain was started"
            )
    return None


def equivalent_command(spec: RunSpec) -> str:
    """The command line that launches the same run, quoted for a shell."""
    words = ["daisychain", "run"]
    words += [spec.path] if spec.job == "script" else [spec.job, *filter(None, [spec.path])]
    for flag, value in (("--target", spec.target), ("--drop", ",".join(spec.drop))):
        words += [flag, value] if value else []
    for path in spec.data:
        words += ["--data", path]
    words += ["--nodes", AUTO if spec.auto else ",".join(spec.nodes)] if spec.nodes or spec.auto else []
    for flag, count in (("--batch", spec.batch), ("--epochs", spec.epochs), ("--seed", spec.seed or None)):
        words += [flag, str(count)] if count is not None else []
    words += ["--equal"] if spec.equal else []
    words += ["--anyway"] if spec.anyway else []
    words += ["--", *spec.args] if spec.args else []
    return shlex.join(words)


def parse_address(text: str, default_port: int) -> tuple[str, int]:
    """(host, port) of HOST, HOST:PORT or [IPv6]:PORT. Raises UsageError saying what is wrong."""
    typed = text.strip()
    host, port = typed, ""
    if typed.startswith("["):
        host, _, rest = typed[1:].partition("]")
        port = rest.removeprefix(":")
    elif typed.count(":") == 1:
        host, _, port = typed.partition(":")
    if not host or any(character.isspace() or not character.isprintable() for character in host):
        raise UsageError(f"{typed[:60]!r} is not an address", "Type one such as 192.168.1.20 or anna.local:47632")
    if port and not (len(port) <= 5 and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"port {port[:20]!r} is not a number from 1 to 65535", "Leave it out for the usual port")
    return host, int(port) if port else default_port
