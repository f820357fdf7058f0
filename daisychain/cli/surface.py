"""Where a command meets the person: settings in, lines out, errors as one line and an exit code."""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import sys
from typing import Any

from daisychain.cli.parser import COMMANDS
from daisychain.config import Paths, Settings, load, locate
from daisychain.errors import INTERRUPTED, DaisyError, PreflightError, about


class Surface:
    """stdout and stderr of one command, as lines for people or as JSON lines for programs."""

    def __init__(self, as_json: bool, paths: Paths, settings: Settings) -> None:
        self.json, self.paths, self.settings = as_json, paths, settings

    def event(self, event: str, **facts: Any) -> None:
        """A JSON line; nothing for people."""
        if self.json:
            print(json.dumps({"v": 1, "event": event, **facts}), flush=True)

    def say(self, text: str) -> None:
        """A line for people; nothing in JSON mode."""
        if not self.json:
            print(text, flush=True)


def run_command(words: argparse.Namespace) -> int:
    """Run the parsed command; its exit code."""
    paths = locate()
    surface = Surface(words.json, paths, Settings())
    try:
        flags = {"nic": getattr(words, "nic", None), "port": getattr(words, "port", None)}
        surface.settings = load(paths, flags=flags)
        module = importlib.import_module(f"daisychain.cli.{COMMANDS[words.command]}")
        return int(asyncio.run(module.command(words, surface)))
    except DaisyError as error:
        return _explain(error, surface)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output is gone; nothing can be said to them
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _unexpected(error, surface)


def _explain(error: DaisyError, surface: Surface) -> int:
    if isinstance(error, PreflightError):
        verdicts = [
            {"node": v.node, "level": v.level, "check": v.check, "reason": v.reason, "remedy": v.remedy}
            for v in error.verdicts
        ]
        surface.event("refused", verdicts=verdicts)
        for v in error.verdicts:
            print(f"daisychain: {v.level}: {about(v)}. {v.remedy}".rstrip(), file=sys.stderr)
    else:
        surface.event("error", message=error.what, remedy=error.remedy, exit=error.exit_code)
        print(f"daisychain: {error}", file=sys.stderr)
    return error.exit_code


def _unexpected(error: Exception, surface: Surface) -> int:
    """A mistake of ours: the traceback goes to a file, its path to the person."""
    import traceback

    log = surface.paths.state / "command.log"
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as stream:
            stream.write(" ".join(sys.argv) + "\n" + "".join(traceback.format_exception(error)))
    surface.event("error", message=str(error), remedy=f"see {log}", exit=1)
    print(f"daisychain: something went wrong inside: {error}. The details are in {log}", file=sys.stderr)
    return 1
