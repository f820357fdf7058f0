"""From the exception that ended a script to one line: whose fault, what, which file and line. Pure, no torch."""

import re
import traceback
from pathlib import Path

from daisychain.errors import DaisyError, LinkError
from daisychain.train import reports

LONGEST = 500
REMEDY = "Correct the script; the log has the whole traceback"
GLOO = re.compile(r"gloo", re.IGNORECASE)
SOURCE_PLACE = re.compile(r"\[?\S*/gloo/\S+?:\d+\]?\s*")
"""Where in gloo's own source a message comes from; means nothing to people."""


def describe(error: BaseException, folder: Path) -> reports.Report | None:
    """The error report for what ended a script that ran in `folder`; None when it ended well (SystemExit 0)."""
    if isinstance(error, SystemExit):
        return _of_exit(error, folder)
    kind = type(error).__name__
    if is_lost_peer(error):
        return reports.error("peer", kind, f"lost the connection to another node: {_tidy(error)}")
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return reports.error("script", kind, error.msg, _relative(error.filename, folder), error.lineno, REMEDY)
    if isinstance(error, KeyboardInterrupt):
        return reports.error("chain", kind, "interrupted")
    file, line = _place(error, folder)
    remedy = error.remedy if isinstance(error, DaisyError) else REMEDY
    message = error.what if isinstance(error, DaisyError) else str(error)
    return reports.error("script", kind, _one_line(message) or kind, file, line, remedy)


def is_lost_peer(error: BaseException) -> bool:
    """Whether another rank's end, or the network in between, is behind this error."""
    if isinstance(error, DaisyError):
        return isinstance(error, LinkError)
    if any(base.__name__ == "DistError" for base in type(error).__mro__):
        return True
    return type(error) is RuntimeError and bool(GLOO.search(str(error)))


def _of_exit(error: SystemExit, folder: Path) -> reports.Report | None:
    if error.code in (None, 0):
        return None
    file, line = _place(error, folder)
    said = f"the script ended with exit code {error.code}" if isinstance(error.code, int) else _one_line(str(error))
    return reports.error("script", "SystemExit", said, file, line, "The log has what it printed")


def _place(error: BaseException, folder: Path) -> tuple[str, int | None]:
    """The innermost frame of the user's own files, else the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_absolute() or _is_below(frame.filename, folder)]
    own = [frame for frame in own if not frame.filename.startswith("<")]
    chosen = own[-1] if own else frames[-1] if frames else None
    return (_relative(chosen.filename, folder), chosen.lineno) if chosen else ("", None)


def _is_below(file: str, folder: Path) -> bool:
    return Path(file).is_relative_to(folder) and "site-packages" not in file


def _relative(file: str, folder: Path) -> str:
    path = Path(file)
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else file


def _tidy(error: BaseException) -> str:
    """The part of a torch.distributed message that people can use."""
    text = str(error).split("RuntimeError: ")[-1]
    return _one_line(SOURCE_PLACE.sub("", text).split(". This is typically")[0])


def _one_line(text: str) -> str:
    """The first line that says something, within LONGEST characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
